"""Memory that the process needs no more: cycles of objects, and what the C library keeps of what was freed.

glibc keeps freed memory for the next request, by thread; after millions of records were read at full speed the client's
buffers are some of it. It is given back once there is time.
"""

import ctypes
import gc
from collections.abc import Callable
from typing import Final

from sidecar.model.stats import Stats

GARBAGE_HELD_MAX: Final = 10_000
BUSY_RECORDS: Final = 30_000  # read and emitted between two steps: with fewer there is time


class Memory:
    """One thread's own: housekeeping's."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats
        self._done = 0
        self._is_owed = True  # something was freed since it was given back last

    def step(self) -> None:
        """Collect cycles while little is held, and give freed memory back after a busy time.

        A collection looks at every held record with the interpreter's lock in hand: 17 to 38 ms for 150,000 of them,
        which would be lateness. While much is held the few cycles wait: REST makes some, the engine none.
        """
        topics = self._stats().topics.values()
        if sum(counts.wheel for counts in topics) < GARBAGE_HELD_MAX:
            gc.collect()
        done = sum(counts.accepted + counts.emitted for counts in topics)
        is_busy, self._done = abs(done - self._done) >= BUSY_RECORDS, done
        if self._is_owed and not is_busy:
            give_back()
        self._is_owed = is_busy


def give_back() -> bool:
    """Have the C library return what it keeps of freed memory to the system; False where it can't (not glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
