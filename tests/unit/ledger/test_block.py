"""The ledger block: its bytes are pinned, its size is bounded, and no length in it is believed."""

import random
import struct
import tracemalloc
from array import array
from collections import Counter
from dataclasses import replace

import pytest
import zstandard

from sidecar.ledger import columns as column
from sidecar.ledger.block import (
    NO_ENTRIES,
    NOTHING_SETTLED,
    RECORDS_MAX,
    Block,
    Entries,
    LedgerFormatError,
    NewerLedgerFormatError,
    Settled,
    decode,
    encode,
    lane_key,
    ledger_partition,
)
from sidecar.ledger.frame import unpack_frame
from sidecar.model.log_cuts import Cuts, ReadMark
from sidecar.model.record import Outcome, Position

NOW_MS = 1_763_720_000_000

EMPTY = Block("g", "t", "i", 3, 1, 2, Position(4, 5), 6, 7, (), 8, NOTHING_SETTLED, NO_ENTRIES)

FIXED_BYTES = 7 * 8 + 12 * 4


def settled_of(count: int, **other) -> Settled:
    """Records settled in one interval of 50 ms, with delays over seconds: sparse offsets, close dues."""
    chance = random.Random(count)
    return Settled(
        offsets=sorted(chance.sample(range(10_000_000, 10_000_000 + count * 50), count)),
        dues_ms=[NOW_MS + chance.randrange(50) for _ in range(count)],
        outcomes=[Outcome.EMITTED] * count,
        in_overflow=[0] * count,
        policies=["reminders@12"] * count,
        targets=["mail-out"] * count,
        attempts=[0] * count,
        ids={},
        reasons={},
    )._replace(**other)


def entries_of(count: int) -> Entries:
    settled = settled_of(count)
    return Entries(
        offsets=settled.offsets,
        dues_ms=settled.dues_ms,
        policies=settled.policies,
        targets=settled.targets,
        target_partitions=[-1] * count,
        attempts=settled.attempts,
        first_failures_ms=[-1] * count,
        expires_ms=[-1] * count,
        dead_letters=["reminders-dlq"] * count,
        ids={},
    )


def block_of(count: int, **other) -> Block:
    return replace(EMPTY, settled=settled_of(count, **other))


def one_word(word: bytes) -> str:
    """A column of one word: one distinct, all texts of this length, then the bytes."""
    return f"01000000 00 {len(word):02x}00000000000000 {len(word):02x}000000 {word.hex()}"


def test_the_bytes_are_those_of_the_documented_format():
    block = Block(
        group="g",
        topic="t",
        topic_id="i",
        partition=3,
        written_ms=1,
        low=2,
        watermark=Position(4, -5),
        acknowledged=6,
        overflow_held=7,
        runs=((9, 10),),
        number=8,
        settled=Settled(
            [16, 17, 17 + 0x1234], [256, 256, 1280], [0, 1, 0], [1, 1, 1], ["p", "p", "q"], ["t"] * 3,
            [2, 2, 2], {17: "ä"}, {17: "r"},
        ),
        entries=NO_ENTRIES,
    )  # fmt: skip
    fixed = """
        0100000000000000 0200000000000000 0400000000000000 fbffffffffffffff 0600000000000000 0700000000000000
        0800000000000000 03000000 01000000 03000000 01000000 01000000 00000000 00000000
    """
    columns = f"""
        {one_word(b"g")} {one_word(b"t")} {one_word(b"i")}
        00 0900000000000000    00 0a00000000000000
        12 1000000000000000 0100 3412
        02 0001000000000000 0000 0000 0004
        01 0000000000000000 00 01 00
        00 0100000000000000
        00 0200000000000000
        02000000 00 0100000000000000 02000000 7071  00 00 01
        {one_word(b"t")}
        00 1100000000000000  00 0100000000000000 02000000 c3a4
        00 1100000000000000  {one_word(b"r")}
    """

    moved = replace(block, settled=block.settled._replace(related={16: 0x20}), carried=carried_of())
    carried = f"""
        00 2000000000000000  00 0500000000000000  00 ffffffffffffffff  00 0000000000000000
        00 ffffffffffffffff  00 ffffffffffffffff  {one_word(b"p")} {one_word(b"t")} {one_word(b"d")}
        00 2000000000000000  00 0100000000000000 01000000 78  00 2000000000000000  00 1000000000000000
        00 1000000000000000  00 2000000000000000
    """

    no_mark = "ff" * 24

    def in_bytes(head: str, counts: str, rest: str = "") -> bytes:
        return bytes.fromhex(head + fixed + counts + columns + rest)

    assert decode(in_bytes("544c 01 00", "")) == block  # versions before
    assert decode(in_bytes("544c 02 00", "00000000" * 5)) == block
    assert unpack_frame(encode(block)) == (3, in_bytes("544c 03 00", "00000000" * 6 + no_mark)[4:])
    moved_counts = "01000000 00000000 01000000 01000000 01000000"
    assert unpack_frame(encode(moved))[1] == in_bytes("544c 03 00", f"{moved_counts} 00000000 {no_mark}", carried)[4:]
    assert decode(encode(moved)) == moved
    cut = replace(block, read=ReadMark(33, 2, 1280), cuts=Cuts(((100, 90), (120, 95))))
    counts = "00000000" * 5 + "02000000 2100000000000000 0200000000000000 0005000000000000"
    cuts = "01 0000000000000000 64 78  01 0000000000000000 5a 5f"
    assert unpack_frame(encode(cut))[1] == in_bytes("544c 03 00", counts, cuts)[4:]
    assert decode(encode(cut)) == cut


def carried_of() -> Entries:
    """The record of offset 16, moved by the control record of offset 32."""
    return Entries([32], [5], ["p"], ["t"], [-1], [0], [-1], [-1], ["d"], {32: "x"}, {32: 16})


def test_a_big_endian_host_swaps_wide_columns(monkeypatch):
    native = encode(block_of(3, dues_ms=[1_000, 2_000, 9_000]))
    monkeypatch.setattr(column, "_BIG_ENDIAN", True)

    swapped = encode(block_of(3, dues_ms=[1_000, 2_000, 9_000]))

    assert swapped != native
    assert Counter(swapped) == Counter(native)
    assert decode(swapped).settled.dues_ms == [1_000, 2_000, 9_000]


@pytest.mark.parametrize(("code", "size"), [("H", 2), ("I", 4), ("Q", 8)])
def test_arrays_are_as_wide_as_the_format_says(code, size):
    assert array(code).itemsize == size


@pytest.mark.parametrize(("dues_ms", "bytes_max"), [
    ([NOW_MS + place // 20 for place in range(2_000)], 4.0),
    ([NOW_MS + random.Random(7).randrange(50)] * 2_000, 4.0),
    ([NOW_MS + random.Random(place).randrange(3_600_000) for place in range(2_000)], 7.0),
])  # fmt: skip
def test_two_thousand_settled_records_take_two_to_seven_bytes_each(dues_ms, bytes_max):
    assert len(encode(block_of(2_000, dues_ms=dues_ms))) / 2_000 <= bytes_max


def test_a_constant_column_costs_as_much_for_one_as_for_thousands():
    def body_bytes(count):
        dense = {"offsets": range(count), "dues_ms": [NOW_MS] * count}
        data = encode(block_of(count, **dense))
        return len(zstandard.decompress(data[4:])) if data[3] else len(data) - 4

    assert body_bytes(5_000) - body_bytes(1) == 4_999  # the offsets' steps, one byte each


def test_a_tenfold_block_of_entries_stays_below_a_kafka_message():
    assert len(encode(replace(EMPTY, entries=entries_of(20_000)))) < 200_000


def test_equal_words_are_one_object_across_blocks():
    first, second = (decode(encode(block_of(3))) for _ in range(2))

    assert first.settled.policies[0] is second.settled.policies[2]


def test_a_block_without_records_keeps_its_positions():
    assert decode(encode(EMPTY)) == EMPTY


@pytest.mark.parametrize("wrong", [
    {"offsets": [5, 5, 6]},
    {"offsets": [5, 4, 6]},
    {"offsets": [5, 4, 1_000]},
    {"offsets": [5, 1_000, 1_000]},
    {"offsets": [5, 6]},
    {"attempts": [0, 0]},
    {"dues_ms": [0, 1, 1 << 63]},
    {"dues_ms": [-1, 1, 1 << 63]},
    {"dues_ms": [0, -(1 << 63) - 1, 0]},
    {"offsets": [5, 6, 1 << 63]},
    {"policies": ["a", "b", "\ud800"]},
])  # fmt: skip
def test_what_could_not_be_read_back_is_not_written(wrong):
    with pytest.raises(ValueError, match=r"increasing|unequal|range|surrogates"):
        encode(block_of(3, **wrong))


@pytest.mark.parametrize("name", [name for name in Entries._fields if name not in ("ids", "sources")])
def test_entries_of_unequal_length_are_not_written(name):
    entries = entries_of(3)
    wrong = entries._replace(**{name: getattr(entries, name)[:2]})
    with pytest.raises(ValueError, match="unequal"):
        encode(replace(EMPTY, entries=wrong))


def test_more_records_than_a_reader_takes_are_not_written():
    assert decode(encode(block_of(RECORDS_MAX))).settled.attempts[-1] == 0
    with pytest.raises(ValueError, match=f"{RECORDS_MAX + 1} records"):
        encode(block_of(RECORDS_MAX + 1))


def test_a_body_that_no_reader_would_unpack_is_not_written():
    with pytest.raises(ValueError, match="bytes, more than"):
        encode(block_of(1, targets=["x" * (17 << 20)]))


def test_a_newer_version_stops_the_reader():
    with pytest.raises(NewerLedgerFormatError, match="version 4"):
        decode(b"TL\x04" + encode(EMPTY)[3:])


@pytest.mark.parametrize("data", [
    None,
    b"",
    b"TL",
    b"TL\x01",
    b"TL\x00\x00" + encode(EMPTY)[4:],
    b"TL\x02\x02" + encode(EMPTY)[4:],
    b"XL" + encode(EMPTY)[2:],
    b"TL\x02\x01junk",
    encode(block_of(500)) + b"\x00",
])  # fmt: skip
def test_what_is_no_block_is_refused(data):
    with pytest.raises(LedgerFormatError) as refusal:
        decode(data)
    assert not isinstance(refusal.value, NewerLedgerFormatError)


def test_an_unknown_outcome_is_refused():
    with pytest.raises(LedgerFormatError, match="outcome"):
        decode(encode(block_of(3, outcomes=[0, 7, 0])))


def with_count(place: int, count: int, block: Block = EMPTY) -> bytes:
    """The block, uncompressed, with another of its counts."""
    data = bytearray(encode(block))
    assert data[3] == 0
    struct.pack_into("<I", data, 4 + 60 + 4 * place, count)
    return bytes(data)


def zstd_frame_claiming(size: int) -> bytes:
    """A frame header with the content size in 8 bytes, and an empty last block."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", size) + b"\x01\x00\x00"


HOSTILE = [
    *(with_count(place, count) for place in range(6) for count in (RECORDS_MAX, RECORDS_MAX + 1, 0xFFFFFFFF)),
    *(with_count(place, 0xFFFFFFFF, block_of(2)) for place in range(6)),
    with_count(0, 2_000_000, replace(EMPTY, runs=((1, 1),))),  # two constant columns: no byte is missing
    b"TL\x01\x01" + zstd_frame_claiming(1 << 50),
    b"TL\x01\x01" + zstd_frame_claiming((1 << 64) - 1),
    b"TL\x01\x01" + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 26)),
    b"TL\x01\x01" + zstandard.compress(bytes(1 << 26)),
    encode(EMPTY).replace(b"\x01\x00\x00\x00g", b"\xff\xff\xff\xffg"),
    encode(EMPTY).replace(b"\x01\x00\x00\x00\x00\x01", b"\xff\xff\xff\xff\x00\x01", 1),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_no_length_is_believed(data):
    tracemalloc.start()
    try:
        with pytest.raises(LedgerFormatError):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_lanes_have_a_key_and_a_place_that_never_change():
    assert lane_key("orders-retry", 7) == b"orders-retry/7"
    # Another hash would hide the blocks already written.
    assert [ledger_partition("orders-retry", partition, 8) for partition in range(8)] == [
        5,
        3,
        1,
        7,
        4,
        2,
        0,
        6,
    ]


def test_lanes_spread_over_the_ledger():
    places = Counter(ledger_partition("reminders", partition, 8) for partition in range(64))

    assert len(places) == 8
    assert max(places.values()) <= 12
