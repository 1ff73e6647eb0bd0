"""Snapshots become spans: what began and ended, what a frozen process shows, and what waits while Redis is away."""

import time
from dataclasses import replace

import pytest

from sidecar.conditions import recorder as recorder_module
from sidecar.conditions.attribution import Late, Span, attributed, subjects_of
from sidecar.conditions.recorder import JOINED_BY_MS, ConditionRecorder, prolonged
from sidecar.model.condition import Condition, Kind, Subject
from sidecar.model.record import TopicPartition
from sidecar.model.stats import Stats
from sidecar.overflow.interface import OverflowUnavailable

MAIL = Subject(Kind.SUSPENDED, "mail")
ALL = subjects_of(Late(TopicPartition("reminders", 3), "mail", 0, 0))
HERE = Subject(Kind.RUNNING, "reminders", 3)


class MemorySpanLog:
    """Keeps what it is given, unless Redis is away."""

    run = "run-1"

    def __init__(self) -> None:
        self.ended: list[Span] = []
        self.under_way: list[Span] = []
        self.is_away = False

    def write(self, ended: list[Span], under_way: list[Span], at_ms: int) -> None:
        if self.is_away:
            raise OverflowUnavailable("Redis does not answer")
        self.ended += ended
        self.under_way = under_way

    def read(self, since_ms: int) -> tuple[list[Span], list[Span]]:
        if self.is_away:
            raise OverflowUnavailable("Redis does not answer")
        return [span for span in self.ended if span.to_ms > since_ms], self.under_way


class Bench:
    """A recorder of an engine whose snapshots the test makes."""

    def __init__(self) -> None:
        self.log = MemorySpanLog()
        self.stats = Stats(replica="here")
        self.age_s = 0.5  # of the snapshot
        self.recorder = ConditionRecorder(
            lambda: self.stats, self.log, lambda: self.stats.turned_monotonic_s + self.age_s
        )

    def at(self, second: float, *there: Subject | Condition) -> None:
        """A snapshot of a process that runs, and a sample of it."""
        conditions = tuple(one if isinstance(one, Condition) else Condition(one) for one in there)
        self.stats = replace(
            self.stats, at_ms=100_000 + int(second * 1_000), turned_monotonic_s=second + 1.0, conditions=conditions
        )
        self.recorder.sample()

    def rest(self, second: int) -> None:
        """Nothing but owning the partition from then on, until nothing that ended before may be joined."""
        for later in range(second, second + JOINED_BY_MS // 1_000 + 2):
            self.at(later, HERE)

    def told(self) -> list[tuple[str, int, int]]:
        """Spans that were kept, in seconds."""
        return [(one.subject.kind, one.from_ms // 1_000 - 100, one.to_ms // 1_000 - 100) for one in self.log.ended]


def test_what_begins_and_ends_is_a_span() -> None:
    bench = Bench()
    for second in range(5):
        bench.at(second, HERE, *((MAIL,) if second >= 2 else ()))
    bench.rest(5)
    bench.recorder.write()
    assert bench.told() == [("suspended", 2, 5)]
    [under_way] = bench.log.under_way
    assert under_way == Span(HERE, 100_000, 110_000, "run-1", "here")
    bench.recorder.stop()
    assert bench.told() == [("suspended", 2, 5), ("running", 0, 10)]
    assert bench.log.ended[-1].to_ms == 110_500, "it had the partition until it stopped"
    assert bench.log.under_way == []
    bench.recorder.stop()
    assert len(bench.log.ended) == 2


GONE = Subject(Kind.REVOKED, "reminders", 3)


def test_a_stop_in_order_is_kept_with_its_begin() -> None:
    bench = Bench()
    bench.at(0, HERE)
    bench.at(1, HERE)
    bench.at(4, Condition(GONE, 101_500))  # it has settled meanwhile
    bench.recorder.stop()
    assert sorted(bench.told()) == [("revoked", 1, 4), ("running", 0, 4)]


def test_each_time_that_a_partition_was_let_go_is_told() -> None:
    bench = Bench()
    bench.at(0, Condition(GONE, 100_000))
    bench.at(1, Condition(HERE, 100_500))
    bench.at(2, Condition(GONE, 101_500))
    bench.recorder.stop()
    assert [one for one in bench.told() if one[0] == "revoked"] == [("revoked", 0, 1), ("revoked", 1, 2)]


def test_a_condition_begins_when_the_engine_says() -> None:
    bench = Bench()
    bench.at(5, HERE)
    bench.at(6, HERE, Condition(Subject(Kind.RATE, "mail"), 103_000))
    bench.at(7, HERE, Condition(Subject(Kind.RATE, "mail"), 104_500))  # another record is the first by now
    bench.rest(8)
    bench.recorder.write()
    assert bench.told() == [("rate", 3, 8)]


@pytest.mark.parametrize(("again", "told"), [(5, [(2, 7)]), (6, [(2, 4), (6, 8)])])
def test_a_short_rest_is_none(again: int, told: list[tuple[int, int]]) -> None:
    bench = Bench()
    for second in range(again + 2):
        bench.at(second, HERE, *((MAIL,) if second in (2, 3) or second >= again else ()))
    bench.rest(again + 2)
    bench.recorder.write()
    assert bench.told() == [("suspended", *span) for span in told]


def test_a_wait_that_is_told_late_is_joined_by_when_it_began() -> None:
    bench = Bench()
    rate = Subject(Kind.RATE, "mail")
    for second in range(7):
        bench.at(second, HERE, *((Condition(rate, 100_000),) if second < 3 else ()))
    bench.at(7, HERE, Condition(rate, 104_500))  # it had to wait for a while to be one
    bench.rest(8)
    bench.recorder.write()
    assert bench.told() == [("rate", 0, 8)]


def test_what_rests_is_kept_with_its_end() -> None:
    bench = Bench()
    for second in range(4):
        bench.at(second, HERE, *((MAIL,) if second < 2 else ()))
    bench.recorder.write()
    rested = Span(MAIL, 100_000, 102_000, "run-1", "here")
    assert (bench.log.ended, set(bench.log.under_way)) == ([], {rested, Span(HERE, 100_000, 103_000, "run-1", "here")})
    assert rested in bench.recorder.recorded(0, ALL).spans
    bench.recorder.stop()
    assert rested in bench.log.ended


def test_an_owner_that_comes_back_soon_was_away() -> None:
    bench = Bench()
    for second in range(5):
        bench.at(second, *((HERE,) if second != 2 else ()))
    bench.recorder.stop()
    assert bench.told() == [("running", 0, 2), ("running", 3, 4)]


def test_a_snapshot_that_nobody_renewed_is_no_sign_of_life() -> None:
    bench = Bench()
    bench.at(1, HERE)
    for _ in range(3):
        bench.recorder.sample()
    bench.recorder.write()
    assert [span.to_ms for span in bench.log.under_way] == [101_000]
    bench.at(9, HERE)
    bench.recorder.write()
    assert bench.told() == [("stalled", 1, 9)]


def test_an_answer_reaches_up_to_now_unless_the_engine_hangs() -> None:
    bench = Bench()
    bench.at(1, HERE)
    recorded = bench.recorder.recorded(0, ALL)
    assert (recorded.now_ms, [span.to_ms for span in recorded.spans]) == (101_500, [101_500])
    bench.age_s = 60.0
    recorded = bench.recorder.recorded(0, ALL)
    assert (recorded.now_ms, [span.to_ms for span in recorded.spans]) == (161_000, [101_000])


def owner(run: str, begin: int, end: int, kind: Kind = Kind.RUNNING) -> Span:
    return Span(Subject(kind, "reminders", 3), begin, end, run, run)


@pytest.mark.parametrize(
    ("now", "others", "end"),
    [
        (13, [], 13),
        (21, [], 10),  # silent for long
        (13, [owner("b", 12, 13)], 12),  # its end may not be written yet
        (13, [owner("b", 12, 13, Kind.RECOVERING)], 12),
        (13, [owner("b", 1, 9), owner("a", 12, 13)], 13),  # who had it before, and itself
        (16, [owner("b", 12, 16)], 10),  # it would have been written
    ],
)
def test_what_is_under_way_goes_on_until_somebody_else_begins(now: int, others: list[Span], end: int) -> None:
    seconds = [
        one._replace(from_ms=one.from_ms * 1_000, to_ms=one.to_ms * 1_000) for one in (owner("a", 0, 10), *others)
    ]
    assert prolonged(seconds[0], seconds, now * 1_000).to_ms == end * 1_000


def test_an_answer_has_what_was_asked_for_and_goes_on_until_another_owner_of_it() -> None:
    bench = Bench()
    bench.at(13, Subject(Kind.RUNNING, "reminders", 4), Subject(Kind.RATE, "push"), Subject(Kind.SETTLE))
    settles, other_lane = Subject(Kind.SETTLE), Subject(Kind.RUNNING, "reminders", 4)
    for subject in (HERE, other_lane, settles, MAIL, Subject(Kind.RATE, "push")):
        bench.log.under_way.append(Span(subject, 100_000, 110_000, "run-2", "there"))
    bench.log.under_way.append(Span(HERE, 112_000, 113_000, "run-3", "later"))
    found = {(one.subject, one.run): one.to_ms for one in bench.recorder.recorded(0, ALL).spans}
    assert found == {
        (HERE, "run-2"): 112_000,
        (HERE, "run-3"): 113_500,
        (settles, "run-1"): 113_500,
        (settles, "run-2"): 113_500,
        (MAIL, "run-2"): 113_500,
    }


def test_a_group_of_many_partitions_is_answered_for_in_no_time() -> None:
    """Of the thread's own time. Three seconds is what it takes when each span is compared with each."""
    bench = Bench()
    bench.at(0, HERE)
    lanes = [Subject(Kind.RUNNING, "reminders", partition) for partition in range(1_500)]
    bench.log.ended = [
        Span(lane, at, at + 10_000, "run-2", "there") for lane in lanes for at in range(0, 60_000, 10_000)
    ]
    bench.log.under_way = [
        Span(lane, 60_000, 100_000, f"run-{3 + number % 5}", "x") for number, lane in enumerate(lanes)
    ]
    bench.at(1, HERE)
    late = Late(TopicPartition("reminders", 3), "mail", 1_000, 100_000)
    began_s = time.thread_time()
    parts = attributed(late, bench.recorder.recorded(0, subjects_of(late)))
    assert time.thread_time() - began_s < 1.0
    assert sum(part.to_ms - part.from_ms for part in parts) == 99_000


def test_what_ends_while_redis_is_away_is_kept_later(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.log.is_away = True
    for second in range(12):
        bench.at(second, HERE, *((MAIL,) if second in (1, 4) else ()))
        bench.recorder.write()
    recorded = bench.recorder.recorded(0, ALL)
    assert recorded.problem == "Redis does not answer"
    assert sorted({span.subject.kind for span in recorded.spans}) == ["running", "suspended"], "its own it knows"
    bench.log.is_away = False
    bench.recorder.write()
    bench.recorder.write()
    assert bench.told() == [("suspended", 1, 2), ("suspended", 4, 5)]


def test_memory_is_bounded_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "SPANS_WAITING_MAX", 3)
    bench = Bench()
    bench.log.is_away = True
    for second in range(0, 30, 3):
        bench.at(second, HERE, MAIL)
        bench.at(second + 1, HERE)
        bench.at(second + 2, HERE)
        bench.recorder.write()
    bench.rest(30)
    bench.log.is_away = False
    bench.recorder.write()
    assert bench.told() == [("suspended", 21, 22), ("suspended", 24, 25), ("suspended", 27, 28)]


def test_of_too_many_the_process_own_and_the_owners_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "OPEN_MAX", 3)
    bench = Bench()
    owned = [Subject(Kind.RUNNING, "reminders", partition) for partition in range(9)]
    limited = [Subject(Kind.RATE, f"mail-{number}") for number in range(9)]
    own = [Subject(Kind.SETTLE), Subject(Kind.REDIS)]
    bench.at(1, *owned, *limited, *own)
    bench.recorder.write()
    assert {one.subject for one in bench.log.under_way} == {*owned[:3], *own, limited[0]}


def test_nothing_is_kept_before_the_engine_has_published() -> None:
    bench = Bench()
    bench.recorder.sample()
    bench.recorder.write()
    bench.recorder.stop()
    assert (bench.log.ended, bench.log.under_way) == ([], [])
