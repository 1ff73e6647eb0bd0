"""A segment's bytes. Whoever holds a region keeps the file open, also when the segment has been deleted."""

import os
from dataclasses import dataclass
from pathlib import Path

from broker.record_batch import Buffer
from purgatory.errors import ApiError, Errors


class LogFile:
    """A file that is written at its end and read anywhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        """For `sendfile`."""
        return self._descriptor

    def append(self, data: Buffer) -> None:
        """Write all of it or nothing. ApiError KAFKA_STORAGE_ERROR."""
        rest = memoryview(data)
        position = self.size
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                rest = rest[written:]
                position += written
        except OSError as error:
            os.ftruncate(self._descriptor, self.size)
            raise ApiError(Errors.KAFKA_STORAGE_ERROR, f"{self.path.name}: {error.strerror}") from error
        self.size = position

    def read(self, position: int, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        return os.pread(self._descriptor, size, position)

    def truncate(self, size: int) -> None:
        """Cut it."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def sync(self) -> None:
        """What is written survives a loss of power."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Twice is harmless."""
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
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
