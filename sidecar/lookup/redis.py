"""Reading held records in Redis for look-ups: in order, from any position on, without touching the engine.

Chunks overlap, so the next record in order may be in any chunk that begins before it. They are opened in the order of
their first position, each when the order comes to it:

    chunks     |-----A-----|             opened: A, B; C not before the order has come to its first record
                   |------B------|
                            |---C---|

A chunk that can't hold what is looked for is unpacked but not taken apart: every text that is asked for must stand in
it as it is. Of the others only the records that are meant take part in the ordering, which costs more than all else.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any, Final, NamedTuple

from policies.headers import OFFSET_MAX
from sidecar.lookup.query import ALL, Query
from sidecar.model.record import Held, Position, TopicPartition, just_before
from sidecar.overflow.chunk import ChunkCodec
from sidecar.overflow.chunk_reader import GoneError, LaneReader
from sidecar.overflow.connection import Client, Link
from sidecar.overflow.id_index import find
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.overflow.keys import DUE_MAX_MS, FINE, Header, LaneKeys
from sidecar.overflow.read_ahead import page_of, pages
from sidecar.overflow.signing import UNSIGNED, Signing

REREADS_MAX: Final = 5
STRUCK_MAX: Final = 100_000  # with more of them chunks are opened one and all
HEADERS_ENOUGH: Final = 20_000  # records behind the headers that are listed at once
END: Final = Position(DUE_MAX_MS, OFFSET_MAX)

Pause = Callable[[], None]


class Found(NamedTuple):
    """A record and its position, or how far there was none."""

    position: Position
    held: Held | None


class _Opened(NamedTuple):
    """A chunk that was opened, and its next record. The number differs, so that records are never compared."""

    position: Position
    number: int
    row: int
    rows: list[Held]


class HeldOverflow:
    """The overflow of one group, for one reading thread at a time. `pause` is called between chunks, so that other
    threads of the process may go on. Everything raises OverflowUnavailable or OverflowLoss: `acknowledged` is the last
    change block that the overflow must have, without which it would only seem to hold little.
    """

    def __init__(self, client: Client, group: str, pause: Pause, signing: Signing = UNSIGNED) -> None:
        self._signing = signing
        self._link = Link(client)
        self._group = group
        self._pause = pause
        self.passed_over = 0  # records that were read and aren't meant

    def stream(
        self, lane: TopicPartition, after: Position, query: Query = ALL, acknowledged: int = 0
    ) -> Iterator[Found]:
        """Records behind `after` that the query means, in order, but for its range of time; one may come twice."""
        reader = self._reader(lane, query.needles, acknowledged)
        rereads = 0
        while after < END:
            try:
                for found in self._window(reader, after, query):
                    after = found.position
                    yield found
            except GoneError as error:
                rereads = _again(lane, rereads, error)

    def _window(self, reader: LaneReader, after: Position, query: Query) -> Iterator[Found]:
        """Records of the next headers that are meant, by position, ending with a mark of how far the headers reach."""
        headers, limit = reader.all_headers(after, END, HEADERS_ENOUGH)
        ahead: list[_Opened] = []  # a heap: the chunk with the next record first
        place, width = 0, 1
        while place < len(headers) or ahead:
            while place < len(headers) and (not ahead or headers[place].first <= ahead[0].position):
                page = page_of(headers, place, min(place + width, len(headers)))
                page = [header for header in page if not ahead or header.first <= ahead[0].position]
                width *= 2  # few are opened when the first one has enough
                for number, rows in enumerate(self._meant(reader, page, after, limit, query), place):
                    if rows:
                        heappush(ahead, _Opened(rows[0].position, number, 0, rows))
                place += len(page)
                if not ahead and place < len(headers):
                    yield Found(just_before(headers[place].first), None)
            if ahead:
                position, number, row, rows = ahead[0]
                yield Found(position, rows[row])
                if row + 1 < len(rows):
                    heapreplace(ahead, _Opened(rows[row + 1].position, number, row + 1, rows))
                else:
                    heappop(ahead)
        yield Found(limit, None)

    # tidy: where to read, and what
    def _meant(
        self, reader: LaneReader, page: Sequence[Header], after: Position, limit: Position, query: Query
    ) -> Iterator[list[Held]]:
        for header, rows in zip(page, self._open(reader, page, after, limit), strict=True):
            meant = list(filter(query.matches, rows)) if query.chooses else rows
            self.passed_over += (len(rows) or header.rows) - len(meant)
            yield meant

    def _open(
        self, reader: LaneReader, page: Sequence[Header], after: Position, limit: Position
    ) -> Iterator[list[Held]]:
        for rows in reader.after(after)(page, limit):
            self._pause()
            yield rows

    def find(self, lane: TopicPartition, id: str, acknowledged: int) -> Held | None:
        """The latest record with this id that was not struck out; it may be settled, or in the wheel."""
        reader = self._reader(lane, (), acknowledged)
        rereads = 0
        while True:
            try:
                return find(self._link, reader, [id]).get(id)
            except GoneError as error:
                rereads = _again(lane, rereads, error)

    def minutes(
        self, lane: TopicPartition, after: Position, until_ms: int, skip: Mapping[int, Position], acknowledged: int
    ) -> dict[int, int]:
        """How many records behind `after` are due in each minute up to `until_ms`; all later ones by -1. Without those
        of these offsets.

        A fine slot is a minute, so its chunks needn't be opened. A record that is being moved to a finer slot just
        now may count twice.
        """
        rereads = 0
        while True:
            try:
                return self._minutes(self._reader(lane, (), acknowledged), after, until_ms, skip)
            except GoneError as error:
                rereads = _again(lane, rereads, error)

    def _minutes(
        self, reader: LaneReader, after: Position, until_ms: int, skip: Mapping[int, Position]
    ) -> dict[int, int]:
        counts: dict[int, int] = {}
        headers, _ = reader.all_headers(after, END, OFFSET_MAX)
        opened: list[Header] = []
        less = sorted([*(position.due_ms for position in skip.values()), *self._struck(reader.keys, after)])
        for header in headers:
            first, last = (_minute(due_ms, until_ms) for due_ms in (header.first.due_ms, header.last.due_ms))
            some_less = bisect_left(less, header.first.due_ms) < bisect_right(less, header.last.due_ms)
            if header.first <= after or first != last or some_less or len(less) >= STRUCK_MAX:
                opened.append(header)
            else:
                counts[first] = counts.get(first, 0) + header.rows
        for page in pages(opened):
            for rows in self._open(reader, page, after, END):
                for held in rows:
                    minute = _minute(held.due_ms, until_ms)
                    counts[minute] = counts.get(minute, 0) + (held.offset not in skip)
        return counts

    def _struck(self, keys: LaneKeys, after: Position) -> list[int]:
        """When copies that are struck out would be due."""

        def ask(client: Client) -> Any:
            return client.zrangebyscore(keys.struck, after.due_ms, DUE_MAX_MS, start=0, num=STRUCK_MAX, withscores=True)

        return [int(due_ms) for _, due_ms in self._link.do(keys.struck, ask)]

    def _reader(self, lane: TopicPartition, needles: Sequence[bytes], acknowledged: int) -> LaneReader:
        codec = ChunkCodec(needles, signing=self._signing)
        return LaneReader(self._link, codec, LaneKeys(self._group, lane), lane, acknowledged)


def _minute(due_ms: int, until_ms: int) -> int:
    return due_ms // FINE.slot_ms if due_ms < until_ms else -1


def _again(lane: TopicPartition, rereads: int, error: GoneError) -> int:
    """Count one more; raises OverflowUnavailable when it was tried often enough."""
    if rereads >= REREADS_MAX:
        raise OverflowUnavailable(f"the overflow of {lane} is being moved by somebody else") from error
    return rereads + 1
