"""Turns snapshots of the engine into spans of conditions, and writes them down.

    engine's snapshot --sample, each second--> open conditions, spans that ended --write, every 2 s--> Redis

Nothing here is on a record's way: it reads what the engine publishes anyway. While Redis is away, what ended waits in
memory, `SPANS_WAITING_MAX` at most: of more the oldest are forgotten, and that time counts as not recorded.
"""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, Protocol

from sidecar.conditions.attribution import OF_OWNERS, OWNED, Recorded, Span
from sidecar.model.condition import SAMPLE_MS, WAIT_MIN_MS, Condition, Kind, Subject
from sidecar.model.stats import Stats
from sidecar.overflow.interface import OverflowFailure

WRITE_S: Final = 2
STALL_S: Final = 3.0  # between two snapshots: they are made four times a second
OPEN_MAX: Final = 5_000  # partitions of one process that are recorded, and conditions beside them
JOIN_MS: Final = 2 * SAMPLE_MS  # a condition that begins again sooner has gone on, as far as one can tell
JOINED_BY_MS: Final = JOIN_MS + WAIT_MIN_MS + SAMPLE_MS  # a wait that began in time is told by then
SPANS_WAITING_MAX: Final = 10_000
SILENT_MS: Final = 10_000  # a process whose last sign is older is as good as gone
SILENT_SUCCEEDED_MS: Final = 5_000  # and sooner where somebody else has its partition

log = logging.getLogger(__name__)


class SpanLog(Protocol):
    """Where spans of one run are kept (`sidecar.conditions.store.RedisSpanLog`). Both raise OverflowFailure."""

    @property
    def run(self) -> str:
        """A name that no other start of a process has."""

    def write(self, ended: list[Span], under_way: list[Span], at_ms: int) -> None:
        """Keep spans that have ended, and those that were under way as of `at_ms`, all of one run. Some of these may
        have ended shortly before, and go on if they soon begin again.
        """

    def read(self, since_ms: int) -> tuple[list[Span], list[Span]]:
        """Spans of all replicas: those that ended after `since_ms` (those of partitions: from `OWNERS_BACK_MS` before),
        and those that were under way at the last sign of their process, which is their end.
        """


class ConditionRecorder:
    """Of one process. `sample`, `write` and `recorded` may be called from different threads."""

    def __init__(self, stats: Callable[[], Stats], log: SpanLog, monotonic_s: Callable[[], float]) -> None:
        self._stats = stats
        self._log = log
        self._run = log.run
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._seen = Stats()
        self._open: dict[Subject, int] = {}  # since when, epoch ms
        self._resting: dict[Subject, tuple[int, int]] = {}  # from when to when; may begin again soon
        self._ended: deque[Span] = deque(maxlen=SPANS_WAITING_MAX)
        self._is_away = False

    def sample(self) -> None:
        """Note what has begun and ended since the last sample."""
        stats = self._stats()
        with self._lock:
            if stats.at_ms and stats.turned_monotonic_s > self._seen.turned_monotonic_s:
                self._note(stats)

    def write(self) -> None:
        """Keep what has ended, and say what goes on. What can't be kept now is tried again the next time."""
        with self._writing:
            with self._lock:
                ended, under_way, at_ms = list(self._ended), self._under_way(self._seen.at_ms), self._seen.at_ms
            if not at_ms:
                return
            try:
                self._log.write(ended, under_way, at_ms)
            except OverflowFailure as error:
                if not self._is_away:
                    log.warning("conditions are kept in memory for now", extra={"problem": str(error)})
                self._is_away = True
                return
            self._is_away = False
            with self._lock:
                kept = set(ended)
                self._ended = deque((one for one in self._ended if one not in kept), SPANS_WAITING_MAX)

    def stop(self) -> None:
        """End all that is open, when the engine has ended, and keep it. Twice is harmless."""
        self.sample()
        with self._lock:
            self._ended.extend(self._under_way(self._seen.at_ms + self._age_ms()))
            self._open, self._resting = {}, {}
        self.write()

    def recorded(self, since_ms: int, subjects: Collection[Subject]) -> Recorded:
        """Spans of these subjects as `SpanLog.read` gives them, up to now where they go on, and always those of this
        process.
        """
        self.sample()
        problem, ended, under_way = "", list[Span](), list[Span]()
        with self._lock:
            age_ms = self._age_ms()
            now_ms = self._seen.at_ms + age_ms
            lives = age_ms <= STALL_S * 1_000  # a snapshot that is due to be renewed still holds
            own = [*self._ended, *self._under_way(now_ms if lives else self._seen.at_ms)]
        try:
            ended, under_way = self._log.read(since_ms)
        except OverflowFailure as error:
            problem = str(error)
        certain = [one for one in (*ended, *own) if one.subject in subjects]
        # Its own that are under way it knows better.
        others = [one for one in under_way if one.subject in subjects and one.run != self._run]
        owners = _by_partition((*certain, *others))
        told = (prolonged(one, owners[one.subject[1:]], now_ms) for one in others)
        return Recorded([*certain, *told], now_ms, problem)

    def going_on(self) -> list[tuple[Subject, int]]:
        """Conditions of this process that go on, and since when, epoch ms. That a partition is served is none."""
        self.sample()
        with self._lock:
            return [one for one in self._open.items() if one[0].kind is not Kind.RUNNING]

    # --- under the lock -------------------------------------------------------------------------------------------

    def _age_ms(self) -> int:
        """How old the last snapshot is."""
        return max(round((self._monotonic_s() - self._seen.turned_monotonic_s) * 1_000), 0)

    def _note(self, stats: Stats) -> None:
        seen, self._seen = self._seen, stats
        if seen.at_ms and stats.turned_monotonic_s - seen.turned_monotonic_s > STALL_S:
            self._end(Subject(Kind.STALLED), seen.at_ms, stats.at_ms)
        there = {one.subject: one.since_ms for one in _most_telling(stats.conditions)}
        for subject in self._open.keys() - there.keys():
            from_ms = self._open.pop(subject)
            span = from_ms, max(from_ms, stats.at_ms)
            if subject.kind in OF_OWNERS:  # that nobody had it for a moment is to be told
                self._end(subject, *span)
            else:
                self._resting[subject] = span
        for subject, since_ms in there.items():
            if subject not in self._open:
                self._open[subject] = self._begin(subject, since_ms if since_ms >= 0 else stats.at_ms)
        for subject, span in list(self._resting.items()):
            if not 0 <= stats.at_ms - span[1] <= JOINED_BY_MS:
                self._end(subject, *self._resting.pop(subject))

    def _begin(self, subject: Subject, since_ms: int) -> int:
        """When a condition began that wasn't there at the last sample: before its rest, if that was short."""
        if subject not in self._resting:
            return since_ms
        from_ms, to_ms = self._resting.pop(subject)
        if since_ms - to_ms < JOIN_MS:
            return min(from_ms, since_ms)
        self._end(subject, from_ms, to_ms)
        return since_ms

    def _end(self, subject: Subject, from_ms: int, to_ms: int) -> None:
        self._ended.append(Span(subject, from_ms, max(from_ms, to_ms), self._run, self._seen.replica))

    def _under_way(self, at_ms: int) -> list[Span]:
        """Conditions that go on, and those that have ended and may begin again soon."""
        spans = [(subject, from_ms, max(from_ms, at_ms)) for subject, from_ms in self._open.items()]
        spans += [(subject, *span) for subject, span in self._resting.items()]
        return [Span(*span, self._run, self._seen.replica) for span in spans]


def _most_telling(conditions: Iterable[Condition]) -> Iterator[Condition]:
    """At most `OPEN_MAX` of those that say who has a partition, and at most as many others, the process's own first.

    Apart: many waiting targets would push out owners, whose partitions would count as nobody's.
    """
    owned, others = list[Condition](), list[Condition]()
    for one in conditions:
        (owned if one.subject.kind in OF_OWNERS else others).append(one)
    others.sort(key=lambda one: bool(one.subject.topic))
    return chain(islice(owned, OPEN_MAX), islice(others, OPEN_MAX))


def _by_partition(spans: Iterable[Span]) -> Mapping[tuple[str, int], list[Span]]:
    """Spans of owners, by their partition; of anything else there are none."""
    found: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        if span.subject.kind in OWNED:
            found[span.subject[1:]].append(span)
    return found


def prolonged(span: Span, owners: Iterable[Span], now_ms: int) -> Span:
    """A span that was under way at the last sign of its process, up to where it may be said to have gone on.

    `owners`: spans of who had its partition; none where it isn't of one. Only one process has a partition at a time:
    another one's begin ends it. Where the sign is older than signs come, the process gave none since then: it ends
    with it.
    """
    silent_ms = now_ms - span.to_ms
    begins = [
        one.from_ms for one in owners if span.subject.kind in OWNED and one.run != span.run and one.to_ms > span.to_ms
    ]
    if silent_ms > (SILENT_SUCCEEDED_MS if begins else SILENT_MS):
        return span
    return span._replace(to_ms=max(span.to_ms, min([now_ms, *begins])))
