"""From change blocks to chunks: what is written in one script, and in which slots it lies.

Blocks that wait together are written together, as one run of chunks: a chunk then covers less of its slot, so that
fewer overlap where a promotion reads, and slots with few records of each block get chunks worth their header.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from operator import gt, itemgetter
from typing import Final, TypeVar

from sidecar.model.record import Held, due_of, place_of
from sidecar.overflow.chunk import ChunkCodec
from sidecar.overflow.interface import Change, Redo
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FINE, Header, Level, chunk_place, header_of

# What one script writes at the most, unless a single block is larger: 10 ms is as long as others may wait for it.
BATCH_RECORDS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_SLOTS_MAX: Final = 256
CASCADE_AHEAD_MS: Final = COARSE.slot_ms

_offset = itemgetter(1)
_Block = TypeVar("_Block", Change, Redo)


def batched(blocks: Sequence[_Block], follows: Callable[[_Block, _Block], bool]) -> list[list[_Block]]:
    """Runs of blocks that follow each other, each small enough for one script."""
    batches: list[list[_Block]] = []
    count = size = 0
    slots: set[int] = set()
    for block in blocks:
        records = block.records
        fresh = {held.due_ms // COARSE.slot_ms for held in records}
        fresh_size = sum(held.size for held in records)
        last = batches[-1][-1] if batches else None
        if (
            last is not None
            and follows(last, block)
            and count + len(records) + len(block.struck) <= BATCH_RECORDS_MAX
            and size + fresh_size <= BATCH_BYTES_MAX
            and len(slots | fresh) <= BATCH_SLOTS_MAX
        ):
            batches[-1].append(block)
        else:
            batches.append([block])
            count = size = 0
            slots = set()
        count += len(records) + len(block.struck)
        size += fresh_size
        slots |= fresh
    return batches


def by_position(records: Sequence[Held]) -> list[Held]:
    """Sorted by position. They come sorted by offset, as a rule: then it is enough to sort by due time, and floats
    compare several times faster than pairs."""
    offsets = list(map(_offset, records))
    if any(map(gt, offsets, islice(offsets, 1, None))):
        return sorted(records, key=place_of)
    following = map(float, map(due_of, records)).__next__
    return sorted(records, key=lambda _: following())


def chunks_of(codec: ChunkCodec, tag: str, records: Sequence[Held], now_ms: int) -> list[tuple[Header, bytes]]:
    """Chunks of a lane's sorted records: fine as far as the cascade has come, coarse beyond."""
    border = bisect_left(records, cascaded_until_ms(now_ms), key=due_of)
    return [*packed(codec, tag, records[:border], FINE), *packed(codec, tag, records[border:], COARSE)]


def packed(codec: ChunkCodec, tag: str, records: Sequence[Held], level: Level) -> list[tuple[Header, bytes]]:
    """Chunks of a lane's sorted records, slot by slot, signed where there are keys; `tag` is that of `LaneKeys`.

    Raises ValueError for due times that no score can express.
    """
    if records and not 0 <= records[0].due_ms <= records[-1].due_ms <= DUE_MAX_MS:
        raise ValueError(f"due times must be within 0..{DUE_MAX_MS} ms")
    found: list[tuple[Header, bytes]] = []
    start = 0
    while start < len(records):
        end_ms = level.start_ms(records[start].due_ms) + level.slot_ms
        stop = bisect_left(records, end_ms, lo=start, key=due_of)
        for run, blob in codec.pack(records[start:stop]):
            header = header_of(run, level, blob)
            signed = codec.signed(blob, chunk_place(tag, header))
            found.append((header if signed is blob else header_of(run, level, signed), signed.data))
        start = stop
    return found


def cascaded_until_ms(now_ms: int) -> int:
    """Where the coarse level begins: the first slot that starts more than an hour from now."""
    return COARSE.start_ms(now_ms + CASCADE_AHEAD_MS) + COARSE.slot_ms
