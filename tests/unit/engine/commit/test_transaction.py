"""How one transaction ends: committed, aborted with what was refused, or nobody knows."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any
from unittest.mock import ANY, Mock

import pytest

from sidecar.engine.commit.interval import CommitInterval
from sidecar.engine.commit.transaction import (
    TAKEN_MIN,
    Aborted,
    Committed,
    Ending,
    OutcomeUnknown,
    SealedBlock,
    Transaction,
    cause_of,
    end_transaction,
)
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.ledger.commit_metadata import CommitState, decode_metadata
from sidecar.model.record import Held, Position, TopicPartition
from tests.simulation.fake_transactions import TransactionError
from tests.unit.engine.commit.recording_producer import PURGED, Producer

LANE = TopicPartition("in", 0)
STATE = CommitState(
    low=5, watermark=Position(1, 2), acknowledged=3, block_offset=4, recovery_pointer=4, rebuild_pointer=4,
    rebuild_due_ms=-1, overflow_held=0, topic_id="", leader_epoch=-1,
)  # fmt: skip
ABORT = TransactionError("ILLEGAL_GENERATION", aborts=True)
UNKNOWN = TransactionError("_TIMED_OUT")
FENCED = TransactionError("_FENCED", dies=True)
DENIED = TransactionError("TOPIC_AUTHORIZATION_FAILED", aborts=True)
NOT_BEGUN = TransactionError("INVALID_TXN_STATE", dies=True)
PROBE = ["send", "flush", "abort", "begin"]  # whether it is the ledger


class Message:
    """A block as its delivery report has it."""

    def offset(self) -> int:
        return 77

    def timestamp(self) -> tuple[int, int]:
        return 2, 5_000


class Ledger:
    """The producer takes a block, and the broker acknowledges it, or nothing comes of it. `room`: whether the producer
    has any, at each try; as much as is wanted where nothing is said.
    """

    def __init__(self, room: Sequence[bool] = ()) -> None:
        self.room = list(room)

    def append(self, output: Any, _lane: TopicPartition, _block: bytes, report: Callable[[Any, Any], None]) -> None:
        output.calls.append("send")
        if self.room and not self.room.pop(0):
            raise BufferError("queue full")
        if output.takes_blocks:
            report(None, Message())


def transaction(producer: Producer, room: Sequence[bool] = ()) -> Transaction:
    """One block, already acknowledged, and the offset of its lane."""
    lane = SourcePartition(LANE, Wheel(0, 1), PromotionWindows(Position(0, 0)))
    made = Transaction(CommitInterval(producer))
    producer.purged = made.interval
    block = SealedBlock(Ledger(room), lane, Mock(value=b"block"), lambda: 1.0)  # type: ignore[arg-type]
    block.sent = True
    block.report(None, Message())
    made.blocks.append(block)
    made.states.append((lane, STATE))
    return made


def finish(made: Transaction, successor: Producer | None = None, latest_ms: float = inf) -> Ending:
    """With a successor only where one is due. By the broker's clock it is `latest_ms` at most."""

    def take(stuck: bool) -> Any:
        assert successor is not None, "the producer is fine"
        return successor

    return end_transaction(made, take, lambda: latest_ms)


@pytest.mark.parametrize(("latest_ms", "is_early"), [(99.5, True), (100.0, False)])
def test_a_transaction_that_comes_too_early_by_the_brokers_clock_is_aborted(latest_ms: float, is_early: bool) -> None:
    producer = Producer()
    made = transaction(producer)
    held = Held(100, 0, "out", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)
    made.interval.took(made.blocks[0].lane, [held], 200, 100)
    made.interval.report(None, Message())
    assert finish(made, latest_ms=latest_ms) == (Aborted() if is_early else Committed())
    assert producer.calls == ["flush", *(("abort",) if is_early else ("offsets", "commit")), "begin"]
    assert made.early == is_early
    assert ("not due" in cause_of(made, Aborted())) == is_early


def test_what_was_due_when_it_was_handed_over_is_not_looked_through() -> None:
    interval = transaction(Producer()).interval
    interval.batches.append((SourcePartition(LANE, Wheel(0, 1), PromotionWindows(Position(0, 0))), [], 100))
    assert not interval.is_early(100)


def test_offsets_name_the_block_that_goes_with_them() -> None:
    producer = Producer()
    assert finish(transaction(producer)) == Committed()
    assert producer.calls == ["flush", "offsets", "commit", "begin"]
    [(offset, metadata)] = producer.offsets.values()
    state = decode_metadata(offset, metadata)
    assert state is not None
    assert (state.low, state.block_offset) == (5, 77)


def test_a_refused_record_aborts_and_is_named() -> None:
    producer = Producer()
    made = transaction(producer)
    made.interval.report(TransactionError("MSG_SIZE_TOO_LARGE"), None)
    assert finish(made) == Aborted(None, of_records=True)
    assert producer.calls == ["flush", "abort", "begin"]
    assert [failure.error.name() for failure in made.interval.failures] == ["MSG_SIZE_TOO_LARGE"]


@pytest.mark.parametrize(("targets", "taken"), [((PURGED, PURGED, "other"), 2), ((PURGED, "other", "other"), 0)])
def test_what_was_acknowledged_tells_of_size_where_a_topic_took_a_part(targets: tuple[str, ...], taken: int) -> None:
    producer = Producer(left=(1, 1))
    made = transaction(producer)
    made.interval.report(None, Message())
    made.interval.report(None, Message())
    records = [Held(0, offset, target, -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)
               for offset, target in enumerate(targets)]  # fmt: skip
    made.interval.batches.append((made.blocks[0].lane, records, 0))
    assert finish(made, Producer()) == Aborted(None, of_records=True, successor=ANY)
    assert "purge" in producer.calls
    assert made.taken == taken


@pytest.mark.parametrize(("records", "taken"), [(3, 0), (TAKEN_MIN, TAKEN_MIN)])
def test_blocks_alone_that_are_missing_tell_of_size_where_there_were_many_records(records: int, taken: int) -> None:
    producer = Producer(left=(1, 1))
    made = transaction(producer)
    producer.purged = CommitInterval(None)  # a block is what the purge takes
    for _ in range(records):
        made.interval.report(None, Message())
    assert finish(made, Producer()) == Aborted(None, of_records=True, successor=ANY)
    assert made.taken == taken


class Inferred(Message):
    """librdkafka takes it for written because a later one is."""

    def offset(self) -> None:  # type: ignore[override]
        return None


def test_a_record_without_an_offset_is_not_in_its_topic() -> None:
    producer = Producer()
    made = transaction(producer)
    made.interval.report(None, Inferred())
    assert finish(made) == Aborted(None, of_records=True)
    assert [failure.error.name() for failure in made.interval.failures] == ["NO_OFFSET"]


def test_a_block_without_an_offset_is_not_in_the_ledger() -> None:
    producer = Producer()
    made = transaction(producer)
    made.blocks[0].report(None, Inferred())
    assert finish(made) == Aborted(None, of_records=True)
    assert producer.calls == ["flush", "abort", "begin"]


def test_what_an_abort_reports_says_nothing_of_the_records() -> None:
    producer = Producer(offsets=ABORT)
    made = transaction(producer)
    assert finish(made) == Aborted(ABORT, of_records=False)
    assert made.interval.failures == []


def test_a_target_that_does_not_acknowledge_is_given_up_and_the_producer_with_it() -> None:
    """Kafka can't complete a transaction with a partition that takes no mark: its transactional id is of no use."""
    producer, successor = Producer(left=(3, 3)), Producer()
    made = transaction(producer)
    assert finish(made, successor) == Aborted(None, of_records=True, successor=successor)  # type: ignore[arg-type]
    assert producer.calls == ["flush", "ask", "flush", "purge", "flush", "abort"]
    assert successor.calls == ["init", "begin"]
    assert [failure.error.name() for failure in made.interval.failures] == ["_PURGE_INFLIGHT"]


def test_when_not_even_the_ledger_answers_no_topic_is_blamed() -> None:
    made = transaction(Producer(left=(3, 3)))
    made.blocks[0].written = None
    assert isinstance(finish(made, Producer()), Aborted)
    assert made.interval.failures == []


def test_without_a_successor_nobody_knows() -> None:
    made = transaction(Producer(left=(3, 3)))
    assert finish(made, Producer(init=UNKNOWN)) == OutcomeUnknown("_TIMED_OUT")
    assert [failure.error.name() for failure in made.interval.failures] == ["_PURGE_INFLIGHT"]


def test_a_transaction_that_failed_while_it_was_flushed_says_of_what() -> None:
    assert finish(transaction(Producer(left=(3,), ask=DENIED))) == Aborted(DENIED, of_records=True)


def purged(producer: Producer) -> tuple[Producer, Transaction]:
    """One whose records the client has purged by itself."""
    made = transaction(producer)
    made.interval.report(TransactionError("_PURGE_QUEUE"), None)
    return producer, made


def test_one_that_the_client_purged_is_asked_whether_a_topic_is_refused() -> None:
    producer, made = purged(Producer(offsets=[DENIED]))
    assert finish(made) == Aborted(DENIED, of_records=True)
    assert producer.calls == ["flush", "offsets", "abort", "begin", *PROBE]
    assert made.interval.failures == []


@pytest.mark.parametrize("emitted", [True, False])
def test_it_is_the_ledger_that_is_refused_if_its_blocks_alone_are(emitted: bool) -> None:
    producer, made = purged(Producer(offsets=DENIED))
    producer.takes_blocks = False
    if not emitted:
        made.interval.failures = []
        made.blocks[0].report(TransactionError("_PURGE_QUEUE"), None)
    assert finish(made) == Aborted(DENIED, of_records=True, ledger_refused=True)
    assert producer.calls == ["flush", "offsets", "abort", "begin", "send", "flush", "offsets"]


def test_a_source_that_may_not_be_read_is_not_the_ledger_s_fault() -> None:
    producer = Producer(offsets=[DENIED])
    ending = finish(transaction(producer))
    assert isinstance(ending, Aborted)
    assert (ending.source_refused, ending.ledger_refused) == (DENIED.str(), False)
    assert producer.calls == ["flush", "offsets", "abort", "begin"]


def test_a_producer_that_dies_while_the_ledger_is_tried_is_made_anew() -> None:
    _, made = purged(Producer(offsets=[DENIED], abort=[None, FENCED]))
    assert finish(made) == OutcomeUnknown("_FENCED")


@pytest.mark.parametrize("producer", [Producer(), Producer(offsets=ABORT)], ids=["nothing", "something else"])
def test_if_it_is_something_else_the_purged_records_are_given_up(producer: Producer) -> None:
    _, made = purged(producer)
    assert finish(made) == Aborted(None, of_records=True)
    assert [failure.error.name() for failure in made.interval.failures] == ["_PURGE_QUEUE"]
    assert "commit" not in producer.calls


def test_one_of_which_the_brokers_took_nothing_is_aborted_and_the_producer_made_anew() -> None:
    _, made = purged(Producer(offsets=DENIED, abort=NOT_BEGUN))
    successor = Producer()
    assert finish(made, successor) == Aborted(DENIED, of_records=True, successor=successor)  # type: ignore[arg-type]
    assert successor.calls == ["init", "begin", *PROBE]
    assert not made.stuck


def test_after_a_commit_was_asked_for_the_same_answer_may_mean_that_it_was_made() -> None:
    producer = Producer(commit=ABORT, abort=NOT_BEGUN)
    assert finish(transaction(producer), Producer()) == OutcomeUnknown("INVALID_TXN_STATE")


def test_one_that_takes_nothing_more_is_asked_why() -> None:
    producer = Producer(ask=DENIED)
    made = transaction(producer)
    made.failed = True
    assert finish(made) == Aborted(DENIED, of_records=True)
    assert producer.calls == ["flush", "ask", "abort", "begin", *PROBE]


def test_one_that_takes_nothing_more_names_the_record_if_it_can() -> None:
    """Else all records in it would be suspected."""
    producer = Producer(ask=TransactionError("MSG_SIZE_TOO_LARGE", aborts=True))
    made = transaction(producer)
    made.failed = True
    made.interval.report(TransactionError("MSG_SIZE_TOO_LARGE"), None)
    assert finish(made) == Aborted(None, of_records=True)
    assert len(made.interval.failures) == 1
    assert "ask" not in producer.calls


def test_a_doomed_one_is_never_committed() -> None:
    producer = Producer()
    made = transaction(producer)
    made.doomed = True
    assert finish(made) == Aborted()
    assert producer.calls == ["abort", "begin"]


@pytest.mark.parametrize("stuck", [False, True])
def test_a_doomed_one_of_which_the_brokers_took_nothing_is_nothing_to_start_over_for(stuck: bool) -> None:
    """The partitions of a replica were lost while the coordinator stood still."""
    made = transaction(Producer(abort=NOT_BEGUN))
    made.doomed, made.stuck = True, stuck
    successor = Producer()
    assert finish(made, successor) == Aborted(successor=successor)  # type: ignore[arg-type]
    assert successor.calls == ["init", "begin"]


@pytest.mark.parametrize("tries", [1, 2])
def test_a_block_without_room_is_sent_when_there_is_some(tries: int) -> None:
    producer = Producer()
    made = transaction(producer, room=[False, True][-tries:])
    [block] = made.blocks
    block.sent, block.written = False, None
    assert finish(made) == Committed()
    assert producer.calls == ["flush", *(["send", "flush"] * tries), "offsets", "commit", "begin"]


def test_a_block_whose_way_is_blocked_is_given_up_with_the_transaction() -> None:
    producer = Producer(left=(0, 3))
    made = transaction(producer, room=[False])
    [block] = made.blocks
    block.sent = False
    successor = Producer()
    assert finish(made, successor) == Aborted(None, of_records=True, successor=successor)  # type: ignore[arg-type]
    assert producer.calls == ["flush", "send", "flush", "abort"]


@pytest.mark.parametrize("call", ["offsets", "commit", "begin"])
@pytest.mark.parametrize("error", [UNKNOWN, FENCED])
def test_what_nobody_can_answer_for_is_broken(call: str, error: TransactionError) -> None:
    assert finish(transaction(Producer((), **{call: error}))) == OutcomeUnknown(error.str())


def test_an_abort_that_fails_is_broken() -> None:
    assert finish(transaction(Producer(offsets=ABORT, abort=UNKNOWN))) == OutcomeUnknown("_TIMED_OUT")
