"""A log in files against a list of batches: appended, read, truncated, deleted from, closed, killed, cut anywhere."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.records.compression import CompressionType
from broker.records.record_batch import assign, whole_batches
from broker.records.records import Record, build_batch, read_records
from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import Isolation
from tests.examples import examples
from tests.unit.log_world import NOW_MS, LogWorld

values = st.binary(max_size=120)
sizes = st.lists(values, min_size=1, max_size=5)
places = st.floats(0, 1)


@dataclass
class Stored:
    """A batch of the model."""

    data: bytes
    first: int
    records: list[Record]
    epoch: int

    @property
    def next(self) -> int:
        return self.first + len(self.records)


class LogMachine(RuleBasedStateMachine):
    @initialize(segment=st.sampled_from([300, 1000, 5000]), interval=st.sampled_from([1, 100, 4096]))
    def begin(self, segment, interval):
        self.directory = Path(tempfile.mkdtemp(prefix="tickover-log-"))
        self.world = LogWorld(self.directory, segment_bytes=max(segment, 900), index_interval_bytes=interval)
        self.model: list[Stored] = []
        self.start = 0
        self.end = 0
        self.flushed = 0
        self.epoch = 0
        self.time = NOW_MS

    def teardown(self):
        if hasattr(self, "directory"):
            shutil.rmtree(self.directory)

    def offset(self, place: float) -> int:
        return self.start + round(place * (self.end - self.start))

    # What happens to a log

    @rule(values=sizes, codec=st.sampled_from(CompressionType), step=st.integers(-50, 200), bump=st.booleans())
    def append(self, values, codec, step, bump):
        self.epoch += bump
        self.time += step
        records = [Record(index, self.time + index, b"k", value) for index, value in enumerate(values)]
        info = self.world.replica.append_as_leader(bytes(build_batch(records, codec)), self.epoch)
        assert (info.first_offset, info.log_end) == (self.end, self.world.log.log_end)
        data = build_batch(records, codec)
        assign(data, 0, self.end, self.epoch)
        self.store(bytes(data))

    @rule(several=st.lists(sizes, min_size=1, max_size=3), cut=st.integers(0, 60))
    def follow(self, several, cut):
        sent, offset = b"", self.end
        for values in several:
            records = [Record(offset + index, self.time, None, value) for index, value in enumerate(values)]
            one = build_batch(records)
            assign(one, 0, offset, self.epoch)
            sent += one
            offset += len(values)
        sent += sent[:cut]  # a fetch ends anywhere
        self.world.replica.append_as_follower(sent)
        for header, position in whole_batches(sent[: len(sent) - cut]):
            self.store(sent[position : position + header.size])

    def store(self, data: bytes) -> None:
        [found] = whole_batches(data)
        records = list(read_records(found.header, data))
        self.model.append(Stored(data, found.header.base_offset, records, found.header.partition_leader_epoch))
        self.end = found.header.last_offset + 1

    @rule()
    def replicate(self):
        self.world.replica.maybe_increment_high_watermark(self.world.replica.log_end)

    @rule()
    def roll(self):
        self.world.log.roll()
        self.world.replica.log_end = self.world.log.log_end

    @rule()
    def flush(self):
        self.world.log.flush()
        self.flushed = self.end

    @rule(place=places)
    def delete(self, place):
        offset = min(self.offset(place), self.world.replica.high_watermark.offset)
        self.world.replica.maybe_increment_log_start_offset(offset)
        self.world.log.advance_start(offset)
        self.start = max(self.start, offset)

    @rule(place=places)
    def truncate(self, place):
        offset = max(self.offset(place), self.start)
        self.world.replica.truncate_to(offset)
        while self.model and self.model[-1].next > offset:
            offset = min(offset, self.model.pop().first)
        self.end_at(min(self.end, offset))

    def end_at(self, offset):
        """A log does not end before its start: offsets that were deleted are not given again."""
        self.end = max(offset, self.start)
        self.flushed = min(self.flushed, self.end)
        if offset < self.start:
            self.model = []

    @rule()
    def close_and_open(self):
        self.world.reopen()
        self.flushed = self.end

    @rule()
    def kill_and_open(self):
        self.world.open()

    @precondition(lambda self: self.end > self.flushed)
    @rule(place=places, flip=st.booleans(), lose_index=st.booleans())
    def lose_power(self, place, flip, lose_index):
        """Lose the power: bytes that were not flushed may be cut, or be anything."""
        log = self.world.log
        flushed = log.locate(self.flushed)
        victims = [one for one in log.segments if one.base_offset >= flushed.segment_base_offset and one.size]
        if not victims:
            return  # all of it was deleted
        victim = victims[round(place * (len(victims) - 1))]
        least = flushed.position if victim.base_offset == flushed.segment_base_offset else 0
        data = bytearray(victim.path.read_bytes())
        at = least + round(place * (len(data) - least))
        if flip and at < len(data):
            at = self.within_the_crc(victim.base_offset, at)
            data[at] ^= 0x55
        else:
            del data[at:]
        victim.path.write_bytes(data)
        if lose_index:
            for path in self.directory.glob("*index"):
                path.write_bytes(path.read_bytes()[:-1])
        self.world.open()
        self.forget_from(victim.base_offset, at)

    def within_the_crc(self, base, at):
        """Offset and epoch lie outside: nobody can tell whether they are right."""
        position = 0
        for one in [one for one in self.model if one.first >= base]:
            if position <= at < position + 16:
                return position + 17
            position += len(one.data)
        return at

    def forget_from(self, base, at):
        """The log is what was whole before the damage."""
        position, reached = 0, base
        for one in [one for one in self.model if one.first >= base]:
            if position + len(one.data) > at:
                break
            position += len(one.data)
            reached = one.next
        self.model = [one for one in self.model if one.next <= reached]
        self.end_at(reached)

    # What is always so

    @invariant()
    def the_same_bytes(self):
        if not hasattr(self, "world"):
            return
        log = self.world.log
        assert log.log_end.offset == self.world.replica.log_end_offset == self.end
        found = b"".join(one.file.read(0, one.size) for one in log.segments)
        assert b"".join(one.data for one in self.model).endswith(found)
        assert self.world.replica.log_start_offset == self.start

    @rule(place=places, max_bytes=st.integers(0, 3000))
    def read(self, place, max_bytes):
        offset = self.offset(place)
        wanted = [one for one in self.model if one.next > offset]
        if not wanted:
            return
        found = self.world.log.read(offset, max_bytes, self.world.log.log_end, min_one_message=True)
        data = found.records.read()
        assert len(data) == found.size
        assert b"".join(one.data for one in wanted).startswith(data)
        assert found.size >= len(wanted[0].data)
        assert found.size <= max(max_bytes, len(wanted[0].data))
        assert self.world.log.locate(offset) == found.start

    @rule(place=places)
    def read_for_a_consumer(self, place):
        replica = self.world.replica
        offset = self.offset(place)
        found, _ = replica.read(offset, 1 << 20, Isolation.HIGH_WATERMARK, min_one_message=True)
        ends = [header.last_offset for header, _ in whole_batches(found.records.read() if found.size else b"")]
        assert all(last < replica.high_watermark.offset for last in ends)

    @rule(step=st.integers(-100, 400))
    def find_time(self, step):
        timestamp = self.time + step
        wanted = next(
            (
                (one.timestamp, one.offset, stored.epoch)
                for stored in self.model
                for one in stored.records
                if one.timestamp >= timestamp and one.offset >= self.start
            ),
            None,
        )
        assert self.world.log.find_time(timestamp, self.start) == wanted

    @rule(step=st.integers(1, 3))
    def a_gap_of_the_past_is_refused(self, step):
        if self.end < step:
            return
        one = build_batch([Record(self.end - step, NOW_MS, None, None)])
        assign(one, 0, self.end - step, self.epoch)
        with pytest.raises(UnexpectedAppendOffset):
            self.world.log.append(bytes(one), None)

    @rule(place=places, values=sizes)
    def damage_is_refused(self, place, values):
        data: Any = build_batch([Record(index, NOW_MS, b"", value) for index, value in enumerate(values)])
        data[17 + round(place * (len(data) - 18))] ^= 1
        with pytest.raises(ApiError) as refused:
            self.world.log.append(data, 0)
        assert refused.value.error is Errors.CORRUPT_MESSAGE


LogMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLog = LogMachine.TestCase
