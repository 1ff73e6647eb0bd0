"""The screen of `tickover top`: problems first, then figures, then the hour before and the hour to come. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sidecar.cli.overview.figures import (
    REPLICA_COLUMNS,
    bars,
    lateness,
    per_second,
    replica_line,
    short,
)
from sidecar.model.foreign_text import visible
from sidecar.model.times import duration

PROBLEMS_MAX: Final = 6  # that a screen shows; the others are counted
STYLES: Final = {"bad": "bold red", "warn": "yellow"}
NUMBERS: Final = frozenset(("partitions", "lag", "wheel", "overflow", "emitted_per_s", "memory_mb"))
HELP: Final = "q ends"


class View(NamedTuple):
    """The last answers: the overview, its processes, and why it isn't told anew (empty: it is)."""

    overview: Mapping[str, Any]
    replicas: Sequence[Mapping[str, Any]]
    stale: str = ""


def screen(view: View) -> RenderableType:
    """All of it, for any width."""
    return Group(_heading(view), *_problems(view.overview), "", _figures(view.overview), "", _hours(view.overview), "",
                 _replicas(view.replicas))  # fmt: skip


def _heading(view: View) -> Text:
    document = view.overview
    words = Text.assemble(
        ("tickover", "bold"), f"  {visible(document['group'])}, {document['guarantee'].replace('_', ' ')}",
        f"  {document['as_of_utc'][11:19]} UTC  ", (HELP, "dim"),
    )  # fmt: skip
    if view.stale:
        words.append(f"\nnot refreshed: {visible(view.stale)}", STYLES["bad"])
    return words


def _problems(document: Mapping[str, Any]) -> list[RenderableType]:
    problems = document["problems"]
    if not problems:
        return [Text("All is well.", "green")]
    told: list[RenderableType] = []
    for one in problems[:PROBLEMS_MAX]:
        told.append(Text(f"{one['level']:4}  {visible(one['text'])}", STYLES.get(one["level"], "")))
        if one["fix"]:
            told.append(Text(f"      {visible(one['fix'])}", "dim"))
    if len(problems) > PROBLEMS_MAX:
        told.append(Text(f"      and {len(problems) - PROBLEMS_MAX} more: tickover overview", "dim"))
    return told


def _figures(document: Mapping[str, Any]) -> Table:
    held, due, minute, hour = (document[name] for name in ("held", "due", "last_minute", "hour"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for _ in range(4):
        table.add_column()
    total = held["wheel"] + held["overflow"]
    near_and_far = f"{short(held['wheel'])} near, {short(held['overflow'])} far"
    overdue = f"oldest {duration(document['oldest_overdue_ms'])}" if document["oldest_overdue_ms"] else "nothing waits"
    rows = (
        ("held", short(total), near_and_far),
        ("due in the hour", short(due["hour"]), f"{short(due['later'])} later"),
        ("overdue", short(due["overdue"]), overdue),
        ("lateness p50 / p99", lateness(minute), "last minute"),
        ("emitted", f"{per_second(minute, 'emitted')}/s", f"{short(hour['emitted'])} in the hour"),
        ("retried", f"{per_second(minute, 'retried')}/s", f"{short(hour['retried'])} in the hour"),
        ("dead", short(minute["dead"]), f"{short(hour['dead'])} in the hour"),
        ("quarantined", short(minute["quarantined"]), f"{short(hour['quarantined'])} in the hour"),
    )
    for name, value, more in rows:
        table.add_row(name, Text(value, "bold"), Text(more, "dim"))
    return table


def _hours(document: Mapping[str, Any]) -> Table:
    """A column for each minute."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="crop")
    table.add_column(no_wrap=True)
    past, due = document["hour"]["minutes"], [one["held"] for one in document["due"]["minutes"]]
    emitted = [one["emitted"] for one in past]
    late = [one["lateness_ms"]["p99"] for one in past]
    latest = max((one for one in late if one is not None), default=0)
    most = "at most {} a minute"
    table.add_row("emitted, last hour", bars(emitted), Text(most.format(short(max(emitted, default=0))), "dim"))
    table.add_row("p99, last hour", Text(bars(late), "yellow"), Text(f"at most {duration(latest)}", "dim"))
    table.add_row("due, next hour", Text(bars(due), "blue"), Text(most.format(short(max(due, default=0))), "dim"))
    return table


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in REPLICA_COLUMNS:
        table.add_column(name.replace("_", " ").upper(), justify="right" if name in NUMBERS else "left")
    for item in replicas:
        line = replica_line(item)
        style = "" if item["state"] == "running" else STYLES["bad" if item["state"] == "silent" else "warn"]
        table.add_row(*(Text(_cell(line.get(name))) for name in REPLICA_COLUMNS), style=style)
    return table


def _cell(value: Any) -> str:
    return "-" if value is None else visible(str(value))
