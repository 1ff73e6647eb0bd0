"""A name that a process keeps over its restarts and shares with nobody: the root of its transactional ids.

A process that was killed may leave a transaction open, which hides its partitions' offsets from everyone until the
brokers give up on it. Its successor ends it at once, if it comes under the same transactional ids. So each process
takes the first file that no living process has locked, and goes by the random name in it; the lock ends with the
process, however it ends.
"""

import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SLOTS_MAX: Final = 1_000
_NAME_LENGTH: Final = 16


class Slot:
    """A name of this process alone. `close` lets another process have it."""

    def __init__(self, name: str, handle: int = -1) -> None:
        self.name = name
        self._handle = handle

    def close(self) -> None:
        """Twice is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def take_slot(directory: Path) -> Slot:
    """The first free one in `directory`; where nothing can be written, a name for this once."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(SLOTS_MAX):
            handle = os.open(directory / f"slot-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            return Slot(_name_in(handle), handle)
    except OSError as error:
        log.warning(
            "no place to keep a name: after a crash open transactions end by their timeout, 10 s to 20 s later; "
            "let data_dir be a directory that can be written to, or set instance_id",
            extra={"directory": str(directory), "error": error.strerror},
        )
    return Slot(secrets.token_hex(_NAME_LENGTH // 2))


def _name_in(handle: int) -> str:
    name = os.pread(handle, _NAME_LENGTH, 0).decode(errors="replace")
    if len(name) != _NAME_LENGTH or not name.isalnum():
        name = secrets.token_hex(_NAME_LENGTH // 2)
        os.pwrite(handle, name.encode(), 0)
    return name
