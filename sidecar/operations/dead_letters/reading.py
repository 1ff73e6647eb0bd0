"""Dead letters for the API: reads in two threads of its own, so that long scans hold up nobody else."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple, Protocol, TypeVar

from policies.table import PolicyTable
from sidecar.model.record import Place
from sidecar.operations.dead_letters.browse import (
    Browser,
    Find,
    Group,
    Limits,
    Look,
    Page,
    Shown,
    UnknownTopic,
    letter_topics,
)
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.masking import Masking

THREADS: Final = 2
WAITING_MAX: Final = 16

Answer = TypeVar("Answer")


class ReadingBusy(Exception):
    """The limit of scans that are under way or wait is reached."""


class Rules(NamedTuple):
    """Topics that may be read, limits of one page, and what is masked."""

    topics: Sequence[str]
    quarantine: str
    limits: Limits
    masking: Masking


class Redriven(Protocol):
    """Answers about letters that were sent again (`redriven_log.RedrivenLog`)."""

    def of(self, topics: Sequence[str]) -> Find:
        """Asks about letters of these topics. Raises LettersUnavailable."""

    def open(self, bounds: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[str, int]:
        """How many letters are open, at most. Raises LettersUnavailable."""


class Reading:
    """All methods raise UnknownTopic, ReadingBusy and LettersUnavailable."""

    def __init__(
        self,
        open_log: Callable[[], LetterLog],
        table: Callable[[], PolicyTable],
        rules: Rules,
        redriven: Redriven,
    ) -> None:
        self._open_log = open_log
        self._table = table
        self.rules = rules
        self._redriven = redriven
        self._threads = ThreadPoolExecutor(THREADS, "dead-letters")
        self._waiting = 0

    def stop(self) -> None:
        """Twice is harmless."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def open_letters(self) -> dict[str, int]:
        """By topic: how many letters no redrive has sent, at most (`RedrivenLog.open`). Blocks."""
        with closing(self._open_log()) as log:
            partitions = log.topics()
            topics = self.chosen(log, ())
            bounds = {topic: {p: log.bounds(topic, p) for p in range(partitions.get(topic, 0))} for topic in topics}
        return self._redriven.open(bounds)

    async def page(self, topics: Sequence[str], look: Look, count: int, start: Place | None) -> Page:
        """See `Browser.page`; no topics means all that hold dead letters."""

        def work(log: LetterLog) -> Page:
            chosen = self.chosen(log, topics)
            return self._browser(log, chosen).page(chosen, look, count, start)

        return await self._ask(work)

    async def groups(self, topics: Sequence[str], look: Look, start: Place | None) -> tuple[list[Group], Page]:
        """See `Browser.groups`."""

        def work(log: LetterLog) -> tuple[list[Group], Page]:
            chosen = self.chosen(log, topics)
            return self._browser(log, chosen).groups(chosen, look, start)

        return await self._ask(work)

    async def one(self, place: Place) -> Shown | None:
        """See `Browser.one`."""

        def look(log: LetterLog) -> Shown | None:
            return self._browser(log, self.chosen(log, (place.topic,))).one(place)

        return await self._ask(look)

    def chosen(self, log: LetterLog, topics: Sequence[str]) -> Sequence[str]:
        """Dead-letter topics to read, these or all: nobody reads other topics this way. Raises UnknownTopic."""
        known = letter_topics(list(log.topics()), self._table(), self.rules.topics, self.rules.quarantine)
        for topic in topics:
            if topic not in known:
                raise UnknownTopic(topic)
        return topics or known

    def _browser(self, log: LetterLog, topics: Sequence[str]) -> Browser:
        return Browser(log, self.rules.limits, time.monotonic, self._redriven.of(topics))

    async def _ask(self, look: Callable[[LetterLog], Answer]) -> Answer:
        if self._waiting >= WAITING_MAX:
            raise ReadingBusy

        def work() -> Answer:
            with closing(self._open_log()) as log:
                return look(log)

        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1
