"""The overflow on Redis: apply, promote, tidy, in the order in which a record meets them; and the same timed.

`keys.py` says what lies there and why readers and writers need no lock.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, Tombstone, TopicPartition, held_id, just_before
from sidecar.overflow.chunk import ChunkCodec
from sidecar.overflow.chunk_reader import GoneError, LaneReader
from sidecar.overflow.chunk_writer import batched, by_position, chunks_of
from sidecar.overflow.connection import Call, Client, Link, connect
from sidecar.overflow.id_index import Sweep, find
from sidecar.overflow.interface import (
    Change,
    Overflow,
    OverflowLoss,
    OverflowUnavailable,
    Promotion,
    number_or_loss,
    raise_if_lost,
)
from sidecar.overflow.keys import DUE_MAX_MS, FINE, LEVELS, Header, LaneKeys, offset_member, place_member
from sidecar.overflow.read_ahead import BLOBS_PER_PAGE_MAX, Bounds, ReadAhead, earliest, pages
from sidecar.overflow.scripts import APPLY, NUMBER
from sidecar.overflow.signing import UNSIGNED, Signing
from sidecar.overflow.tidying import Leftovers, Presence, cascade, unlink

READ_AHEAD_RECORDS_MAX: Final = 32_768  # of all lanes together
READ_AHEAD_RECORDS_MIN: Final = 4_096  # of one lane
READ_AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
READ_ON_MS: Final = 600_000  # beyond the slot, while there is little
REREADS_MAX: Final = 5

Answer = TypeVar("Answer")
Observe = Callable[[str, float], None]


class RedisOverflow:
    """The overflow of all lanes of one consumer group. For one thread at a time. With `places_only`, of records that
    are read only due times and offsets are there.
    """

    def __init__(self, client: Client, group: str, places_only: bool = False, signing: Signing = UNSIGNED) -> None:
        self._link = Link(client)
        self.group = group
        self._codec = ChunkCodec(places_only=places_only, signing=signing)
        self._read_aheads: OrderedDict[TopicPartition, ReadAhead] = OrderedDict()
        self._sweep = Sweep()
        self._leftovers = Leftovers()
        self._presence = Presence()

    @property
    def client(self) -> Client:
        """redis-py's client, for inspection."""
        return self._link.client

    def close(self) -> None:
        """Let the connections go. Twice is harmless."""
        self._read_aheads.clear()
        self._link.close()

    def last_applied(self, lane: TopicPartition) -> int:
        """See `Overflow.last_applied`."""
        keys = LaneKeys(self.group, lane).fixed
        hw, number = self._link.run(NUMBER, keys, [])
        raise_if_lost(lane, hw, keys, 0, number)
        return int(hw)

    def last_applied_of(self, lanes: Sequence[TopicPartition]) -> list[int | OverflowLoss]:
        """See `Overflow.last_applied_of`. One by one, of thousands of lanes, this would be most of a process' work."""
        keys = [LaneKeys(self.group, lane).fixed for lane in lanes]
        found: list[int | OverflowLoss] = []
        try:
            replies = self._link.run_all([(NUMBER, of_lane, []) for of_lane in keys])
        except OverflowLoss:  # a key of another type; one by one it shows whose
            return [number_or_loss(self, lane) for lane in lanes]
        for lane, of_lane, (hw, number) in zip(lanes, keys, replies, strict=True):
            try:
                raise_if_lost(lane, hw, of_lane, 0, number)
                found.append(int(hw))
            except OverflowLoss as error:
                found.append(error)
        return found

    # --- apply --------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """See `Overflow.apply`."""
        if not changes:
            return
        waiting = list(changes)
        while waiting:
            batches = batched(waiting, _follows)
            replies = self._link.run_all([self._apply_call(batch, now_ms) for batch in batches])
            waiting = []
            for batch, hw in zip(batches, replies, strict=True):
                waiting += self._unwritten(batch, hw, behind=any(left.lane == batch[0].lane for left in waiting))
        self._shed()  # what was written lies in them, too, and nobody may promote for long

    def _unwritten(self, batch: Sequence[Change], hw: int, behind: bool) -> Sequence[Change]:
        """Changes still to be written of a batch that met this `hw`; `behind` one that is to be written again."""
        lane, first = batch[0].lane, batch[0].number
        if hw < 0:
            self._read_aheads.pop(lane, None)
            raise_if_lost(lane, hw, LaneKeys(self.group, lane).fixed, 0)
        if hw < first - 1 and not behind:
            self._read_aheads.pop(lane, None)
            detail = f"block {first} comes next, but only those up to {hw} are there"
            raise OverflowLoss(lane, hw, detail)
        if hw == first - 1:
            self._keep_current(batch)
            return ()
        return [change for change in batch if change.number > hw]

    def _apply_call(self, batch: Sequence[Change], now_ms: int) -> Call:
        records = list(chain.from_iterable(change.records for change in batch))
        struck = list(chain.from_iterable(change.struck for change in batch))
        keys, rest = self.write_arguments(batch[0].lane, records, struck, now_ms)
        return APPLY, keys, [batch[0].number, batch[-1].number, *rest]

    def write_arguments(
        self, lane: TopicPartition, records: Sequence[Held], struck: Sequence[Tombstone], now_ms: int
    ) -> tuple[list[str], list[Any]]:
        """Keys, and arguments but for the first two, as APPLY and REDO take them."""
        keys = LaneKeys(self.group, lane)
        keys_used = {key: place for place, key in enumerate(keys.fixed, start=1)}
        arguments: list[Any] = []
        index: list[Any] = []
        strikes: list[Any] = []

        def number(key: str) -> int:
            return keys_used.setdefault(key, len(keys_used) + 1)

        for header, data in chunks_of(self._codec, keys.tag, by_position(records), now_ms):
            arguments += (header.level.place, number(keys.slot(header)), header.first.due_ms, header.member, data)
        for held in records:
            if held.trailer and (message_id := held_id(held)) is not None:
                shard, field = keys.indexed(message_id)
                index += (number(shard), field, place_member(held.position))
        for (due_ms, offset), struck_id in struck:
            shard, field = ("", b"") if struck_id is None else keys.indexed(struck_id)
            strikes += (due_ms, offset_member(offset), number(shard) if shard else "", field,
                        place_member(Position(due_ms, offset)))  # fmt: skip
        return list(keys_used), [len(arguments), len(index), len(strikes), *arguments, *index, *strikes]

    def _keep_current(self, batch: Sequence[Change]) -> None:
        """Add to the read-ahead what was just written, as far as it lies there, or drop it."""
        lane = batch[0].lane
        ahead = self._read_aheads.get(lane)
        if ahead is None:
            return
        if ahead.hw != batch[0].number - 1 or len(ahead) > 2 * READ_AHEAD_RECORDS_MAX:
            del self._read_aheads[lane]
            return
        ahead.hw = batch[-1].number
        for change in batch:
            ahead.add(change.records)
            ahead.strike({copy.position.offset for copy in change.struck})

    # --- promote ------------------------------------------------------------------------------------------

    def promote(
        self, lane: TopicPartition, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> Promotion:
        """See `Overflow.promote`."""
        if until <= after:
            return Promotion([], until, until)
        records_max = max(records_max, 1)
        ahead = self._read_aheads.pop(lane, None)
        if ahead is not None and not (ahead.begin_at(after) and self._is_current(lane, ahead, acknowledged)):
            ahead = None
        if ahead is None or ahead.start == ahead.limit:
            ahead = self._read_ahead(lane, after, until, records_max, acknowledged, ahead)
        records, cursor = ahead.take(until, records_max)
        self._read_aheads[lane] = ahead
        self._shed()
        return Promotion(records, cursor, ahead.vacant)

    def _is_current(self, lane: TopicPartition, ahead: ReadAhead, acknowledged: int) -> bool:
        hw = self.last_applied(lane)
        raise_if_lost(lane, hw, (), acknowledged)
        return hw == ahead.hw

    def _shed(self) -> None:
        kept = sum(len(ahead) for ahead in self._read_aheads.values())
        while kept > 2 * READ_AHEAD_RECORDS_MAX and len(self._read_aheads) > 1:
            _, oldest = self._read_aheads.popitem(last=False)
            kept -= len(oldest)

    def _read_ahead(
        self,
        lane: TopicPartition,
        after: Position,
        until: Position,
        records_max: int,
        acknowledged: int,
        previous: ReadAhead | None,
    ) -> ReadAhead:
        share = READ_AHEAD_RECORDS_MAX // (len(self._read_aheads) + 1)
        kept_max = max(share, READ_AHEAD_RECORDS_MIN, records_max)
        wanted = max(kept_max // 4, records_max)
        slot_end = Position(FINE.start_ms(until.due_ms) + FINE.slot_ms - 1, OFFSET_MAX)
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, acknowledged)
        rest = previous.rest if previous else None
        for _ in range(REREADS_MAX):
            try:
                far = Position(slot_end.due_ms + READ_ON_MS, OFFSET_MAX)
                headers, reach = reader.all_headers(after, far, wanted)
                reach = _worth_reading(headers, reach, max(until, slot_end), min(share, READ_AHEAD_RECORDS_MIN))
                bounds = Bounds(after, reach, wanted, kept_max).within(_fitting(headers, records_max))
                return ReadAhead(reader.hw, after, earliest(headers, reader.after(after), bounds, rest))
            except GoneError:
                rest = None
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else")

    def find(self, lane: TopicPartition, ids: Sequence[str], after: Position, acknowledged: int) -> Mapping[str, Held]:
        """See `Overflow.find`."""
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, acknowledged)
        for _ in range(REREADS_MAX):
            try:
                return find(self._link, reader, ids, after)
            except GoneError:
                continue
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else")

    def count(self, lane: TopicPartition, after: Position) -> int:
        """How many records with position > `after` are here; opens only chunks that lie across it."""
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, 0)
        end = Position(DUE_MAX_MS, OFFSET_MAX)
        for _ in range(REREADS_MAX):
            try:
                headers, _ = reader.all_headers(after, end, OFFSET_MAX)
                across = [header for header in headers if header.first <= after]
                whole = sum(header.rows for header in headers if header.first > after)
                opened = reader.after(after)
                return whole + sum(map(len, chain.from_iterable(opened(page, end) for page in pages(across))))
            except GoneError:
                continue
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else")

    # --- tidy ---------------------------------------------------------------------------------------------

    def tidy(self, lane: TopicPartition, settled: Position, now_ms: int) -> int:
        """See `Overflow.tidy`. Removal first: it needs no memory, and may make room for the rest."""
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, 0)
        removed = sum(unlink(self._link, reader, level, settled) for level in LEVELS)
        self._leftovers.step(self._link, reader, lane, settled)
        due_ms = max(settled.due_ms, 0)
        struck = reader.keys.struck
        self._link.do(struck, lambda client: client.zremrangebyscore(struck, "-inf", f"({due_ms}"))
        self._sweep.step(self._link, reader, lane, settled)
        self._presence.step(self._link, reader, lane, settled, now_ms)
        return removed + cascade(self._link, self._codec, reader, settled, now_ms)


def _follows(before: Change, change: Change) -> bool:
    return (before.lane, before.number + 1) == (change.lane, change.number)


def _worth_reading(headers: Sequence[Header], reach: Position, slot_end: Position, records_enough: int) -> Position:
    """How far to read: to the end of the slot, whose chunks are opened anyway, and on while there is little."""
    total = 0
    for header in headers:
        if header.first > slot_end and total >= records_enough:
            return min(reach, just_before(header.first))
        total += header.rows
    return reach


def _fitting(headers: Sequence[Header], records_max: int) -> int:
    """How many records of the average size may be in memory."""
    records_total = sum(header.rows for header in headers)
    average_bytes = sum(header.raw_bytes for header in headers) // max(records_total, 1)
    return max(READ_AHEAD_BYTES_MAX // max(average_bytes, 1), min(records_max, BLOBS_PER_PAGE_MAX))


def open_overflow(
    url: str, group: str, options: Mapping[str, Any] = MappingProxyType({}), signing: Signing = UNSIGNED
) -> RedisOverflow:
    """An overflow at `url`; it and `options` as for `connect`.

    Nobody is contacted yet.
    """
    return RedisOverflow(connect(url, options), group, signing=signing)


class TimedOverflow:
    """Passes every call on, and observes its seconds under the call's name for the metrics."""

    def __init__(self, overflow: Overflow, observe: Observe) -> None:
        self._overflow = overflow
        self._observe = observe

    def last_applied(self, lane: TopicPartition) -> int:
        """As `Overflow.last_applied`."""
        return self._timed("watermark", lambda: self._overflow.last_applied(lane))

    def last_applied_of(self, lanes: Sequence[TopicPartition]) -> list[int | OverflowLoss]:
        """As `Overflow.last_applied_of`."""
        return self._timed("watermark", lambda: self._overflow.last_applied_of(lanes))

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """As `Overflow.apply`."""
        self._timed("apply", lambda: self._overflow.apply(changes, now_ms))

    def promote(
        self, lane: TopicPartition, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> Promotion:
        """As `Overflow.promote`."""
        return self._timed("promote", lambda: self._overflow.promote(lane, after, until, records_max, acknowledged))

    def find(self, lane: TopicPartition, ids: Sequence[str], after: Position, acknowledged: int) -> Mapping[str, Held]:
        """As `Overflow.find`."""
        return self._timed("find", lambda: self._overflow.find(lane, ids, after, acknowledged))

    def tidy(self, lane: TopicPartition, settled: Position, now_ms: int) -> int:
        """As `Overflow.tidy`."""
        return self._timed("tidy", lambda: self._overflow.tidy(lane, settled, now_ms))

    def _timed(self, call: str, work: Callable[[], Answer]) -> Answer:
        started_s = perf_counter()
        try:
            return work()
        finally:
            self._observe(call, perf_counter() - started_s)
