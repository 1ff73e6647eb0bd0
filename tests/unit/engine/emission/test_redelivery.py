"""Records that came back: who is judged, and who is only tried again."""

from random import Random

from sidecar.engine.commit.interval import NO_OUTPUT, CommitInterval
from sidecar.engine.emission.redelivery import Redelivery
from sidecar.engine.emission.targets import ANSWER_AGE_MAX_MS, Targets
from sidecar.engine.partition.exits import dead
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.partitioner import partition_of
from sidecar.model.record import Diverted, Held, Outcome, Position, TopicPartition
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_transactions import TransactionError

LANE = SourcePartition(TopicPartition("in", 0), Wheel(0, 1), PromotionWindows(Position(0, 0)))
TOO_LARGE = TransactionError("MSG_SIZE_TOO_LARGE", aborts=True)
REFUSED = TransactionError("TOPIC_AUTHORIZATION_FAILED", aborts=True)
SLOW = TransactionError("_PURGE_INFLIGHT")


def held(offset: int, target: str = "mail") -> Held:
    return Held(0, offset, target, -1, None, b"%d" % offset, [], "p@1", None, 0, -1, [], -1, "", 1)


class Bench:
    """`Redelivery`, and what is emitted one by one."""

    def __init__(self) -> None:
        self.targets = Targets(lambda _: 1, StepExecutor())
        self.targets.partitions.update(mail=1, slow=1)
        self.returned = Redelivery(self.targets, "quarantine", transactional=True)

    def interval(self, records: list[Held]) -> CommitInterval:
        made = CommitInterval(NO_OUTPUT)
        made.batches = [(LANE, records, 0)] if records else []
        return made

    def partitions(self, records: list[Held]) -> list[int | None]:
        """Where each may go, None: it waits."""
        places = [self.returned.place_for(LANE, one, False) for one in records]
        return [place and place.partition for place in places]

    def attempt(self) -> list[Held]:
        """One careful transaction."""
        topic, queue, count = self.returned.take_isolated()
        taken = [queue.popleft()[1] for _ in range(count)]
        self.returned.isolated.put_back(topic, queue)
        sent = [parcel for parcel in taken if isinstance(parcel, Held)]
        assert sent == taken
        return sent


def test_of_many_suspects_only_the_one_at_fault_is_judged() -> None:
    """The brokers don't say which it is: by halves it is found, whatever the order."""
    bench = Bench()
    records = [held(offset) for offset in range(100)]
    poison = Random(1).choice(records)
    bench.returned.suspect(bench.interval(records), TOO_LARGE, careful=False)
    passed: list[Held] = []
    for _ in range(500):
        if not bench.returned.isolated:
            break
        sent = bench.attempt()
        if poison in sent:
            bench.returned.suspect(bench.interval(sent), TOO_LARGE, careful=True)
        else:
            passed += sent
            bench.returned.passed_isolated(bench.interval(sent))
    assert sorted(one.offset for one in passed) == [one.offset for one in records if one is not poison]
    [(_, departure)] = bench.returned.again
    assert isinstance(departure, Diverted)
    assert departure.offset == poison.offset
    assert departure.reason == "too_large"


def test_a_target_that_does_not_acknowledge_is_tried_apart_from_others_until_it_does() -> None:
    bench = Bench()
    interval = bench.interval([held(1, "slow"), held(2)])
    interval.report(SLOW, _Message("slow", b"1"))
    bench.returned.given_up(interval)
    bench.returned.refused(interval)
    assert bench.returned.one_by_one == {"slow"}
    assert [parcel.offset for _, parcel in bench.returned.again if isinstance(parcel, Held)] == [1]
    assert interval.batches == [(LANE, [held(2)], 0)]
    bench.returned.passed_isolated(bench.interval([held(1, "slow")]))
    assert bench.returned.one_by_one == set()


def test_what_has_a_key_waits_for_its_partition_and_what_has_none_goes_where_it_is_acknowledged() -> None:
    bench = Bench()
    bench.targets.partitions["mail"] = 2
    plain, keyed = held(1), [held(2)._replace(key=b"%d" % number) for number in range(2)]
    assert sorted(partition_of(one.key or b"", 3) for one in keyed) == [0, 2]
    ask = [*keyed, plain, plain._replace(target_partition=2), plain._replace(target_partition=0)]
    assert bench.partitions(ask) == [-1, -1, -1, 2, 0]
    interval = bench.interval([held(3)])
    interval.report(SLOW, _Message("mail", b"3", 2))  # it has grown
    bench.returned.given_up(interval)
    bench.returned.refused(interval)
    well = [None if partition_of(one.key or b"", 3) == 2 else 0 for one in keyed]
    assert bench.partitions(ask) == [*well, 1, None, 0]
    assert bench.targets.count == 2
    interval = bench.interval([held(3)])
    interval.report(SLOW, _Message("mail", b"3", -1))  # nobody knows which: all of them
    bench.returned.given_up(interval)
    bench.returned.refused(interval)
    assert bench.partitions(ask) == [None] * 5


def test_slow_brokers_get_as_many_one_by_one_as_they_acknowledge_in_time() -> None:
    """A request for each takes them longer than a batch of thousands: of too many none would ever pass. Once some have,
    the others may go in batches.
    """
    in_time = 40
    bench = Bench()
    bench.returned.suspect(bench.interval([held(offset) for offset in range(600)]), TOO_LARGE, careful=False)
    passed: list[Held] = []
    for _ in range(60):
        if not bench.returned.isolated:
            break
        sent = bench.attempt()
        interval = bench.interval(sent)
        for number, one in enumerate(sent):
            interval.report_isolated(None if number < in_time else SLOW, _Message("mail", one.value or b""))
        if not interval.failures:
            passed += sent
            bench.returned.passed_isolated(interval)
            break
        bench.returned.given_up(interval)
        bench.returned.refused(interval)
        bench.returned.take_back(interval, careful=True)
        bench.returned.passed_isolated(bench.interval([]))  # whose records wait for a target that is suspended
        while bench.returned.again:
            lane, parcel = bench.returned.again.popleft()
            assert isinstance(parcel, Held)
            bench.returned.isolated.append(parcel.target, lane, parcel)
    assert 0 < len(passed) <= in_time
    assert not bench.returned.isolated
    assert not bench.returned.one_by_one
    in_batches = [parcel.offset for _, parcel in bench.returned.again if isinstance(parcel, Held)]
    assert sorted([*in_batches, *(one.offset for one in passed)]) == list(range(600))


def test_the_one_at_fault_is_found_while_more_keeps_coming_for_its_target_and_for_others() -> None:
    bench = Bench()
    poison = held(0)
    bench.returned.suspect(bench.interval([poison, *map(held, range(1, 400))]), TOO_LARGE, careful=False)
    numbers = iter(range(400, 1_000_000))
    for _ in range(60):
        for target in ("mail", "other"):
            for _ in range(300):
                bench.returned.isolated.append(target, LANE, held(next(numbers), target))
        sent = bench.attempt()
        assert len({one.target for one in sent}) == 1
        if poison not in sent:
            bench.returned.passed_isolated(bench.interval(sent))
        else:
            bench.returned.suspect(bench.interval(sent), TOO_LARGE, careful=True)
            if sent == [poison]:
                break
    [(_, departure)] = bench.returned.again
    assert isinstance(departure, Diverted)
    assert (departure.offset, departure.reason) == (0, "too_large")


def test_what_only_the_transaction_was_at_fault_for_is_tried_again() -> None:
    bench = Bench()
    interval = bench.interval([held(1)])
    interval.report(TransactionError("OUT_OF_ORDER_SEQUENCE_NUMBER"), _Message("mail", b"1"))
    bench.returned.refused(interval)
    assert [parcel for _, parcel in bench.returned.again] == [held(1)]


def test_what_a_failed_transaction_has_purged_is_no_silent_target() -> None:
    """Of a sequence that a new leader doesn't know, say: its client drops all that is under way."""
    bench = Bench()
    interval = bench.interval([held(1), held(2, "other")])
    interval.report(TransactionError("_PURGE_INFLIGHT"), _Message("mail", b"1"))
    interval.report(TransactionError("_PURGE_QUEUE"), _Message("other", b"2"))
    bench.returned.refused(interval)
    assert [parcel for _, parcel in bench.returned.again] == [held(1), held(2, "other")]
    assert bench.returned.one_by_one == set()


def test_records_of_a_lane_that_leaves_are_not_taken_back() -> None:
    bench = Bench()
    lane = SourcePartition(TopicPartition("in", 1), Wheel(0, 1), PromotionWindows(Position(0, 0)), leaving=True)
    interval = CommitInterval(NO_OUTPUT)
    interval.batches = [(lane, [held(1)], 0)]
    bench.returned.take_back(interval, careful=True)
    assert not bench.returned.isolated


class _Message:
    """Message of a delivery report."""

    def __init__(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._topic, self._value, self._partition = topic, value, partition

    def offset(self) -> int:
        return 7

    def partition(self) -> int:
        return self._partition

    def topic(self) -> str:
        return self._topic

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value


def test_a_topic_that_is_refused_to_us_is_judged_as_a_whole_and_tried_apart_for_a_while() -> None:
    bench = Bench()
    forbidden, others = [held(offset, "forbidden") for offset in range(3)], [held(offset) for offset in range(3, 6)]
    bench.returned.suspect(bench.interval([*forbidden, *others]), REFUSED, careful=False)
    assert bench.attempt() == forbidden
    bench.returned.suspect(bench.interval(forbidden), REFUSED, careful=True)
    departures = [parcel for _, parcel in bench.returned.again if isinstance(parcel, Diverted)]
    assert [(parcel.offset, parcel.reason, parcel.topic) for parcel in departures] == [
        (offset, "unknown_target", "quarantine") for offset in range(3)
    ]
    assert bench.targets.absent("forbidden", ANSWER_AGE_MAX_MS - 1)
    assert not bench.targets.absent("forbidden", ANSWER_AGE_MAX_MS)
    assert bench.returned.one_by_one == {"forbidden"}
    assert bench.attempt() == others
    bench.returned.passed_isolated(bench.interval(forbidden))
    assert bench.returned.one_by_one == set()


def test_what_the_quarantine_refuses_is_tried_again_apart_from_others() -> None:
    bench = Bench()
    bad = Diverted(0, 1, Outcome.QUARANTINED, "bad_header", "quarantine", None, b"1", [], "", 0, None)
    interval = bench.interval([])
    interval.departures = [(LANE, bad)]
    bench.returned.suspect(interval, REFUSED, careful=True)
    assert list(bench.returned.again) == [(LANE, bad)]
    assert bench.targets.absent("quarantine", ANSWER_AGE_MAX_MS - 1)
    assert bench.returned.one_by_one == {"quarantine"}
    passed = bench.interval([])
    passed.departures = [(LANE, bad)]
    bench.returned.passed_isolated(passed)
    assert bench.returned.one_by_one == set()


def test_where_one_of_a_target_s_records_has_expired_no_topic_is_judged_for_all() -> None:
    bench = Bench()
    records = [held(1), held(2)]
    interval = bench.interval(records)
    interval.departures = [(LANE, dead(LANE, held(3), "letters", "expired"))]
    bench.returned.suspect(interval, REFUSED, careful=True)
    assert not bench.returned.again, "which of both topics refuses isn't known"
    assert len(bench.returned.isolated) == 3
