"""Tidying of the overflow, when nobody waits for it: settled slots go, slots that come near become finer.

Each tidying also looks whether keys are there that others say must be: a server evicts keys, and people delete them.
`keys.py` says what speaks for which key. Scripts that read or write look at the keys that every lane has; `Presence`
looks at the others, at some each time: shards of the index, and the content of slots that nobody reads for long.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any, Final

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.chunk import ChunkCodec
from sidecar.overflow.chunk_reader import HEADERS_PER_PAGE, GoneError, LaneReader
from sidecar.overflow.chunk_writer import cascaded_until_ms, packed
from sidecar.overflow.connection import Call, Link
from sidecar.overflow.interface import OverflowFull
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FINE, LEVELS, Header, Level
from sidecar.overflow.read_ahead import in_order, pages
from sidecar.overflow.scripts import ADD, ENDS, PRESENT, REMOVE, SHARDS, SLOTS, UNLINK

CASCADE_RECORDS_MAX: Final = 16_384  # per step
CASCADE_BYTES_MAX: Final = 16 * 1024 * 1024
ADD_CHUNKS_MAX: Final = 16
LEFTOVER_SLOTS_MAX: Final = 100  # per step
LOOK_MS: Final = 5_000  # not more often, however much there is to tidy; housekeeping asks every 10 s
SLOTS_PER_STEP: Final = 500  # of each level: minutes are seen at each step, four months of hours within a minute

_END: Final = Position(DUE_MAX_MS, OFFSET_MAX)


def unlink(link: Link, reader: LaneReader, level: Level, settled: Position) -> int:
    """Remove slots that end before `settled`'s own begins; returns 1 when there are more."""
    headers = reader.page(level, "-inf", f"({level.start_ms(max(settled.due_ms, 0))}", b"")
    if not headers:
        return 0
    more = len(headers) == HEADERS_PER_PAGE
    # A slot goes as a whole with its last header. Where a full page ends within a slot, chunks go one by one, content
    # and all: the slot's other chunks may be moved or cleared before the next page, and no header would lead to these.
    ends = [place for place, (header, following) in enumerate(pairwise(headers), 1) if header.slot != following.slot]
    if not more:
        ends.append(len(headers))
    whole = ends[-1] if ends else 0
    calls: list[Call] = []
    if whole:
        last = [headers[end - 1] for end in ends]
        keys = [reader.keys.level(level), *map(reader.keys.slot, last)]
        starts = [level.start_ms(header.first.due_ms) for header in last]
        calls.append((UNLINK, keys, [level.slot_ms, *starts, *(header.member for header in headers[:whole])]))
    for page in pages(headers[whole:]):
        keys = [reader.keys.level(level), *map(reader.keys.slot, page)]
        calls.append((REMOVE, keys, [len(page), *(header.member for header in page)]))
    link.run_all(calls)
    return int(more)


class Leftovers:
    """Removes settled slots by their names. One for all lanes; where it came to in each is its own memory.

    A level that has gone (`keys.py`) leaves the content of its slots. What a rebuild doesn't write to again
    has no header then, and would stay for ever.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[TopicPartition, Level], int] = {}  # start of the next slot, ms

    def step(self, link: Link, reader: LaneReader, lane: TopicPartition, settled: Position) -> None:
        """Remove the slots that W has passed since the last step, the latest of them, if no header is left of them."""
        for level in LEVELS:
            end_ms = level.start_ms(max(settled.due_ms, 0))
            place_ms = self._places.get((lane, level), 0)
            starts_ms = range(max(place_ms, end_ms - LEFTOVER_SLOTS_MAX * level.slot_ms), end_ms, level.slot_ms)
            if starts_ms:
                slots = [reader.keys.slot_at(level, start_ms) for start_ms in starts_ms]
                link.run(UNLINK, [reader.keys.level(level), *slots], [level.slot_ms, *starts_ms])
                self._places[lane, level] = end_ms


def cascade(link: Link, codec: ChunkCodec, reader: LaneReader, settled: Position, now_ms: int) -> int:
    """Move one step's worth of coarse chunks that begin soon to the fine level; returns how many are left.

    A slot through which the cursor or `settled` runs may be moved like any other: readers list coarse
    before fine and start over when a blob has gone, so they meet each record at least once and drop the
    second copy; what is at or before `settled` is done for good, everywhere, and isn't copied. A
    zombie's `settled` is older than the owner's, so it copies too much, never too little.
    """
    found = reader.page(COARSE, "-inf", f"({cascaded_until_ms(now_ms)}", b"")
    chosen = _one_step(found)
    if not chosen:
        return 0
    read = reader.after(settled)
    records: list[Held] = []
    try:
        for page in pages(chosen):
            records += chain.from_iterable(read(page, _END))
    except GoneError:  # somebody else is at it
        return 1
    fine = packed(codec, reader.keys.tag, in_order(records), FINE)
    # In small scripts: all at once was seen to take 11 ms, in which nobody else is answered.
    parts = [fine[start : start + ADD_CHUNKS_MAX] for start in range(0, len(fine), ADD_CHUNKS_MAX)]
    if parts:
        link.run_all([_add_call(reader, part, chosen) for part in parts])
    removed = 0
    for page in pages(chosen):
        # Between the two the server may have come back as it was before the first: REMOVE looks at the copies itself.
        first, last = min(header.first for header in page), max(header.last for header in page)
        copies = [header for header, _ in fine if header.first <= last and header.last >= first]
        keys = [reader.keys.level(COARSE), *map(reader.keys.slot, (*page, *copies))]
        removed += int(link.run(REMOVE, keys, [len(page), *(header.member for header in (*page, *copies))]))
    return len(found) - removed


def _add_call(reader: LaneReader, part: Sequence[tuple[Header, bytes]], chosen: Sequence[Header]) -> Call:
    """Writes chunks, while all of the chosen ones are there whose records they have: else nobody must have these."""
    first, last = part[0][0].first, max(header.last for header, _ in part)
    copied = [header.member for header in chosen if header.first <= last and header.last >= first]
    keys = [reader.keys.level(FINE), reader.keys.level(COARSE), *(reader.keys.slot(header) for header, _ in part)]
    arguments: list[Any] = [len(copied), *copied]
    for index, (header, data) in enumerate(part, start=3):
        arguments += (index, header.first.due_ms, header.member, data)
    return ADD, keys, arguments


def _one_step(headers: Sequence[Header]) -> Sequence[Header]:
    """The first chunks, at least one, as many as are moved at once."""
    rows = size = 0
    for count, header in enumerate(headers):
        rows += header.rows
        size += header.raw_bytes
        if count and (rows > CASCADE_RECORDS_MAX or size > CASCADE_BYTES_MAX):
            return headers[:count]
    return headers


class Presence:
    """Looks at what there is. One for all lanes; when it looked, and where it came to, is its own memory."""

    def __init__(self) -> None:
        self._looked_ms: dict[TopicPartition, int] = {}
        self._places: dict[tuple[TopicPartition, Level], int] = {}  # from when on, ms

    def step(self, link: Link, reader: LaneReader, lane: TopicPartition, settled: Position, now_ms: int) -> None:
        """Look at all shards and at some slots behind `settled`, if it is time. Raises OverflowLoss."""
        if 0 <= now_ms - self._looked_ms.get(lane, -LOOK_MS) < LOOK_MS:
            return
        self._looked_ms[lane] = now_ms
        keys = [*reader.keys.fixed, *reader.keys.shards()]
        hw, has_ends = link.run(SHARDS, keys, [])
        reader.check(hw, keys)
        if hw and not has_ends:
            with suppress(OverflowFull):  # some later tidying has room for them; that of others must go on
                link.run(ENDS, reader.keys.fixed, [])
        for level in LEVELS:
            start_ms = max(self._places.get((lane, level), 0), level.start_ms(max(settled.due_ms, 0)))
            self._places[lane, level] = _look(link, reader, level, start_ms)


def _look(link: Link, reader: LaneReader, level: Level, start_ms: int) -> int:
    """Look at slots from there on; returns where to go on, 0 after the last."""
    fixed = reader.keys.fixed
    hw, members = link.run(SLOTS, fixed, [level.place, level.slot_ms, start_ms, SLOTS_PER_STEP])
    reader.check(hw, fixed)
    if not members:
        return 0
    headers = reader.headers(members, level)
    keys = [*fixed, *map(reader.keys.slot, headers)]
    starts_ms = [level.start_ms(header.first.due_ms) for header in headers]
    reader.check(int(link.run(PRESENT, keys, [level.place, level.slot_ms, *starts_ms])), keys)
    return starts_ms[-1] + level.slot_ms if len(headers) == SLOTS_PER_STEP else 0
