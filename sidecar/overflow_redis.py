"""The overflow on Redis: apply, promote, tidy, in the order in which a record meets them.

`overflow_layout.py` says what lies there and why readers and writers need no lock.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, Final

from sidecar.chunk import ChunkCodec
from sidecar.overflow import Change, OverflowLoss, OverflowUnavailable, Promotion
from sidecar.overflow_inspection import RedisFinding, inspect, memory_ratio
from sidecar.overflow_layout import (
    ADD,
    APPLY,
    COARSE,
    DUE_MAX_MS,
    FINE,
    LEVELS,
    REMOVE,
    UNLINK,
    Header,
    LaneKeys,
    Level,
    header_of,
)
from sidecar.overflow_link import Call, Client, Link, connect
from sidecar.overflow_reader import HEADERS_PER_PAGE, GoneError, LaneReader, check_whole
from sidecar.overflow_window import BLOBS_PER_PAGE_MAX, ReadAhead, earliest, in_order, pages
from sidecar.record import OFFSET_MAX, Held, LaneId, Position

READ_AHEAD_RECORDS_MAX: Final = 32_768  # of all lanes together
READ_AHEAD_RECORDS_MIN: Final = 4_096  # of one lane
READ_AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
CASCADE_CHUNKS_MAX: Final = 32  # per step: 16 k records
CASCADE_AHEAD_MS: Final = COARSE.slot_ms
ADD_CHUNKS_MAX: Final = 16
REREADS_MAX: Final = 5

_place = itemgetter(0, 1)
_due = itemgetter(0)
_size = attrgetter("size")


class RedisOverflow:
    """The overflow of all lanes of one consumer group. For one thread at a time."""

    def __init__(self, client: Client, group: str) -> None:
        self._link = Link(client)
        self.group = group
        self._codec = ChunkCodec()
        self._read_aheads: OrderedDict[LaneId, ReadAhead] = OrderedDict()

    @property
    def client(self) -> Client:
        """redis-py's client, for inspection."""
        return self._link.client

    def close(self) -> None:
        """Let the connections go. Twice is harmless."""
        self._read_aheads.clear()
        self._link.close()

    def inspect(self) -> list[RedisFinding]:
        """What should be mended about this Redis; none when all is well. From any thread."""
        return inspect(self.client)

    def memory_ratio(self) -> float:
        """Used of allowed memory, of the fullest server; 0 where there is no limit. From any thread."""
        return memory_ratio(self.client)

    def watermark(self, lane: LaneId) -> int:
        """See `Overflow.watermark`."""
        keys = LaneKeys(self.group, lane)
        return int(self._link.do(lambda client: client.get(keys.hw)) or 0)

    # --- apply --------------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """See `Overflow.apply`."""
        if not changes:
            return
        calls = [self._apply_call(change, now_ms) for change in changes]
        replies = self._link.run_all(calls)
        for change, hw in zip(changes, replies, strict=True):
            if hw < change.number - 1:
                self._read_aheads.pop(change.lane, None)
                detail = f"block {change.number} comes next, but only those up to {hw} are there"
                raise OverflowLoss(change.lane, hw, detail)
            if hw == change.number - 1:
                self._keep_current(change)

    def _apply_call(self, change: Change, now_ms: int) -> Call:
        keys = LaneKeys(self.group, change.lane)
        keys_used = {keys.hw: 1, keys.level(COARSE): 2, keys.level(FINE): 3}
        arguments: list[Any] = [change.number]
        for header, data in self._chunks(sorted(change.records, key=_place), now_ms):
            slot = keys_used.setdefault(keys.slot(header), len(keys_used) + 1)
            level = keys_used[keys.level(header.level)]
            arguments += (level, slot, header.first.due_ms, header.member, data)
        return APPLY, list(keys_used), arguments

    def _chunks(self, records: Sequence[Held], now_ms: int) -> list[tuple[Header, bytes]]:
        """Chunks of sorted records: fine as far as the cascade has come, coarse beyond."""
        border = bisect_left(records, cascaded_until_ms(now_ms), key=_due)
        return [*self._packed(records[:border], FINE), *self._packed(records[border:], COARSE)]

    def _packed(self, records: Sequence[Held], level: Level) -> list[tuple[Header, bytes]]:
        if records and not 0 <= records[0].due_ms <= records[-1].due_ms <= DUE_MAX_MS:
            raise ValueError(f"due times must be within 0..{DUE_MAX_MS} ms")
        packed: list[tuple[Header, bytes]] = []
        start = 0
        while start < len(records):
            end_ms = level.start_ms(records[start].due_ms) + level.slot_ms
            stop = bisect_left(records, end_ms, lo=start, key=_due)
            for run, blob in self._codec.pack(records[start:stop]):
                packed.append((header_of(run, level, blob), blob.data))
            start = stop
        return packed

    def _keep_current(self, change: Change) -> None:
        """What was just written may lie where we have read ahead."""
        ahead = self._read_aheads.get(change.lane)
        if ahead is None:
            return
        if ahead.hw != change.number - 1 or len(ahead) > 2 * READ_AHEAD_RECORDS_MAX:
            del self._read_aheads[change.lane]
            return
        ahead.hw = change.number
        ahead.add(change.records)

    # --- promote ------------------------------------------------------------------------------------------

    def promote(self, lane: LaneId, after: Position, until: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `Overflow.promote`."""
        if until <= after:
            return Promotion([], until, 0)
        records_max = max(records_max, 1)
        ahead = self._read_aheads.pop(lane, None)
        if ahead is None or ahead.start != after or not self._is_current(lane, ahead, acknowledged):
            ahead = self._read_ahead(lane, after, until, records_max, acknowledged)
        records, cursor = ahead.take(until, records_max)
        if ahead.start < ahead.limit:
            self._read_aheads[lane] = ahead
            self._shed()
        return Promotion(records, cursor, sum(map(_size, records)))

    def _is_current(self, lane: LaneId, ahead: ReadAhead, acknowledged: int) -> bool:
        hw = self.watermark(lane)
        check_whole(lane, hw, acknowledged)
        return hw == ahead.hw

    def _shed(self) -> None:
        kept = sum(len(ahead) for ahead in self._read_aheads.values())
        while kept > 2 * READ_AHEAD_RECORDS_MAX and len(self._read_aheads) > 1:
            _, oldest = self._read_aheads.popitem(last=False)
            kept -= len(oldest)

    def _read_ahead(
        self, lane: LaneId, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> ReadAhead:
        # Chunks that begin before `until` may reach to the end of its slot: opened anyway, so read on.
        slot_end = Position(FINE.start_ms(until.due_ms) + FINE.slot_ms - 1, OFFSET_MAX)
        share = READ_AHEAD_RECORDS_MAX // (len(self._read_aheads) + 1)
        wanted = max(records_max, share, READ_AHEAD_RECORDS_MIN)
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, acknowledged)
        for _ in range(REREADS_MAX):
            try:
                headers, limit = reader.all_headers(after, max(until, slot_end), wanted)
                records_total = sum(header.rows for header in headers)
                average_bytes = sum(header.raw_bytes for header in headers) // max(records_total, 1)
                fitting = max(READ_AHEAD_BYTES_MAX // max(average_bytes, 1), min(records_max, BLOBS_PER_PAGE_MAX))
                span = earliest(headers, reader.after(after), limit, min(wanted, fitting))
                return ReadAhead(reader.hw, after, span)
            except GoneError:
                continue
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else")

    def count(self, lane: LaneId, after: Position) -> int:
        """How many records with position > `after` are here; opens only chunks that lie across it."""
        reader = LaneReader(self._link, self._codec, LaneKeys(self.group, lane), lane, 0)
        end = Position(DUE_MAX_MS, OFFSET_MAX)
        for _ in range(REREADS_MAX):
            try:
                headers, _ = reader.all_headers(after, end, OFFSET_MAX)
                across = [header for header in headers if header.first <= after]
                whole = sum(header.rows for header in headers if header.first > after)
                opened = reader.after(after)
                return whole + sum(len(opened(page, end)) for page in pages(across))
            except GoneError:
                continue
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else")

    # --- tidy ---------------------------------------------------------------------------------------------

    def tidy(self, lane: LaneId, settled: Position, now_ms: int) -> int:
        """See `Overflow.tidy`. Removal first: it needs no memory, and may make room for the rest."""
        keys = LaneKeys(self.group, lane)
        reader = LaneReader(self._link, self._codec, keys, lane, 0)
        removed = 0
        for level in LEVELS:
            removed += self._unlink(reader, level, settled)
        return removed + self._cascade(reader, settled, now_ms)

    def _unlink(self, reader: LaneReader, level: Level, settled: Position) -> int:
        """Remove slots that end before `settled`'s own begins; returns 1 when there are more."""
        headers = reader.page(level, "-inf", f"({level.start_ms(max(settled.due_ms, 0))}", b"")
        if not headers:
            return 0
        more = len(headers) == HEADERS_PER_PAGE
        # A slot goes with its last header. The last header of a full page stays for the next one: only then
        # is it known whether its slot has more, and a slot without a header would never be found again.
        ends = [header for header, following in pairwise(headers) if header.slot != following.slot]
        if more:
            headers = headers[:-1]
        else:
            ends.append(headers[-1])
        keys = [reader.keys.level(level), *(reader.keys.slot(header) for header in ends)]
        self._link.run(UNLINK, keys, [header.member for header in headers])
        return int(more)

    def _cascade(self, reader: LaneReader, settled: Position, now_ms: int) -> int:
        """Move one step's worth of coarse chunks that begin soon to the fine level; returns how many are
        left.

        A slot through which the cursor or `settled` runs may be moved like any other: readers list coarse
        before fine and start over when a blob has gone, so they meet each record at least once and drop the
        second copy; what is at or before `settled` is done for good, everywhere, and isn't copied. A
        zombie's `settled` is older than the owner's, so it copies too much, never too little.
        """
        border = cascaded_until_ms(now_ms)
        found = reader.page(COARSE, "-inf", f"({border}", b"")
        chosen: list[Header] = []
        for page in pages(found[:CASCADE_CHUNKS_MAX]):
            chosen = list(page)
            break
        if not chosen:
            return 0
        try:
            records = reader.after(settled)(chosen, Position(DUE_MAX_MS, OFFSET_MAX))
        except GoneError:  # somebody else is at it
            return 1
        fine = self._packed(in_order(records), FINE)
        # In small scripts: all at once was seen to take 11 ms, in which nobody else is answered.
        for start in range(0, len(fine), ADD_CHUNKS_MAX):
            part = fine[start : start + ADD_CHUNKS_MAX]
            add_keys = [reader.keys.level(FINE), *(reader.keys.slot(header) for header, _ in part)]
            arguments: list[Any] = []
            for index, (header, data) in enumerate(part, start=2):
                arguments += (index, header.first.due_ms, header.member, data)
            self._link.run(ADD, add_keys, arguments)
        keys = [reader.keys.level(COARSE), *map(reader.keys.slot, chosen)]
        self._link.run(REMOVE, keys, [header.member for header in chosen])
        return len(found) - len(chosen)


def cascaded_until_ms(now_ms: int) -> int:
    """Where the coarse level begins: the first slot that starts more than an hour from now."""
    return COARSE.start_ms(now_ms + CASCADE_AHEAD_MS) + COARSE.slot_ms


def open_overflow(url: str, group: str, username: str = "", password: str = "") -> RedisOverflow:
    """An overflow at redis://, rediss://, unix://, redis+cluster:// or rediss+cluster://.

    Raises OverflowUnavailable when a Cluster does not answer; a single server is not contacted yet.
    """
    return RedisOverflow(connect(url, username, password), group)
