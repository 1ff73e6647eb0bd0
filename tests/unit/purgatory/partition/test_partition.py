"""Leader and follower, epochs, high watermark, log start: what Kafka's PartitionTest asks of one replica."""

import pytest

from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import Isolation
from purgatory.partition.partition_reading import (
    can_list,
    check_follower,
    fetch_offset_snapshot,
    last_offset_for_leader_epoch,
    latest_offset,
)
from purgatory.partition.replica import FollowerFetch
from purgatory.versions import KafkaVersion
from tests.unit.replica_world import Batch, Brokers, assignment, new_partition

REPLICAS = (1, 2, 3)
LAG_MS = 30_000


def leader(batches=0, now_ms=0, brokers=None, isr=None, replicas=REPLICAS, **settings):
    partition = new_partition(brokers, **settings)
    partition.make_leader(assignment(epoch=5, replicas=replicas, isr=isr), now_ms)
    if batches:
        append(partition, batches, now_ms)
    return partition


def append(partition, count=1, now_ms=0, acks=1):
    return partition.append_records_to_leader([Batch() for _ in range(count)], acks, now_ms)


def fetch(partition, broker_id, offset, now_ms=0, *, broker_epoch=-1, log_start=0):
    place = partition.log.storage.locate(offset)
    return partition.update_follower_fetch_state(
        FollowerFetch(broker_id, place, log_start, broker_epoch), partition.log.log_end_offset, now_ms
    )


def high_watermark(partition):
    return partition.log.high_watermark.offset


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ApiError as refused:
        return refused.error
    return Errors.NONE


def test_a_new_leader_epoch_is_kept_at_the_log_end_even_without_data():
    partition = new_partition()
    partition.make_leader(assignment(epoch=4), 0)
    append(partition, 3)
    partition.make_leader(assignment(epoch=8, partition_epoch=1), 0)
    assert partition.log.epochs.entries == [(4, 0), (8, 3)]
    assert partition.leader_epoch_start_offset == 3


EPOCHS = ((None, Errors.NONE), (5, Errors.NONE), (4, Errors.FENCED_LEADER_EPOCH), (6, Errors.UNKNOWN_LEADER_EPOCH))


@pytest.mark.parametrize(("epoch", "expected"), EPOCHS)
@pytest.mark.parametrize("leader_only", [True, False])
@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("asked", ["snapshot", "epoch end"])
def test_epochs_are_checked_before_leadership(epoch, expected, leader_only, is_leader, asked):
    partition = new_partition()
    if is_leader:
        partition.make_leader(assignment(epoch=5, replicas=REPLICAS), 0)
    else:
        partition.make_follower(assignment(leader=2, epoch=5, replicas=REPLICAS))
    if expected is Errors.NONE and leader_only and not is_leader:
        expected = Errors.NOT_LEADER_OR_FOLLOWER
    if asked == "snapshot":
        assert error_of(fetch_offset_snapshot, partition, epoch, leader_only=leader_only) is expected
    else:
        assert error_of(last_offset_for_leader_epoch, partition, epoch, 5, leader_only=leader_only) is expected


@pytest.mark.parametrize(
    ("epoch", "expected"), [(5, Errors.UNKNOWN_LEADER_EPOCH), (None, Errors.NOT_LEADER_OR_FOLLOWER)]
)
def test_an_unrecognised_follower_is_refused_until_it_is_assigned(epoch, expected):
    partition = leader()
    assert error_of(check_follower, partition, 7, epoch) is expected
    partition.make_leader(assignment(epoch=5, partition_epoch=1, replicas=(*REPLICAS, 7), isr=REPLICAS), 0)
    assert error_of(check_follower, partition, 7, epoch) is Errors.NONE


def test_offsets_do_not_go_back_after_a_leader_change():
    """The new leader's high watermark may be behind the former's until its followers fetch."""
    partition = new_partition()
    partition.make_follower(assignment(leader=2, epoch=4, replicas=REPLICAS))
    partition.append_records_to_follower([Batch(first=offset, epoch=4) for offset in range(10)], 5, 0)
    partition.make_leader(assignment(epoch=5, partition_epoch=1, replicas=REPLICAS), 0)
    assert (high_watermark(partition), partition.leader_epoch_start_offset) == (5, 10)
    for isolation in (Isolation.HIGH_WATERMARK, Isolation.TXN_COMMITTED):
        assert error_of(latest_offset, partition, isolation, None) is Errors.OFFSET_NOT_AVAILABLE
    assert latest_offset(partition, Isolation.LOG_END, None) == 10
    assert can_list(partition, partition.log.log_start_offset)  # earliest
    assert can_list(partition, 4)
    assert not can_list(partition, 7)
    fetch(partition, 2, 10)
    fetch(partition, 3, 10)
    assert latest_offset(partition, Isolation.HIGH_WATERMARK, None) == 10
    assert can_list(partition, 7)


def test_latest_offsets_by_isolation():
    partition = leader()
    partition.append_records_to_leader([Batch(producer_id=9), Batch(), Batch()], 1, 0)

    def ends():
        return [latest_offset(partition, isolation, None) for isolation in Isolation]

    assert ends() == [3, 0, 0]
    fetch(partition, 2, 3)
    fetch(partition, 3, 3)
    assert ends() == [3, 3, 0]
    partition.append_records_to_leader([Batch(producer_id=9, ends="commit")], 1, 0)
    assert ends() == [4, 3, 0]
    fetch(partition, 2, 4)
    fetch(partition, 3, 4)
    assert ends() == [4, 4, 4]


def test_a_follower_takes_a_batch_that_spans_its_empty_log_start():
    partition = new_partition()
    partition.make_follower(assignment(leader=2, replicas=REPLICAS))
    partition.log.log_start_offset = 7
    partition.log.log_end = partition.log.storage.truncate_to(7)
    for first, count in ((0, 3), (9, 2)):  # wholly below; above
        with pytest.raises(UnexpectedAppendOffset):
            partition.append_records_to_follower([Batch(first=first, count=count)], 0, 0)
        assert partition.log.log_end_offset == 7
    partition.append_records_to_follower([Batch(first=5, count=4, epoch=0)], 0, 0)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (5, 9)
    with pytest.raises(UnexpectedAppendOffset):  # not empty any more
        partition.append_records_to_follower([Batch(first=7, count=4, epoch=0)], 0, 0)
    assert partition.log.log_end_offset == 9


def test_the_high_watermark_waits_for_all_in_the_isr():
    partition = leader(5)
    assert not fetch(partition, 2, 5).high_watermark
    assert high_watermark(partition) == 0
    assert fetch(partition, 3, 3).high_watermark
    assert high_watermark(partition) == 3
    assert not fetch(partition, 3, 2).high_watermark  # never back
    assert high_watermark(partition) == 3
    assert fetch(partition, 3, 5).high_watermark
    assert high_watermark(partition) == 5


def test_a_leader_alone_moves_its_high_watermark_with_the_append():
    partition = leader(replicas=(1,))
    info, moved = append(partition, 2)
    assert (info.first_offset, moved.high_watermark, high_watermark(partition)) == (0, True, 2)


def test_the_high_watermark_moves_sideways_to_a_new_segment():
    partition = leader(1, replicas=(1,))
    partition.log.storage.roll()
    partition.log.log_end = partition.log.storage.end
    assert high_watermark(partition) == 1
    assert partition.log.maybe_increment_high_watermark(partition.log.log_end)
    assert partition.log.high_watermark.segment_base_offset == 1
    assert not partition.log.maybe_increment_high_watermark(partition.log.log_end)
    with pytest.raises(ValueError, match="above the log end"):
        partition.log.maybe_increment_high_watermark(partition.log.storage.locate(2))


def test_a_read_at_its_end_begins_where_that_end_is_and_one_beyond_at_its_own_place():
    """So after a roll without data nothing has moved, as long as the high watermark has not."""
    partition = leader(1, replicas=(1,))
    partition.log.storage.roll()
    partition.log.log_end = partition.log.storage.end
    data, _ = partition.log.read(1, 100, Isolation.HIGH_WATERMARK, min_one_message=True)
    assert data.start == partition.log.high_watermark != partition.log.log_end
    partition = leader(3)
    data, _ = partition.log.read(2, 100, Isolation.HIGH_WATERMARK, min_one_message=True)
    assert (data.size, data.start) == (0, partition.log.storage.locate(2))


@pytest.mark.parametrize(
    ("version", "effective", "moves_under"), [(KafkaVersion.V3_6, 3, True), (KafkaVersion.V3_7, 2, False)]
)
def test_min_isr_by_version(version, effective, moves_under):
    """From 3.7: at most the number of replicas, and below it the high watermark stands still."""
    partition = leader(replicas=(1, 2), isr={1}, min_insync_replicas=3, version=version)
    assert partition.effective_min_isr == effective
    assert partition.is_under_min_isr
    assert error_of(append, partition, acks=-1) is Errors.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    append(partition, acks=1, now_ms=LAG_MS + 1)
    assert high_watermark(partition) == (1 if moves_under else 0)


@pytest.mark.parametrize(
    ("row", "leads", "isr", "acks", "expected"),
    [
        ("B3", False, (1, 2), 1, Errors.NOT_LEADER_OR_FOLLOWER),
        ("B3 before B4", False, (2,), -1, Errors.NOT_LEADER_OR_FOLLOWER),
        ("B4", True, (1,), -1, Errors.NOT_ENOUGH_REPLICAS),
        ("B4 not with acks=1", True, (1,), 1, Errors.NONE),
        ("B4 not with acks=0", True, (1,), 0, Errors.NONE),
        ("B8", True, (1, 2), -1, Errors.NONE),
    ],
)
def test_rows_b3_and_b4_of_produce(row, leads, isr, acks, expected):
    partition = leader(isr=isr, min_insync_replicas=2)
    if not leads:
        partition.make_follower(assignment(leader=2, epoch=6, partition_epoch=1, replicas=REPLICAS, isr=isr))
    assert error_of(append, partition, acks=acks) is expected, row
    assert partition.log.log_end_offset == (expected is Errors.NONE)


@pytest.mark.parametrize(("isr", "under"), [((1,), True), ((1, 2), False), (REPLICAS, False)])
def test_only_a_leader_is_under_min_isr(isr, under):
    partition = leader(isr=isr, min_insync_replicas=2)
    assert partition.is_under_min_isr is under
    partition.make_follower(assignment(leader=2, epoch=6, partition_epoch=1, replicas=REPLICAS, isr=isr))
    assert not partition.is_under_min_isr


def test_replica_state_stays_without_a_new_leader_epoch():
    partition = leader(4, now_ms=10)
    fetch(partition, 2, 4, 20)
    before, start = partition.remote[2], partition.leader_epoch_start_offset
    append(partition, 2)
    partition.make_leader(assignment(epoch=5, partition_epoch=1, replicas=REPLICAS), 50)
    assert (partition.remote[2], partition.leader_epoch_start_offset) == (before, start)
    partition.make_leader(assignment(epoch=6, partition_epoch=2, replicas=REPLICAS, isr=(1, 2)), 60)
    assert partition.leader_epoch_start_offset == 6
    assert [(one.log_end.offset, one.last_caught_up_ms) for one in partition.remote.values()] == [(-1, 60), (-1, 0)]


@pytest.mark.parametrize("role", ["make_leader", "make_follower"])
def test_older_assignments_are_ignored(role):
    partition = leader()
    partition.make_leader(assignment(epoch=5, partition_epoch=7, replicas=REPLICAS), 0)
    older = assignment(leader=2, epoch=5, partition_epoch=6, replicas=(1, 2))
    assert (partition.make_leader(older, 0) if role == "make_leader" else partition.make_follower(older)) is None
    assert (partition.is_leader, partition.replicas, partition.partition_epoch) == (True, REPLICAS, 7)


def test_a_follower_knows_no_remote_replicas():
    partition = leader(1)
    assert partition.make_follower(assignment(leader=2, epoch=6, partition_epoch=1, replicas=REPLICAS))
    assert (partition.remote, partition.low_watermark()) == ({}, -1)
    assert not partition.make_follower(assignment(leader=2, epoch=6, partition_epoch=2, replicas=REPLICAS))


def test_a_checkpoint_gives_the_first_high_watermark():
    partition = new_partition()
    partition.log.append_as_follower([Batch(first=offset, epoch=0) for offset in range(6)])
    assert partition.log.update_high_watermark(4)
    assert high_watermark(partition) == 4
    partition.log.update_high_watermark(100)
    assert high_watermark(partition) == 6  # as far as the log goes


def test_a_follower_follows_both_watermarks():
    partition = new_partition()
    partition.make_follower(assignment(leader=2, replicas=REPLICAS))
    batches = [Batch(first=offset, epoch=0) for offset in range(6)]
    assert not partition.append_records_to_follower(batches, 0, 0).high_watermark
    moved = partition.append_records_to_follower([], 4, 5)
    assert (moved.high_watermark, moved.low_watermark) == (True, True)
    assert (high_watermark(partition), partition.log.log_start_offset) == (4, 4)  # never above the high watermark


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(3, (3, 0)), (-1, (4, 0)), (5, Errors.OFFSET_OUT_OF_RANGE), (-2, Errors.OFFSET_OUT_OF_RANGE)],
)
def test_deleting_records(offset, expected):
    partition = leader(5)
    fetch(partition, 2, 4)
    fetch(partition, 3, 4)
    if isinstance(expected, Errors):
        assert error_of(partition.delete_records_on_leader, offset) is expected
    else:
        assert partition.delete_records_on_leader(offset) == expected
        assert partition.log.log_start_offset == expected[0]  # at once, for consumers


def test_the_low_watermark_counts_living_replicas():
    brokers = Brokers()
    partition = leader(5, brokers=brokers)
    fetch(partition, 2, 5)
    fetch(partition, 3, 5)
    partition.delete_records_on_leader(4)
    assert fetch(partition, 2, 5, log_start=4).low_watermark is False
    brokers.fenced.add(3)
    assert partition.low_watermark() == 4
    brokers.fenced.clear()
    assert fetch(partition, 3, 5, log_start=4).low_watermark
    assert partition.low_watermark() == 4


def test_truncation_takes_epochs_transactions_and_watermark_along():
    partition = new_partition()
    log = partition.log
    for epoch, batch in enumerate((Batch(producer_id=9), Batch(), Batch(producer_id=9, ends="abort"), Batch())):
        partition.make_leader(assignment(epoch=epoch, partition_epoch=epoch), 0)
        partition.append_records_to_leader([batch], 1, 0)
    assert (high_watermark(partition), log.last_stable.offset) == (4, 4)
    assert log.truncate_to(2)
    assert (log.log_end_offset, high_watermark(partition), log.last_stable.offset) == (2, 2, 0)
    assert log.epochs.entries == [(0, 0), (1, 1)]
    assert log.transactions.ongoing == {9: 0}
    assert log.transactions.aborted_between(0, 9) == []
    assert not log.truncate_to(2)
