"""Table 2.1, produce, row by row: what is refused, what waits, what ends the wait; and DelayedProduceTest."""

from typing import Any

import pytest

from purgatory.admission import (
    BatchFacts,
    HostedFacts,
    ProducedBatch,
    ProduceFacts,
    check_sequence,
    refuse_acks,
    refuse_batch,
    refuse_internal_topic,
    refuse_partition,
    refuse_produce,
    refuse_unverified_transaction,
)
from purgatory.delayed_produce import (
    DelayedProduce,
    ProduceResult,
    ProduceSnapshot,
    decide_produce,
    must_delay_produce,
)
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition

ONE, TWO = TopicPartition("topic", 1), TopicPartition("topic", 2)


@pytest.mark.parametrize(
    ("row", "facts", "expected"),
    [
        ("A1", {"is_transactional": True, "is_transactional_id_authorized": False}, 53),
        ("A1 first", {"is_transactional": True, "is_transactional_id_authorized": False, "is_known": False}, 53),
        ("A1 not transactional", {"is_transactional_id_authorized": False}, 0),
        ("A2", {"is_topic_authorized": False}, 29),
        ("A2 before A3", {"is_topic_authorized": False, "is_known": False}, 29),
        ("A3", {"is_known": False}, 3),
        ("A3 before A4", {"is_known": False, "is_one_whole_batch": False}, 3),
        ("A4", {"is_one_whole_batch": False}, 87),
        ("A4 from v3", {"is_one_whole_batch": False, "api_version": 3}, 87),
        ("A4 before v3", {"is_one_whole_batch": False, "api_version": 2}, 0),
        ("A4 zstd", {"is_zstd": True, "api_version": 6}, 76),
        ("A4 zstd from v7", {"is_zstd": True, "api_version": 7}, 0),
        ("ok", {}, 0),
    ],
)
def test_stage_a(row, facts, expected):
    assert refuse_produce(ProduceFacts(**facts)) == expected, row


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


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"size": 11, "message_max_bytes": 10}, 10),
        ({"size": 11, "segment_bytes": 10}, 18),
        ({"has_valid_crc": False}, 2),
        ({"validation": Errors.INVALID_RECORD}, 87),
        ({"validation": Errors.INVALID_TIMESTAMP}, 32),
        ({}, 0),
    ],
)
def test_row_b5(facts, expected):
    assert refuse_batch(BatchFacts(**facts)) == expected


@pytest.mark.parametrize(
    ("version", "verification", "is_verified", "expected"),
    [
        (10, 0, False, 48),
        (11, 0, False, 120),
        (12, 0, False, 0),
        (10, 0, True, 0),
        *((version, code, False, 19) for version in (10, 11, 12) for code in (51, 13, 14, 15, 16)),
    ],
)
def test_row_b6(version, verification, is_verified, expected):
    assert refuse_unverified_transaction(version, Errors(verification), is_verified=is_verified) == expected


RECENT = tuple(ProducedBatch(3, 10 * number, 10 * number + 9, 100 * number) for number in range(2, 7))


@pytest.mark.parametrize(
    ("row", "batch", "expected"),
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
def test_row_b7(row, batch, expected):
    error, known = check_sequence(batch, RECENT)
    assert (error, known and known.base_offset) == expected, row


def test_row_b7_without_history_and_at_the_last_sequence():
    assert check_sequence((0, 55, 60), ()) == (Errors.NONE, None)
    last = 2**31 - 1
    assert check_sequence((0, 0, 3), (ProducedBatch(0, last - 1, last, 5),)) == (Errors.NONE, None)


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
        ("not leader", {"is_leader": False, "high_watermark": 8}, 6),
        ("replicated", {"high_watermark": 8, "maximal_isr_size": 2, "effective_min_isr": 2}, 0),
        ("beyond", {"high_watermark": 9}, 0),
        ("too few", {"high_watermark": 8, "maximal_isr_size": 1, "effective_min_isr": 2}, 20),
        ("not replicated", {"high_watermark": 7, "maximal_isr_size": 2, "effective_min_isr": 2}, None),
        ("not replicated, too few", {"high_watermark": 7, "maximal_isr_size": 1, "effective_min_isr": 2}, None),
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
