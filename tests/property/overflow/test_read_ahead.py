"""The earliest records of chunks that overlap, against a sorted list: all of them, in order, whatever the limits."""

from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position
from sidecar.overflow.chunk import Blob
from sidecar.overflow.chunk_writer import by_position
from sidecar.overflow.keys import FINE, Header, header_of
from sidecar.overflow.read_ahead import Bounds, ReadAhead, Span, earliest
from tests.contract.overflow_records import held
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


@settings(max_examples=examples(300))
@given(chunks, st.sampled_from([1, 1 << 22]), st.integers(1, 20), st.integers(1, 60))
def test_all_records_come_once_and_in_order(
    dues: list[list[tuple[int, bool]]], stride: int, wanted: int, kept_max: int
) -> None:
    lane = Chunks(dues, stride)
    assert [record for records in lane.all(wanted, kept_max) for record in records] == lane.records


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
