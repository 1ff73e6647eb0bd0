"""Table 2.1, produce, row by row: what is refused, what waits, what ends the wait; and DelayedProduceTest.

The rows about bytes (A4, B5, B7) ask the broker's log and its checks, which decide them.
"""

from typing import Any

import pytest

from broker.log.producer_state import ProducerState
from broker.records.batch_validation import RecordRules, check_produced
from broker.records.compression import CompressionType
from broker.records.record_batch import read_header
from broker.records.records import Producer
from purgatory.delayed.delayed_produce import (
    DelayedProduce,
    ProduceResult,
    ProduceSnapshot,
    decide_produce,
    must_delay_produce,
)
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.admission import (
    HostedFacts,
    ProduceFacts,
    refuse_acks,
    refuse_internal_topic,
    refuse_partition,
    refuse_produce,
    refuse_unverified_transaction,
)
from tests.unit.log_world import NOW_MS, LogWorld, batch

ONE, TWO = TopicPartition("topic", 1), TopicPartition("topic", 2)


def error_of(function, *arguments) -> Errors:
    try:
        function(*arguments)
    except ApiError as refused:
        return refused.error
    return Errors.NONE


NOT_ALLOWED = {"is_transactional": True, "is_transactional_id_authorized": False}


@pytest.mark.parametrize(
    ("row", "facts", "expected"),
    [
        ("A1", NOT_ALLOWED, 53),
        ("A1 before A2", {**NOT_ALLOWED, "is_topic_authorized": False}, 53),
        ("A1 before A3", {**NOT_ALLOWED, "has_topic_id": False, "is_known": False}, 53),
        ("A1 not transactional", {"is_transactional_id_authorized": False}, 0),
        ("A2", {"is_topic_authorized": False}, 29),
        ("A2 before A3", {"is_topic_authorized": False, "is_known": False}, 29),
        ("A3", {"is_known": False}, 3),
        ("A3 id, which has no name to be authorised for", {"has_topic_id": False, "is_topic_authorized": False}, 100),
        ("ok", {}, 0),
    ],
)
def test_stage_a(row, facts, expected):
    assert refuse_produce(ProduceFacts(**facts)) == expected, row


WHOLE, ZSTD = bytes(batch()), bytes(batch(codec=CompressionType.ZSTD))


def with_magic(magic: int) -> bytes:
    return WHOLE[:16] + bytes([magic]) + WHOLE[17:]


@pytest.mark.parametrize(
    ("row", "data", "version", "expected"),
    [
        ("nothing", b"", 9, 87),
        ("one", WHOLE, 9, 0),
        ("two", WHOLE * 2, 9, 87),
        ("magic 1", with_magic(1), 9, 87),
        ("incomplete", WHOLE[:-1], 9, 87),
        ("a cut second one is dropped", WHOLE + WHOLE[:16], 9, 0),
        ("16 bytes of rubbish are dropped", WHOLE + bytes(16), 9, 0),
        ("17 are not", WHOLE + bytes(17), 9, 2),
        ("zstd", ZSTD, 6, 76),
        ("zstd from v7", ZSTD, 7, 0),
        ("two before zstd", ZSTD * 2, 6, 87),
    ],
)
def test_row_a4(row, data, version, expected):
    assert error_of(check_produced, data, version) == expected, row


@pytest.mark.parametrize(("acks", "expected"), [(-1, 0), (0, 0), (1, 0), (2, 21), (-2, 21)])
def test_stage_a_acks(acks, expected):
    assert refuse_acks(acks) == expected


@pytest.mark.parametrize(
    ("client_id", "is_internal", "expected"), [("a", True, 17), ("__admin_client", True, 0), ("a", False, 0)]
)
def test_row_b1(client_id, is_internal, expected):
    assert refuse_internal_topic(client_id, is_internal=is_internal) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, 0),
        ({"is_offline": True}, 56),
        ({"is_hosted": False}, 6),
        ({"is_hosted": False, "is_known": False}, 3),
    ],
)
def test_row_b2(facts, expected):
    assert refuse_partition(HostedFacts(**facts)) == expected


def corrupt(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


SMALL, LATE, KEYED = (
    RecordRules(max_message_bytes=70),
    RecordRules(timestamp_before_max_ms=1000),
    RecordRules(needs_key=True),
)


@pytest.mark.parametrize(
    ("row", "data", "rules", "expected"),
    [
        ("larger than max.message.bytes", batch(), SMALL, 10),
        ("before its CRC", corrupt(batch()), SMALL, 10),
        ("CRC", corrupt(batch()), RecordRules(), 2),
        ("before its records", corrupt(batch(key=None)), KEYED, 2),
        ("record without key", batch(key=None), KEYED, 87),
        ("timestamp", batch(timestamp=NOW_MS - 1001), LATE, 32),
        ("records before the segment", batch(bytes(1001), key=None), KEYED, 87),
        ("larger than segment.bytes", batch(bytes(1001)), RecordRules(), 18),
        ("ok", batch(timestamp=NOW_MS - 1000), LATE, 0),
    ],
)
def test_row_b5(row, data, rules, expected, tmp_path):
    world = LogWorld(tmp_path / "topic-0", rules)
    assert error_of(world.append, bytearray(data)) == expected, row
    assert world.log.log_end.offset == (0 if expected else 1)


@pytest.mark.parametrize(
    ("row", "verification", "version", "expected"),
    [
        ("unknown", 48, 10, 48),
        ("unknown", 48, 11, 120),
        ("unknown", 48, 12, 120),
        ("known", 0, 10, 0),
        ("another producer has the id", 90, 10, 47),
        *(("passes", code, version, 19) for version in (10, 11, 12) for code in (51, 13, 14, 15, 16)),
    ],
)
def test_row_b6(row, verification, version, expected):
    assert refuse_unverified_transaction(Errors(verification), version) == expected, row


def header(epoch, first, last, offset=0, producer_id=7):
    count = last - first + 1
    data = batch(*[b""] * count, producer=Producer(producer_id, epoch, first))
    return read_header(data)._replace(base_offset=offset)


def history(*batches) -> ProducerState:
    state = ProducerState()
    for sent in batches:
        state.update(header(*sent), None)
    return state


@pytest.mark.parametrize(
    ("row", "sent", "expected"),
    [
        ("next", (3, 70, 79), (0, None)),
        ("duplicate of the last", (3, 60, 69), (0, 600)),
        ("duplicate of the fifth last", (3, 20, 29), (0, 200)),
        ("duplicate of an older one", (3, 10, 19), (45, None)),
        ("gap", (3, 71, 80), (45, None)),
        ("overlap", (3, 65, 69), (45, None)),
        ("old epoch", (2, 70, 79), (47, None)),
        ("new epoch", (4, 0, 5), (0, None)),
        ("new epoch, not from 0", (4, 70, 79), (45, None)),
    ],
)
def test_row_b7(row, sent, expected):
    state = history(*((3, 10 * number, 10 * number + 9, 100 * number) for number in range(1, 7)))
    known = state.find_duplicate(header(*sent))
    found = Errors.NONE if known else error_of(state.check, header(*sent), None)
    assert (found, known and known.first_offset) == expected, row


def test_row_b7_without_history_and_at_the_last_sequence():
    assert error_of(history().check, header(0, 55, 60), None) is Errors.NONE
    last = 2**31 - 1
    assert error_of(history((0, last, last)).check, header(0, 0, 3), None) is Errors.NONE


OK, REFUSED = ProduceResult(Errors.NONE, 5, 8), ProduceResult(Errors.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize(
    ("acks", "results", "delayed"),
    [
        (-1, {ONE: OK}, True),
        (-1, {ONE: OK, TWO: REFUSED}, True),
        (-1, {ONE: REFUSED, TWO: REFUSED}, False),
        (-1, {}, False),
        (1, {ONE: OK}, False),
        (0, {ONE: OK}, False),
    ],
)
def test_stage_c(acks, results, delayed):
    assert must_delay_produce(acks, results) is delayed


@pytest.mark.parametrize(
    ("row", "snapshot", "expected"),
    [
        ("topic gone", {"error": Errors.UNKNOWN_TOPIC_OR_PARTITION}, 3),
        ("reassigned away", {"error": Errors.NOT_LEADER_OR_FOLLOWER}, 6),
        ("log dir offline", {"error": Errors.KAFKA_STORAGE_ERROR}, 56),
        ("gone before not leader", {"error": Errors.UNKNOWN_TOPIC_OR_PARTITION, "is_leader": False}, 3),
        ("offline before replicated", {"error": Errors.KAFKA_STORAGE_ERROR, "high_watermark": 8}, 56),
        ("not leader", {"is_leader": False, "high_watermark": 8}, 6),
        ("not leader before too few", {"is_leader": False, "high_watermark": 8, "effective_min_isr": 2}, 6),
        ("replicated", {"high_watermark": 8, "maximal_isr_size": 2, "effective_min_isr": 2}, 0),
        ("beyond", {"high_watermark": 9}, 0),
        ("too few", {"high_watermark": 8, "maximal_isr_size": 1, "effective_min_isr": 2}, 20),
        ("not replicated", {"high_watermark": 7, "maximal_isr_size": 2, "effective_min_isr": 2}, None),
        ("not replicated, too few", {"high_watermark": 7, "maximal_isr_size": 1, "effective_min_isr": 2}, None),
        ("leader again, truncated: never gets there", {"high_watermark": 3}, None),
    ],
)
def test_stage_d(row, snapshot, expected):
    assert decide_produce(8, ProduceSnapshot(**snapshot)) == expected, row


class Waiting:
    """A delayed produce whose partitions look as the test says."""

    def __init__(self, results, snapshots=None):
        self.snapshots = snapshots or {}
        self.looked = []
        self.answers: list[Any] = []
        self.operation = DelayedProduce(1000, results, self.look, self.answers.append)

    def look(self, key):
        self.looked.append(key)
        return self.snapshots.get(key, ProduceSnapshot())

    def errors(self):
        return {key: result.error for key, result in self.operation.results.items()}


def test_what_is_open_is_marked_as_timed_out_from_the_start():
    assert Waiting({ONE: OK, TWO: REFUSED}).errors() == {ONE: Errors.REQUEST_TIMED_OUT, TWO: Errors.NOT_ENOUGH_REPLICAS}


def test_it_completes_when_all_have_enough_replicas():
    world = Waiting({ONE: OK}, {ONE: ProduceSnapshot(high_watermark=8)})
    assert world.operation.try_complete()
    assert world.answers == [{ONE: OK}]


def test_it_waits_while_replicas_are_behind():
    world = Waiting({ONE: OK})
    assert not world.operation.try_complete()
    assert (world.errors(), world.answers) == ({ONE: Errors.REQUEST_TIMED_OUT}, [])


def test_an_error_completes_it_with_the_real_offset():
    world = Waiting({ONE: OK}, {ONE: ProduceSnapshot(is_leader=False)})
    assert world.operation.try_complete()
    result = world.answers[0][ONE]
    assert (result.error, result.base_offset) == (Errors.NOT_LEADER_OR_FOLLOWER, 5)


def test_what_failed_in_the_append_is_not_looked_at():
    world = Waiting({ONE: REFUSED})
    assert world.operation.try_complete()
    assert (world.looked, world.answers) == ([], [{ONE: REFUSED}])


def test_it_waits_while_any_is_open_and_keeps_what_is_decided():
    world = Waiting({ONE: OK, TWO: OK}, {ONE: ProduceSnapshot(high_watermark=8)})
    assert not world.operation.try_complete()
    assert world.errors() == {ONE: Errors.NONE, TWO: Errors.REQUEST_TIMED_OUT}
    world.snapshots[ONE] = ProduceSnapshot(is_leader=False)  # too late to matter
    world.operation.run()
    assert world.errors() == {ONE: Errors.NONE, TWO: Errors.REQUEST_TIMED_OUT}
    assert world.operation.pending == (TWO,)
    assert len(world.answers) == 1
