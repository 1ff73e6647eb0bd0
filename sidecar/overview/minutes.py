"""The last hour of a process by minute, from the counts that its engine publishes: bounded, and no record pays for it.

Stats --step, each second--> minutes[59], ..., minutes[0] and the last 60 seconds
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from sidecar.lookup.report import BUCKETS, MINUTE_MS, MINUTES, Flow, Minute
from sidecar.model.stats import Stats, TopicCounts

STEP_S: Final = 1
MARKS_MAX: Final = 2 * MINUTE_MS // (STEP_S * 1_000)  # of the last minute: steps may come a little early
_NOTHING: Final = TopicCounts()


class LastHour:
    """`step` is housekeeping's; the rest may be asked from any thread. `retries`: whether a topic has a policy of
    retries.

    Counts are those since the step before, by topic: of a topic that is gone nothing is taken away.
    """

    def __init__(self, retries: Callable[[str], bool]) -> None:
        self._retries = retries
        self._lock = threading.Lock()
        self._seen = Stats()
        self._all = Flow()
        self._minutes: dict[int, Flow] = {}
        self._marks: deque[tuple[int, Flow]] = deque(maxlen=MARKS_MAX)  # when, epoch ms, and `_all` then

    def step(self, stats: Stats) -> None:
        """Add what has come since the last step. A snapshot that was seen already adds nothing."""
        with self._lock:
            if stats.turned_monotonic_s <= self._seen.turned_monotonic_s:
                return
            if not self._marks:
                self._marks.append((stats.at_ms, self._all))
            came = self._since(stats)
            self._seen, self._all = stats, plus(self._all, came)
            minute = stats.at_ms // MINUTE_MS
            known = {one: flow for one, flow in self._minutes.items() if minute - MINUTES < one <= minute}
            self._minutes = {**known, minute: plus(known.get(minute, Flow()), came)}
            self._marks.append((stats.at_ms, self._all))
            while len(self._marks) > 1 and self._marks[1][0] <= stats.at_ms - MINUTE_MS:
                self._marks.popleft()

    def minutes(self) -> tuple[Minute, ...]:
        """Minutes in which there was a step, the oldest first, at most `MINUTES`; the last one goes on."""
        with self._lock:
            known = sorted(self._minutes.items())
        return tuple(Minute(at_ms=minute * MINUTE_MS, **flow.model_dump()) for minute, flow in known)

    def last_minute(self) -> Flow:
        """The last 60 seconds, or the time since the start."""
        with self._lock:
            return minus(self._all, self._marks[0][1]) if self._marks else Flow()

    def _since(self, stats: Stats) -> Flow:
        before, late = self._seen.topics, self._seen.lateness.counts
        came = [(topic, counts, before.get(topic, _NOTHING)) for topic, counts in stats.topics.items()]
        emitted = {topic: max(now.emitted - then.emitted, 0) for topic, now, then in came}
        return Flow(
            emitted=sum(emitted.values()),
            retried=sum(count for topic, count in emitted.items() if count and self._retries(topic)),
            dead=sum(max(now.dead - then.dead, 0) for _, now, then in came),
            quarantined=sum(max(now.quarantined - then.quarantined, 0) for _, now, then in came),
            late=tuple(max(now - then, 0) for now, then in zip(stats.lateness.counts, late, strict=True)),
        )


def plus(first: Flow, second: Flow) -> Flow:
    """Both together."""
    return _each(first, second, 1)


def minus(first: Flow, second: Flow) -> Flow:
    """The part that came between an earlier sum, `second`, and a later one."""
    return _each(first, second, -1)


def _each(first: Flow, second: Flow, sign: int) -> Flow:
    return Flow(
        emitted=first.emitted + sign * second.emitted,
        retried=first.retried + sign * second.retried,
        dead=first.dead + sign * second.dead,
        quarantined=first.quarantined + sign * second.quarantined,
        late=tuple(first.late[bucket] + sign * second.late[bucket] for bucket in range(BUCKETS)),
    )
