"""Schedules without Kafka: the real store and the real firing over a topic in memory that fences as Kafka does."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError

from sidecar.kafka.topic_follower import Apply
from sidecar.operations.jobs.transactional_sender import (
    OutgoingRecord,
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
    Unanswered,
    Unfinished,
)
from sidecar.operations.schedules.firing import Firing
from sidecar.operations.schedules.job import place_of
from sidecar.operations.schedules.owing import Limits
from sidecar.operations.schedules.schedule import Schedule
from sidecar.operations.schedules.store import ScheduleStore
from sidecar.operations.schedules.writing import WORD, FiringContext, Run

NOW_MS = 1_800_000_000_000  # Friday, 2027-01-15 08:00 UTC
LIMITS = Limits(ahead_ms=10_000, grace_ms=60_000, missed_max=5)
TOPIC = "tickover.g.schedules"
REFUSED: Final = KafkaError.MSG_SIZE_TOO_LARGE

Result = TypeVar("Result")


class MemoryTopic:
    """Records that were committed, in order, and who has the right to write."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []  # of the topic of schedules
        self.appended_ms: dict[int, int] = {}  # when, by the broker's clock, as far as that is known
        self.sent: list[OutgoingRecord] = []  # of all others
        self.sent_ms: list[int] = []  # when
        self.transactions = 0  # that had occurrences, or progress
        self.failed: set[str] = set()  # ids of those that failed
        self.epochs: dict[str, int] = {}
        self.open: set[MemoryPen] = set()  # whose transactions are acknowledged and not decided
        self.failures: list[Exception] = []  # of the next shipments; nothing is written by those
        self.lost_answers: list[Exception] = []  # of the next ones, which are written
        self.down: Exception | None = None
        self.before: Callable[[], object] | None = None  # before a pen is taken
        self.meanwhile: Callable[[], object] | None = None  # between taking a pen and writing with it
        self.between: Callable[[], object] | None = None  # the right to write being confirmed and the commit
        self.silent: set[str] = set()  # partitions that acknowledge nothing, and can't be told of a transaction's end
        self.untold: dict[str, set[str]] = {}  # by transactional id: those of its last transaction
        self.refused: set[bytes | None] = set()  # values of which Kafka takes none
        self.gone: set[str] = set()  # sources that are not ours to write to
        self.unnamed: set[str] = set()  # sources that spoil transactions, and Kafka doesn't say so
        self.bytes_max = 1 << 30  # more in one transaction takes too long

    def fault(self, id: str, parcels: Sequence[OutgoingRecord], facts: Sequence[OutgoingRecord]) -> Exception | None:
        """Why a transaction fails."""
        if self.failures:
            return self.failures.pop(0)
        if refused := {index: REFUSED for index, parcel in enumerate(parcels) if parcel.value in self.refused}:
            return Refused(refused)
        if gone := [index for index, parcel in enumerate(parcels) if parcel.target in self.gone]:
            return TargetRefused("Topic authorization failed", gone)
        if any(parcel.target in self.unnamed for parcel in parcels):
            return ShipmentFailed("Purged in queue")
        silent = {index: place_of(parcel) for index, parcel in enumerate(parcels) if place_of(parcel) in self.silent}
        if silent:
            self.untold[id] = set(silent.values())
            return Unanswered(silent)
        if sum(len(parcel.value or b"") for parcel in parcels) > self.bytes_max:
            return Unanswered(range(len(parcels) + len(facts)))
        return None


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
        for pen in list(self._topic.open):  # readers wait for the end: here it is that of their timeout
            pen.time_out()
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

    def init(self, _: float = 0.0) -> None:
        if (before := self._topic.before) is not None:
            self._topic.before = None
            before()
        if self._topic.untold.get(self._id, set()) & self._topic.silent:
            raise Unfinished("concurrent transactions")
        self._epoch = self._topic.epochs[self._id] = self._topic.epochs.get(self._id, 0) + 1

    def write(
        self,
        parcels: Sequence[OutgoingRecord],
        facts: Sequence[OutgoingRecord],
        confirm: Callable[[], None] | None = None,
        _: float = 0.0,
    ) -> None:
        topic = self._topic
        is_word = facts[0].key == WORD
        if (meanwhile := topic.meanwhile) is not None and not is_word:
            topic.meanwhile = None
            meanwhile()
        self._check()
        if (fault := topic.fault(self._id, parcels, facts)) is not None:
            topic.failed.add(self._id)
            raise fault
        assert all(fact.target == TOPIC for fact in facts)
        if confirm is not None:
            topic.open.add(self)
            try:
                confirm()
                if (between := topic.between) is not None:
                    topic.between = None
                    between()
                self._check()
            finally:
                topic.open.discard(self)
        topic.sent += parcels
        topic.sent_ms += [self._broker_ms()] * len(parcels)
        topic.transactions += confirm is not None
        offsets = range(len(topic.records), len(topic.records) + len(facts))
        topic.appended_ms |= dict.fromkeys(offsets, self._broker_ms())
        topic.records += facts
        if topic.lost_answers and not is_word:
            raise topic.lost_answers.pop(0)

    def time_out(self) -> None:
        """The broker ends its transaction, and fences it off."""
        self._topic.open.discard(self)
        self._topic.epochs[self._id] += 1

    def close(self) -> None:
        self._epoch = -1

    def _check(self) -> None:
        if self._epoch != self._topic.epochs[self._id]:
            raise TakenOver


def at_once(work: Callable[[], Result]) -> "Future[Result]":
    """Work that is done before anybody looks."""
    future: Future[Result] = Future()
    future.set_result(work())
    return future


class MemorySchedules:
    """A topic and stores on it, as replicas have them; `firing` makes what writes its occurrences."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()
        self.now_ms = NOW_MS  # the brokers' clock
        self.host_ahead_ms = 0  # the clock of whoever is asked over REST
        self.time_is_known = True  # the writers of occurrences have seen the brokers' clock
        self.sources: dict[str, int] = {"reminders": 12}
        self.paused: set[str] = set()  # by operators
        self.owner = True
        self.run: Run = at_once
        self.written: list[tuple[str, int, int, bool]] = []
        self.store = self.replica()
        self.writer: Firing | None = None

    def replica(self, unread: str = "") -> ScheduleStore:
        """`unread`: a schedule that this one can't read, as a newer version wrote it."""

        def follow(apply: Apply) -> MemoryFollower:
            def poorly(key: bytes, value: bytes, appended_ms: int) -> None:
                is_newer = key == f"{unread}/schedule".encode()
                apply(key, value.replace(b'"schema":1', b'"schema":3') if is_newer else value, appended_ms)

            return MemoryFollower(self.topic, poorly if unread else apply)

        return ScheduleStore(
            TOPIC,
            follow,
            lambda: self.pen("pen"),
            lambda: self.now_ms + self.host_ahead_ms,
        )

    def pen(self, id: str) -> MemoryPen:
        return MemoryPen(self.topic, id, lambda: self.now_ms)

    def firing(self, store: ScheduleStore | None = None) -> Firing:
        return Firing(self.surroundings(store))

    def surroundings(self, store: ScheduleStore | None = None) -> FiringContext:
        return FiringContext(
            store or self.store,
            LIMITS,
            lambda id: self.pen(f"firing.{id}"),
            lambda: self.owner,
            lambda: self.sources,
            lambda: self.now_ms if self.time_is_known else None,
            lambda *facts: self.written.append(facts),
            self.run,
            lambda names: None,
            lambda name: name in self.paused,
        )

    def steps(self) -> None:
        """Let the writer of what is owed take a step."""
        self.writer = self.writer or self.firing()
        self.writer.step()

    def restart(self) -> None:
        """Replace the writer by one that knows what is in the topic."""
        self.writer = self.firing(self.replica())

    def put(self, expected: int = 0, **changes: Any) -> None:
        self.store.put(schedule(**changes), "reminders", expected, "me")


def schedule(**changes: Any) -> Schedule:
    given = {"name": "tick", "cron": "*/5 * * * * *", "target": "push", **changes}
    return Schedule.model_validate(given)


class Delayed:
    """Threads that get their turn when somebody says so."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def run(self, work: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()
        self._waiting.append((future, work))
        return future

    def work(self, chance: Random) -> None:
        if self._waiting:
            future, work = self._waiting.pop(chance.randrange(len(self._waiting)))
            future.set_result(work())

    def work_all(self) -> None:
        while self._waiting:
            future, work = self._waiting.pop(0)
            future.set_result(work())
