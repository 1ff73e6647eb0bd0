"""Kafka's primitive types, as the records of its internal topics are made of them.

int8 .. int64   big-endian
string          length 2, UTF-8; nullable: length -1
bytes           length 4
array           count 4, elements; nullable: count -1
"""

from struct import Struct, error
from typing import Final

_INT8: Final = Struct(">b")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class UnreadableRecord(Exception):
    """Bytes that are not a record of the expected kind, or of a version that isn't known."""


class Writer:
    """Puts values behind each other; a record begins with its version."""

    def __init__(self, version: int) -> None:
        self.data = bytearray(_INT16.pack(version))

    def int8(self, value: int) -> "Writer":
        self.data += _INT8.pack(value)
        return self

    def int16(self, value: int) -> "Writer":
        self.data += _INT16.pack(value)
        return self

    def int32(self, value: int) -> "Writer":
        self.data += _INT32.pack(value)
        return self

    def int64(self, value: int) -> "Writer":
        self.data += _INT64.pack(value)
        return self

    def string(self, value: str | None) -> "Writer":
        if value is None:
            return self.int16(-1)
        encoded = value.encode()
        self.int16(len(encoded)).data += encoded
        return self

    def blob(self, value: bytes) -> "Writer":
        self.int32(len(value)).data += value
        return self


class Reader:
    """Takes values from the front. UnreadableRecord if there is not enough."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data or b""
        self._position = 0

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        """UnreadableRecord if it is null."""
        found = self.nullable_string()
        if found is None:
            raise UnreadableRecord("a string is missing")
        return found

    def nullable_string(self) -> str | None:
        length = self.int16()
        try:
            return None if length < 0 else self._take(length).decode()
        except UnicodeDecodeError:
            raise UnreadableRecord("a string is not UTF-8") from None

    def blob(self) -> bytes:
        return self._take(max(0, self.int32()))

    def _number(self, form: Struct) -> int:
        try:
            (number,) = form.unpack_from(self._data, self._position)
        except error:
            raise UnreadableRecord("a record is cut") from None
        self._position += form.size
        return int(number)

    def _take(self, length: int) -> bytes:
        found = self._data[self._position : self._position + length]
        if len(found) != length:
            raise UnreadableRecord("a record is cut")
        self._position += length
        return found
