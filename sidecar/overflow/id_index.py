"""Records by id: where the overflow has them, and forgetting those that are settled.

The index has the place of the latest record of each id. It is written with the record and loses a place when its copy
is struck out; what is promoted and settled stays until the sweep comes by, a page at each tidying. So a place is a
hint: the record may be settled, and its copy gone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition, held_id, just_before
from sidecar.overflow.chunk_reader import LaneReader
from sidecar.overflow.connection import Link
from sidecar.overflow.keys import INDEX_SHARDS
from sidecar.overflow.read_ahead import pages
from sidecar.overflow.scripts import FIND, FORGET

EVERYWHERE: Final = Position(-1, -1)
FIND_MAX: Final = 500  # ids of one script
SWEPT_PER_STEP: Final = 2_000  # fields looked at: of a million, all are seen in some hours


def find(link: Link, reader: LaneReader, ids: Sequence[str], after: Position = EVERYWHERE) -> Mapping[str, Held]:
    """See `Overflow.find`. Raises GoneError when a chunk was moved meanwhile: again."""
    found: dict[str, Held] = {}
    for start in range(0, len(ids), FIND_MAX):
        some = ids[start : start + FIND_MAX]
        shards, fields = zip(*map(reader.keys.indexed, some), strict=True)
        keys = [*reader.keys.fixed, *shards]
        hw, places = link.run(FIND, keys, fields)
        reader.check(hw, keys)
        for message_id, place in zip(some, places, strict=True):
            # An id used again and again points at what was settled long ago: that isn't worth reading.
            if place is not None and reader.place(place) > after:
                held = _read(reader, reader.place(place))
                if held is not None and held_id(held) == message_id:  # another id may have the same hash
                    found[message_id] = held
    return found


def _read(reader: LaneReader, place: Position) -> Held | None:
    """The record at this place; None: it was settled and its slot is gone, or it is struck out."""
    headers, _ = reader.all_headers(just_before(place), place, OFFSET_MAX)
    read = reader.after(just_before(place))
    for page in pages(headers):
        for records in read(page, place):
            if records:
                return records[0]
    return None


class Sweep:
    """Forgets what is settled, shard by shard. One for all lanes; where it came to in each is its own memory."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, tuple[int, int]] = {}  # shard, Redis's cursor in it

    def step(self, link: Link, reader: LaneReader, lane: TopicPartition, settled: Position) -> None:
        """Look at one page, and take out what is at or before `settled`."""
        shard, cursor = self._places.get(lane, (0, 0))
        key = reader.keys.index(shard)
        cursor, page = link.do(key, lambda client: client.hscan(key, cursor, count=SWEPT_PER_STEP))
        over: list[Any] = []
        for field, place in page.items():
            if reader.place(place) <= settled:
                over += (field, place)
        for start in range(0, len(over), 2 * FIND_MAX):
            link.run(FORGET, [key], over[start : start + 2 * FIND_MAX])
        cursor = int(cursor)
        self._places[lane] = (shard, cursor) if cursor else ((shard + 1) % INDEX_SHARDS, 0)
