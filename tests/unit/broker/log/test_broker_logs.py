"""All logs of a broker."""

import pytest

from broker import LogConfig, LogManager
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.unit.log_world import NOW_MS, batch, pairs
from tests.unit.purgatory_tasks import Clock

KEY = TopicPartition("topic", 0)
SMALL = LogConfig(segment_bytes=1000)


@pytest.fixture
def clock():
    return Clock(NOW_MS)


@pytest.fixture
def manager(tmp_path, clock):
    return LogManager(tmp_path, clock)


def fill(hosted, count=6):
    for _ in range(count):
        hosted.replica.append_as_leader(pairs([(b"k", bytes(400))]), 0)
    hosted.replica.maybe_increment_high_watermark(hosted.replica.log_end)


def test_logs_are_as_they_were_left(manager, tmp_path, clock):
    for partition in range(2):
        fill(manager.open(TopicPartition("topic", partition), SMALL), 3 + partition)
    manager.close()
    manager.close()
    again = LogManager(tmp_path, clock)
    found = [again.open(TopicPartition("topic", partition), SMALL).replica for partition in range(2)]
    assert [(one.log_end_offset, one.high_watermark.offset) for one in found] == [(3, 3), (4, 4)]


def test_a_flushed_log_needs_no_check(manager, tmp_path, clock, monkeypatch):
    fill(manager.open(KEY, SMALL))
    assert list(manager.flushing()) == [None]
    monkeypatch.setattr("broker.log.segment.check_crc", lambda *_: pytest.fail("a batch was read"))
    assert LogManager(tmp_path, clock).open(KEY, SMALL).replica.log_end_offset == 6


def test_looking_after_deletes_compacts_and_writes_the_high_watermark(manager, tmp_path, clock):
    old = manager.open(KEY, LogConfig(segment_bytes=1000, retention_ms=1000))
    compacted = manager.open(
        TopicPartition("compacted", 0), LogConfig(segment_bytes=1000, is_compacted=True, is_deleted=False)
    )
    fill(old)
    fill(compacted)
    clock.now_ms += 5000
    assert list(manager.looking_after()) == [None, None]
    assert (old.replica.log_start_offset, old.log.size) == (6, 0)
    assert compacted.replica.log_start_offset == 0
    assert compacted.log.size == 3 * len(pairs([(b"k", bytes(400))]))
    again = LogManager(tmp_path, clock).open(TopicPartition("compacted", 0), SMALL)
    assert again.replica.high_watermark.offset == 6


def test_a_deleted_log_is_gone_and_may_come_again(manager, tmp_path):
    hosted = manager.open(KEY, SMALL)
    fill(hosted, 1)
    region = hosted.log.read(0, 1000, hosted.log.log_end, min_one_message=True).records
    manager.delete([KEY])
    assert list(tmp_path.iterdir()) == []
    assert len(region.read()) == len(pairs([(b"k", bytes(400))]))
    assert manager.open(KEY, SMALL).replica.append_as_leader(batch(b"new"), 0).first_offset == 0


def test_an_interrupted_deletion_is_ended(tmp_path, clock):
    (tmp_path / "topic-0.deleted").mkdir()
    LogManager(tmp_path, clock)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "ü", "a" * 250, "line\n"])
def test_a_topics_name_is_no_path(manager, tmp_path, name):
    with pytest.raises(ApiError) as refused:
        manager.open(TopicPartition(name, 0), SMALL)
    assert refused.value.error is Errors.INVALID_TOPIC_EXCEPTION
    assert list(tmp_path.iterdir()) == []
