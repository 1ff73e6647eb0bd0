"""Limits over the partitions of one fetch, and the followers' quota: FetchRequestTest, ReplicaManagerQuotasTest."""

import pytest

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.log_offsets import UNKNOWN_OFFSET, EpochEndOffset, Isolation, TopicPartition
from purgatory.partition.replica_log import FetchDataInfo
from purgatory.replica_manager.fetch_reading import LogReadResult, must_answer_fetch, read_from_log
from tests.unit.replica_world import SIZE, Batch, World

PARTITIONS = [TopicPartition("topic", number) for number in range(4)]


def sizes_of(limits, sizes, request_max, *, version_2=False):
    """Read partitions that hold one batch of these sizes each. Bytes given, and what each was allowed."""
    held = dict(zip(PARTITIONS, sizes, strict=False))
    allowed = []

    def read_one(key, wanted, max_bytes, min_one_message):
        allowed.append((max_bytes, min_one_message))
        size = min(held[key], max(max_bytes, held[key]) if min_one_message else max_bytes)
        if size < held[key] and not version_2:
            size = 0
        return LogReadResult(data=FetchDataInfo(UNKNOWN_OFFSET, b"", size))

    params = FetchParams(max_bytes=request_max, hard_max_bytes_limit=version_2)
    wanted = [(key, FetchPartition(0, max_bytes=limit)) for key, limit in zip(held, limits, strict=False)]
    return [result.size for _, result in read_from_log(params, wanted, read_one)], allowed


@pytest.mark.parametrize(
    ("sizes", "limits", "request_max", "expected"),
    [
        ([100, 100, 100], [190, 190, 190], 800, [100, 100, 100]),
        ([100, 100, 100], [190, 190, 190], 250, [100, 100, 0]),  # the third does not fit whole
        ([900, 100, 100], [190, 190, 190], 800, [900, 0, 0]),  # the first may exceed everything
        ([0, 900, 100], [190, 190, 190], 800, [0, 900, 0]),  # the first that has anything
        ([100, 900, 100], [190, 190, 190], 800, [100, 0, 100]),  # later ones may not
        ([100, 100, 900], [190, 190, 190], 800, [100, 100, 0]),
    ],
)
def test_partitions_share_the_limit_in_their_order(sizes, limits, request_max, expected):
    assert sizes_of(limits, sizes, request_max)[0] == expected


def test_the_limit_shrinks_by_what_was_read_and_never_below_nothing():
    _, allowed = sizes_of([190] * 4, [900, 0, 0, 0], 800)
    assert allowed == [(190, True), (0, False), (0, False), (0, False)]


def test_up_to_version_2_a_batch_is_cut():
    sizes, allowed = sizes_of([150, 150], [200, 100], 200, version_2=True)
    assert sizes == [150, 50]
    assert allowed[0] == (150, False)


ENDS = EpochEndOffset(1, 2)
READ = LogReadResult(data=FetchDataInfo(UNKNOWN_OFFSET, b"", 10))


@pytest.mark.parametrize(
    ("row", "params", "results", "at_once"),
    [
        ("B1", {"max_wait_ms": 0}, [LogReadResult()], True),
        ("B1", {"max_wait_ms": -1}, [LogReadResult()], True),
        ("B2", {"min_bytes": 20}, [READ, READ], True),
        ("B2", {"min_bytes": 21}, [READ, READ], False),
        ("B2", {"min_bytes": 0}, [LogReadResult()], True),
        *(("B3", {}, [LogReadResult(), LogReadResult(error)], True) for error in Errors if error is not Errors.NONE),
        ("B4", {}, [LogReadResult(diverging_epoch=ENDS)], True),
        ("B5", {}, [LogReadResult(preferred_read_replica=2)], True),
        ("A3", {}, [], True),
        ("otherwise", {}, [LogReadResult(), LogReadResult()], False),
    ],
)
def test_whether_the_first_read_is_the_answer(row, params, results, at_once):
    """Table 2.2, stage B."""
    answers = list(zip(PARTITIONS * 2, results, strict=False))
    assert must_answer_fetch(FetchParams(**params), answers) is at_once, row


def test_more_bytes_are_never_wanted_than_may_be_sent():
    assert FetchParams(min_bytes=500, max_bytes=100).min_bytes == 100


class Quota:
    """Exceeded after so many questions."""

    def __init__(self, exceeded_after=0):
        self.asked = 0
        self.exceeded_after = exceeded_after
        self.recorded = 0

    def is_throttled(self, key):
        return True

    def is_quota_exceeded(self):
        self.asked += 1
        return self.asked > self.exceeded_after

    def record(self, key, size):
        self.recorded += size


def throttled(quota, isr, replica_id=2, **fetch):
    world = World(quota=quota)
    for key in PARTITIONS[:2]:
        world.lead((1, 2), isr=isr, key=key)
        world.produce(Batch(), acks=1, key=key)
    world.answers.clear()
    wanted = FetchPartition(0, log_start_offset=0)
    isolation = Isolation.LOG_END if replica_id >= 0 else Isolation.HIGH_WATERMARK
    params = FetchParams(**{"replica_id": replica_id, "max_wait_ms": 0, "isolation": isolation, **fetch})
    world.manager.fetch_messages(params, [(key, wanted) for key in PARTITIONS[:2]], world.answers.append)
    return world


@pytest.mark.parametrize(("exceeded_after", "expected"), [(0, [0, 0]), (1, [SIZE, 0]), (2, [SIZE, SIZE])])
def test_throttled_partitions_are_empty_from_where_the_quota_is_exceeded(exceeded_after, expected):
    world = throttled(Quota(exceeded_after), isr=(1,))
    assert [result.size for _, result in world.answers[0]] == expected


def test_followers_in_sync_are_not_throttled_but_charged():
    quota = Quota()
    world = throttled(quota, isr=(1, 2))
    assert [result.size for _, result in world.answers[0]] == [SIZE, SIZE]
    assert quota.recorded == 2 * SIZE


def test_consumers_are_not_throttled():
    world = throttled(Quota(), isr=(1,), replica_id=-1)
    assert [result.size for _, result in world.answers[0]] == [SIZE, SIZE]


@pytest.mark.parametrize(("isr", "parked"), [((1, 2), 0), ((1,), 1)])
def test_a_parked_fetch_of_a_throttled_follower_ends_only_in_sync(isr, parked):
    world = World(quota=Quota())
    world.lead((1, 2), isr=isr)
    world.follow(0, max_wait_ms=1000)
    world.produce(acks=1)
    assert world.parked == parked
