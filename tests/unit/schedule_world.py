"""Schedules without Kafka: the real store and the real firing over a topic in memory that fences as Kafka does."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from sidecar.jobs.follower import Apply
from sidecar.jobs.shipment import Parcel, TakenOver
from sidecar.schedules.firing import Firing, Surroundings
from sidecar.schedules.owing import Limits
from sidecar.schedules.schedule import Schedule
from sidecar.schedules.schedule_store import ScheduleStore

NOW_MS = 1_800_000_000_000  # Friday, 2027-01-15 08:00 UTC
LIMITS = Limits(ahead_ms=10_000, grace_ms=60_000, missed_max=5)
TOPIC = "tickover.g.schedules"


class MemoryTopic:
    """What was committed, in order, and who has the right to write."""

    def __init__(self) -> None:
        self.records: list[Parcel] = []  # of the topic of schedules
        self.appended_ms: dict[int, int] = {}  # when, by the broker's clock, as far as that is known
        self.sent: list[Parcel] = []  # of all others
        self.epochs: dict[str, int] = {}
        self.failures: list[Exception] = []  # of the next shipments; nothing is written by those
        self.lost_answers: list[Exception] = []  # of the next ones, which are written
        self.down: Exception | None = None
        self.before: Callable[[], object] | None = None  # before a pen is taken
        self.meanwhile: Callable[[], object] | None = None  # between taking a pen and writing with it


class MemoryFollower:
    """Reads when it is asked to catch up, as late as can be."""

    def __init__(self, topic: MemoryTopic, apply: Apply) -> None:
        self.changed = threading.Condition()
        self._topic = topic
        self._apply = apply
        self._read = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def catch_up(self) -> None:
        if self._topic.down is not None:
            raise self._topic.down
        with self.changed:
            for offset, record in enumerate(self._topic.records[self._read :], self._read):
                self._apply(record.key or b"", record.value or b"", self._topic.appended_ms.get(offset, 0))
            self._read = len(self._topic.records)


class MemoryPen:
    """A transactional producer: whoever has taken it last may write."""

    def __init__(self, topic: MemoryTopic, id: str, broker_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._id = id
        self._broker_ms = broker_ms
        self._epoch = -1

    def init(self) -> None:
        if (before := self._topic.before) is not None:
            self._topic.before = None
            before()
        self._epoch = self._topic.epochs[self._id] = self._topic.epochs.get(self._id, 0) + 1

    def write(self, parcels: Sequence[Parcel], facts: Sequence[Parcel]) -> None:
        if (meanwhile := self._topic.meanwhile) is not None:
            self._topic.meanwhile = None
            meanwhile()
        if self._epoch != self._topic.epochs[self._id]:
            raise TakenOver
        if self._topic.failures:
            raise self._topic.failures.pop(0)
        assert all(fact.target == TOPIC for fact in facts)
        self._topic.sent += parcels
        offsets = range(len(self._topic.records), len(self._topic.records) + len(facts))
        self._topic.appended_ms |= dict.fromkeys(offsets, self._broker_ms())
        self._topic.records += facts
        if self._topic.lost_answers:
            raise self._topic.lost_answers.pop(0)

    def close(self) -> None:
        self._epoch = -1


class MemorySchedules:
    """A topic and stores on it, as replicas have them; `firing` makes what writes its occurrences."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()
        self.now_ms = NOW_MS  # the brokers' clock
        self.host_ahead_ms = 0  # the clock of whoever is asked over REST
        self.time_is_known = True  # the writers of occurrences have seen the brokers' clock
        self.sources: dict[str, int] = {"reminders": 12}
        self.owner = True
        self.written: list[tuple[str, int, int, bool]] = []
        self.store = self.replica()
        self._firing: Firing | None = None

    def replica(self) -> ScheduleStore:
        return ScheduleStore(
            TOPIC,
            lambda apply: MemoryFollower(self.topic, apply),
            lambda: self.pen("pen"),
            lambda: self.now_ms + self.host_ahead_ms,
        )

    def pen(self, id: str) -> MemoryPen:
        return MemoryPen(self.topic, id, lambda: self.now_ms)

    def firing(self, store: ScheduleStore | None = None) -> Firing:
        here = Surroundings(
            lambda: self.pen("firing"),
            lambda: self.owner,
            lambda: self.sources,
            lambda: self.now_ms if self.time_is_known else None,
            lambda *facts: self.written.append(facts),
        )
        return Firing(store or self.store, LIMITS, here)

    def steps(self) -> None:
        """Whoever writes what is owed does."""
        self._firing = self._firing or self.firing()
        self._firing.step()

    def restart(self) -> None:
        """Who writes from now on knows what is in the topic."""
        self._firing = self.firing(self.replica())

    def put(self, expected: int = 0, **changes: Any) -> None:
        self.store.put(schedule(**changes), "reminders", expected, "me")


def schedule(**changes: Any) -> Schedule:
    given = {"name": "tick", "cron": "*/5 * * * * *", "target": "push", **changes}
    return Schedule.model_validate(given)
