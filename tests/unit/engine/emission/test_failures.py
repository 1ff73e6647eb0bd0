from sidecar.engine.commit.interval import NO_OUTPUT, CommitInterval, Failure
from sidecar.engine.emission.redelivery import take_failed
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Diverted, Held, Outcome, Position, TopicPartition
from tests.simulation.fake_kafka import FakeError, FakeRecord

LANE = SourcePartition(TopicPartition("t", 0), Wheel(0), PromotionWindows(Position(0, -1)))


def held(offset: int, value: bytes | None) -> Held:
    return Held(0, offset, "mail", -1, b"k", value, [], "p@1", None, 0, -1, [], -1, "", 0)


def departure(offset: int, value: bytes) -> Diverted:
    return Diverted(0, offset, Outcome.DEAD, "expired", "dead", b"k", value, [], "p@1", 0, None)


def failed(topic: str, value: bytes | None, word: str = "MSG_SIZE_TOO_LARGE") -> Failure:
    return Failure(FakeError(word), FakeRecord((topic, 0, -1), (2, 0), (b"k", value), None), isolated=False)


def interval(*failures: Failure) -> CommitInterval:
    sent = CommitInterval(NO_OUTPUT)
    sent.batches = [(LANE, [held(1, b"a"), held(2, b"b")], 7), (LANE, [held(3, None)], 8)]
    sent.departures = [(LANE, departure(4, b"b"))]
    sent.failures = list(failures)
    return sent


def test_the_failed_are_taken_out_and_the_others_stay() -> None:
    sent = interval(failed("mail", b"b"))
    [(failure, found)] = take_failed(sent)
    assert failure.error.name() == "MSG_SIZE_TOO_LARGE"
    assert found == [(LANE, held(2, b"b"))]
    assert [([record.offset for record in batch], at_ms) for _, batch, at_ms in sent.batches] == [([1], 7), ([3], 8)]
    assert len(sent.departures) == 1, "the same content for another topic is another record"


def test_null_and_departures_are_found_too() -> None:
    sent = interval(failed("mail", None), failed("dead", b"b"))
    found = [item for _, items in take_failed(sent) for _, item in items]
    assert [parcel.offset for parcel in found] == [3, 4]
    assert not sent.departures


def test_equal_ones_are_all_taken_out_because_nobody_can_tell_them_apart() -> None:
    sent = interval(failed("mail", b"a"))
    sent.batches.append((LANE, [held(9, b"a")], 9))
    [(_, found)] = take_failed(sent)
    assert [parcel.offset for _, parcel in found] == [1, 9]
