"""A log in files: what it refuses, when it rolls, what it knows of producers, what it loses and what it keeps."""

import os

import pytest

from broker.log.loading import start_over_at
from broker.log.retention import apply_retention
from broker.records.batch_validation import RecordRules
from broker.records.compression import CompressionType
from broker.records.record_batch import TimestampType, read_header, whole_batches
from broker.records.records import Producer, read_records
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import Isolation
from tests.unit.log_world import NOW_MS, LogWorld, batch, marker


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path / "topic-0")


def refusal(world, data, epoch=0):
    before = (world.log.log_end, world.log.size)
    with pytest.raises(ApiError) as refused:
        world.append(data, epoch)
    assert (world.log.log_end, world.log.size) == before
    return refused.value.error


def sent(sequence, *values, producer_id=7, epoch=0, **about):
    return batch(*values, producer=Producer(producer_id, epoch, sequence), **about)


# Appending


def test_offsets_and_epoch_are_the_leaders(world):
    assert [world.append(batch(b"a", b"b"), 3), world.append(batch(b"c"), 4)] == [0, 2]
    headers = [one.header for one in whole_batches(world.read_bytes(0))]
    assert [(one.base_offset, one.partition_leader_epoch) for one in headers] == [(0, 3), (2, 4)]
    assert world.replica.epochs.entries == [(3, 0), (4, 2)]


def test_a_buffer_is_stamped_in_place_and_bytes_are_copied(world):
    data = batch(b"a")
    world.append(batch(b"first"))
    world.append(bytes(data))
    assert read_header(data).base_offset == 0
    world.append(memoryview(data))
    assert read_header(data).base_offset == 2


def test_log_append_time_is_the_brokers(tmp_path):
    world = LogWorld(tmp_path, RecordRules(timestamp_type=TimestampType.LOG_APPEND_TIME))
    world.append(batch(b"a", b"b", timestamp=5, codec=CompressionType.ZSTD))
    assert [record.timestamp for record in world.records()] == [NOW_MS, NOW_MS]


def test_what_does_not_fit_a_segment_is_refused(world):
    assert refusal(world, batch(bytes(1001))) is Errors.RECORD_LIST_TOO_LARGE


def test_two_batches_of_rubbish_and_a_good_one_leave_no_trace(world):
    bad = batch(b"b")
    bad[-1] ^= 1
    assert refusal(world, bytes(batch(b"a") + bad)) is Errors.CORRUPT_MESSAGE


def test_a_full_disk_is_answered_and_leaves_no_half_batch(world, monkeypatch):
    world.append(batch(b"a"))
    write = os.pwrite

    def half(descriptor, data, position):
        if len(data) > 40:
            return write(descriptor, data[:40], position)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    assert refusal(world, batch(b"b")) is Errors.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    world.append(batch(b"c"))
    world.open()
    assert world.values() == [b"a", b"c"]


# Rolling


def test_rolls_by_size_before_a_batch_that_would_not_fit(world):
    size = len(batch(bytes(300)))
    for _ in range(5):
        world.append(batch(bytes(300)))
    fitting = 1000 // size
    assert world.files() == list(range(0, 5, fitting))
    assert all(segment.size <= 1000 for segment in world.log.segments)


def test_rolls_by_time_between_batches(tmp_path):
    world = LogWorld(tmp_path, segment_ms=1000, segment_jitter_ms=100)
    for timestamp in (0, 900, 901, 1801, 1802):
        world.append(batch(b"", timestamp=NOW_MS + timestamp))
    assert world.files() == [0, 2, 4]


def test_rolls_when_the_index_is_full(tmp_path):
    world = LogWorld(tmp_path, segment_index_bytes=16, index_interval_bytes=0, segment_bytes=1 << 20)
    for _ in range(7):
        world.append(batch(b""))
    assert world.files() == [0, 3, 6]


def test_a_roll_of_an_empty_log_end_is_another_place(world):
    world.append(batch(b"a"))
    world.log.roll()
    assert world.log.log_end.offset == 1
    assert world.log.log_end.position == 0
    assert world.log.read(1, 100, world.log.log_end, min_one_message=True).size == 0


# Producers


def test_a_duplicate_is_answered_with_the_offsets_it_has(world):
    for sequence in range(5):
        world.append(sent(sequence, b"%d" % sequence))
    info = world.replica.append_as_leader(sent(1, b"1"), 0)
    assert (info.first_offset, info.last_offset, info.batches) == (1, 1, ())
    assert world.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_an_older_duplicate_and_a_gap_are_out_of_order(world):
    for sequence in range(6):
        world.append(sent(sequence))
    assert refusal(world, sent(0)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(world, sent(7)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.append(sent(6)) == 6


def test_an_unknown_producer_may_begin_anywhere_and_a_new_epoch_at_0(world):
    world.append(sent(40))
    assert refusal(world, sent(1, epoch=1)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.append(sent(0, epoch=1))
    assert refusal(world, sent(1, epoch=0)) is Errors.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("how", ["open", "reopen"])
def test_producers_are_known_after_a_start(world, how):
    for sequence in range(12):
        world.append(sent(sequence, bytes(200)))
    assert len(world.log.segments) > 2
    getattr(world, how)()
    assert world.replica.append_as_leader(sent(11, bytes(200)), 0).first_offset == 11
    assert refusal(world, sent(13)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_damaged_snapshot_is_left_out(world):
    for sequence in range(12):
        world.append(sent(sequence, bytes(200)))
    for path in world.directory.glob("*.snapshot"):
        path.write_bytes(b"{}" + path.read_bytes()[2:])
    world.open()
    assert refusal(world, sent(13)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.append(sent(12)) == 12


def test_a_truncation_takes_a_producer_back(world):
    for sequence in range(12):
        world.append(sent(sequence, bytes(200)))
    world.replica.truncate_to(5)
    assert refusal(world, sent(12)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.append(sent(5)) == 5


def test_idle_producers_are_forgotten(world):
    world.append(sent(0))
    apply_retention(world.log, world.replica, NOW_MS + world.config.producer_id_expiration_ms + 1)
    assert world.append(sent(9)) == 1


# Transactions


def test_the_last_stable_offset_is_known_after_a_start(world):
    world.append(sent(0, b"a", is_transactional=True))
    world.append(sent(0, b"b", producer_id=8, is_transactional=True))
    world.append(marker(7, is_aborted=True))
    world.reopen()
    assert world.replica.last_stable.offset == 1
    world.open()
    world.append(marker(8, is_aborted=False))
    assert world.replica.last_stable.offset == world.log.log_end.offset == 4
    world.reopen()
    _, aborted = world.replica.read(0, 1 << 20, Isolation.TXN_COMMITTED, min_one_message=True)
    assert [(one.producer_id, one.first_offset) for one in aborted] == [(7, 0)]


def test_a_truncated_marker_opens_its_transaction_again(world):
    world.append(sent(0, b"a", is_transactional=True))
    world.append(marker(7, is_aborted=False))
    world.log.roll()
    world.append(batch(b"b"))
    world.replica.truncate_to(1)
    assert world.replica.last_stable.offset == 0
    assert world.replica.high_watermark.offset == 1


def test_a_transaction_takes_no_other_batch_of_its_producer(world):
    world.append(sent(0, is_transactional=True))
    assert refusal(world, sent(1)) is Errors.INVALID_TXN_STATE


def test_a_former_coordinator_is_fenced(world):
    world.append(sent(0, is_transactional=True))
    world.append(marker(7, is_aborted=False, coordinator_epoch=2))
    world.append(sent(1, is_transactional=True))
    assert refusal(world, marker(7, is_aborted=False, coordinator_epoch=1)) is Errors.TRANSACTION_COORDINATOR_FENCED


# What goes


def filled(tmp_path, count=10, **config):
    world = LogWorld(tmp_path, **config)
    for index in range(count):
        world.append(batch(bytes(400), timestamp=NOW_MS + index * 1000))
    return world  # two batches a segment


def test_retention_by_time_takes_what_is_too_old_altogether(tmp_path):
    world = filled(tmp_path, retention_ms=5000)
    freed = apply_retention(world.log, world.replica, NOW_MS + 8000)
    assert (world.replica.log_start_offset, world.files()[0]) == (2, 2)
    assert freed == 2 * len(batch(bytes(400)))


def test_retention_by_size_leaves_at_least_so_much(tmp_path):
    size = len(batch(bytes(400)))
    world = filled(tmp_path, retention_ms=-1, retention_bytes=5 * size)
    apply_retention(world.log, world.replica, NOW_MS)
    assert world.files() == [4, 6, 8]


def test_retention_takes_nothing_above_the_high_watermark(tmp_path):
    world = LogWorld(tmp_path, retention_ms=0)
    for _ in range(4):
        world.replica.append_as_leader(batch(bytes(400)), 0)
    world.replica.update_high_watermark(3)
    apply_retention(world.log, world.replica, NOW_MS + 10)
    assert world.replica.log_start_offset == 2


def test_a_whole_log_may_go_and_goes_on_at_its_end(tmp_path):
    world = filled(tmp_path, retention_ms=0)
    apply_retention(world.log, world.replica, NOW_MS + 100_000)
    assert (world.files(), world.log.size, world.replica.log_start_offset) == ([10], 0, 10)
    world.open()
    assert (world.replica.log_start_offset, world.replica.log_end_offset) == (10, 10)
    assert world.append(batch(b"next")) == 10


def test_deleted_records_stay_deleted(world):
    for index in range(4):
        world.append(batch(b"%d" % index))
    world.replica.maybe_increment_log_start_offset(2)
    world.log.advance_start(2)
    world.open()
    assert world.replica.log_start_offset == 2
    assert world.values() == [b"2", b"3"]


def test_a_region_stays_readable_when_its_segment_has_gone(tmp_path):
    world = filled(tmp_path, retention_ms=0)
    region = world.log.read(0, 1 << 20, world.log.log_end, min_one_message=True).records
    apply_retention(world.log, world.replica, NOW_MS + 100_000)
    data = region.read()
    assert [len(record.value or b"") for record in read_records(read_header(data), data)] == [400]


def test_a_follower_starts_over_at_its_leaders_start(world):
    world.append(batch(b"old"), 1)
    start_over_at(world.log, world.replica, 100)
    assert (world.replica.log_start_offset, world.replica.log_end_offset) == (100, 100)
    assert (world.replica.high_watermark.offset, world.replica.epochs.entries) == (100, [])
    world.open()
    assert (world.replica.log_start_offset, world.append(batch(b"new"))) == (100, 100)


# Starting


def test_a_closed_log_is_opened_without_reading_its_batches(tmp_path, monkeypatch):
    world = filled(tmp_path)
    world.log.close(world.replica.high_watermark.offset)
    monkeypatch.setattr("broker.log.segment.check_crc", lambda *_: pytest.fail("a batch was read"))
    world.open()
    assert world.replica.high_watermark.offset == world.log.log_end.offset == 10


def test_a_power_loss_before_the_flush_costs_only_what_was_not_flushed(tmp_path):
    world = filled(tmp_path, 3)
    world.log.flush()
    path = world.log.active.path
    world.append(batch(b"lost"))
    os.truncate(path, path.stat().st_size - 1)
    world.open()
    assert world.log.log_end.offset == 3


def test_what_is_acknowledged_is_on_disk_where_that_is_asked(tmp_path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    LogWorld(tmp_path / "not").append(batch(b"a"))
    assert synced == []
    world = LogWorld(tmp_path / "flushed", flush_messages=1)
    world.append(batch(b"a"))
    assert synced == [world.log.active.file.fileno()]


def test_so_many_records_at_most_are_lost_with_the_power(tmp_path, monkeypatch):
    world = LogWorld(tmp_path, flush_messages=5)
    for _ in range(7):
        world.append(batch(bytes(300), b""))
    assert len(world.files()) > 2
    assert world.log.checkpoint.recovery_point == 12
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    world.append(batch(b""))
    assert synced == []
    world.append(batch(b"", b""))
    assert world.log.active.file.fileno() in synced
    assert world.log.checkpoint.recovery_point == 17


def test_a_segment_that_was_merged_into_the_one_before_is_dropped(tmp_path):
    world = filled(tmp_path, 4)
    first, second = world.log.segments
    first.path.write_bytes(first.path.read_bytes() + second.path.read_bytes())
    first.unseal()
    world.open()
    assert world.files() == [0]
    assert len(world.values()) == 4


@pytest.mark.parametrize("how", ["power loss", "truncation"])
def test_offsets_that_were_deleted_are_not_given_again(world, how):
    world.append(batch(b"a", b"b", b"c"))
    world.replica.maybe_increment_log_start_offset(2)
    world.log.advance_start(2)
    if how == "power loss":
        os.truncate(world.log.active.path, 0)
        world.open()
    else:
        world.replica.truncate_to(2)
    assert (world.replica.log_start_offset, world.replica.log_end_offset) == (2, 2)
    assert world.append(batch(b"next")) == 2
    world.open()
    assert world.values() == [b"next"]
