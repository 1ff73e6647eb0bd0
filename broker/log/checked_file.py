"""Small files that are there as a whole or not at all: content, then its CRC-32C."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

CRC_BYTES: Final = 4
TEMPORARY: Final = ".tmp"


def write_checked(path: Path, content: bytes, *, is_synced: bool = True) -> None:
    """Replace the file. Without `is_synced` a loss of power may leave one that `read_checked` does not take."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(content + crc32c(content).to_bytes(CRC_BYTES, "big"))
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if is_synced:
        sync_directory(path.parent)


def read_checked(path: Path) -> bytes | None:
    """The content; None if the file is missing or damaged."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        content, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
        if len(crc) == CRC_BYTES and int.from_bytes(crc, "big") == crc32c(content):
            return content
    return None


def write_json(path: Path, value: Any, *, is_synced: bool = True) -> None:
    """As `write_checked`."""
    write_checked(path, json.dumps(value, separators=(",", ":")).encode(), is_synced=is_synced)


def read_json(path: Path) -> Any:
    """As `read_checked`."""
    content = read_checked(path)
    return None if content is None else json.loads(content)


def sync_directory(path: Path) -> None:
    """Names that were made, changed or removed in it survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
