"""Screen of the demo: progress, as a live table on a terminal or a line now and then elsewhere, and the summary."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sidecar.demo.oracle import Oracle
from sidecar.model.foreign_text import LINES, visible
from sidecar.model.stats import Stats
from sidecar.settings.api import url_of
from sidecar.settings.settings import Settings

TABLE_INTERVAL_S: Final = 0.25
LINE_INTERVAL_S: Final = 2.0
SCENES: Final = (  # what `Operator` does
    "          within a minute it shows failure groups with notes, a redrive, schedules, a paused target, a bulk",
    "          change, versions of a policy, a peak that doesn't fit, records in quarantine, and who did all this",
)


@dataclass(frozen=True, slots=True)
class View:
    """The figures of one moment."""

    elapsed_s: float
    phase: str
    sent: int
    not_sent: int
    outstanding: int
    wheel: int
    overflow: int
    fired: int
    late_p50_ms: int
    late_p99_ms: int
    retries: int
    dead: int
    quarantined: int
    redriven: int
    early: int
    lost: int
    wrong: int
    repeated: int
    foreign: int
    problem: str

    @property
    def held(self) -> int:
        """Number of records that the sidecar holds."""
        return self.wheel + self.overflow

    @property
    def faults(self) -> int:
        """Number of faults, of which there must be none. Without a crash nothing may be repeated either."""
        return self.lost + self.early + self.wrong + self.repeated


@dataclass(frozen=True, slots=True)
class Moment:
    """When a view is taken: seconds since the traffic began, epoch time, and what is going on."""

    elapsed_s: float
    now_ms: int
    phase: str


def view(moment: Moment, stats: Stats, oracle: Oracle, sent: int, not_sent: int) -> View:
    """The figures as of now."""
    return View(
        elapsed_s=moment.elapsed_s,
        phase=moment.phase,
        sent=sent,
        not_sent=not_sent,
        outstanding=oracle.outstanding,
        wheel=sum(counts.wheel for counts in stats.topics.values()),
        overflow=sum(counts.overflow for counts in stats.topics.values()),
        fired=oracle.fired,
        late_p50_ms=oracle.lateness_ms(0.5),
        late_p99_ms=oracle.lateness_ms(0.99),
        retries=oracle.retries,
        dead=oracle.dead,
        quarantined=oracle.quarantined,
        redriven=oracle.redriven,
        early=oracle.early,
        lost=oracle.lost(moment.now_ms),
        wrong=oracle.wrong,
        repeated=oracle.repeated,
        foreign=oracle.foreign,
        problem="; ".join(stats.problems),
    )


class Screen:
    """Writes to stdout. `show` draws only as often as people can read."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._next_s = 0.0

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(visible(text, LINES), markup=False, soft_wrap=True)

    def start(self) -> None:
        """Begin to show figures."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def show(self, figures: View) -> None:
        """Show figures, if it is time for it."""
        if figures.elapsed_s < self._next_s:
            return
        if self._live is not None:
            self._next_s = figures.elapsed_s + TABLE_INTERVAL_S
            self._live.update(table(figures), refresh=True)
        else:
            self._next_s = figures.elapsed_s + LINE_INTERVAL_S
            self.say(line(figures))

    def due(self, elapsed_s: float) -> bool:
        """Whether `show` would show anything."""
        return elapsed_s >= self._next_s

    def stop(self) -> None:
        """The last table stays. Twice is harmless."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def summarise(self, figures: View, faults: list[str]) -> None:
        """The figures of the whole run, one in each line, and what was wrong."""
        self.say("")
        self.say("summary")
        for name, text in rows(figures):
            self.say(f"  {name:<10} {text}")
        for fault in faults:
            self.say(f"  {fault}")
        verdict = "FAILED" if figures.faults else "ok: nothing lost, early, wrong or repeated"
        self.say(f"  {verdict}")


def rows(figures: View) -> list[tuple[str, str]]:
    """Each figure with its name and meaning."""
    unsent = f" ({figures.not_sent} could not be sent)" if figures.not_sent else ""
    shown = [
        ("sent", f"{figures.sent} delayed messages{unsent}"),
        ("held", f"{figures.held}: {figures.wheel} in memory, {figures.overflow} in the overflow"),
        ("fired", f"{figures.fired}"),
        ("lateness", f"p50 {figures.late_p50_ms} ms, p99 {figures.late_p99_ms} ms (append time minus due)"),
        ("retries", f"{figures.retries}"),
        ("dead", f"{figures.dead} dead letters, {figures.redriven} of them sent again"),
        ("aside", f"{figures.quarantined} in quarantine"),
        ("early", f"{figures.early}"),
        ("lost", f"{figures.lost}"),
        ("wrong", f"{figures.wrong}"),
        ("repeated", f"{figures.repeated}"),
    ]
    if figures.foreign:
        shown.append(("yours", f"{figures.foreign} arrived that you sent, or had redriven"))
    return shown


def table(figures: View) -> Table:
    """The live table."""
    made = Table(
        title=f"tickover demo, {figures.elapsed_s:.0f} s, {figures.phase} (Ctrl-C ends)",
        min_width=64,
        show_header=False,
    )
    made.add_column("", no_wrap=True)
    made.add_column("", min_width=48)
    for name, text in rows(figures):
        bad = name in ("early", "lost", "wrong", "repeated") and text != "0"
        made.add_row(name, text, style="bold red" if bad else "")
    if figures.problem:
        made.add_row("not ready", figures.problem, style="yellow")
    return made


def line(figures: View) -> str:
    """Figures in one line, for a pipe or a file."""
    text = (
        f"{figures.elapsed_s:4.0f} s  held {figures.wheel}+{figures.overflow}  fired {figures.fired}  "
        f"late p50 {figures.late_p50_ms} p99 {figures.late_p99_ms} ms  retries {figures.retries}  dead {figures.dead}  "
        f"early {figures.early}  lost {figures.lost}  wrong {figures.wrong}  repeated {figures.repeated}"
    )
    return f"{text}  not ready: {figures.problem}" if figures.problem else text


def invitation(settings: Settings, port: int, bootstrap: str, push: str) -> list[str]:
    """Addresses, and commands to try while the demo runs."""
    url = url_of("http", settings.api.host, port)
    program = _program()
    at = "" if port == settings.api.port and port == type(settings.api)().port else f" --url {url}"
    bearer = ' -H "authorization: Bearer $TICKOVER_TOKEN"' if settings.api.tokens_file else ""
    body = f'{{"target": "{push}", "value": "hello", "delay": "5s"}}'
    return [
        "",
        f"Console   {url}/ui/",
        *(SCENES if can_be_operated(settings) else ()),
        f"REST      {url}/docs   {url}/v1/stats   {url}/metrics",
        f"Kafka     {bootstrap}",
        "Try in another terminal:",
        f"  curl -s{bearer} {url}/v1/messages -H 'content-type: application/json' -d '{body}'",
        f"  curl -s{bearer} {url}/v1/policies",
        f"  {program} messages send --target {push} --value hello --delay 30s --id mine{at}",
        f"  {program} messages get mine{at}",
        f"  {program} messages fire mine{at}",
        f"  {program} messages list{at}",
        f"  {program} forecast{at}",
        f"  {program} dead-letters groups{at}",
        f"  {program} policies list{at}",
        "",
    ]


def can_be_operated(settings: Settings) -> bool:
    """Whether REST lets in who has no token and trusts no certificate."""
    return not settings.api.authenticates and settings.api.scheme == "http"


def _program() -> str:
    """How the user calls this program, from where they are."""
    called = Path(sys.argv[0])
    if called.name != "tickover":
        return "tickover"
    with suppress(ValueError):
        return str(called.relative_to(Path.cwd()))
    return str(called)
