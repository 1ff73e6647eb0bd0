"""Events that are answered once the log is committed up to their offset."""

from collections import deque
from collections.abc import Callable

DeferredEvent = Callable[[BaseException | None], None]
"""Called once: with None when its offset is committed, otherwise with why it never will be."""


class DeferredEventQueue:
    """Events in the order of their offsets. One thread only."""

    def __init__(self) -> None:
        self._pending: deque[tuple[int, DeferredEvent]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, offset: int, event: DeferredEvent) -> None:
        """Wait for this offset, which is not below that of the last one added (ValueError)."""
        if self._pending and self._pending[-1][0] > offset:
            raise ValueError(f"offset {offset} after {self._pending[-1][0]}")
        self._pending.append((offset, event))

    def complete_up_to(self, offset: int) -> None:
        """Everything up to and with this offset is committed."""
        while self._pending and self._pending[0][0] <= offset:
            self._pending.popleft()[1](None)

    def fail_all(self, error: BaseException) -> None:
        """Nothing that waits will be committed."""
        while self._pending:
            self._pending.popleft()[1](error)
