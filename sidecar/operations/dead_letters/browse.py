"""Pages and groups of dead letters, read from the topics themselves, a bounded piece at a time.

A page reads partition by partition, in order of topic, partition and offset, until it has enough, has looked at as many
records as it may, or its time is up. Its cursor is the place to go on from; who follows the cursors sees everything
that was there, and how much is left. The API asks a `Reading`, which has two threads of its own. There letters are also
shown: to hide addresses in 4 MB of error messages takes seconds.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from policies.glob import compile_globs
from policies.headers import REDRIVE_SOURCE
from policies.table import PolicyTable
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Sent
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.group_notes import GroupNote
from sidecar.operations.dead_letters.groups import Frame, Group
from sidecar.operations.dead_letters.masking import Masking, Search

GROUPS_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 512 * 1_024  # of what its letters show: from there on another page goes on
NoteOf = Callable[[str, str], GroupNote | None]  # what people have said of a topic's fingerprint
Find = Callable[[Place], Sent | None]  # who sent a letter again or discarded it; None: it is open
CLOCKS_MS: Final = 60_000  # how far the clock of who writes letters may be behind
THREADS: Final = 2  # for the API: long scans hold up nobody else
WAITING_MAX: Final = 16

Answer = TypeVar("Answer")


class Limits(NamedTuple):
    """Limits of one page: how many records it may look at, for how many seconds."""

    records: int
    seconds: float


class Look(NamedTuple):
    """Filter of a search for letters. `only_open`: without those that were sent again or discarded; `whole`: key, value
    and headers are to be shown, too, and addresses; `trend_ms`: the time of now, where groups are asked for their
    trend.
    """

    selection: Selection
    only_open: bool = False
    whole: bool = False
    trend_ms: int | None = None
    search: Search = Search()


class Shown(NamedTuple):
    """One letter, and what became of it: by whom it was sent again or discarded, and where it came back to.

    `is_whole`: all that came since was looked at.
    """

    letter: DeadLetter
    sent: Sent | None
    came_back: Place | None
    is_whole: bool


class UnknownTopic(Exception):
    """There is no dead-letter topic of this name."""


@dataclass(slots=True)
class Page:
    """Letters found for one page. `following` None: the end; `remaining` records from there on, at most."""

    letters: list[DeadLetter] = field(default_factory=list)
    redriven: dict[Place, Sent] = field(default_factory=dict)  # of these letters, and who discarded one
    following: Place | None = None
    scanned: int = 0
    remaining: int = 0


def letter_topics(existing: Sequence[str], table: PolicyTable, globs: Sequence[str], quarantine: str) -> list[str]:
    """The topics that hold dead letters: those that policies name, those that a glob matches, the quarantine."""
    named = {
        versioned.policy.dead_letter.topic for versioned in table.policies.values() if versioned.policy.dead_letter
    }
    matcher = compile_globs(globs)
    return sorted(
        name for name in existing if name in named or name == quarantine or (matcher and matcher.matches(name))
    )


def record_at(log: LetterLog, place: Place) -> DeadLetter | None:
    """The record at this place; None when there is none, or none any more. Raises LettersUnavailable."""
    if place.partition >= log.topics().get(place.topic, 0):
        return None
    low, high = log.bounds(place.topic, place.partition)
    if not low <= place.offset < high:
        return None
    for letters in log.read(place.topic, place.partition, place.offset, place.offset + 1):
        if letters:
            return letters[0]
    return None


class Browser:
    """Reads from one `LetterLog`. Time is an argument: monotonic seconds. `sent`: who has sent a letter again."""

    def __init__(
        self,
        log: LetterLog,
        limits: Limits,
        monotonic_s: Callable[[], float],
        sent: Find,
        masking: Masking,
        notes: NoteOf,
    ) -> None:
        self._log = log
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._sent = sent
        self._masking = masking
        self._notes = notes

    def page(self, topics: Sequence[str], look: Look, count: int, start: Place | None) -> Page:
        """Up to `count` letters from `start` on, or as many as have `PAGE_BYTES_MAX`. Raises LettersUnavailable."""
        page, shown_bytes = Page(), 0
        for letter, sent in self._scan(page, topics, look, start):
            page.letters.append(letter)
            if sent is not None:
                page.redriven[letter.place] = sent
            shown_bytes += letter.shown_bytes(look.whole)
            if len(page.letters) == count or shown_bytes >= PAGE_BYTES_MAX:
                break
        return page

    def groups(self, topics: Sequence[str], look: Look, start: Place | None) -> tuple[list[Group], Page]:
        """Groups of the letters that one page looks at, most frequent first. Raises LettersUnavailable."""
        page = Page()
        found: dict[tuple[str, str, str], Group] = {}
        frame = None if look.trend_ms is None else Frame(look.trend_ms)
        for letter, sent in self._scan(page, topics, look, start):
            key = (letter.place.topic, letter.reason, letter.fingerprint)
            group = found.get(key)
            if group is None:
                group = found[key] = Group(
                    letter.place.topic, letter.reason, letter.error_class, self._masking.group_name(letter), key[2],
                    letter.place, self._notes(key[0], key[2]), frame, letter.timestamp_ms, letter.timestamp_ms,
                )  # fmt: skip
            group.add(letter, sent)
            if len(found) == GROUPS_MAX:
                break
        return sorted(found.values(), key=lambda group: (-group.count, group.topic, group.fingerprint)), page

    def one(self, place: Place) -> Shown | None:
        """The letter at this place; None when there is none, or none any more."""
        letter = record_at(self._log, place)
        if letter is None:
            return None
        sent = self._sent(place)
        if sent is None or sent.discarded:
            return Shown(letter, sent, None, True)
        return Shown(letter, sent, *self._come_back(place, sent))

    def _come_back(self, place: Place, sent: Sent) -> tuple[Place | None, bool]:
        """Where a letter that was sent again lies now, if it failed again and its consumer forwards headers."""
        page, mark = Page(), str(place)
        since = Look(Selection(since=max(sent.first_ms - CLOCKS_MS, 0)))
        for letter, _ in self._scan(page, [place.topic], since, None):
            if letter.text(REDRIVE_SOURCE) == mark:
                return letter.place, True
        return None, page.following is None

    def _scan(
        self, page: Page, topics: Sequence[str], look: Look, start: Place | None
    ) -> Iterator[tuple[DeadLetter, Sent | None]]:
        """Letters that fit; keeps the page's account. Whoever stops early goes on behind the last one given."""
        deadline_s = self._monotonic_s() + self._limits.seconds
        spans = self._spans(topics, look.selection, start)
        page.remaining = sum(end - begin for _, _, begin, end in spans)
        for topic, partition, begin, end in spans:
            position = begin
            for letters in self._log.read(topic, partition, begin, end):
                for letter in letters:
                    page.scanned += 1
                    page.remaining -= letter.place.offset + 1 - position
                    position = letter.place.offset + 1
                    fits = look.selection.fits(letter) and self._masking.finds(letter, look.search, look.whole)
                    sent = self._sent(letter.place) if fits else None
                    if fits and not (look.only_open and sent):
                        page.following = Place(topic, partition, position) if page.remaining else None
                        yield letter, sent
                page.following = Place(topic, partition, position) if page.remaining else None
                if page.scanned >= self._limits.records or self._monotonic_s() > deadline_s:
                    return
            page.remaining -= end - position
        page.following = None

    def _spans(
        self, topics: Sequence[str], selection: Selection, start: Place | None
    ) -> list[tuple[str, int, int, int]]:
        """(topic, partition, begin, end) of what is to be read, in order."""
        counts = self._log.topics()
        spans = []
        for topic in sorted(topics):
            for partition in range(counts.get(topic, 0)):
                if start is not None and (topic, partition) < start[:2]:
                    continue
                low, high = self._log.bounds(topic, partition)
                begin = start.offset if start is not None and (topic, partition) == start[:2] else low
                if selection.since is not None and high > low:
                    at = self._log.offset_at(topic, partition, selection.since)
                    begin = max(begin, high if at is None else at)
                if max(begin, low) < high:
                    spans.append((topic, partition, max(begin, low), high))
        return spans


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
        """See `Browser.groups`."""

        def work(log: LetterLog) -> tuple[list[Group], Page]:
            chosen = self.chosen(log, topics)
            return self._browser(log, chosen).groups(chosen, look, start)

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
        return Browser(
            log,
            self.rules.limits,
            time.monotonic,
            self._redriven.of(topics),
            self.rules.masking,
            self._redriven.note_of,
        )

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
