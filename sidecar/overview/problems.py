"""Problems of a group, in sentences: who, since when, how much, what goes on, what happens next, what mends it.

Pure: from one look at the group.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import Report, Wait
from sidecar.model.condition import Kind, PauseKind
from sidecar.model.record import TopicPartition
from sidecar.model.times import duration, rfc_3339
from sidecar.overview.seen import Seen

NAMED_MAX: Final = 3  # partitions that a sentence names
PAUSES_NAMED_MAX: Final = 20  # of up to 1,000, the oldest first
OVERDUE_MS: Final = 60_000  # what waits longer is a problem
SILENT_TURN_MS: Final = 3_000  # an engine turns many times a second
SKEW_MS: Final = 1_000  # how far a clock may be off before it is told
GONE_MS: Final = 10_000  # who gave no sign for so long has ended, as far as one can tell
DOCTOR: Final = "tickover doctor"
PAUSED: Final = {
    PauseKind.POLICY: "What it has decided and is due waits",
    PauseKind.SOURCE: "Nothing new of it is read",
    PauseKind.TARGET: "What is due for it waits; other targets go on",
    PauseKind.SCHEDULE: "It writes nothing",
}


class Level(StrEnum):
    """How bad: something waits or is lost now (`bad`), or may be later (`warn`)."""

    BAD = "bad"
    WARN = "warn"


class Fault(NamedTuple):
    """One thing that is wrong. `since_ms`: epoch ms, -1 where nobody knows; `fix`: a command, or ""."""

    level: Level
    kind: str
    subject: str  # a target, a partition or a replica; "": the group
    replicas: tuple[str, ...]
    since_ms: int
    text: str
    fix: str = ""


def problems_of(seen: Seen) -> list[Fault]:
    """All that is wrong, the worst first."""
    found = [
        *_of_redis(seen),
        *(_silent(sign, seen.at_ms) for sign in seen.silent),
        *_of_processes(seen.reports),
        *_suspended(seen),
        *_breakers(seen),
        *_rebuilds(seen.reports, seen.at_ms),
        *_recovering(seen),
        *_rates(seen),
        *_overdue(seen.reports),
        *_pauses(seen),
        *_warnings(seen.reports),
    ]
    return sorted(found, key=lambda problem: problem.level is Level.WARN)


# --- replicas -----------------------------------------------------------------------------------------------------


def _of_redis(seen: Seen) -> Iterator[Fault]:
    if seen.overview.problem:
        text = f"The other replicas can't be asked: {_ended(seen.overview.problem)} These figures are of one process."
        yield Fault(Level.BAD, "replicas", "", (), -1, text, DOCTOR)


def _silent(sign: Sign, now_ms: int) -> Fault:
    if now_ms - sign.at_ms >= GONE_MS:
        what = f"has given no sign of life {_since(sign.at_ms, now_ms)}, and has not stopped in order"
        then = "The group gives its partitions to the others."
    else:
        what, then = "lives but has not answered in time", "What it holds is missing in these figures."
    return Fault(Level.BAD, "silent", sign.replica, (sign.replica,), sign.at_ms, f"{sign.replica} {what}. {then}")


def _of_processes(reports: Iterable[Report]) -> Iterator[Fault]:
    for report in reports:
        for kind, text, fix in _faults(report):
            since_ms = _begin(report, Kind.KAFKA if kind == "kafka" else Kind.REDIS if kind == "redis" else None)
            yield Fault(Level.BAD, kind, report.replica, (report.replica,), since_ms, text, fix)
        if abs(report.clock_skew_ms) >= SKEW_MS:
            way = "ahead of" if report.clock_skew_ms > 0 else "behind"
            text = f"The clock of {report.replica} is {duration(abs(report.clock_skew_ms))} {way} the brokers'. "
            text += "Messages fire by the brokers' clock all the same."
            yield Fault(Level.WARN, "clock", report.replica, (report.replica,), -1, text)


def _faults(report: Report) -> Iterator[tuple[str, str, str]]:
    """Kind, sentence and fix of what is wrong with one process."""
    who = report.replica
    if report.turn_age_ms >= SILENT_TURN_MS:
        text = f"The engine of {who} has not turned for {duration(report.turn_age_ms)}: nothing that it holds is "
        yield "stalled", f"{text}emitted. After 10 s /livez says so, and whoever watches it starts another one.", ""
    if report.group_problem:
        text = f"{who} has no partitions: {_ended(report.group_problem)} It begins when the group gives it some."
        yield "group", text, DOCTOR
    if report.kafka_problem:
        text = f"{who} can't work with Kafka: {_ended(report.kafka_problem)} What is held waits, and nothing is lost."
        yield "kafka", text, DOCTOR
    if report.overflow_problem:
        text = f"{who} has a problem with Redis: {_ended(report.overflow_problem)} "
        yield "redis", f"{text}What is held in memory goes on; far messages wait in Redis.", DOCTOR
    if report.forecast_problem:
        text = f"{who} can't say what is due when: {_ended(report.forecast_problem)}"
        yield "forecast", f"{text} Messages go on.", DOCTOR
    if report.early:
        yield "early", f"{who} has emitted {_count(report.early, 'message')} before their time. This is a fault.", ""
    if report.ledger_imbalance:
        text = f"The accounts of {who} differ by {_count(abs(report.ledger_imbalance), 'message')}. This is a fault: "
        yield "imbalance", f"{text}reconcile the ledger.", "tickover pipeline reconcile"


# --- targets ------------------------------------------------------------------------------------------------------


def _suspended(seen: Seen) -> Iterator[Fault]:
    for target, who in _by_target((target, report) for report in seen.reports for target in report.suspended):
        since_ms = _earliest(who, Kind.SUSPENDED, target)
        waiting = _waiting(who, target)
        text = f"{target} has not acknowledged {_since(since_ms, seen.at_ms)}. "
        text += f"{waiting or 'What is due for it'} waits; other targets go on. tickover tries again by itself."
        yield Fault(Level.BAD, "suspended", target, _names(who), since_ms, text, DOCTOR)


def _breakers(seen: Seen) -> Iterator[Fault]:
    told = (
        (one.topic, report) for report in seen.reports for one in report.targets if one.breaker in ("open", "half_open")
    )
    for target, who in _by_target(told):
        since_ms = _earliest(who, Kind.BREAKER, target)
        state = "half open" if all(_is_half_open(report, target) for report in who) else "open"
        text = f"The breaker of {target} is {state} {_since(since_ms, seen.at_ms)}: "
        text += "too many retries failed, or somebody opened it. "
        text += f"{_waiting(who, target) or 'What is due for it'} waits; delayed messages go on. "
        text += "When its time is over a few retries are let through, and it closes if they succeed. "
        text += "The command lets them through now."
        fix = _command("targets", "close-breaker", target)
        yield Fault(Level.BAD, "breaker", target, _names(who), since_ms, text, fix)


def _rates(seen: Seen) -> Iterator[Fault]:
    told = ((wait.topic, report) for report in seen.reports for wait in report.waits if wait.kind == Kind.RATE)
    for target, who in _by_target(told):
        since_ms = _earliest(who, Kind.RATE, target)
        text = f"More is due for {target} than its rate lets through {_since(since_ms, seen.at_ms)}. "
        text += f"{_waiting(who, target) or 'What is due for it'} waits its turn; other targets go on."
        yield Fault(Level.WARN, "rate", target, _names(who), since_ms, text, "tickover forecast")


def _pauses(seen: Seen) -> Iterator[Fault]:
    told = sorted(seen.pauses.items(), key=lambda item: item[1].since_ms)
    for (kind, name), pause in told[:PAUSES_NAMED_MAX]:
        until = "somebody resumes it" if pause.until_ms < 0 else rfc_3339(pause.until_ms)
        text = f"The {kind} {name} is paused {_since(pause.since_ms, seen.at_ms)} by {pause.by}: "
        text += f"{_ended(pause.reason)} {PAUSED[kind]}. So it is until {until}."
        yield Fault(Level.WARN, "paused", name, (), pause.since_ms, text, _command("pauses", "remove", kind, name))
    if (more := len(told) - PAUSES_NAMED_MAX) > 0:
        text = f"{_count(more, 'more thing')} {'is' if more == 1 else 'are'} paused."
        yield Fault(Level.WARN, "paused", "", (), -1, text, "tickover pauses list")


# --- partitions ---------------------------------------------------------------------------------------------------


def _rebuilds(reports: Iterable[Report], now_ms: int) -> Iterator[Fault]:
    for report in reports:
        for one in report.rebuilding:
            place = TopicPartition(one.topic, one.partition)
            since_ms = min(_begins(report, Kind.REBUILD, *place), default=-1)
            read = "it waits for its turn" if one.read_share < 0 else f"{one.read_share:.0%} of the ledger is read"
            begun = f" {_since(since_ms, now_ms)}" if since_ms >= 0 else ""
            text = f"Redis has lost what it held of {_place(place)}. {report.replica} writes it again{begun}"
            text += f": {one.done:,} of {one.held:,}, {read}. "
            text += f"{_ended(one.problem)} " if one.problem else ""
            text += "Messages of other partitions go on."
            yield Fault(Level.BAD, "rebuild", _place(place), (report.replica,), since_ms, text)


def _recovering(seen: Seen) -> Iterator[Fault]:
    recovering = {
        TopicPartition(wait.topic, wait.partition)
        for report in seen.reports
        for wait in report.waits
        if wait.kind == Kind.RECOVERING
    }
    for report in seen.reports:
        if report.recovering:
            since_ms = min(_begins(report, Kind.RECOVERING), default=-1)
            text = f"{report.replica} recovers {_count(report.recovering, 'partition')} {_since(since_ms, seen.at_ms)}"
            text += ". Their messages wait; others go on."
            yield Fault(Level.WARN, "recovering", report.replica, (report.replica,), since_ms, text)
    nobody = [lane for lane in seen.overview.missing if lane not in recovering]
    if nobody and not seen.overview.problem:
        text = f"No replica answers for {_places(nobody)}: what they hold is missing in these figures."
        yield Fault(Level.BAD, "missing", "", (), -1, text, "tickover replicas")


def _overdue(reports: Sequence[Report]) -> Iterator[Fault]:
    oldest = max(reports, key=lambda report: report.oldest_overdue_ms, default=None)
    if oldest is not None and oldest.oldest_overdue_ms >= OVERDUE_MS:
        text = f"The oldest message that is due waits for {duration(oldest.oldest_overdue_ms)}, on {oldest.replica}."
        since_ms = max(oldest.at_ms - oldest.oldest_overdue_ms, 0)
        fix = "tickover messages list --due-to " + (rfc_3339(max(oldest.at_ms - OVERDUE_MS, 0)) or "")
        yield Fault(Level.WARN, "overdue", "", (oldest.replica,), since_ms, text, fix)


def _warnings(reports: Iterable[Report]) -> Iterator[Fault]:
    """Warnings of /readyz, each once."""
    by_text: defaultdict[str, list[str]] = defaultdict(list)
    for report in reports:
        for text in report.warnings:
            by_text[text].append(report.replica)
    for text, who in by_text.items():
        yield Fault(Level.WARN, "warning", "", tuple(who), -1, _ended(text), DOCTOR)


# --- words --------------------------------------------------------------------------------------------------------


def _by_target(told: Iterable[tuple[str, Report]]) -> list[tuple[str, list[Report]]]:
    found: defaultdict[str, list[Report]] = defaultdict(list)
    for target, report in told:
        found[target].append(report)
    return sorted(found.items())


def _is_half_open(report: Report, target: str) -> bool:
    return all(one.breaker != "open" for one in report.targets if one.topic == target)


def _names(reports: Iterable[Report]) -> tuple[str, ...]:
    return tuple(report.replica for report in reports)


def _begins(report: Report, kind: Kind, topic: str | None = None, partition: int | None = None) -> list[int]:
    def is_meant(wait: Wait) -> bool:
        return wait.kind == kind and topic in (None, wait.topic) and partition in (None, wait.partition)

    return [wait.since_ms for wait in report.waits if is_meant(wait) and wait.since_ms >= 0]


def _begin(report: Report, kind: Kind | None) -> int:
    return -1 if kind is None else min(_begins(report, kind), default=-1)


def _earliest(reports: Iterable[Report], kind: Kind, target: str) -> int:
    return min((begin for report in reports for begin in _begins(report, kind, target)), default=-1)


def _waiting(reports: Iterable[Report], target: str) -> str:
    """How many messages wait for a target; "" where nobody counts them."""
    count = sum(one.waiting for report in reports for one in report.targets if one.topic == target)
    return f"A queue of {_count(count, 'message')}" if count else ""


def _since(since_ms: int, now_ms: int) -> str:
    if since_ms < 0:
        return "for a moment"
    when = (rfc_3339(since_ms) or "")[11:19]
    return f"since {when} UTC ({duration(max(now_ms - since_ms, 0))})"


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _place(lane: TopicPartition) -> str:
    return f"{lane.topic}/{lane.partition}"


def _places(lanes: Sequence[TopicPartition]) -> str:
    named = ", ".join(map(_place, lanes[:NAMED_MAX]))
    more = len(lanes) - NAMED_MAX
    return named + (f" and {_count(more, 'more partition')}" if more > 0 else "")


def _command(group: str, action: str, *names: str) -> str:
    """A command of tickover; a name that begins with a dash is no option."""
    return shlex.join(["tickover", group, action, *(["--"] if names[-1].startswith("-") else []), *names])


def _ended(text: str) -> str:
    """As a sentence."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
