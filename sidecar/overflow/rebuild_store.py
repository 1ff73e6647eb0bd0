"""Writing back what Redis has lost: the storage side of `rebuild.py`, with scripts of its own (`keys.py`).

    hw gone          nothing that is here counts
    hw = n           blocks 1 to n are here, as far as anything in them is still held
    redo a..b        writes blocks a+1 to b and raises hw to b, in one script, where hw is a or more and less than b

So a rebuild may end at any instruction, and whoever comes next goes on from hw. Two that work at once write the same.
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

from policies.headers import OFFSET_MAX
from sidecar.model.record import Position, TopicPartition, place_of
from sidecar.overflow.chunk_writer import batched
from sidecar.overflow.connection import Client, Link
from sidecar.overflow.interface import OverflowLoss, Promotion, Redo, raise_if_lost
from sidecar.overflow.keys import (
    DUE_MAX_MS,
    LEVELS,
    HeaderFormatError,
    LaneKeys,
    Level,
    read_header,
)
from sidecar.overflow.redis_overflow import RedisOverflow
from sidecar.overflow.scripts import CLEAR, CLEAR_ALL, CLEAR_STRANGE, LIST, NUMBER, REDO
from sidecar.overflow.signing import UNSIGNED, Signing

CLEAR_PER_STEP_MAX: Final = 500  # chunks: one script of some milliseconds
_offset: Final = attrgetter("offset")
GONE: Final = -1  # also what the script answers
END: Final = Position(DUE_MAX_MS, OFFSET_MAX)


class RedisRebuildStore:
    """`RebuildStore` on Redis. For one thread at a time; it shares the overflow's client and nothing else."""

    def __init__(self, client: Client, group: str, signing: Signing = UNSIGNED) -> None:
        self._link = Link(client)
        self._group = group
        # Their codecs and read-aheads are this thread's own.
        self._overflow = RedisOverflow(client, group, signing=signing)
        self._places = RedisOverflow(client, group, places_only=True, signing=signing)

    def place(self, lane: TopicPartition) -> int:
        """See `RebuildStore.place`."""
        try:
            hw, number = self._link.run(NUMBER, LaneKeys(self._group, lane).fixed, [])
        except OverflowLoss:  # a key of another type: what is there can't be ours, and is cleared away
            return GONE
        return int(number) if hw >= 0 else GONE

    def reset(self, lane: TopicPartition, begin: bool) -> bool:
        """See `RebuildStore.reset`."""
        keys = LaneKeys(self._group, lane)
        if begin:
            self._link.do(keys.hw, lambda client: client.delete(keys.hw))
        self._link.run(CLEAR_STRANGE, [*keys.fixed, *keys.shards()], [])
        for level in LEVELS:
            arguments = [level.place, "-inf", "+inf", CLEAR_PER_STEP_MAX, b""]
            _, members = self._link.run(LIST, keys.fixed, arguments)
            if members:
                slots = [_slot(keys, member, level) for member in members]
                return bool(self._link.run(CLEAR, [keys.hw, keys.level(level), *slots], members))
        self._link.run(CLEAR_ALL, [keys.hw, keys.struck, *keys.shards()], [])
        return False

    def redo(self, lane: TopicPartition, redos: Sequence[Redo], now_ms: int) -> None:
        """See `RebuildStore.redo`."""
        batches = batched(redos, lambda former, redo: former.last == redo.before)
        calls = []
        for batch in batches:
            # Twice in the ledger, where a process that was paused has woken up: a chunk has each place once.
            once = {place_of(held): held for redo in batch for held in redo.records}
            records = sorted(once.values(), key=_offset)
            struck = list(chain.from_iterable(redo.struck for redo in batch))
            keys, rest = self._overflow.write_arguments(lane, records, struck, now_ms)
            calls.append((REDO, keys, [batch[0].before, batch[-1].last, *rest]))
        try:
            answers = self._link.run_all(calls) if calls else []
        except OverflowLoss:  # a key of another type is in the way: whoever goes on begins with nothing
            self.reset(lane, begin=True)
            raise
        for (first, *_), hw in zip(batches, answers, strict=True):
            raise_if_lost(lane, hw, LaneKeys(self._group, lane).fixed, 0)
            if hw < first.before:
                raise OverflowLoss(lane, max(hw, 0), f"blocks up to {first.before} were there, and now up to {hw}")

    def read(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `RebuildStore.read`."""
        return self._overflow.promote(lane, after, END, records_max, acknowledged)

    def places(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `RebuildStore.places`."""
        return self._places.promote(lane, after, END, records_max, acknowledged)


def _slot(keys: LaneKeys, member: bytes, level: Level) -> str:
    """Where the header's blob is; the key of hw, for CLEAR to pass over, where the header can't be read."""
    try:
        return keys.slot(read_header(member, level))
    except HeaderFormatError:
        return keys.hw
