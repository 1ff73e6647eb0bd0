"""DeleteRecords (table 2.3), remote reads: the smaller delayed operations, by decision and by life."""

from concurrent.futures import Future
from typing import Any

import pytest

from purgatory.admission import DeleteRecordsFacts, refuse_delete_records
from purgatory.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsResult,
    DeleteRecordsSnapshot,
    decide_delete_records,
    must_delay_delete_records,
)
from purgatory.delayed_fetch import DelayedFetch, FetchParams
from purgatory.delayed_produce import DelayedProduce
from purgatory.delayed_remote import (
    REMOTE_FETCH_MAX_WAIT_MS,
    DelayedRemoteFetch,
    DelayedRemoteListOffsets,
    ListOffsetsResult,
    decide_remote_fetch,
    decide_remote_list_offsets,
)
from purgatory.errors import ApiError, Errors
from purgatory.expirations import Expirations
from purgatory.log_offsets import TopicPartition
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


class Remote:
    def __init__(self, *, error=Errors.NONE, local_error=Errors.NONE):
        self.future: Future[str] = Future()
        self.error = error
        self.answers: list[object] = []
        self.expirations = Expirations()
        self.operation = DelayedRemoteFetch(
            FetchParams(),
            self.future,
            [ONE],
            lambda key: self.error,
            self.answers.append,
            local_error=local_error,
            expired=self.expirations.remote_fetch_expired,
        )


@pytest.mark.parametrize(
    ("errors", "is_read", "expected"),
    [
        ([Errors.NOT_LEADER_OR_FOLLOWER], False, True),
        ([Errors.UNKNOWN_TOPIC_OR_PARTITION], False, True),
        ([Errors.KAFKA_STORAGE_ERROR], False, True),
        ([Errors.FENCED_LEADER_EPOCH], False, False),
        ([Errors.NONE, Errors.NONE], True, True),
        ([Errors.NONE], False, False),
    ],
)
def test_when_a_remote_fetch_is_answered(errors, is_read, expected):
    assert decide_remote_fetch(errors, is_read) is expected


def test_a_remote_fetch_is_answered_when_the_read_is_done():
    world = Remote()
    assert world.operation.delay_ms == REMOTE_FETCH_MAX_WAIT_MS
    assert not world.operation.try_complete()
    world.future.set_result("records")
    assert world.operation.try_complete()
    assert world.answers == ["records"]


def test_a_failed_remote_read_is_an_answer():
    world = Remote()
    failure = OSError("store away")
    world.future.set_exception(failure)
    assert world.operation.try_complete()
    assert world.answers == [failure]


def test_followers_do_not_read_remotely():
    with pytest.raises(ValueError, match="follower 2"):
        DelayedRemoteFetch(FetchParams(replica_id=2), Future(), [], lambda key: Errors.NONE, lambda result: None)


def test_a_remote_fetch_whose_partition_goes_answers_without_it():
    world = Remote(error=Errors.NOT_LEADER_OR_FOLLOWER)
    assert world.operation.try_complete()
    assert world.answers == [None]


def test_a_local_error_comes_before_the_remote_result():
    world = Remote(local_error=Errors.FENCED_LEADER_EPOCH)
    world.future.set_result("records")
    assert world.operation.try_complete()
    assert world.answers == [None]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_remote_fetch_that_expires_cancels_what_has_not_begun(is_running):
    world = Remote()
    if is_running:
        assert world.future.set_running_or_notify_cancel()
    world.operation.run()
    assert world.answers == [None]
    assert world.future.cancelled() is not is_running
    assert world.expirations.remote_fetch == 1


def unasked(*arguments: object) -> Any:
    raise AssertionError(f"asked about {arguments}")


@pytest.mark.parametrize(
    "make",
    [
        lambda respond, version: DelayedRemoteListOffsets(10, {}, {}, unasked, respond, version=version),
        lambda respond, version: DelayedRemoteFetch(FetchParams(), Future(), [], unasked, respond, version=version),
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


FOUND = ListOffsetsResult(Errors.NONE, 1234, 7, 2)


class LookUps:
    def __init__(self):
        self.futures: dict[TopicPartition, Future[ListOffsetsResult]] = {ONE: Future(), TWO: Future()}
        self.errors: dict[TopicPartition, Errors] = {}
        self.answers: list[Any] = []
        self.operation = DelayedRemoteListOffsets(
            1000, self.futures, {}, lambda key: self.errors.get(key, Errors.NONE), self.answers.append
        )


def test_remote_offsets_that_expire():
    world = LookUps()
    assert not world.operation.try_complete()
    world.operation.run()
    late = ListOffsetsResult(Errors.REQUEST_TIMED_OUT, -1, -1, -1)
    assert world.answers == [{ONE: late, TWO: late}]
    assert all(future.cancelled() for future in world.futures.values())
    assert world.operation.expired == 2


def test_remote_offsets_that_are_found():
    world = LookUps()
    world.futures[ONE].set_result(FOUND)
    assert not world.operation.try_complete()
    world.futures[TWO].set_result(FOUND)
    assert world.operation.try_complete()
    assert world.answers == [{ONE: FOUND, TWO: FOUND}]


def test_a_failed_look_up_is_its_own_partitions_error():
    world = LookUps()
    world.futures[ONE].set_exception(ApiError(Errors.KAFKA_STORAGE_ERROR))
    world.futures[TWO].set_result(FOUND)
    assert world.operation.try_complete()
    assert world.answers == [{ONE: ListOffsetsResult(Errors.KAFKA_STORAGE_ERROR), TWO: FOUND}]
    failed: Future[ListOffsetsResult] = Future()
    failed.set_exception(OSError("store away"))
    assert decide_remote_list_offsets(Errors.NONE, failed) == ListOffsetsResult(Errors.UNKNOWN_SERVER_ERROR)


def test_a_partition_that_goes_cancels_its_look_up_only():
    world = LookUps()
    world.errors[ONE] = Errors.NOT_LEADER_OR_FOLLOWER
    assert not world.operation.try_complete()
    assert (world.futures[ONE].cancelled(), world.futures[TWO].cancelled()) == (True, False)
    world.futures[TWO].set_result(FOUND)
    assert world.operation.try_complete()
    assert world.answers == [{ONE: ListOffsetsResult(Errors.NOT_LEADER_OR_FOLLOWER), TWO: FOUND}]
