"""Look-ups off the event loop: they read Redis and wait for other replicas, in threads of their own."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from sidecar.lookup.query import Key, LookUpUnavailable, Query
from sidecar.model.record import TopicPartition

THREADS: Final = 2  # more would only take the interpreter from each other, and from the engine
WAITING_MAX: Final = 32
ALONE_WAITING_MAX: Final = 8

Rows = list[dict[str, Any]]
Result = TypeVar("Result")


class BlockingLookUp(Protocol):
    """The group's held records (`sidecar.lookup.group.GroupLookUp`). All raise LookUpUnavailable."""

    def page(self, query: Query, after: Key, limit: int) -> tuple[Rows, Key | None, list[TopicPartition]]: ...

    def find(self, id: str, query: Query) -> tuple[Rows, list[TopicPartition]]: ...

    def find_to_end(self, id: str, query: Query) -> tuple[Rows, list[TopicPartition]]: ...

    def forecast(self, query: Query, until_ms: int) -> tuple[Mapping[int, int], list[TopicPartition]]: ...


class LookUp:
    """Look-ups of held records without blocking. Each answer has the partitions last that are missing in it."""

    def __init__(self, blocking: BlockingLookUp) -> None:
        self._blocking = blocking
        self._threads = ThreadPoolExecutor(THREADS, "api-lookup")
        self._under_way = 0
        self._alone = ThreadPoolExecutor(1, "api-lookup-alone")
        self._alone_under_way = 0

    def stop(self) -> None:
        """Twice is harmless."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._alone.shutdown(wait=False, cancel_futures=True)

    async def page(self, query: Query, after: Key, limit: int) -> tuple[Rows, Key | None, list[TopicPartition]]:
        """The next rows in order, and where to go on (None: nowhere)."""
        return await self.run(lambda: self._blocking.page(query, after, limit))

    async def find(self, id: str, query: Query) -> tuple[Rows, list[TopicPartition]]:
        """Every held record with this id."""
        return await self.run(lambda: self._blocking.find(id, query))

    async def find_to_end(self, id: str, query: Query) -> tuple[Rows, list[TopicPartition]]:
        """As `find`, but partitions with records that nobody has read yet are missing, too. They are waited for."""
        return await self.run(lambda: self._blocking.find_to_end(id, query))

    async def forecast(self, query: Query, until_ms: int) -> tuple[Mapping[int, int], list[TopicPartition]]:
        """Held records by minute of the epoch; those due at `until_ms` and later by -1."""
        return await self.run(lambda: self._blocking.forecast(query, until_ms))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Result of a call that reads Redis or takes its time. Raises LookUpUnavailable when too many are under way."""
        if self._under_way >= WAITING_MAX:
            raise LookUpUnavailable(f"{WAITING_MAX} look-ups are under way already")
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._under_way -= 1

    async def run_alone(self, work: Callable[[], Result]) -> Result:
        """As `run`, for work that takes the interpreter for long: one piece at a time, in a thread of its own, so that
        other look-ups don't wait for it.
        """
        if self._alone_under_way >= ALONE_WAITING_MAX:
            raise LookUpUnavailable(f"{ALONE_WAITING_MAX} long look-ups are under way already")
        self._alone_under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._alone, work)
        finally:
            self._alone_under_way -= 1
