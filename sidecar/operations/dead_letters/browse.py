"""Pages of dead letters, read from the topics themselves, a bounded piece at a time.

A page reads partition by partition, in order of topic, partition and offset, until it has enough, has looked at as many
records as it may, or its time is up. Its cursor is the place to go on from; who follows the cursors sees everything
that was there, and how much is left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from policies.headers import REDRIVE_SOURCE
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Sent
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.masking import Masking, Search

PAGE_BYTES_MAX: Final = 512 * 1_024  # of what its letters show: from there on another page goes on
Find = Callable[[Place], Sent | None]  # who sent a letter again or discarded it; None: it is open
CLOCKS_MS: Final = 60_000  # how far the clock of who writes letters may be behind


class Limits(NamedTuple):
    """Limits of one page: how many records it may look at, for how many seconds."""

    records: int
    seconds: float


class Look(NamedTuple):
    """Filter of a search for letters. `only_open`: without those that were sent again or discarded; `whole`: key, value
    and headers are to be shown, too, and addresses. Of groups: `trend_ms` is the time of now where they are asked for
    their trend, `read_max` how many letters are read from Kafka at most, where that is less than the limit.
    """

    selection: Selection
    only_open: bool = False
    whole: bool = False
    trend_ms: int | None = None
    search: Search = Search()
    read_max: int | None = None


class Shown(NamedTuple):
    """One letter, and what became of it: by whom it was sent again or discarded, and where it came back to.

    `is_whole`: all that came since was looked at.
    """

    letter: DeadLetter
    sent: Sent | None
    came_back: Place | None
    is_whole: bool


@dataclass(slots=True)
class Page:
    """Letters found for one page. `following` None: the end; `remaining` records from there on, at most."""

    letters: list[DeadLetter] = field(default_factory=list)
    redriven: dict[Place, Sent] = field(default_factory=dict)  # of these letters, and who discarded one
    following: Place | None = None
    scanned: int = 0
    remaining: int = 0


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


class Span(NamedTuple):
    """Letters of a partition that are to be read, from `begin` to before `end`. `low`: the first that it has."""

    topic: str
    partition: int
    low: int
    begin: int
    end: int


def spans_of(
    log: LetterLog, partitions: Mapping[str, int], topics: Sequence[str], selection: Selection, start: Place | None
) -> list[Span]:
    """Letters that may fit, from `start` on, in order. `partitions`: of each topic that is there, how many it has.

    Raises LettersUnavailable.
    """
    spans = []
    for topic in sorted(topics):
        for partition in range(partitions.get(topic, 0)):
            if start is not None and (topic, partition) < start[:2]:
                continue
            low, high = log.bounds(topic, partition)
            begin = start.offset if start is not None and (topic, partition) == start[:2] else low
            if selection.since is not None and high > low:
                at = log.offset_at(topic, partition, selection.since)
                begin = max(begin, high if at is None else at)
            if max(begin, low) < high:
                spans.append(Span(topic, partition, low, max(begin, low), high))
    return spans


class Browser:
    """Reads from one `LetterLog`. Time is an argument: monotonic seconds. `sent`: who has sent a letter again."""

    def __init__(
        self,
        log: LetterLog,
        limits: Limits,
        monotonic_s: Callable[[], float],
        sent: Find,
        masking: Masking,
    ) -> None:
        self._log = log
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._sent = sent
        self._masking = masking

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
        spans = spans_of(self._log, self._log.topics(), topics, look.selection, start)
        page.remaining = sum(span.end - span.begin for span in spans)
        for topic, partition, _, begin, end in spans:
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
