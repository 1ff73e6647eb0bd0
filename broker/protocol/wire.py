"""Kafka's primitive types in a buffer, for what is read by hand: frame headers, and the one request with records."""

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

_INT = Struct(">i")
_SHORT = Struct(">h")

VARINT_BITS_MAX: Final = 28  # five bytes


class Reader:
    """Reads on from a position. struct.error, IndexError or ValueError where there is less than there should be."""

    def __init__(self, data: memoryview, *, is_compact: bool) -> None:
        self._data = data
        self._position = 0
        self._is_compact = is_compact

    @property
    def rest(self) -> memoryview:
        """Bytes that haven't been read."""
        return self._data[self._position :]

    def numbers(self, form: Struct) -> tuple[Any, ...]:
        """Fields of fixed size."""
        found = form.unpack_from(self._data, self._position)
        self._position += form.size
        return found

    def int32(self) -> int:
        """Four bytes."""
        return int(self.numbers(_INT)[0])

    def count(self) -> int:
        """The length of an array, 0 for null."""
        return self.nullable_count() or 0

    def nullable_count(self) -> int | None:
        """The length of an array, None for null; at most one for each byte that is left."""
        count = self._varint() - 1 if self._is_compact else self.int32()
        if count > len(self._data) - self._position:
            raise ValueError(f"an array of {count} in {len(self._data) - self._position} bytes")
        return None if count < 0 else count

    def string(self) -> str:
        """Text that is there."""
        text = self.nullable_string()
        if text is None:
            raise ValueError("a string is null")
        return text

    def nullable_string(self) -> str | None:
        """Text or null."""
        size = self._varint() - 1 if self._is_compact else int(self.numbers(_SHORT)[0])
        return None if size < 0 else str(self._take(size), "utf-8")

    def nullable_bytes(self) -> memoryview | None:
        """A view of bytes, or null."""
        size = self._varint() - 1 if self._is_compact else self.int32()
        return None if size < 0 else self._take(size)

    def uuid(self) -> str | None:
        """An id as 32 hexadecimal digits with its dashes; None for zero."""
        digits = self._take(16).hex()
        if not digits.strip("0"):
            return None
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def tags(self) -> None:
        """Skip the tagged fields, if this version has any."""
        if self._is_compact:
            for _ in self.tagged():
                pass

    def tagged(self) -> Iterator[tuple[int, "Reader"]]:
        """Each tagged field's number and content."""
        for _ in range(self._varint()):
            tag = self._varint()
            yield tag, Reader(self._take(self._varint()), is_compact=True)

    def _take(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise ValueError(f"{size} bytes where {len(self._data) - start} are left")
        return self._data[start : self._position]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > VARINT_BITS_MAX:
                raise ValueError("a number of more than five bytes")
