"""Any records survive packing, whole and in part."""

from collections.abc import Sequence
from contextlib import suppress

import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.fields import is_topic
from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position
from sidecar.overflow.chunk import RAW_BYTES_MAX, Blob, ChunkCodec, ChunkDamagedError
from sidecar.overflow.keys import FINE, header_of, read_header
from tests.examples import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
topics = st.text("ab.-_Z9", min_size=1, max_size=12).filter(is_topic)
payloads = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.sampled_from(["a", "b", ""]) | texts, payloads), max_size=4)
numbers = st.integers(-1, (1 << 53) - 1)
offsets = st.integers(0, OFFSET_MAX)

helds = st.builds(
    Held, st.integers(0, 1 << 40), offsets, topics, st.integers(-1, 2**31 - 1), payloads, payloads, headers, texts,
    st.none() | st.binary(max_size=20), st.integers(0, 1_000), numbers, headers, numbers, topics | st.just(""),
    st.integers(0, RAW_BYTES_MAX), st.just(-1) | st.just(-1) | offsets,
)  # fmt: skip
runs = st.lists(helds, min_size=1, max_size=30, unique_by=lambda held: held.offset).map(
    lambda records: sorted(records, key=lambda held: (held.due_ms, held.offset))
)


def is_of_one_slot(run: Sequence[Held]) -> bool:
    return FINE.start_ms(run[0].due_ms) == FINE.start_ms(run[-1].due_ms)


@given(runs)
def test_round_trip(records: list[Held]) -> None:
    everything = Position(-1, -1), Position(OFFSET_MAX, OFFSET_MAX)
    codec = ChunkCodec()
    packed = codec.pack(records)
    assert [held for run, _ in packed for held in run] == records
    for run, blob in packed:
        assert codec.unpack(blob, *everything) == list(run)
        assert codec.pack(run)[0][1] == blob
        header = header_of(run, FINE, blob)
        if is_of_one_slot(run):
            assert read_header(header.member, FINE) == header


@settings(max_examples=examples(50))
@given(runs, st.integers(0, 1 << 40), st.integers(0, 1 << 40), offsets, offsets)
def test_part_of_a_chunk(records: list[Held], low: int, high: int, first: int, last: int) -> None:
    codec = ChunkCodec()
    borders = [Position(low, first), Position(high, last), records[0].position, records[-1].position]
    for after in borders:
        for until in borders:
            found = [held for _, blob in codec.pack(records) for held in codec.unpack(blob, after, until)]
            assert found == [held for held in records if after < held.position <= until]


@settings(max_examples=examples(300))
@given(runs, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
def test_other_bytes_under_a_right_hash_are_damage_and_nothing_worse(
    records: list[Held], changes: list[tuple[int, int]]
) -> None:
    """Anybody who writes other bytes into Redis can make their hash and size, too."""
    everything = Position(-1, -1), Position(OFFSET_MAX, OFFSET_MAX)
    for run, blob in ChunkCodec().pack(records):
        raw = bytearray(zstandard.ZstdDecompressor().decompress(blob.data))
        for place, byte in changes:
            raw[place % len(raw)] = byte
        data = zstandard.ZstdCompressor().compress(bytes(raw))
        other = Blob(data, len(raw), xxhash.xxh3_64_intdigest(data), len(run), run[0].position, run[-1].position)
        with suppress(ChunkDamagedError):
            for held in ChunkCodec().unpack(other, *everything):
                assert is_topic(held.target)
                assert -1 <= held.target_partition < 1 << 31
                assert run[0].position <= held.position <= run[-1].position
