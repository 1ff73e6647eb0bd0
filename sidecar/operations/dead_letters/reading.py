"""Answers about dead letters for the API, in two threads of their own.

There letters are also shown: to hide addresses in 4 MB of error messages takes seconds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple, Protocol, TypeVar

from policies.glob import compile_globs
from policies.table import PolicyTable
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Fates
from sidecar.operations.dead_letters.browse import Browser, Find, Limits, Look, Page, Shown, record_at
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.groups.counting import GroupCounter
from sidecar.operations.dead_letters.groups.digests import Digests
from sidecar.operations.dead_letters.groups.group import Group
from sidecar.operations.dead_letters.groups.notes import GroupNote
from sidecar.operations.dead_letters.masking import Masking

THREADS: Final = 2  # long scans hold up nobody else
WAITING_MAX: Final = 16

Answer = TypeVar("Answer")


class UnknownTopic(Exception):
    """There is no dead-letter topic of this name."""


class ReadingBusy(Exception):
    """The limit of scans that are under way or wait is reached."""


class Rules(NamedTuple):
    """Topics that may be read, limits of one page, and what is masked."""

    topics: Sequence[str]
    quarantine: str
    limits: Limits
    masking: Masking


def letter_topics(existing: Sequence[str], table: PolicyTable, globs: Sequence[str], quarantine: str) -> list[str]:
    """The topics that hold dead letters: those that policies name, those that a glob matches, the quarantine."""
    named = {
        versioned.policy.dead_letter.topic for versioned in table.policies.values() if versioned.policy.dead_letter
    }
    matcher = compile_globs(globs)
    return sorted(
        name for name in existing if name in named or name == quarantine or (matcher and matcher.matches(name))
    )


class Redriven(Protocol):
    """Answers about letters that were sent again (`redriven_log.RedrivenLog`)."""

    def of(self, topics: Sequence[str]) -> Find:
        """Asks about letters of these topics. Raises LettersUnavailable."""

    def fates(self, topics: Sequence[str]) -> Mapping[str, Fates]:
        """Letters of these topics that were sent again or discarded. Raises LettersUnavailable."""

    def open(self, bounds: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[str, int]:
        """How many letters are open, at most. Raises LettersUnavailable."""

    def note_of(self, topic: str, fingerprint: str) -> GroupNote | None:
        """Words of people about a group of failures."""

    def say(self, topic: str, fingerprint: str, note: GroupNote) -> None:
        """Write words about a group. Raises TooManyNotes and LettersUnavailable."""


class Reading:
    """Answers about dead letters for REST. `rules` may be swapped as a whole while it runs. What makes an answer of
    letters (`show`) runs in its threads, and counts among what is under way.

    All methods raise UnknownTopic, ReadingBusy and LettersUnavailable.
    """

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
        self._digests = Digests(rules.masking)
        self._threads = ThreadPoolExecutor(THREADS, "dead-letters")
        self._waiting = 0

    def stop(self) -> None:
        """Twice is harmless."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def open_letters(self) -> dict[str, int]:
        """By topic: how many letters no plan has sent or discarded, at most (`RedrivenLog.open`). Blocks."""
        with closing(self._open_log()) as log:
            partitions = log.topics()
            topics = self.chosen(log, ())
            bounds = {topic: {p: log.bounds(topic, p) for p in range(partitions.get(topic, 0))} for topic in topics}
        return self._redriven.open(bounds)

    async def page(
        self, topics: Sequence[str], look: Look, count: int, start: Place | None, show: Callable[[Page], Answer]
    ) -> Answer:
        """See `Browser.page`; no topics means all that hold dead letters. `show` makes the answer of the page."""

        def work(log: LetterLog) -> Answer:
            chosen = self.chosen(log, topics)
            return show(self._browser(log, chosen).page(chosen, look, count, start))

        return await self.ask(work)

    async def groups(self, topics: Sequence[str], look: Look, start: Place | None) -> tuple[list[Group], Page]:
        """See `GroupCounter.count`."""

        def work(log: LetterLog) -> tuple[list[Group], Page]:
            chosen = self.chosen(log, topics)
            return self._counter(log, chosen).count(chosen, look, start)

        return await self.ask(work)

    async def say(self, topic: str, fingerprint: str, note: GroupNote) -> GroupNote:
        """Say this of a group from now on: what comes to its topic later comes after it. Raises TooManyNotes, too."""

        def work(log: LetterLog) -> GroupNote:
            [chosen] = self.chosen(log, (topic,))
            ends = {p: log.bounds(chosen, p)[1] for p in range(log.topics().get(chosen, 0))}
            said = note.model_copy(update={"ends": ends})
            self._redriven.say(topic, fingerprint, said)
            return said

        return await self.ask(work)

    async def one(self, place: Place, show: Callable[[Shown], Answer]) -> Answer | None:
        """See `Browser.one`; `show` makes the answer."""

        def look(log: LetterLog) -> Answer | None:
            found = self._browser(log, self.chosen(log, (place.topic,))).one(place)
            return None if found is None else show(found)

        return await self.ask(look)

    async def record(self, place: Place, show: Callable[[DeadLetter], Answer | None]) -> Answer | None:
        """See `record_at`: of any topic, so callers name none but sources. `show` makes the answer."""

        def look(log: LetterLog) -> Answer | None:
            found = record_at(log, place)
            return None if found is None else show(found)

        return await self.ask(look)

    def chosen(self, log: LetterLog, topics: Sequence[str]) -> Sequence[str]:
        """Dead-letter topics to read, these or all: nobody reads other topics this way. Raises UnknownTopic."""
        known = letter_topics(list(log.topics()), self._table(), self.rules.topics, self.rules.quarantine)
        for topic in topics:
            if topic not in known:
                raise UnknownTopic(topic)
        return topics or known

    def _browser(self, log: LetterLog, topics: Sequence[str]) -> Browser:
        return Browser(log, self.rules.limits, time.monotonic, self._redriven.of(topics), self.rules.masking)

    def _counter(self, log: LetterLog, topics: Sequence[str]) -> GroupCounter:
        if self._digests.masking is not self.rules.masking:
            self._digests = Digests(self.rules.masking)  # the rules have changed, and with them the words of groups
        fates = self._redriven.fates(topics)
        return GroupCounter(log, self.rules.limits, time.monotonic, self._digests, fates, self._redriven.note_of)

    async def ask(self, look: Callable[[LetterLog], Answer]) -> Answer:
        """Look at the log in a thread, one of the scans that are under way. Gives what `look` returns."""
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
