"""Which records of many overlapping chunks come first: an exact answer in bounded memory.

Chunks of one slot overlap: each put brings its own, and all may span the whole slot. To give out the next
second of a slot, every one of its chunks has to be opened. So more is read at once than is asked for
(`ReadAhead`), and the steps are served from that:

    chunks     |-----A-----|                        after     limit
                |--------B--------|                   |---------|      read together
                     |--C--|   |---D---|              |--|--|--|       given out in steps

Chunks are opened in the order of their first position, page by page. Once more rows are at hand than
wanted, all behind the last wanted one are dropped, and the limit comes down to it: no later page can bring
anything beyond.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from sidecar.overflow_layout import Header
from sidecar.record import Held, Position

BLOBS_PER_PAGE_MAX: Final = 64
BLOB_BYTES_PER_PAGE_MAX: Final = 2 * 1024 * 1024

_place = itemgetter(0, 1)

Read = Callable[[Sequence[Header], Position], list[Held]]


class Span(NamedTuple):
    """All records with after < position <= limit, sorted by position."""

    records: list[Held]
    limit: Position


class ReadAhead:
    """Records read before they were asked for, valid as long as the lane's `hw` is what it was."""

    __slots__ = ("_added", "hw", "limit", "records", "start")

    def __init__(self, hw: int, start: Position, span: Span) -> None:
        self.hw = hw
        self.start = start  # where the next request must begin
        self.records = span.records
        self.limit = span.limit
        self._added: list[Held] = []  # written since, and sorted in only when they are asked for

    def __len__(self) -> int:
        return len(self.records) + len(self._added)

    def add(self, written: Sequence[Held]) -> None:
        """Records that were written after these had been read, as far as they lie among them."""
        start, limit = self.start, self.limit
        self._added += [held for held in written if start < _place(held) <= limit]

    def take(self, until: Position, records_max: int) -> tuple[list[Held], Position]:
        """The next records up to `until`, and how far that is."""
        cursor = min(until, self.limit)
        near = [held for held in self._added if _place(held) <= cursor]
        if near:
            self._added = [held for held in self._added if _place(held) > cursor]
            self.records = in_order(self.records + near)
        records = self.records
        stop = bisect_right(records, cursor, key=_place)
        if stop > records_max:
            stop = records_max
            cursor = records[stop - 1].position
        taken = records[:stop]
        del records[:stop]  # given out means let go: they would otherwise live on until the last one is
        self.start = cursor
        return taken, cursor


def earliest(headers: Sequence[Header], read: Read, until: Position, records_max: int) -> Span:
    """The earliest records of these chunks up to `until`, at most `records_max`.

    `headers` are sorted by first position; `read` leaves out what was given before.
    """
    rows: list[Held] = []
    limit = until
    place = 0
    sorted_already = not any(header.last >= following.first for header, following in pairwise(headers))
    while place < len(headers) and headers[place].first <= limit:
        page = page_of(headers, place, limit, records_max - len(rows))
        place += len(page)
        rows += read(page, limit)
        # Sorting is what overlap costs: half as much again may pile up before it is done.
        if len(rows) > records_max + (0 if sorted_already else records_max // 2):
            if not sorted_already:
                rows = in_order(rows)
            if len(rows) > records_max:
                del rows[records_max:]
                limit = rows[-1].position
    if not sorted_already:
        rows = in_order(rows)
    if len(rows) > records_max:
        del rows[records_max:]
        limit = rows[-1].position
    return Span(rows, limit)


def page_of(headers: Sequence[Header], place: int, limit: Position, records_wanted: int) -> Sequence[Header]:
    """The chunks to read next: no more than wanted if they don't overlap, never a page that takes long."""
    stop, size, count = place, 0, 0
    while stop < len(headers) and stop - place < BLOBS_PER_PAGE_MAX and headers[stop].first <= limit:
        size += headers[stop].blob_bytes
        if stop > place and size > BLOB_BYTES_PER_PAGE_MAX:
            break
        count += headers[stop].rows
        stop += 1
        if 0 < records_wanted <= count:
            break
    return headers[place:stop]


def in_order(rows: list[Held]) -> list[Held]:
    """Sorted by position, one copy of each offset."""
    single = {row[1]: row for row in rows}
    if len(single) < len(rows):
        rows = list(single.values())
    rows.sort(key=_place)  # by plain tuples: records themselves compare slowly, and not at all when keys are null
    return rows


def pages(headers: Sequence[Header]) -> Iterator[Sequence[Header]]:
    """All of the chunks, page by page."""
    place = 0
    while place < len(headers):
        page = page_of(headers, place, headers[-1].last, 0)
        yield page
        place += len(page)
