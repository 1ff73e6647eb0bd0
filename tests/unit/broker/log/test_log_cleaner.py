"""Compaction: what goes, what stays and for how long, and that nobody loses the latest value of a key."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.cleaner import clean_log
from broker.log.segment import LogSegment
from broker.records.batch_validation import RecordRules
from broker.records.compression import CompressionType
from broker.records.record_batch import TRANSACTIONAL, whole_batches
from broker.records.records import Producer
from purgatory.errors import ApiError, Errors
from tests.examples import examples
from tests.unit.log_world import NOW_MS, LogWorld, marker, pairs

RETENTION_MS = 1000


def compacted(directory, **config):
    settings = {"is_compacted": True, "is_deleted": False, "delete_retention_ms": RETENTION_MS, **config}
    return LogWorld(directory, RecordRules(needs_key=True), **settings)


@pytest.fixture
def world(tmp_path):
    return compacted(tmp_path)


def clean(world, now_ms=NOW_MS, **limits):
    world.log.roll()
    world.replica.log_end = world.log.log_end
    return clean_log(world.log, world.replica.last_stable.offset, now_ms, **limits)


def content(world):
    return [(record.offset, record.key, record.value) for record in world.records()]


def latest(world):
    return {record.key: record.value for record in world.records() if record.value is not None}


def test_of_each_key_the_latest_stays_at_its_offset(world):
    world.append(pairs([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]))
    world.append(pairs([(b"b", b"2"), (b"c", b"1")], codec=CompressionType.ZSTD))
    assert clean(world) is not None
    assert content(world) == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1")]
    assert world.log.log_end.offset == 5


def test_segments_become_one_and_reading_finds_its_way(world):
    for index in range(30):
        world.append(pairs([(b"k%d" % (index % 3), bytes(200))]))
    before = len(world.log.segments)
    done = clean(world)
    assert before > 5
    assert done.bytes_after < done.bytes_before / 5
    assert len(world.files()) > 5  # a group is what fits one segment before it is compacted
    world.append(pairs([(b"k2", bytes(900))]))
    clean(world)
    assert world.files() == [0, 30, 31]
    for offset in range(30):
        assert world.log.locate(offset).offset == offset
        [header, *_] = [one.header for one in whole_batches(world.read_bytes(offset))]
        assert header.last_offset >= offset
    world.open()
    assert world.replica.log_start_offset == 0
    assert [offset for offset, *_ in content(world)] == [27, 28, 30]


def test_a_log_that_is_clean_enough_is_left_alone(world):
    world.append(pairs([(b"k%d" % index, bytes(20)) for index in range(20)]))
    assert clean(world) is not None
    assert clean(world) is None
    world.append(pairs([(b"k1", b"new")]))
    assert clean(world) is None


def test_what_is_not_compacted_is_not_touched(tmp_path):
    world = LogWorld(tmp_path)
    world.append(pairs([(b"a", b"1"), (b"a", b"2")]))
    assert clean(world) is None
    assert len(world.records()) == 2


def test_fresh_segments_wait(tmp_path):
    world = compacted(tmp_path, min_compaction_lag_ms=100)
    world.append(pairs([(b"a", b"1"), (b"a", b"2")]))
    assert clean(world, NOW_MS + 99) is None
    assert clean(world, NOW_MS + 101) is not None


def test_what_waited_for_too_long_is_compacted_however_little_it_is(tmp_path):
    world = compacted(tmp_path, max_compaction_lag_ms=100)
    world.append(pairs([(b"k%d" % index, bytes(20)) for index in range(20)]))
    assert clean(world) is not None
    world.append(pairs([(b"k1", b"new")]))
    assert clean(world, NOW_MS + 100) is None
    assert clean(world, NOW_MS + 101) is not None
    assert latest(world)[b"k1"] == b"new"


def test_a_tombstone_stays_for_its_time_and_then_goes(tmp_path):
    world = compacted(tmp_path, min_cleanable_dirty_ratio=0.0)
    world.append(pairs([(b"a", b"1"), (b"b", b"1")]))
    world.append(pairs([(b"a", None)]))
    clean(world)
    assert content(world) == [(1, b"b", b"1"), (2, b"a", None)]
    assert [record.timestamp for record in world.records()] == [NOW_MS + 0, NOW_MS]
    for now_ms, stays in ((NOW_MS + RETENTION_MS, True), (NOW_MS + RETENTION_MS + 1, False)):
        world.append(pairs([(b"c", bytes(300))]))
        clean(world, now_ms)
        assert ((2, b"a", None) in content(world)) is stays


def test_nothing_above_the_last_stable_offset_is_touched(world):
    world.append(pairs([(b"a", b"1"), (b"a", b"2")]))
    world.append(pairs([(b"a", b"3")], producer=Producer(7, 0, 0), attributes=TRANSACTIONAL))
    assert clean(world) is None
    world.append(marker(7, is_aborted=False))
    assert clean(world) is not None
    assert content(world) == [(2, b"a", b"3")]


def test_aborted_records_go_and_do_not_hide_earlier_ones(world):
    world.append(pairs([(b"a", b"1")]))
    world.append(pairs([(b"a", b"aborted")], producer=Producer(7, 0, 0), attributes=TRANSACTIONAL))
    world.append(marker(7, is_aborted=True))
    clean(world)
    assert content(world) == [(0, b"a", b"1")]


def markers(world):
    data = world.read_bytes(0)
    return [one.header.base_offset for one in whole_batches(data) if one.header.is_control]


def test_a_marker_stays_as_long_as_its_records_and_its_time(world):
    world.append(pairs([(b"a", b"1")], producer=Producer(7, 0, 0), attributes=TRANSACTIONAL))
    world.append(marker(7, is_aborted=False))
    clean(world)
    assert markers(world) == [1]
    for now_ms, stays in ((NOW_MS, True), (NOW_MS + RETENTION_MS, True), (NOW_MS + RETENTION_MS + 1, False)):
        world.append(pairs([(b"a", bytes(500))]))
        clean(world, now_ms)
        assert (1 in markers(world)) is stays


def test_a_producers_last_batch_stays_as_an_empty_one(world):
    world.append(pairs([(b"a", b"1")], producer=Producer(7, 0, 0)))
    world.append(pairs([(b"a", b"2")]))
    clean(world)
    for path in world.directory.glob("*.snapshot"):
        path.unlink()
    world.open()
    assert content(world) == [(1, b"a", b"2")]
    with pytest.raises(ApiError) as refused:
        world.append(pairs([(b"a", b"3")], producer=Producer(7, 0, 2)))
    assert refused.value.error is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_more_keys_than_fit_are_the_next_passes(world):
    for index in range(12):
        world.append(pairs([(b"k%d" % (index % 6), bytes(300))]))
    assert clean(world, keys_max=4).cleaned_to == 4
    assert len(content(world)) == 12
    for _ in range(4):
        clean(world, keys_max=4)
    assert clean(world, keys_max=4) is None
    assert latest(world) == {b"k%d" % index: bytes(300) for index in range(6)}


@pytest.mark.parametrize("step", ["rename", "seal", "delete"])
def test_an_interrupted_compaction_loses_nothing(tmp_path, monkeypatch, step):
    world = compacted(tmp_path, min_cleanable_dirty_ratio=0.0)
    for index in range(30):
        world.append(pairs([(b"k%d" % (index % 3), bytes(200)), (b"only%d" % index, b"1")]))
    clean(world)
    world.append(pairs([(b"k2", bytes(900))]))
    wanted = latest(world)
    world.log.roll()

    def fails(*_):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(LogSegment, step, fails)
        with pytest.raises(OSError, match="killed"):
            clean_log(world.log, world.replica.last_stable.offset, NOW_MS)
    world.open()
    assert latest(world) == wanted
    assert world.log.log_end.offset == 61
    world.replica.maybe_increment_high_watermark(world.log.log_end)
    assert clean(world) is not None
    assert latest(world) == wanted


keys = st.sampled_from([b"a", b"b", b"c", b"d"])
batches = st.lists(
    st.tuples(st.lists(st.tuples(keys, st.none() | st.binary(max_size=60)), min_size=1, max_size=4), st.booleans()),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=examples(60))
@given(batches, st.sampled_from(CompressionType))
def test_the_latest_of_every_key_survives_any_history(history, codec):
    with tempfile.TemporaryDirectory(prefix="tickover-log-") as directory:
        world = compacted(Path(directory), min_cleanable_dirty_ratio=0.0)
        model: dict[bytes, bytes | None] = {}
        for step, (content_of_batch, is_cleaned) in enumerate(history):
            world.append(pairs(content_of_batch, timestamp=NOW_MS + step, codec=codec))
            model.update(content_of_batch)
            if is_cleaned:
                clean(world, NOW_MS + step * 200)
        clean(world, NOW_MS + 1_000_000)
        offsets = [record.offset for record in world.records()]
        assert offsets == sorted(set(offsets))
        assert latest(world) == {key: value for key, value in model.items() if value is not None}
        world.open()
        assert latest(world) == {key: value for key, value in model.items() if value is not None}
        assert len(world.records()) <= len(model)
