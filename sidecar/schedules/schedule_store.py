"""The topic of schedules as a store with compare-and-set.

Policies are compared by the order of their topic, which keeps every record; this one is compacted, and must not keep a
loser's record in a winner's stead. So whoever writes takes the pen first: a transactional producer, under an id that
all replicas share. Kafka fences off whoever had it before, everything written until then is read, the versions are
compared, and what is written after that is refused if somebody else has taken the pen meanwhile.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from sidecar.jobs.follower import PARTITION, Apply
from sidecar.jobs.reader import LogUnavailable
from sidecar.jobs.shipment import Parcel, Refused, ShipmentFailed, TakenOver, TargetRefused
from sidecar.schedules.errors import ScheduleConflict, ScheduleRefused, SchedulesUnavailable
from sidecar.schedules.schedule import Entry, Progress, Schedule
from sidecar.schedules.schedule_book import (
    RECORD_BYTES_MAX,
    SCHEDULES_MAX,
    Known,
    ScheduleBook,
    progress_record,
    schedule_record,
)

TRIES_MAX: Final = 5

log = logging.getLogger("tickover.schedules")


class Pen(Protocol):
    """The right to write (`jobs.shipment.Shipping`)."""

    def init(self) -> None: ...

    def write(self, parcels: Sequence[Parcel], facts: Sequence[Parcel]) -> None: ...

    def close(self) -> None: ...


class Follower(Protocol):
    """The topic as it is read (`jobs.follower.TopicFollower`)."""

    changed: threading.Condition

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def catch_up(self) -> None: ...


class ScheduleStore:
    """The schedules as every replica sees them. `now_ms` is the wall clock."""

    def __init__(
        self, topic: str, follow: Callable[[Apply], Follower], pen: Callable[[], Pen], now_ms: Callable[[], int]
    ) -> None:
        self.topic = topic
        self._pen = pen
        self._now_ms = now_ms
        self._book = ScheduleBook()
        self._follower = follow(self._book.apply)
        self.start = self._follower.start
        self.stop = self._follower.stop

    # Reading: what this process has read so far. Everybody's writes show within a second, its own at once.

    def get(self, name: str) -> Known:
        """What is known of this name."""
        with self._follower.changed:
            return self._book.get(name)

    def alive(self) -> Mapping[str, Known]:
        """All schedules that there are, by name."""
        with self._follower.changed:
            return self._book.alive()

    def catch_up(self) -> None:
        """Return when all that is in the topic now has been read. Raises SchedulesUnavailable."""
        try:
            self._follower.catch_up()
        except LogUnavailable as error:
            raise SchedulesUnavailable(str(error)) from None

    # Writing. Blocks: not for an event loop.

    def put(self, schedule: Schedule, source: str, expected: int, author: str) -> Entry:
        """Write a new version; `expected` 0: there must be none.

        Raises ScheduleConflict, ScheduleRefused, SchedulesUnavailable.
        """

        def entry_of(known: Known) -> Entry:
            if known.entry is None and len(self.alive()) >= SCHEDULES_MAX:
                detail = f"There are {SCHEDULES_MAX} schedules, as many as there can be; delete one first."
                raise ScheduleRefused("too-many-schedules", detail)
            now_ms, former = self._now_ms(), known.entry
            goes_on = former is not None and former.schedule.times() == schedule.times()
            since_ms = former.since_ms if former is not None and goes_on else now_ms
            return Entry(schedule, source, known.version + 1, author, now_ms, since_ms)

        return self._write(schedule.name, expected, entry_of, deleted=False)

    def delete(self, name: str, expected: int, author: str) -> None:
        """There is no such schedule any more. What was written ahead of its time still fires. Raises as `put`."""

        def entry_of(known: Known) -> Entry:
            assert known.entry is not None  # it is at the version expected, which isn't 0
            return known.entry._replace(version=known.version + 1, author=author, time_ms=self._now_ms())

        self._write(name, expected, entry_of, deleted=True)

    def _write(self, name: str, expected: int, entry_of: Callable[[Known], Entry], deleted: bool) -> Entry:
        for _ in range(TRIES_MAX):
            pen = self._pen()
            try:
                pen.init()
                self.catch_up()
                entry = self._checked(name, expected, entry_of)
                key, value = schedule_record(name, entry, deleted)
                if len(value) > RECORD_BYTES_MAX:
                    raise ScheduleRefused("schedule-too-large", f"A schedule may have {RECORD_BYTES_MAX} bytes.")
                pen.write([], [Parcel(self.topic, key, value, partition=PARTITION)])
                self.catch_up()
                return entry
            except TakenOver:
                log.info("somebody else writes schedules: once more", extra={"schedule": name})
            except (ShipmentFailed, Refused, TargetRefused) as error:
                raise SchedulesUnavailable(f"{error}; it may still take effect: look again") from None
            finally:
                pen.close()
        raise SchedulesUnavailable("others keep writing schedules")

    def _checked(self, name: str, expected: int, entry_of: Callable[[Known], Entry]) -> Entry:
        known = self.get(name)
        there = known.version if known.entry is not None or not known.legible else 0
        if there != expected:
            raise ScheduleConflict(name, there)
        if not known.legible:
            detail = "A newer version of tickover has written this schedule: change it there, or upgrade this one."
            raise ScheduleRefused("schedule-of-newer-version", detail)
        return entry_of(known)


def progress_parcel(topic: str, name: str, progress: Progress) -> Parcel:
    """The fact that goes with a schedule's occurrences."""
    key, value = progress_record(name, progress)
    return Parcel(topic, key, value, partition=PARTITION)
