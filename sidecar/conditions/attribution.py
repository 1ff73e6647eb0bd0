"""Attribution of a record's lateness to recorded conditions: what lay between due and settled. Pure.

The time is given away piece by piece. Each cause takes what is left of the times at which it was there, in the order
of `_ORDER`: what stands earlier on a record's way comes first, since behind it nothing else mattered.

    due                                                                  settled
     |---- unowned ----|-- recovering --|---- rate ----|---- unaccounted ---|settle|

A condition counts only where it can have kept this record waiting:
* of a partition: the record's own;
* of a target, a policy, a source, or of a process: while that process had the partition, by what it recorded itself;
* Redis and a rebuild: only for a record that was in the overflow; a breaker: only for a retry. Of a record that is held
  in memory nobody knows where it came from: there they count last, where nothing else was in the way.

A partition that its owner let go of in order, since it stopped or the group said so, is `revoked` from then on until
its next owner begins: of what falls due then the former one emits nothing, though it settles for a moment yet.

Else, where no process is recorded as the partition's owner, and owners are recorded before and after, nobody had it.
Before the first one that is recorded, nothing is known: `not_recorded`, as is all of it where Redis could not be asked.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from sidecar.conditions.time_ranges import Range, common, united, without
from sidecar.model.condition import OF_PARTITIONS, OF_POLICIES, OF_SOURCES, OF_TARGETS, Kind, Subject
from sidecar.model.record import TopicPartition


class Span(NamedTuple):
    """A condition of one process from when to when, epoch ms. `run`: one start of a process; `replica`: its name."""

    subject: Subject
    from_ms: int
    to_ms: int
    run: str
    replica: str


class Sign(NamedTuple):
    """Sign of life of one run of a process that has, or had, something of the group: its name, and when, epoch ms."""

    run: str
    replica: str
    at_ms: int


class Recorded(NamedTuple):
    """Spans that are known, as of `now_ms`. `problem`: why some may be missing; empty: Redis has answered."""

    spans: Sequence[Span]
    now_ms: int
    problem: str = ""


class Cause(StrEnum):
    """Causes of lateness. The values are public."""

    SETTLE = "settle"
    REVOKED = "revoked"
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
    TARGET_PAUSED = "target_paused"
    POLICY_PAUSED = "policy_paused"
    SOURCE_PAUSED = "source_paused"
    UNACCOUNTED = "unaccounted"
    NOT_RECORDED = "not_recorded"


class Known(StrEnum):
    """Things that a cause is recorded of: the record itself, its partition, target, policy or source, or the process
    that had it.
    """

    RECORD = "record"
    PARTITION = "partition"
    TARGET = "target"
    POLICY = "policy"
    SOURCE = "source"
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
    policy: str = ""  # name@version


class Part(NamedTuple):
    """A piece of the lateness. `replica`: whose record it is; of `revoked` and `unowned` who had the partition last."""

    from_ms: int
    to_ms: int
    cause: Cause
    known: Known
    replica: str = ""


# RUNNING is no cause. What waits for a pause waits for nothing else. While a target is suspended, nothing is let
# through to it: what waits for its rate or its breaker then waits because of that. A slow settlement stands behind what
# keeps records from being handed over. A source that isn't read comes last: a record that is late is held already.
_ORDER: Final = (
    Kind.TARGET_PAUSED, Kind.POLICY_PAUSED, Kind.RECOVERING, Kind.STALLED, Kind.KAFKA, Kind.REBUILD, Kind.REDIS,
    Kind.SUSPENDED, Kind.BREAKER, Kind.RATE, Kind.ORDER, Kind.SETTLE, Kind.SOURCE_PAUSED, Kind.PAUSED,
)  # fmt: skip
OWNED: Final = (Kind.RUNNING, Kind.RECOVERING)
OF_OWNERS: Final = (*OWNED, Kind.REVOKED)
_OF_FAR: Final = (Kind.REBUILD, Kind.REDIS)
_ORDER_OF_UNKNOWN: Final = (*(kind for kind in _ORDER if kind not in _OF_FAR), *_OF_FAR)


def subjects_of(late: Late) -> frozenset[Subject]:
    """Subjects of the conditions that can concern such a record: its partition, its target, and processes."""
    return frozenset(_subject(kind, late) for kind in Kind)


def attributed(late: Late, recorded: Recorded) -> list[Part]:
    """Parts of the time from due to the end, in order: they touch, and their sum is the lateness. Empty: not late."""
    left = united([(late.due_ms, late.until_ms)])
    spans = _by_subject(recorded.spans)
    owners = [span for kind in OWNED for span in spans[_subject(kind, late)]]
    owned = _ranges(owners)
    parts: list[Part] = []

    def give(ranges: Sequence[Range], cause: Cause, known: Known, replica: str = "") -> None:
        nonlocal left
        parts.extend(Part(*one, cause, known, replica) for one in common(left, ranges))
        left = without(left, ranges)

    if late.written_ms >= 0:
        give(united([(late.written_ms, late.until_ms)]), Cause.SETTLE, Known.RECORD)
    if not recorded.problem:
        away = united((one.from_ms, one.to_ms) for one in spans[Subject(Kind.REDIS)])
        for span in spans[_subject(Kind.REVOKED, late)]:
            revoked = united([(span.from_ms, _next_begin(span, owners, recorded.now_ms))])
            give(without(revoked, away), Cause.REVOKED, Known.PARTITION, span.replica)
        for last, gaps in _unowned(owners, recorded.now_ms).items():
            give(without(gaps, away), Cause.UNOWNED, Known.PARTITION, last)
    for kind in _ORDER if late.was_far is not None else _ORDER_OF_UNKNOWN:
        if (kind in _OF_FAR and late.was_far is False) or (kind is Kind.BREAKER and not late.is_retry):
            continue
        for (run, replica), ranges in sorted(_ranges(spans[_subject(kind, late)]).items()):
            here = ranges if kind in OF_PARTITIONS else common(ranges, owned.get((run, replica), ()))
            give(here, Cause(kind), _known(kind), replica)
    give(united(one for ranges in owned.values() for one in ranges), Cause.UNACCOUNTED, Known.PARTITION)
    give(left, Cause.NOT_RECORDED, Known.NOTHING)
    return _joined(parts)


def _subject(kind: Kind, late: Late) -> Subject:
    """Subject of a condition of this kind that concerns such a record."""
    if kind in OF_PARTITIONS:
        return Subject(kind, *late.lane)
    if kind in OF_TARGETS:
        return Subject(kind, late.target)
    if kind in OF_POLICIES:
        return Subject(kind, late.policy.rpartition("@")[0])
    return Subject(kind, late.lane.topic if kind in OF_SOURCES else "")


def _by_subject(spans: Iterable[Span]) -> Mapping[Subject, list[Span]]:
    found: defaultdict[Subject, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.subject].append(span)
    return found


def _ranges(spans: Iterable[Span]) -> dict[tuple[str, str], list[Range]]:
    """When some span was there, by run and replica."""
    found: defaultdict[tuple[str, str], list[Range]] = defaultdict(list)
    for span in spans:
        found[span.run, span.replica].append((span.from_ms, span.to_ms))
    return {whose: united(ranges) for whose, ranges in found.items()}


def _next_begin(revoked: Span, owners: Iterable[Span], now_ms: int) -> int:
    """When the next owner of the partition began, `now_ms` if none has: never before it was let go, whatever another
    clock says.
    """
    since_ms = revoked.from_ms
    others = [max(one.from_ms, since_ms) for one in owners if one.run != revoked.run and one.to_ms > since_ms]
    return min([now_ms, *others, *(one.from_ms for one in owners if one.run == revoked.run and one.from_ms > since_ms)])


def _unowned(owners: Sequence[Span], now_ms: int) -> dict[str, list[Range]]:
    """Gaps between the partition's recorded owners, by who had it last.

    While some process could not reach Redis, what was owned may not have been written: then there is no saying.
    """
    had = united((one.from_ms, one.to_ms) for one in owners)
    last = {one.to_ms: one.replica for one in owners}
    gaps: defaultdict[str, list[Range]] = defaultdict(list)
    for (_, end), (begin, _) in zip(had, [*had, (now_ms, now_ms)][1:], strict=True):
        if end < begin:
            gaps[last[end]].append((end, begin))
    return gaps


def _known(kind: Kind) -> Known:
    if kind in OF_PARTITIONS:
        return Known.PARTITION
    if kind in OF_TARGETS:
        return Known.TARGET
    if kind in OF_POLICIES:
        return Known.POLICY
    return Known.SOURCE if kind in OF_SOURCES else Known.PROCESS


def _joined(parts: Iterable[Part]) -> list[Part]:
    """In order of time, neighbours of the same cause as one."""
    joined: list[Part] = []
    for part in sorted(parts):
        if joined and joined[-1].to_ms == part.from_ms and joined[-1][2:] == part[2:]:
            joined[-1] = joined[-1]._replace(to_ms=part.to_ms)
        else:
            joined.append(part)
    return joined
