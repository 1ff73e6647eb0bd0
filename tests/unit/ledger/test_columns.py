"""Columns made by hand, as an attacker or a bug would: each is refused for what is wrong with it."""

import struct

import pytest

from sidecar.ledger.columns import ColumnReader, pack_numbers, pack_offsets, pack_texts, pack_words
from sidecar.ledger.frame import LedgerFormatError

INT64_MAX = (1 << 63) - 1


def head(kind: int, base: int) -> bytes:
    return struct.pack("<Bq", kind, base)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


@pytest.mark.parametrize("packed", [
    head(0x11, INT64_MAX - 1) + b"\x01\x01",
    head(0x18, 1) + struct.pack("<QQ", INT64_MAX, 0),
    head(0x01, INT64_MAX) + b"\x00\x01\x00",
    head(0x08, 1) + struct.pack("<QQQ", 0, 0, INT64_MAX),
])  # fmt: skip
def test_sums_beyond_64_bits_are_refused(packed):
    with pytest.raises(LedgerFormatError, match="64 bits"):
        ColumnReader(packed, 0).numbers(3)


def test_numbers_up_to_64_bits_are_read():
    assert ColumnReader(head(0x11, INT64_MAX - 2) + b"\x01\x01", 0).numbers(3)[-1] == INT64_MAX
    assert ColumnReader(head(0x01, INT64_MAX - 1) + b"\x00\x01\x00", 0).numbers(3)[1] == INT64_MAX


@pytest.mark.parametrize("kind", [0x03, 0x07, 0x09, 0x10, 0x13, 0x20, 0x31, 0xFF])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(LedgerFormatError, match="unknown kind"):
        ColumnReader(head(kind, 0) + bytes(64), 0).numbers(3)


@pytest.mark.parametrize("packed", [
    head(0x00, 5),
    head(0x01, 5) + b"\x00\x01\x02",
    head(0x11, 5) + b"\x01\x00",
    head(0x12, 5) + b"\x01\x00\x00\x00",
])  # fmt: skip
def test_offsets_that_do_not_rise_are_refused(packed):
    with pytest.raises(LedgerFormatError, match="out of order"):
        ColumnReader(packed, 0).offsets(3)


@pytest.mark.parametrize(("packed", "reason"), [
    (head(0x00, 1) + u32(2) + b"abc", "another length"),
    (head(0x00, 1) + u32(4) + b"abcd", "another length"),
    (head(0x01, -2) + b"\x01\x03\x06" + u32(4) + b"abcd", "another length"),
    (head(0x00, 1) + u32(3) + b"a\xffc", "UTF-8"),
    (head(0x00, 1) + u32(3) + b"ab", "cut short"),
    (head(0x00, 1 << 62) + u32(3) + b"abc", "another length"),
])  # fmt: skip
def test_texts_of_other_lengths_than_announced_are_refused(packed, reason):
    with pytest.raises(LedgerFormatError, match=reason):
        ColumnReader(packed, 0).texts(3)


@pytest.mark.parametrize(("distinct", "codes", "reason"), [
    (0, b"", "0 different words"),
    (4, b"\x00\x01\x02", "4 different words"),
    (2, b"\x00\x01\x02", "not there"),
    (2, b"\x00\x01", "cut short"),
])  # fmt: skip
def test_words_without_a_code_or_a_text_are_refused(distinct, codes, reason):
    packed = u32(distinct) + pack_texts(["ab"] * distinct) + codes
    with pytest.raises(LedgerFormatError, match=reason):
        ColumnReader(packed, 0).words(3)


@pytest.mark.parametrize("column", [[7], [300], [7] * 9, [0, 255, 0], [5, 256, 5], [9, 9, 300, 9], [10**13, 0, -1]])
def test_numbers_end_where_the_next_column_begins(column):
    reader = ColumnReader(pack_numbers(column) + pack_offsets([1, 2, 70_000]) + pack_words(["x"]), 0)

    assert reader.numbers(len(column)) == column
    assert reader.offsets(3) == [1, 2, 70_000]
    assert reader.words(1) == ["x"]
    reader.end()


@pytest.mark.parametrize("distinct", [1, 2, 256, 257, 65_536])
def test_words_have_codes_as_wide_as_their_number_needs(distinct):
    column = [str(number) for number in range(distinct)]

    assert ColumnReader(pack_words([*column, "0"]), 0).words(distinct + 1) == [*column, "0"]
