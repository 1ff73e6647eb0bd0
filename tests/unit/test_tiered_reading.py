"""Fetches of what the leader's disk has no more, and tiered storage has: Kafka's ReplicaManagerTest about it."""

from concurrent.futures import Future
from typing import Any

import pytest

from purgatory.delayed_fetch import FetchParams, FetchPartition
from purgatory.delayed_remote import REMOTE_FETCH_MAX_WAIT_MS
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import LogOffsetMetadata, TopicPartition
from purgatory.replica_log import FetchDataInfo
from tests.unit.replica_world import KEY, SIZE, World

OTHER = TopicPartition("topic", 1)
LOCAL_START = 5
REMOTE = FetchDataInfo(LogOffsetMetadata(2), b"remote", 6)


class Store:
    """Tiered storage that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int, int]] = []
        self.reads: list[Future[FetchDataInfo]] = []

    def read(self, key: TopicPartition, wanted: FetchPartition, max_bytes: int) -> Future[FetchDataInfo]:
        self.asked.append((key, wanted.fetch_offset, max_bytes))
        self.reads.append(Future())
        return self.reads[-1]


def tiered_world(**reading: Any) -> tuple[World, Store]:
    """Ten records, of which the first five are not on the disk any more; another partition with one record."""
    store = Store()
    world = World(**{"read_remote": store.read, **reading})
    partition = world.lead(replicas=(1, 2), isr=(1,))
    for _ in range(10):
        world.produce(acks=1)
    partition.log.increment_local_log_start_offset(LOCAL_START)
    world.lead(key=OTHER)
    world.produce(acks=1, key=OTHER)
    world.answers.clear()
    return world, store


def test_a_follower_is_told_to_begin_elsewhere() -> None:
    world, store = tiered_world()
    world.follow(2)
    answer = world.answer()
    assert (answer.error, answer.log_start_offset, answer.high_watermark) == (
        Errors.OFFSET_MOVED_TO_TIERED_STORAGE, 0, 10,
    )  # fmt: skip
    assert store.asked == []


def test_a_consumer_gets_it_from_the_store() -> None:
    world, store = tiered_world()
    world.consume(2, max_wait_ms=0, wanted={"max_bytes": 700})
    assert (world.answers, world.parked, store.asked) == ([], 1, [(KEY, 2, 700)])
    store.reads[0].set_result(REMOTE)
    answer = world.answer()
    assert (answer.error, answer.data, answer.high_watermark, answer.is_remote) == (Errors.NONE, REMOTE, 10, False)
    assert world.parked == 0


@pytest.mark.parametrize("offset", [LOCAL_START, 9])
def test_what_is_on_the_disk_is_read_from_there(offset: int) -> None:
    world, store = tiered_world()
    world.consume(offset)
    assert world.answer().size == (10 - offset) * SIZE
    assert store.asked == []


def test_what_is_deleted_is_out_of_range_for_all() -> None:
    world, store = tiered_world()
    world.manager.partition(KEY).log.maybe_increment_log_start_offset(3)
    world.consume(2)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE
    world.follow(2)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE
    assert store.asked == []


def test_without_tiered_storage_there_is_nothing_before_the_disk() -> None:
    world, _ = tiered_world(read_remote=None)
    world.consume(2)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE


def test_the_other_partitions_of_the_fetch_are_answered_with_it() -> None:
    world, store = tiered_world()
    asked = [(OTHER, FetchPartition(0)), (KEY, FetchPartition(2))]
    world.manager.fetch_messages(FetchParams(max_wait_ms=0), asked, world.answers.append)
    store.reads[0].set_result(REMOTE)
    [answer] = world.answers
    assert [(key, result.size) for key, result in answer] == [(OTHER, SIZE), (KEY, REMOTE.size)]


def test_a_store_that_is_too_slow_is_not_waited_for() -> None:
    world, store = tiered_world()
    world.consume(2)
    world.pass_time(REMOTE_FETCH_MAX_WAIT_MS - 1)
    assert world.answers == []
    world.pass_time(1)
    answer = world.answer()
    assert (answer.error, answer.size) == (Errors.NONE, 0)
    assert store.reads[0].cancelled()
    assert world.manager.expirations.remote_fetch == 1


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ApiError(Errors.OFFSET_OUT_OF_RANGE), Errors.OFFSET_OUT_OF_RANGE),
        (OSError("store away"), Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_read_that_fails_is_an_error_of_its_partition(failure: Exception, error: Errors) -> None:
    world, store = tiered_world()
    world.consume(2)
    store.reads[0].set_exception(failure)
    assert world.answer().error is error


def test_a_store_that_takes_no_more_reads_is_an_error_at_once() -> None:
    def refuse(*_: Any) -> Future[FetchDataInfo]:
        raise RuntimeError("too many reads")

    world, _ = tiered_world(read_remote=refuse)
    world.consume(2)
    assert (world.answer().error, world.parked) == (Errors.UNKNOWN_SERVER_ERROR, 0)


def test_a_partition_that_goes_ends_the_wait() -> None:
    world, store = tiered_world()
    world.consume(2)
    world.manager.stop_replica(KEY)
    assert (world.answer().size, world.parked) == (0, 0)
    store.reads[0].set_result(REMOTE)
    assert world.answers == []


def test_only_what_is_on_all_replicas_leaves_the_disk() -> None:
    world, _ = tiered_world()
    with pytest.raises(ApiError):
        world.manager.partition(KEY).log.increment_local_log_start_offset(11)
