"""The earliest records of chunks that overlap, against a sorted list: all of them, in order, whatever the limits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position
from sidecar.overflow import read_ahead
from sidecar.overflow.chunk import Blob
from sidecar.overflow.chunk_writer import by_position
from sidecar.overflow.keys import FINE, Header, header_of
from sidecar.overflow.read_ahead import Bounds, ReadAhead, Span, earliest
from tests.contract.overflow_records import NOW_MS, held
from tests.examples import examples

FAR = 1 << 40  # beyond what sort keys hold exactly
chunks = st.lists(
    st.lists(st.tuples(st.integers(0, 300) | st.integers(0, FAR), st.booleans()), min_size=1, max_size=12),
    max_size=12,
)


class Chunks:
    """Chunks as they lie in Redis. A record may lie in two of them: a cascade that was cut short leaves copies."""

    def __init__(self, dues: list[list[tuple[int, bool]]], stride: int) -> None:
        self.runs: dict[bytes, list[Held]] = {}
        self.headers: list[Header] = []
        self.opened: list[bytes] = []
        offset = 0
        copies: list[Held] = []
        for number, chunk in enumerate(dues):
            run = copies
            copies = []
            for due_ms, twice in chunk:
                offset += stride
                run.append(held(offset, due_ms))
                if twice:
                    copies.append(run[-1])
            run.sort(key=lambda record: record.position)
            header = header_of(run, FINE, Blob(b"", 1, number))
            self.runs[header.member] = run
            self.headers.append(header)
        self.headers.sort()
        self.records = sorted({held.offset: held for run in self.runs.values() for held in run}.values())

    def reader(self, after: Position) -> object:
        def read(headers: Sequence[Header], limit: Position) -> Iterator[list[Held]]:
            for header in headers:
                self.opened.append(header.member)
                yield [held for held in self.runs[header.member] if after < held.position <= limit]

        return read

    def all(self, wanted: int, kept_max: int) -> Iterator[list[Held]]:
        """Reading after reading, each going on with the rest of the one before."""
        start, rest = Position(0, -1), None
        end = Position(OFFSET_MAX, OFFSET_MAX)
        while start < end:
            headers = [header for header in self.headers if header.last > start]
            span = earliest(headers, self.reader(start), Bounds(start, end, wanted, kept_max), rest)  # type: ignore[arg-type]
            assert span.limit > start
            assert len(span.rows) <= kept_max
            ahead = ReadAhead(0, start, span)
            records, start = ahead.take(end, OFFSET_MAX)
            assert start == span.limit
            yield records
            rest = Span(*ahead.rest)


@contextmanager
def pages_of(blobs: int) -> Iterator[None]:
    usual, read_ahead.BLOBS_PER_PAGE_MAX = read_ahead.BLOBS_PER_PAGE_MAX, blobs  # type: ignore[misc]
    try:
        yield
    finally:
        read_ahead.BLOBS_PER_PAGE_MAX = usual  # type: ignore[misc]


@settings(max_examples=examples(300))
@given(chunks, st.sampled_from([1, 1 << 22]), st.integers(1, 20), st.integers(1, 60), st.sampled_from([1, 2, 64]))
def test_all_records_come_once_and_in_order(
    dues: list[list[tuple[int, bool]]], stride: int, wanted: int, kept_max: int, blobs: int
) -> None:
    lane = Chunks(dues, stride)
    with pages_of(blobs):
        assert [record for records in lane.all(wanted, kept_max) for record in records] == lane.records


@pytest.mark.parametrize("blobs", [1, 2, 3, 4])
@pytest.mark.parametrize("kept_max", [6, 8, 10])
def test_what_was_cut_off_is_read_again_where_only_copies_came_after_the_cut(kept_max: int, blobs: int) -> None:
    """Chunks that span an hour, and copies of their first minutes: a cascade that was broken off. Without copies there
    is room for all that is left after the first cut, but not for what that has cut off.
    """
    lane = Chunks([], 1)
    records = [held(offset, offset * 10) for offset in range(20)]
    runs = [*(records[first::4] for first in range(4)), records[:4], records[4:8]]
    for number, run in enumerate(runs):
        header = header_of(run, FINE, Blob(b"", 1, number))
        lane.runs[header.member] = run
        lane.headers.append(header)
    lane.headers.sort()
    with pages_of(blobs):
        assert [record for some in lane.all(2, kept_max) for record in some] == records


@settings(max_examples=examples(300))
@given(st.integers(0, 1 << 32))
def test_where_it_is_said_to_be_vacant_nothing_is_whatever_is_written_meanwhile(seed: int) -> None:
    """The cursor moves on over what is vacant, records are written and struck out, and the reading goes on."""
    rng, lane = Random(seed), Chunks([], 1)
    known: dict[int, Held] = {}
    struck: set[int] = set()

    def put(count: int, first_ms: int) -> list[Held]:
        run = [held(len(known) + place, first_ms - NOW_MS + rng.randint(0, 150)) for place in range(count)]
        known.update((record.offset, record) for record in run)
        run.sort(key=lambda record: record.position)
        for start in range(0, count, 4):
            header = header_of(run[start : start + 4], FINE, Blob(b"", 1, len(known) * 8 + start))
            lane.runs[header.member] = run[start : start + 4]
            lane.headers.append(header)
        return run

    def read(after: Position, previous: ReadAhead | None) -> ReadAhead:
        reach = Position(after.due_ms + rng.choice((45, 100, 500)), OFFSET_MAX)
        headers = sorted(header for header in lane.headers if header.last > after and header.first <= reach)

        def rows(page: Sequence[Header], limit: Position) -> Iterator[list[Held]]:
            for run in (lane.runs[header.member] for header in page):
                yield [one for one in run if after < one.position <= limit and one.offset not in struck]

        bounds = Bounds(after, reach, rng.randint(1, 12), rng.randint(4, 20))
        return ReadAhead(1, after, earliest(headers, rows, bounds, previous.rest if previous else None))

    def left(after: Position, until: Position) -> list[Held]:
        alive = [one for one in known.values() if after < one.position <= until and one.offset not in struck]
        return sorted(alive, key=lambda record: record.position)

    for _ in range(rng.randint(1, 5)):
        put(rng.randint(1, 10), NOW_MS)
    cursor, ahead = Position(NOW_MS - 1, 0), None
    with pages_of(2):
        for _ in range(30):
            match rng.randint(0, 3):
                case 0 if ahead is not None:
                    ahead.add(put(rng.randint(1, 4), cursor.due_ms + 1))
                case 1 if ahead is not None:
                    gone = {rng.choice(list(known))}
                    struck |= gone
                    ahead.strike(gone)
                case 2 if ahead is not None:
                    cursor = max(cursor, rng.choice((ahead.vacant, Position(cursor.due_ms + rng.randint(0, 30), 0))))
                case _:
                    if ahead is not None and not ahead.begin_at(cursor):
                        ahead = None
                    if ahead is None or ahead.start == ahead.limit:
                        ahead = read(cursor, ahead)
                    records, reached = ahead.take(Position(cursor.due_ms + rng.randint(1, 40), 0), rng.randint(1, 6))
                    assert records == left(cursor, reached)
                    assert ahead.vacant >= reached
                    assert not left(reached, ahead.vacant)
                    cursor = reached


@given(chunks, st.integers(1, 20))
def test_a_chunk_is_opened_once_when_its_rest_may_be_kept(dues: list[list[tuple[int, bool]]], wanted: int) -> None:
    lane = Chunks(dues, 1)
    list(lane.all(wanted, 10_000))
    assert len(lane.opened) == len(set(lane.opened))


def test_no_more_is_read_than_wanted_when_chunks_do_not_overlap() -> None:
    lane = Chunks([[(100 * number + place, False) for place in range(10)] for number in range(50)], 1)
    assert len(next(lane.all(30, 10_000))) == 30
    assert len(lane.opened) == 3


@given(st.lists(st.tuples(st.integers(0, 40) | st.integers(0, (1 << 53) - 1), st.integers(0, 99)), max_size=30))
def test_records_are_sorted_by_position_whatever_order_they_come_in(places: list[tuple[int, int]]) -> None:
    by_offset = [held(offset, due_ms) for offset, (due_ms, _) in enumerate(places)]
    shuffled = sorted(by_offset, key=lambda record: places[record.offset][1])
    for records in (by_offset, shuffled):
        assert by_position(records) == sorted(records, key=lambda record: record.position)
