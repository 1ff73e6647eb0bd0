"""A segment's bytes. Whoever holds a region keeps the file open, also when the segment has been deleted.

A new one, and its directory, are made when it is first used: of thousands of partitions most have no records, and a
process may have so many files open and no more.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.records.record_batch import Buffer
from purgatory.errors import ApiError, Errors

CLOSED: Final = -1
NOT_OPENED: Final = -2


class LogFile:
    """A file that is written at its end and read anywhere. `is_new`: nothing is there by that name."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        self._opened = NOT_OPENED
        self.size = 0
        if not is_new:
            self.size = os.fstat(self.fileno()).st_size

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """For `sendfile`."""
        if self._opened == NOT_OPENED:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._opened = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._opened

    def append(self, data: Buffer) -> None:
        """Write all of it or nothing. ApiError KAFKA_STORAGE_ERROR."""
        rest = memoryview(data)
        position = self.size
        try:
            while rest:
                written = os.pwrite(self.fileno(), rest, position)
                rest = rest[written:]
                position += written
        except OSError as error:
            if position > self.size:
                os.ftruncate(self.fileno(), self.size)
            raise ApiError(Errors.KAFKA_STORAGE_ERROR, f"{self.path.name}: {error.strerror}") from error
        self.size = position

    def read(self, position: int, size: int) -> bytes:
        """Read `size` bytes from `position`, fewer at the end of the file."""
        return os.pread(self.fileno(), size, position)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self.fileno(), size)
        self.size = size

    def sync(self) -> None:
        """Make what is written survive a loss of power."""
        if self._opened != NOT_OPENED:
            os.fdatasync(self.fileno())

    def close(self) -> None:
        """Twice is harmless."""
        descriptor, self._opened = getattr(self, "_opened", CLOSED), CLOSED
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of a log as they lie in its file: to be sent by `sendfile`, or read."""

    file: LogFile
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """All of it, if the log was not truncated since."""
        return self.file.read(self.position, self.size)


Part = bytes | FileRegion
"""Of an answer to a client: here, or in a log's file."""
