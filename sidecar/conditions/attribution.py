"""Attribution of a record's lateness to recorded conditions: what lay between due and settled. Pure.

The time is given away piece by piece. Each cause takes what is left of the times at which it was there, in the order
of `_ORDER`: what stands earlier on a record's way comes first, since behind it nothing else mattered.

    due                                                                  settled
     |---- unowned ----|-- recovering --|---- rate ----|---- unaccounted ---|settle|

A condition counts only where it can have kept this record waiting:
* of a partition: the record's own;
* of a target, or of a process: while that process had the partition, by what it recorded itself;
* Redis and a rebuild: only for a record that was in the overflow; a breaker: only for a retry. Of a record that is held
  in memory nobody knows where it came from: there they count last, where nothing else was in the way.

Where no process is recorded as the partition's owner, and owners are recorded before and after, nobody had it. Before
the first one that is recorded, nothing is known: `not_recorded`, as is all of it where Redis could not be asked.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.conditions.time_ranges import Range, common, united, without
from sidecar.model.condition import OF_PARTITIONS, OF_TARGETS, Kind, Subject
from sidecar.model.record import TopicPartition


class Span(NamedTuple):
    """A condition of one process from when to when, epoch ms. `run`: one start of a process; `replica`: its name."""

    subject: Subject
    from_ms: int
    to_ms: int
    run: str
    replica: str


class Recorded(NamedTuple):
    """Spans that are known, as of `now_ms`. `problem`: why some may be missing; empty: Redis has answered."""

    spans: Sequence[Span]
    now_ms: int
    problem: str = ""


class Cause(StrEnum):
    """Causes of lateness. The values are public."""

    SETTLE = "settle"
    UNOWNED = "unowned"
    RECOVERING = "recovering"
    STALLED = "stalled"
    KAFKA = "kafka"
    REBUILD = "rebuild"
    REDIS = "redis"
    BREAKER = "breaker"
    RATE = "rate"
    SUSPENDED = "suspended"
    ORDER = "order"
    PAUSED = "paused"
    UNACCOUNTED = "unaccounted"
    NOT_RECORDED = "not_recorded"


class Known(StrEnum):
    """Things that a cause is recorded of: the record itself, its partition, its target, or the process that had it."""

    RECORD = "record"
    PARTITION = "partition"
    TARGET = "target"
    PROCESS = "process"
    NOTHING = "nothing"


class Late(NamedTuple):
    """A record that is late, as ledger or look-up has it; epoch ms.

    `until_ms`: when it was settled, or now while it is held. `written_ms`: when its block was written, -1 while held.
    `was_far`: the overflow had it; None: not known.
    """

    lane: TopicPartition
    target: str
    due_ms: int
    until_ms: int
    written_ms: int = -1
    is_retry: bool = False
    was_far: bool | None = False


class Part(NamedTuple):
    """A piece of the lateness. `replica`: whose record it is; of `unowned` who had the partition last."""

    from_ms: int
    to_ms: int
    cause: Cause
    known: Known
    replica: str = ""


# RUNNING is no cause. While a target is suspended, nothing is let through to it: what waits for its rate or its breaker
# then waits because of that. A slow settlement stands behind what keeps records from being handed over.
_ORDER: Final = (
    Kind.RECOVERING, Kind.STALLED, Kind.KAFKA, Kind.REBUILD, Kind.REDIS, Kind.SUSPENDED, Kind.BREAKER, Kind.RATE,
    Kind.ORDER, Kind.SETTLE, Kind.PAUSED,
)  # fmt: skip
OWNED: Final = (Kind.RUNNING, Kind.RECOVERING)
_OF_FAR: Final = (Kind.REBUILD, Kind.REDIS)
_ORDER_OF_UNKNOWN: Final = (*(kind for kind in _ORDER if kind not in _OF_FAR), *_OF_FAR)


def attributed(late: Late, recorded: Recorded) -> list[Part]:
    """Parts of the time from due to the end, in order: they touch, and their sum is the lateness. Empty: not late."""
    left = united([(late.due_ms, late.until_ms)])
    owned = _owned(late.lane, recorded.spans)
    parts: list[Part] = []

    def give(ranges: Sequence[Range], cause: Cause, known: Known, replica: str = "") -> None:
        nonlocal left
        parts.extend(Part(*one, cause, known, replica) for one in common(left, ranges))
        left = without(left, ranges)

    if late.written_ms >= 0:
        give(united([(late.written_ms, late.until_ms)]), Cause.SETTLE, Known.RECORD)
    for gap, last in _unowned(late, recorded, owned.values()):
        give([gap], Cause.UNOWNED, Known.PARTITION, last)
    for kind in _ORDER if late.was_far is not None else _ORDER_OF_UNKNOWN:
        for (run, replica), ranges in _ranges(kind, late, recorded.spans).items():
            here = ranges if kind in OF_PARTITIONS else common(ranges, united(owned[run]))
            give(here, Cause(kind), _known(kind), replica)
    give(united(one for ranges in owned.values() for one in ranges), Cause.UNACCOUNTED, Known.PARTITION)
    give(left, Cause.NOT_RECORDED, Known.NOTHING)
    return _joined(parts)


def _owned(lane: TopicPartition, spans: Iterable[Span]) -> dict[str, list[Range]]:
    """When each run had the partition."""
    owned: defaultdict[str, list[Range]] = defaultdict(list)
    for span in spans:
        if span.subject.kind in OWNED and span.subject[1:] == lane:
            owned[span.run].append((span.from_ms, span.to_ms))
    return owned


def _unowned(late: Late, recorded: Recorded, owned: Iterable[Sequence[Range]]) -> Iterator[tuple[Range, str]]:
    """Gaps between the partition's recorded owners, each with who had it last.

    While some process could not reach Redis, what was owned may not have been written: such times are no gap.
    """
    if recorded.problem:
        return
    had = united(one for ranges in owned for one in ranges)
    away = united((one.from_ms, one.to_ms) for one in recorded.spans if one.subject.kind is Kind.REDIS)
    ends = [*had, (recorded.now_ms, recorded.now_ms)]
    for (_, end), (begin, _) in zip(had, ends[1:], strict=True):
        last = next(one.replica for one in recorded.spans if _is_owner(one, late.lane) and one.to_ms == end)
        for gap in without(united([(end, begin)]), away):
            yield gap, last


def _is_owner(span: Span, lane: TopicPartition) -> bool:
    return span.subject.kind in OWNED and span.subject[1:] == lane


def _ranges(kind: Kind, late: Late, spans: Iterable[Span]) -> Mapping[tuple[str, str], list[Range]]:
    """When this kind of condition was there for such a record, by run and replica."""
    if (kind in _OF_FAR and late.was_far is False) or (kind is Kind.BREAKER and not late.is_retry):
        return {}
    if kind in OF_PARTITIONS:
        subject = Subject(kind, *late.lane)
    else:
        subject = Subject(kind, late.target if kind in OF_TARGETS else "")
    found: defaultdict[tuple[str, str], list[Range]] = defaultdict(list)
    for span in spans:
        if span.subject == subject:
            found[span.run, span.replica].append((span.from_ms, span.to_ms))
    return {whose: united(ranges) for whose, ranges in sorted(found.items())}


def _known(kind: Kind) -> Known:
    if kind in OF_PARTITIONS:
        return Known.PARTITION
    return Known.TARGET if kind in OF_TARGETS else Known.PROCESS


def _joined(parts: Iterable[Part]) -> list[Part]:
    """In order of time, neighbours of the same cause as one."""
    joined: list[Part] = []
    for part in sorted(parts):
        if joined and joined[-1].to_ms == part.from_ms and joined[-1][2:] == part[2:]:
            joined[-1] = joined[-1]._replace(to_ms=part.to_ms)
        else:
            joined.append(part)
    return joined
