"""The topic of schedules as a store with compare-and-set.

Policies are compared by the order of their topic, which keeps every record; this one is compacted, and must not keep a
loser's record in a winner's stead. So whoever writes takes the pen first: a transactional producer, under an id that
all replicas share. Kafka fences off whoever had it before, everything written until then is read, the versions are
compared, and what is written after that is refused if somebody else has taken the pen meanwhile. Within a process one
writes at a time; who has lost the pen to another process waits a little, until that one may have written.

Nobody may know how a write has ended: an answer is lost, a broker goes. To take the pen again decides it, one way or
the other, and then the topic says whether it is there. Only if it isn't, it is written again.
"""

import logging
import random
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from sidecar.kafka.topic_follower import PARTITION, Apply, LogUnavailable
from sidecar.model.times import rfc_3339
from sidecar.operations.jobs.transactional_sender import (
    OutgoingRecord,
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
)
from sidecar.operations.schedules.claim import Claim
from sidecar.operations.schedules.schedule import (
    Entry,
    Progress,
    Schedule,
    ScheduleConflict,
    ScheduleRefused,
    SchedulesUnavailable,
    standing,
)
from sidecar.operations.schedules.schedule_book import (
    RECORD_BYTES_MAX,
    SCHEDULES_MAX,
    Known,
    ScheduleBook,
    progress_record,
    schedule_record,
    unread_refused,
)

QUEUE_S: Final = 10.0
TRIES_MAX: Final = 20
PAUSE_S: Final = (
    0.2  # at most, chosen at random: who has lost the pen takes it again, and must not take it in turns for ever
)
FAILURES_MAX: Final = 2  # the first one is looked into, and made up for
UNKNOWN: Final = "; it may still take effect: look again"

log = logging.getLogger("tickover.schedules")


class ScheduleSender(Protocol):
    """The right to write (`TransactionalSender`)."""

    def init(self) -> None: ...

    def write(self, parcels: Sequence[OutgoingRecord], facts: Sequence[OutgoingRecord]) -> None: ...

    def close(self) -> None: ...


class Follower(Protocol):
    """The topic as it is read (`TopicFollower`)."""

    changed: threading.Condition

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def catch_up(self) -> None: ...


class ScheduleStore:
    """The schedules as every replica sees them. `now_ms` is the wall clock."""

    def __init__(
        self,
        topic: str,
        follow: Callable[[Apply], Follower],
        pen: Callable[[], ScheduleSender],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self._pen = pen
        self._now_ms = now_ms
        self._book = ScheduleBook()
        self._writing = threading.Lock()
        self._is_read = False  # to the end that the topic had once
        self._follower = follow(self._book.apply)
        self.start = self._follower.start
        self.stop = self._follower.stop

    # Reading: what this process has read so far. Everybody's writes show within a second, its own at once.

    def get(self, name: str) -> Known:
        """State of this name, as read so far."""
        with self._follower.changed:
            return self._book.get(name)

    def alive(self) -> Mapping[str, Known]:
        """All schedules that there are, by name."""
        with self._follower.changed:
            return self._book.alive()

    def unread(self) -> Mapping[str, Known]:
        """All schedules that can't be read here, by name: of a newer version, or in an unknown time zone."""
        with self._follower.changed:
            return self._book.unread()

    def is_empty(self) -> bool:
        """Whether there are no schedules. The first time all that is in the topic is read for it.

        Raises SchedulesUnavailable.
        """
        if not self._is_read:
            self.catch_up()
        with self._follower.changed:
            return not self._book.alive() and not self._book.unread()

    def unwritten(self) -> frozenset[str]:
        """Names of schedules that whoever writes what they owe can't read, by what that one has said of itself."""
        claim = self.last_claim()
        return frozenset(claim.unread) if claim.stands(self._now_ms()) else frozenset()

    def last_claim(self) -> Claim:
        """Last claim of a writer that can't read all schedules, or took over from one."""
        with self._follower.changed:
            return self._book.claim

    def catch_up(self) -> None:
        """Return when all that is in the topic now has been read. Raises SchedulesUnavailable."""
        try:
            self._follower.catch_up()
        except LogUnavailable as error:
            raise SchedulesUnavailable(str(error)) from None
        self._is_read = True

    # Writing. Blocks: not for an event loop.

    def put(self, schedule: Schedule, source: str, expected: int, author: str) -> Entry:
        """Write a new version; `expected` 0: there must be none.

        Raises ScheduleConflict, ScheduleRefused, SchedulesUnavailable.
        """

        def entry_of(known: Known) -> Entry:
            if known.entry is None and len(self.alive()) + len(self.unread()) >= SCHEDULES_MAX:
                detail = f"There are {SCHEDULES_MAX} schedules, as many as there can be; delete one first."
                raise ScheduleRefused("too-many-schedules", detail)
            now_ms, former, version = self._now_ms(), known.entry, known.version + 1
            if former is not None and former.schedule.times() == schedule.times():
                former = former._replace(version=version, author=author, time_ms=now_ms)
                return former._replace(schedule=schedule, source=source)
            return Entry(schedule, source, version, author, now_ms, now_ms, began=version)

        return self._write(schedule.name, expected, entry_of)

    def rewind(self, name: str, to_ms: int, expected: int, author: str) -> Entry:
        """Write a version that goes back: occurrences after `to_ms` are owed again, but for those that are still to
        come and written already. Raises as `put`; ScheduleRefused also for a time that isn't back.
        """

        def entry_of(known: Known) -> Entry:
            former = known.entry
            assert former is not None  # it is at the version expected, which isn't 0
            reached_ms = standing(former, known.progress).last_ms
            if to_ms >= reached_ms:
                reached = rfc_3339(reached_ms) or f"{reached_ms} (epoch ms)"
                detail = f"The schedule has come to {reached}: a rewind goes back to a time before that."
                raise ScheduleRefused("rewind-not-back", detail)
            now_ms, version = self._now_ms(), known.version + 1
            return Entry(former.schedule, former.source, version, author, now_ms, to_ms, version, now_ms)

        return self._write(name, expected, entry_of)

    def delete(self, name: str, expected: int, author: str) -> None:
        """There is no such schedule any more. What was written ahead of its time still fires. Raises as `put`."""

        def entry_of(known: Known) -> Entry:
            assert known.entry is not None  # it is at the version expected, which isn't 0
            return known.entry._replace(version=known.version + 1, author=author, time_ms=self._now_ms())

        self._write(name, expected, entry_of, deleted=True)

    def _write(self, name: str, expected: int, entry_of: Callable[[Known], Entry], deleted: bool = False) -> Entry:
        if not self._writing.acquire(timeout=QUEUE_S):
            raise SchedulesUnavailable("other writes of this process have not ended")
        try:
            return self._write_alone(name, expected, entry_of, deleted)
        finally:
            self._writing.release()

    def _write_alone(self, name: str, expected: int, entry_of: Callable[[Known], Entry], deleted: bool) -> Entry:
        write = uuid.uuid4().hex
        tried: Entry | None = None  # of which nobody knows yet whether it is in the topic
        failures = 0
        for _ in range(TRIES_MAX):
            pen = self._pen()
            try:
                pen.init()
                self.catch_up()
                if tried is not None and (made := self._made_by(write)) is not None:
                    return made.entry or tried
                entry = self._checked(name, expected, entry_of)
                key, value = schedule_record(name, entry, write, deleted)
                if len(value) > RECORD_BYTES_MAX:
                    raise ScheduleRefused("schedule-too-large", f"A schedule may have {RECORD_BYTES_MAX} bytes.")
                tried = entry
                pen.write([], [OutgoingRecord(self.topic, key, value, partition=PARTITION)])
                return self._read_back(name, write) or entry
            except TakenOver:
                log.info("somebody else writes schedules: once more", extra={"schedule": name})
                self._let_them_write()
            except (Refused, TargetRefused) as error:
                raise SchedulesUnavailable(str(error)) from None
            except (ShipmentFailed, SchedulesUnavailable) as error:
                failures += 1
                if tried is None:
                    raise SchedulesUnavailable(str(error)) from None
                if failures == FAILURES_MAX:
                    raise SchedulesUnavailable(f"{error}{UNKNOWN}") from None
                log.warning("a write of a schedule has no known end", extra={"schedule": name, "error": str(error)})
            finally:
                pen.close()
        raise SchedulesUnavailable(f"others keep writing schedules{UNKNOWN}")

    def _let_them_write(self) -> None:
        with self._follower.changed:
            self._follower.changed.wait(random.uniform(0, PAUSE_S))

    def _read_back(self, name: str, write: str) -> Entry | None:
        """Entry that was written, as everybody reads it. It is a fact, and stays one where it can't be read now."""
        try:
            self.catch_up()
        except SchedulesUnavailable as error:
            log.warning("a schedule is written and can't be read yet", extra={"schedule": name, "error": str(error)})
        made = self._made_by(write)
        return None if made is None else made.entry

    def _made_by(self, write: str) -> Known | None:
        with self._follower.changed:
            return self._book.made_by(write)

    def _checked(self, name: str, expected: int, entry_of: Callable[[Known], Entry]) -> Entry:
        known = self.get(name)
        there = known.version if known.entry is not None or known.unread is not None else 0
        if there != expected:
            raise ScheduleConflict(name, there)
        if known.unread is not None:
            raise unread_refused(known.unread)
        return entry_of(known)


def progress_parcel(topic: str, name: str, progress: Progress) -> OutgoingRecord:
    """The fact that goes with a schedule's occurrences."""
    key, value = progress_record(name, progress)
    return OutgoingRecord(topic, key, value, partition=PARTITION)
