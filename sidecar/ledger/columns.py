"""Columns of a ledger block: many numbers or words of one kind, as few bytes, without a loop over records.

All integers are little endian. A column is written without its length: the block's fixed part has it, and an
empty column takes no bytes at all.

    numbers  +------+----------+----------------------------------------+
             | kind | base i64 | values                                 |
             +------+----------+----------------------------------------+
               0x00                none: every number is base
               0x01 02 04 08       count x u8, u16, u32 or u64: base + value
               0x11 12 14 18       (count - 1) x u8 .. u64: the step from the number before; base is the first

    texts    +---------------------------------+-----------+-----------------------+
             | numbers: lengths in code points | bytes u32 | UTF-8 of all, joined  |
             +---------------------------------+-----------+-----------------------+

    words    +--------------+------------------------+----------------------------------------------+
             | distinct u32 | texts: the distinct    | codes, count x u8, u16 or u32; none if only  |
             |              | words, in first use    | one word, u8 up to 256 of them               |
             +--------------+------------------------+----------------------------------------------+

A constant column is one value whatever its length. Other runs and patterns are left to the compression of
the whole block, which finds them at a tenth of what a run-length coder in Python would cost.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import sub
from typing import Final

from sidecar.ledger.frame import LedgerFormatError

RECORDS_MAX: Final = 1 << 16
"""The longest column. A constant one costs no bytes: only a limit keeps a hostile length from a huge list."""

_SAME: Final = 0x00
_STEP: Final = 0x10
_TYPE_CODES: Final = {2: "H", 4: "I", 8: "Q"}
_WIDTHS: Final = (1, 2, 4, 8)
_HEAD: Final = struct.Struct("<Bq")
_LENGTH: Final = struct.Struct("<I")
_INT64_MAX: Final = (1 << 63) - 1
_WORDS_CACHED: Final = 1024
_BIG_ENDIAN: Final = sys.byteorder == "big"


def pack_numbers(column: Sequence[int]) -> bytes:
    """Any numbers of 64 signed bits."""
    if not column:
        return b""
    first = column[0]
    if column[-1] == first and column.count(first) == len(column):
        return _HEAD.pack(_SAME, first)
    if 0 <= first <= 0xFF and (small := _bytes_or_none(column)) is not None:
        return _HEAD.pack(1, 0) + small
    lowest, highest = min(column), max(column)
    _check(highest)
    span = highest - lowest
    if span > 0xFF and (steps := _bytes_or_none(map(sub, column[1:], column))) is not None:
        return _HEAD.pack(_STEP | 1, first) + steps
    width = _width(span)
    return _HEAD.pack(width, lowest) + _pack_unsigned(list(map(sub, column, repeat(lowest))), width)


def pack_offsets(column: Sequence[int]) -> bytes:
    """Strictly increasing numbers. Raises ValueError when they are not: they could not be read back."""
    if not column:
        return b""
    first = column[0]
    if len(column) == 1:
        return _HEAD.pack(_SAME, first)
    _check(column[-1])
    steps = list(map(sub, column[1:], column))
    packed = _bytes_or_none(steps)
    width = 1
    if packed is None:
        width = _width(max(steps))
        packed = _pack_unsigned(steps, width)
    if 0 in (packed if width == 1 else steps):
        raise ValueError("offsets must be strictly increasing")
    return _HEAD.pack(_STEP | width, first) + packed


def pack_texts(texts: Sequence[str]) -> bytes:
    """Texts that are mostly different from each other."""
    joined = "".join(texts).encode()
    return pack_numbers(list(map(len, texts))) + _LENGTH.pack(len(joined)) + joined


def pack_words(column: Sequence[str]) -> bytes:
    """Texts of which few are different."""
    if not column:
        return b""
    first = column[0]
    if column[-1] == first and column.count(first) == len(column):
        return _pack_one_word(first)
    codes = {word: code for code, word in enumerate(dict.fromkeys(column))}
    words = _LENGTH.pack(len(codes)) + pack_texts(list(codes))
    return words + _pack_unsigned(list(map(codes.__getitem__, column)), _width(len(codes) - 1))


@lru_cache(maxsize=_WORDS_CACHED)
def _pack_one_word(word: str) -> bytes:
    # Cached: a block has several constant columns, and the same policy and target stand in block after block.
    return _LENGTH.pack(1) + pack_texts([word])


def _check(highest: int) -> None:
    # Base and differences could fit their fields while their sum does not.
    if highest > _INT64_MAX:
        raise OverflowError(f"{highest} has more than 64 bits")


def _bytes_or_none(numbers: Iterable[int]) -> bytes | None:
    # Trying costs less than looking first: what does not fit is found within a few numbers, as a rule.
    try:
        return bytes(numbers)
    except ValueError:
        return None


def _pack_unsigned(numbers: list[int], width: int) -> bytes:
    if width == 1:
        return bytes(numbers)
    packed = array(_TYPE_CODES[width], numbers)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def _width(highest: int) -> int:
    return 1 if highest <= 0xFF else 2 if highest <= 0xFFFF else 4 if highest <= 0xFFFFFFFF else 8


class ColumnReader:
    """Reads columns off a body, in the order of packing. Raises LedgerFormatError, only that."""

    __slots__ = ("_body", "_place")

    def __init__(self, body: bytes, place: int) -> None:
        self._body = body
        self._place = place

    def numbers(self, count: int) -> list[int]:
        """Numbers that `pack_numbers` or `pack_offsets` wrote."""
        if not count:
            return []
        kind, base = self._head()
        if kind == _SAME:
            return [base] * count
        if kind & _STEP:
            steps = self._unsigned(kind ^ _STEP, count - 1)
            numbers = list(accumulate(steps, initial=base))
            highest = numbers[-1]
        else:
            above = self._unsigned(kind, count)
            numbers = list(map(base.__add__, above)) if base else list(above)
            # The largest is looked for only where it can matter: it costs as much as the rest.
            highest = base + (1 << 32) if kind < 8 else _INT64_MAX + 1
            if highest > _INT64_MAX:
                highest = max(numbers)
        if highest > _INT64_MAX:
            raise LedgerFormatError("a number of more than 64 bits")
        return numbers

    def offsets(self, count: int) -> list[int]:
        """Offsets that `pack_offsets` wrote: strictly increasing."""
        place = self._place
        numbers = self.numbers(count)
        if count > 1:
            kind = self._body[place]
            if not kind & _STEP or 0 in (
                self._body[place + _HEAD.size : self._place] if kind == _STEP | 1 else map(sub, numbers[1:], numbers)
            ):
                raise LedgerFormatError("offsets out of order")
        return numbers

    def texts(self, count: int) -> list[str]:
        """Texts that `pack_texts` wrote."""
        lengths = self.numbers(count)
        # One back and one forth, and again: many long texts would be cut from a short one.
        if lengths and min(lengths) < 0:
            raise LedgerFormatError("texts of another length than announced")
        ends = list(accumulate(lengths, initial=0))
        try:
            joined = self._take(self.length()).decode()
        except UnicodeDecodeError as error:
            raise LedgerFormatError("text that is not UTF-8") from error
        if ends[-1] != len(joined):
            raise LedgerFormatError("texts of another length than announced")
        return [joined[start:end] for start, end in pairwise(ends)]

    def _text(self) -> str:
        """The only text of a column that `pack_texts` wrote."""
        (size,) = self.numbers(1)
        try:
            text = self._take(self.length()).decode()
        except UnicodeDecodeError as error:
            raise LedgerFormatError("text that is not UTF-8") from error
        if len(text) != size:
            raise LedgerFormatError("texts of another length than announced")
        return text

    def words(self, count: int) -> list[str]:
        """Words that `pack_words` wrote. Equal words are one object, across blocks too: held records share them."""
        if not count:
            return []
        distinct = self.length()
        if not 0 < distinct <= count:
            raise LedgerFormatError(f"{distinct} different words in a column of {count}")
        if distinct == 1:
            return [sys.intern(self._text())] * count
        words = list(map(sys.intern, self.texts(distinct)))
        try:
            return list(map(words.__getitem__, self._unsigned(_width(distinct - 1), count)))
        except IndexError as error:
            raise LedgerFormatError("the code of a word that is not there") from error

    def length(self) -> int:
        """One u32."""
        place = self._place
        self._place = place + _LENGTH.size
        try:
            return _LENGTH.unpack_from(self._body, place)[0]  # type: ignore[no-any-return]
        except struct.error as error:
            raise LedgerFormatError("cut short") from error

    @property
    def place(self) -> int:
        """Where the next column begins."""
        return self._place

    def end(self) -> None:
        """Raises LedgerFormatError unless everything was read."""
        if self._place != len(self._body):
            raise LedgerFormatError(f"{len(self._body) - self._place} bytes too many")

    def _head(self) -> tuple[int, int]:
        # Read in place: a chunk has dozens of columns of one value, which cost nothing but this.
        place = self._place
        self._place = place + _HEAD.size
        try:
            return _HEAD.unpack_from(self._body, place)
        except struct.error as error:
            raise LedgerFormatError("cut short") from error

    def _unsigned(self, width: int, count: int) -> Sequence[int]:
        if width not in _WIDTHS:
            raise LedgerFormatError(f"unknown kind of column {width}")
        packed = self._take(width * count)
        if width == 1:
            return packed
        numbers = array(_TYPE_CODES[width], packed)
        if _BIG_ENDIAN:
            numbers.byteswap()
        return numbers

    def _take(self, size: int) -> bytes:
        start = self._place
        self._place = end = start + size
        if end > len(self._body):
            raise LedgerFormatError("cut short")
        return self._body[start:end]
