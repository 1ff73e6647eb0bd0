"""Whether the keys of a lane are there that others say must be: a server evicts keys, and people delete them.

`keys.py` says what speaks for which key. Scripts that read or write look at the keys that every lane has;
here the others are looked at, some at each tidying: shards of the index, and the content of slots that nobody reads for
long.
"""

from contextlib import suppress
from typing import Final

from sidecar.model.record import LaneId, Position
from sidecar.overflow.chunk_reader import LaneReader
from sidecar.overflow.connection import Link
from sidecar.overflow.interface import OverflowFull
from sidecar.overflow.keys import LEVELS, Level
from sidecar.overflow.scripts import ENDS, PRESENT, SHARDS, SLOTS

LOOK_MS: Final = 5_000  # not more often, however much there is to tidy; housekeeping asks every 10 s
SLOTS_PER_STEP: Final = 500  # of each level: minutes are seen at each step, four months of hours within a minute


class Presence:
    """Looks at what there is. One for all lanes; when it looked, and where it came to, is its own memory."""

    def __init__(self) -> None:
        self._looked_ms: dict[LaneId, int] = {}
        self._places: dict[tuple[LaneId, Level], int] = {}  # from when on, ms

    def step(self, link: Link, reader: LaneReader, lane: LaneId, settled: Position, now_ms: int) -> None:
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
