"""ReplicaManager over real files: the requests of `tests/unit/replica_world.py` with Kafka's own bytes."""

import os
from pathlib import Path

import pytest

from broker.log.leader_epoch_checkpoint import FILE
from broker.log.loading import open_replica_log
from broker.records.record_batch import read_header
from broker.records.records import read_records
from purgatory.errors import Errors
from purgatory.partition.partition import Partition
from tests.unit.log_world import NOW_MS, LogWorld, batch
from tests.unit.replica_world import KEY, World, assignment


class FileWorld(World):
    """Broker 1 with one partition whose log lies in files."""

    def __init__(self, directory):
        super().__init__()
        self.files = LogWorld(directory)
        self.host()

    def host(self, replicas=(1,), epoch=0):
        self.manager.host(Partition(KEY, 1, self.files.replica, self.brokers))
        self.manager.become(KEY, assignment(epoch=epoch, replicas=replicas))

    def send(self, data, acks=-1):
        self.manager.append_records(1000, acks, {KEY: data}, self.answers.append)
        self.manager.try_complete_actions()


@pytest.fixture
def world(tmp_path):
    return FileWorld(tmp_path)


def test_produced_bytes_are_fetched(world):
    world.send(batch(b"a", b"b"))
    result = world.answer()
    assert (result.error, result.base_offset) == (Errors.NONE, 0)
    world.consume(1)
    data = world.answer().data.records.read()
    assert [record.value for record in read_records(read_header(data), data)] == [b"a", b"b"]


def test_a_parked_fetch_is_answered_by_a_produce_and_by_a_roll(world):
    world.consume(0, min_bytes=1, max_wait_ms=500)
    assert world.parked == 1
    world.send(batch(bytes(600)))
    fetched = world.answers.pop()
    assert fetched[0][1].size == len(batch(bytes(600)))
    world.answers.clear()
    world.consume(1, min_bytes=1 << 20, max_wait_ms=500)
    assert world.parked == 1
    world.send(batch(bytes(600)))  # begins a new segment
    assert world.files.files() == [0, 1]
    assert world.parked == 0


def test_refusals_come_from_the_log(world):
    bad = batch(b"a")
    bad[-1] ^= 1
    world.send(bad)
    assert world.answer().error is Errors.CORRUPT_MESSAGE
    world.send(batch(bytes(2000)))
    assert world.answer().error is Errors.RECORD_LIST_TOO_LARGE


def test_a_follower_copies_the_leaders_bytes(world, tmp_path):
    follower_log, follower = open_replica_log(tmp_path / "follower", world.files.config, lambda: NOW_MS)
    world.host(replicas=(1, 2))
    world.send(batch(b"a"))
    world.send(batch(b"b", b"c"))
    for _ in range(2):
        world.follow(follower.log_end_offset)
        [result] = [answer[0][1] for answer in world.answers if isinstance(answer, list)]
        world.answers[:] = [answer for answer in world.answers if not isinstance(answer, list)]
        if result.size:
            follower.append_as_follower(result.data.records.read())
    assert follower.log_end_offset == 3
    assert follower_log.active.file.read(0, 1 << 20) == world.files.log.active.file.read(0, 1 << 20)
    assert [next(iter(answer.values())).error for answer in world.answers] == [Errors.NONE, Errors.NONE]


def test_a_broker_goes_on_after_a_restart(world):
    world.send(batch(b"a"))
    assert world.answer().base_offset == 0
    world.files.log.write_checkpoint(world.files.replica.high_watermark.offset)
    world.files.open()
    world.host(epoch=1)
    world.send(batch(b"b"))
    assert world.answer().base_offset == 1
    assert world.files.replica.epochs.entries == [(0, 0), (1, 1)]
    assert world.files.values() == [b"a", b"b"]


@pytest.fixture
def flushes(monkeypatch):
    """The names of what is flushed to disk."""
    found = []
    flush = os.fsync

    def note(descriptor):
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_the_first_epochs_are_flushed_when_nobody_would_find_them_in_the_batches(world, flushes):
    path = world.files.directory / FILE
    assert not path.exists(), "there is no record of this epoch"
    world.send(batch(b"a"))
    world.host(epoch=3)
    world.send(batch(b"b"))
    assert flushes == []
    path.unlink()  # as a loss of power may leave it
    world.files.open()
    assert world.files.replica.epochs.entries == [(0, 0), (3, 1)]
    world.files.log.roll()
    assert f"{FILE}.tmp" in flushes
    flushes.clear()
    world.host(epoch=5)
    world.send(batch(b"c"))
    assert f"{FILE}.tmp" in flushes, "what replaces one that is on disk is flushed too"
    world.files.open()
    assert world.files.replica.epochs.entries == [(0, 0), (3, 1), (5, 2)]
