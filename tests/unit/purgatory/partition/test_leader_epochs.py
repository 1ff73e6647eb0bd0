"""Epoch ends, divergence and truncation: the table of Kafka's testLastFetchedOffsetValidation, and the cache alone."""

import pytest

from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import EpochEndOffset
from purgatory.partition.leader_epochs import LeaderEpochCache
from purgatory.partition.partition_reading import diverging_epoch
from tests.unit.replica_world import Batch, assignment, new_partition

STARTS = [(0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17)]


def leader(log_start=0):
    """A log with STARTS, ending at 17: epoch 10 has written nothing yet."""
    partition = new_partition()
    for (epoch, start), (_, end) in zip(STARTS, [*STARTS[1:], (10, 17)], strict=True):
        if end > start:
            partition.log.append_as_follower([Batch(first=offset, epoch=epoch) for offset in range(start, end)])
    partition.make_leader(assignment(epoch=10), 0)
    assert partition.log.epochs.entries == STARTS
    assert partition.log.log_end_offset == 17
    partition.log.update_high_watermark(17)
    partition.log.maybe_increment_log_start_offset(log_start)
    return partition


@pytest.mark.parametrize(
    ("log_start", "epoch", "offset", "expected"),
    [
        (0, 2, 5, (0, 2)),
        (0, 0, 4, (0, 2)),
        (0, 6, 6, (4, 13)),
        (0, 5, 9, (4, 13)),
        (0, 10, 18, (10, 17)),
        (0, 0, 2, None),
        (0, 7, 14, None),
        (0, 9, 17, None),
        (0, 10, 17, None),
        (0, 11, 17, Errors.OFFSET_OUT_OF_RANGE),
        (5, 2, 8, (2, 5)),
        (5, 0, 5, None),
        (5, 3, 5, None),
        (5, 0, 0, Errors.OFFSET_OUT_OF_RANGE),
        (10, 0, 0, Errors.OFFSET_OUT_OF_RANGE),
        (10, 0, 3, Errors.OFFSET_OUT_OF_RANGE),
        (10, 0, 7, Errors.OFFSET_OUT_OF_RANGE),
        (10, 5, 9, Errors.OFFSET_OUT_OF_RANGE),  # although it diverges
        (0, None, 99, None),
    ],
)
def test_where_histories_part(log_start, epoch, offset, expected):
    partition = leader(log_start)
    if isinstance(expected, Errors):
        with pytest.raises(ApiError) as refused:
            diverging_epoch(partition, None, epoch, offset)
        assert refused.value.error is expected
    else:
        found = diverging_epoch(partition, None, epoch, offset)
        assert found == (expected and EpochEndOffset(*expected))


def cache(*entries):
    found = LeaderEpochCache()
    for epoch, start in entries:
        found.assign(epoch, start)
    return found


def test_an_empty_cache_knows_nothing():
    assert cache().end_offset_for(0, 10).is_undefined
    assert cache().epoch_of(0) == cache().latest_epoch == -1
    assert cache((1, 0)).end_offset_for(-1, 10).is_undefined


def test_an_epoch_keeps_its_start_and_contradictions_are_forgotten():
    assert cache((1, 0), (1, 5)).entries == [(1, 0)]
    assert cache((1, 0), (2, 5), (3, 5)).entries == [(1, 0), (3, 5)]  # 2 wrote nothing
    assert cache((1, 0), (4, 5), (2, 7)).entries == [(1, 0), (2, 7)]
    assert cache((1, 0), (2, 5), (3, 2)).entries == [(1, 0), (3, 2)]
    assert cache((1, 5), (1, 3)).entries == [(1, 3)]


@pytest.mark.parametrize(
    ("end", "entries"), [(20, STARTS), (17, STARTS[:5]), (14, STARTS[:4]), (13, STARTS[:3]), (3, STARTS[:2]), (0, [])]
)
def test_truncation_from_the_end(end, entries):
    epochs = cache(*STARTS)
    epochs.truncate_from_end(end)
    assert epochs.entries == entries


@pytest.mark.parametrize(
    ("start", "entries"),
    [(0, STARTS), (1, [(0, 1), *STARTS[1:]]), (2, STARTS[1:]), (5, [(3, 5), *STARTS[2:]]), (30, [(10, 30)])],
)
def test_truncation_from_the_start(start, entries):
    epochs = cache(*STARTS)
    epochs.truncate_from_start(start)
    assert epochs.entries == entries


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (1, 0), (2, 3), (7, 3), (8, 4), (16, 9), (17, 10), (99, 10)])
def test_the_epoch_of_an_offset(offset, epoch):
    assert cache(*STARTS).epoch_of(offset) == epoch
