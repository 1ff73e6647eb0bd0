"""Partitions that don't acknowledge, in `at_least_once`: found, and given nothing more until they do.

Kafka's client goes on trying for ever, and says only that some reports of a interval are missing, not whose.

    a interval is silent ----> its topics are watched: reports are counted by partition, and no record is sent
         for SILENCE_S           without its partition being known here
    a watched one is silent ---> partitions with reports missing are suspended: what is for them waits
    they answer ---------------> it goes on, in order

Without this, every interval with one record for such a partition would wait with all of its records.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.engine.commit.interval import CommitInterval, Refusals
from sidecar.model.record import ANY_PARTITION, TargetPartition

SILENCE_S: Final = 5.0
WATCH_S: Final = 2 * SILENCE_S  # from the first silence on: what was sent meanwhile has had its time, too


class Watched(CommitInterval):
    """Counts the records of some topics, and all reports, by partition: that costs a good deal more than counting."""

    __slots__ = ("answered", "expected", "watched")

    def __init__(self, outputs: tuple[Any, ...], watched: Collection[str]) -> None:
        super().__init__(*outputs)
        self.watched = watched
        self.expected: Counter[TargetPartition] = Counter()
        self.answered: Counter[TargetPartition] = Counter()

    def handed_over(self, place: TargetPartition) -> None:
        """See `CommitInterval`. Not known later: what has no key goes by what was well at that moment."""
        if place.topic in self.watched:
            self.expected[place] += 1

    def report(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report(error, message)

    def report_isolated(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report_isolated(error, message)

    def report_small(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report_small(error, message)


@dataclass(slots=True)
class _Closed:
    interval: CommitInterval
    closed_s: float
    judged: bool = False
    suspended: set[TargetPartition] = field(default_factory=set)

    @property
    def counts(self) -> tuple[Counter[TargetPartition], Counter[TargetPartition]]:
        """Records expected and answered by partition, as far as they were watched."""
        watched = self.interval
        return (watched.expected, watched.answered) if isinstance(watched, Watched) else (Counter(), Counter())

    def missing(self, place: TargetPartition) -> bool:
        """Some reports are. One of a topic that is gone names no partition: that answers for all of them. Nor is any
        missing when all are there: where the topic has grown unnoticed, records went to other partitions than expected.
        """
        if self.interval.complete:
            return False
        expected, answered = self.counts
        return answered[place] < expected[place] and not answered[TargetPartition(place.topic, ANY_PARTITION)]


class InFlight:
    """Closed intervals whose reports aren't all in, oldest first. Time is an argument: seconds that never go back."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._closed: list[_Closed] = []
        self._watched: set[str] = set()
        self._watched_until_s = 0.0

    def __len__(self) -> int:
        return len(self._closed)

    def __iter__(self) -> Iterator[CommitInterval]:
        return (closed.interval for closed in self._closed)

    def close(self, interval: CommitInterval, now_s: float) -> None:
        """All of it is handed over."""
        self._closed.append(_Closed(interval, now_s))

    def open(self, outputs: tuple[Any, ...]) -> CommitInterval:
        """The next one."""
        return Watched(outputs, frozenset(self._watched)) if self._watched else CommitInterval(*outputs)

    def completed(self, now_s: float) -> list[CommitInterval]:
        """Take out those of which every record has its report; see to those that take too long."""
        complete = [closed.interval for closed in self._closed if closed.interval.complete]
        for closed in self._closed:
            if closed.suspended:
                self._release(closed)
            elif not (closed.judged or closed.interval.complete) and now_s - closed.closed_s > SILENCE_S:
                self._judge(closed, now_s)
        if complete:
            self._closed = [closed for closed in self._closed if not closed.interval.complete]
        if self._watched and now_s > self._watched_until_s:
            self._watched = set()
            self._refusals.watch(self._watched)
        return complete

    def _judge(self, closed: _Closed, now_s: float) -> None:
        closed.judged = True
        expected, _ = closed.counts
        closed.suspended = {place for place in expected if closed.missing(place)}
        if closed.suspended:
            self._refusals.silent(closed.suspended)
        known = {place.topic for place in expected}
        if unknown := closed.interval.topics - known:
            self._watched |= unknown
            self._watched_until_s = now_s + WATCH_S
            self._refusals.watch(self._watched)

    def _release(self, closed: _Closed) -> None:
        if answering := {place for place in closed.suspended if not closed.missing(place)}:
            closed.suspended -= answering
            self._refusals.answering(answering)
