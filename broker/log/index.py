"""Sparse indexes of a segment: from an offset to a position, from a time to an offset.

In memory while in use, and written when the segment is sealed or the log closed, in Kafka's entries (8 bytes: relative
offset, position; 12 bytes: timestamp, relative offset) with a CRC after them. An index can always be made again by
reading its segment, so a missing or damaged file costs time and nothing else.
"""

import sys
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Final

from broker.log.checked_file import read_checked, write_checked

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1


class OffsetIndex:
    """(offset, position) of batches that are at least an interval apart, both rising."""

    def __init__(self, base_offset: int, entries_max: int) -> None:
        self.base_offset = base_offset
        self.entries_max = entries_max
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether the segment has to end."""
        return len(self._offsets) >= self.entries_max

    @property
    def last_position(self) -> int:
        """Of the last batch that is indexed, 0 if none is."""
        return self._positions[-1] if self._positions else 0

    def add(self, offset: int, position: int) -> None:
        """A batch begins there."""
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)

    def floor(self, offset: int) -> int:
        """Where to begin to look for an offset."""
        index = bisect_right(self._offsets, offset - self.base_offset) - 1
        return self._positions[index] if index >= 0 else 0

    def truncate(self, position: int) -> None:
        """The segment ends here now."""
        while self._positions and self._positions[-1] >= position:
            self._positions.pop()
            self._offsets.pop()

    def write(self, path: Path) -> None:
        """To be called when the segment is sealed, or its log closed."""
        interleaved = array("I", bytes(OFFSET_ENTRY_BYTES * len(self._offsets)))
        interleaved[::2], interleaved[1::2] = self._offsets, self._positions
        write_checked(path, _big_endian(interleaved).tobytes(), is_synced=False)

    def load(self, path: Path, size: int) -> bool:
        """Take what was written about the first `size` bytes. False: there is nothing, or it can't be right."""
        content = read_checked(path)
        if content is None or len(content) % OFFSET_ENTRY_BYTES:
            return False
        numbers = array("I")
        numbers.frombytes(content)
        numbers = _big_endian(numbers)
        self._offsets, self._positions = numbers[::2], numbers[1::2]
        return not self._positions or self._positions[-1] < size


class TimeIndex:
    """(timestamp, offset): no record before this offset's batch is later than this timestamp. Both rise."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")

    @property
    def last_timestamp(self) -> int:
        """-1 if there is no entry."""
        return self._timestamps[-1] if self._timestamps else -1

    def add(self, timestamp: int, offset: int) -> None:
        """The greatest timestamp so far, and the base offset of its batch."""
        if timestamp > self.last_timestamp:
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def floor(self, timestamp: int) -> int:
        """From which offset on a record of this time or later is to be looked for."""
        # An entry's own batch may hold an earlier record that is late enough, but none before it does.
        index = bisect_right(self._timestamps, timestamp - 1) - 1
        return self.base_offset + (self._offsets[index] if index >= 0 else 0)

    def truncate(self, offset: int) -> None:
        """The segment ends here now."""
        while self._offsets and self._offsets[-1] + self.base_offset >= offset:
            self._offsets.pop()
            self._timestamps.pop()

    def write(self, path: Path) -> None:
        """As `OffsetIndex.write`."""
        entries = zip(self._timestamps, self._offsets, strict=True)
        content = b"".join(time.to_bytes(8, "big", signed=True) + offset.to_bytes(4, "big") for time, offset in entries)
        write_checked(path, content, is_synced=False)

    def load(self, path: Path) -> bool:
        """As `OffsetIndex.load`."""
        content = read_checked(path)
        if content is None or len(content) % TIME_ENTRY_BYTES:
            return False
        starts = range(0, len(content), TIME_ENTRY_BYTES)
        self._timestamps = array("q", [int.from_bytes(content[at : at + 8], "big", signed=True) for at in starts])
        self._offsets = array("I", [int.from_bytes(content[at + 8 : at + 12], "big") for at in starts])
        return True


def _big_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
