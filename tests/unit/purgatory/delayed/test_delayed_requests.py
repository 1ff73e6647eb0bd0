"""DeleteRecords (table 2.3), by decision and by life; and how each request that waits completes."""

from typing import Any

import pytest

from purgatory.delayed.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsResult,
    DeleteRecordsSnapshot,
    decide_delete_records,
    must_delay_delete_records,
)
from purgatory.delayed.delayed_fetch import DelayedFetch, FetchParams
from purgatory.delayed.delayed_produce import DelayedProduce
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.admission import DeleteRecordsFacts, refuse_delete_records
from purgatory.versions import KafkaVersion
from tests.unit.purgatory_tasks import VERSIONS, is_held_by_this_thread

ONE, TWO = TopicPartition("topic", 1), TopicPartition("topic", 2)


ELSEWHERE, OFFLINE = {"hosting": Errors.NOT_LEADER_OR_FOLLOWER}, {"hosting": Errors.KAFKA_STORAGE_ERROR}


@pytest.mark.parametrize(
    ("row", "facts", "expected"),
    [
        ("unknown", {"is_known": False}, 3),
        ("unauthorised", {"is_authorized": False}, 29),
        ("unauthorised before unknown", {"is_authorized": False, "is_known": False}, 29),
        ("internal", {"is_internal": True}, 17),
        ("internal before not leader", {"is_internal": True, **ELSEWHERE}, 17),
        ("not leader", ELSEWHERE, 6),
        ("not leader before policy", {"is_delete_policy": False, **ELSEWHERE}, 6),
        ("offline before policy", {"is_delete_policy": False, **OFFLINE}, 56),
        ("policy", {"is_delete_policy": False}, 44),
        ("internal before policy", {"is_internal": True, "is_delete_policy": False}, 17),
        ("ok", {}, 0),
    ],
)
def test_deletions_refused_before_the_log(row, facts, expected):
    assert refuse_delete_records(DeleteRecordsFacts(**facts)) == expected, row


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (DeleteRecordsSnapshot(Errors.UNKNOWN_TOPIC_OR_PARTITION), 3),
        (DeleteRecordsSnapshot(Errors.NOT_LEADER_OR_FOLLOWER, 9), 6),
        (DeleteRecordsSnapshot(Errors.KAFKA_STORAGE_ERROR), 56),
        (DeleteRecordsSnapshot(low_watermark=4), None),
        (DeleteRecordsSnapshot(low_watermark=5), 0),
        (DeleteRecordsSnapshot(low_watermark=6), 0),
    ],
)
def test_when_a_deletion_is_done(snapshot, expected):
    assert decide_delete_records(5, snapshot) == expected


@pytest.mark.parametrize(
    ("results", "delayed"),
    [
        ({ONE: DeleteRecordsResult(Errors.NONE, 4, 5)}, True),
        ({ONE: DeleteRecordsResult(Errors.NONE, 5, 5)}, False),
        ({ONE: DeleteRecordsResult(Errors.OFFSET_OUT_OF_RANGE)}, False),
        ({ONE: DeleteRecordsResult(Errors.NOT_LEADER_OR_FOLLOWER), TWO: DeleteRecordsResult(Errors.NONE, 4, 5)}, True),
        ({}, False),
    ],
)
def test_whether_a_deletion_waits(results, delayed):
    assert must_delay_delete_records(results) is delayed


def test_a_deletion_waits_for_all_partitions_and_keeps_errors():
    watermarks = {ONE: 5, TWO: 0}
    answers: list[Any] = []
    refused = TopicPartition("topic", 3)
    operation = DelayedDeleteRecords(
        1000,
        {
            ONE: DeleteRecordsResult(Errors.NONE, 0, 5),
            TWO: DeleteRecordsResult(Errors.NONE, 0, 5),
            refused: DeleteRecordsResult(Errors.OFFSET_OUT_OF_RANGE),
        },
        lambda key: DeleteRecordsSnapshot(low_watermark=watermarks[key]),
        answers.append,
    )
    assert not operation.try_complete()
    watermarks[TWO] = 7
    assert operation.try_complete()
    assert {key: (result.error, result.low_watermark) for key, result in answers[0].items()} == {
        ONE: (Errors.NONE, 5),
        TWO: (Errors.NONE, 7),
        refused: (Errors.OFFSET_OUT_OF_RANGE, -1),
    }


def unasked(*arguments: object) -> Any:
    raise AssertionError(f"asked about {arguments}")


@pytest.mark.parametrize(
    "make",
    [
        lambda respond, version: DelayedDeleteRecords(10, {}, unasked, respond, version=version),
        lambda respond, version: DelayedProduce(10, {}, unasked, respond, version=version),
        lambda respond, version: DelayedFetch(FetchParams(), [], unasked, respond, version=version),
    ],
)
@VERSIONS
def test_each_answers_under_its_lock_from_4_1_on(make, version):
    held: list[bool] = []
    operation: Any = make(lambda *_: held.append(is_held_by_this_thread(operation.lock)), version)
    assert operation.force_complete()
    assert held == [version >= KafkaVersion.V4_1]
