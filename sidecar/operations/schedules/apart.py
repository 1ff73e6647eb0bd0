"""Schedules that are written apart from all others, in threads of their own: whatever they meet, nobody else waits.

    key                  who goes by it                             since
    <source>/<partition> whose next record is for that partition    it didn't acknowledge in time
    <source>             whose source it is                         Kafka refuses the source, or says nothing of use
    name:<schedule>      that one                                   its record is refused, or it owes much

A try has a producer of its own, under an id of its key. It writes what they owe until nothing is owed, or until
something fails or its time is over. Where nothing went through, it is tried again after 5 s, then after twice as long,
up to 30 s, with one record first. What is too much at once is halved, and doubled again after some that were quick.
Whoever is found to hold up others of the same key goes by a key of its own.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Final, NamedTuple

from sidecar.operations.jobs.transactional_sender import (
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
    Unanswered,
    Unfinished,
)
from sidecar.operations.schedules.job import Job, Room, batches, before, job_of, place_of
from sidecar.operations.schedules.schedule import Progress, SchedulesUnavailable
from sidecar.operations.schedules.writing import FiringContext, Tenure, Writer

ROOM: Final = Room(1_000, 1 << 20)
TRY_S: Final = 10.0  # for all transactions of one
ACKNOWLEDGED_S: Final = 7.0  # for one, which the brokers end after 10 s
AGAIN_MIN_MS: Final = 5_000
AGAIN_MS: Final = 30_000
SLOW_KEPT_MS: Final = 300_000  # what is slow stays apart for so long, though nothing is owed
PROBLEM_LENGTH_MAX: Final = 500
QUICK: Final = 0.25  # of that time
QUICK_MIN: Final = 8  # so many in a row, and more goes at once
UNFINISHED: Final = "Kafka can't end an earlier transaction: a partition without a leader, or one with too few replicas"

log = logging.getLogger("tickover.schedules")


def key_of_name(name: str) -> str:
    """The key by which one schedule goes apart."""
    return f"name:{name}"  # no topic has a colon in its name


Names = Mapping[str, int]  # of schedules, with their versions


def blame(jobs: Sequence[Job], error: Exception) -> dict[str, dict[str, int]]:
    """Schedules at fault for a failed transaction, with their versions, by key; empty: the error doesn't say."""
    owners = [job.entry for job in jobs for _ in job.parcels]
    guilty: dict[str, dict[str, int]] = {}
    match error:
        case Unanswered():
            places = [place_of(parcel) for job in jobs for parcel in job.parcels]
            seen: set[str] = set()
            for index in sorted(index for index in error.indexes if index < len(owners)):
                if (name := owners[index].schedule.name) not in seen:  # by the first of its records that waits
                    seen.add(name)
                    guilty.setdefault(places[index], {})[name] = owners[index].version
        case Refused():
            for index in error.codes:
                name = owners[index].schedule.name
                guilty[key_of_name(name)] = {name: owners[index].version}
        case TargetRefused():
            for index in error.indexes or range(len(owners)):
                entry = owners[index]
                guilty.setdefault(entry.source, {})[entry.schedule.name] = entry.version
        case _:
            pass
    return guilty


class Outcome(NamedTuple):
    """How a try has ended."""

    progress: Mapping[str, Progress]  # as far as it is known
    written: Sequence[Job] = ()
    problem: str = ""  # of those that stay
    moved: Mapping[str, Names] = {}  # who goes by other keys from now on; nobody changes it
    room: Room = ROOM
    is_known: bool | None = True  # how far they have come; False: the end of a transaction isn't; None: as before
    is_complete: bool = False  # nothing more is owed
    slowest_s: float = 0.0


class Order(NamedTuple):
    """Instructions for one try of a key."""

    key: str
    names: Names
    since_ms: int  # what was in time then is not missed
    room: Room
    is_probe: bool  # one record goes first
    closed: frozenset[str]  # all keys


class Apart:
    """One key. Owned by the thread of `Firing`; a try runs in another and shares nothing with it."""

    def __init__(self, key: str, since_ms: int) -> None:
        self.key = key
        self.since_ms = since_ms
        self.names: dict[str, int] = {}
        self.problem = ""
        self.is_known = True  # how far its schedules have come; else only its next try may write what they owe
        self.again_ms = 0  # nothing is tried before
        self.kept_until_ms = 0  # though nothing is owed
        self._room = ROOM
        self._pause_ms = AGAIN_MIN_MS
        self._result: Future[Outcome] | None = None

    @property
    def is_trying(self) -> bool:
        """Whether its schedules may be written to at this moment."""
        return self._result is not None

    def start(self, here: FiringContext, tenure: Tenure, closed: frozenset[str]) -> None:
        """Try."""
        order = Order(self.key, dict(self.names), self.since_ms, self._room, bool(self.problem), closed)

        def try_apart() -> Outcome:
            return attempt(here, tenure, order)

        self._result = here.run(try_apart)

    def wait(self, seconds: float) -> None:
        """For the end of what is under way."""
        if self._result is not None:
            futures.wait([self._result], seconds)

    def take(self, now_ms: int) -> Outcome | None:
        """How the try has ended; None: it hasn't, or there is none."""
        if self._result is None or not self._result.done():
            return None
        outcome, self._result = _outcome_of(self._result), None
        self.again_ms = now_ms
        if outcome.is_known is not None:
            self.is_known = outcome.is_known
        for names in outcome.moved.values():
            for name in names:
                self.names.pop(name, None)
        self._room = outcome.room
        if outcome.problem:
            self.problem = outcome.problem
            self.again_ms += self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, AGAIN_MS)
        elif outcome.written or outcome.is_complete:
            self.problem, self._pause_ms = "", AGAIN_MIN_MS
        return outcome

    def begin_anew(self) -> None:
        """In a new tenure: nothing of the former one is under way, and the topic says how far all have come."""
        self._result, self.is_known = None, True


def _outcome_of(result: "Future[Outcome]") -> Outcome:
    if (error := result.exception()) is None:
        return result.result()
    log.error("schedules could not be written apart", exc_info=error)
    return Outcome({}, problem=f"tickover has failed: {error}"[:PROBLEM_LENGTH_MAX], is_known=False)


def attempt(here: FiringContext, tenure: Tenure, order: Order) -> Outcome:
    """Write what the schedules of an order owe. Raises nothing that may pass."""
    writer = Writer(here, tenure, order.key)
    try:
        return _Attempt(here, tenure, order, writer).run()
    finally:
        writer.close()


class _Attempt:
    def __init__(self, here: FiringContext, tenure: Tenure, order: Order, writer: Writer) -> None:
        self._here = here
        self._tenure = tenure
        self._order = order
        self._writer = writer
        self._room = order.room
        self._quick = 0
        self._written: list[Job] = []
        self._elsewhere: dict[str, Names] = {}  # who owes next what goes by another key
        self._slowest_s = 0.0
        self._is_known = True

    def run(self) -> Outcome:
        try:
            self._writer.begin()
        except Unfinished:
            return self._unfinished()
        except (ShipmentFailed, SchedulesUnavailable) as error:
            log.warning("schedules that are written apart can't be begun with", extra=self._about(error))
            return Outcome({}, is_known=None, room=self._room)  # Kafka is away, for all: nothing was tried
        deadline_s = time.monotonic() + TRY_S
        while jobs := list(self._jobs()):
            for batch in batches(jobs, self._room_now):
                if (ending := self._write(batch)) is not None:
                    return ending
                if time.monotonic() > deadline_s or self._tenure.is_over:
                    return self._ended()
        return self._ended()._replace(is_complete=True, moved=self._elsewhere)

    def _unfinished(self) -> Outcome:
        """Nothing can be written, but the topic says how far they have come: there, that transaction has ended."""
        try:
            self._here.schedules.catch_up()
        except SchedulesUnavailable as error:
            log.warning("schedules that are written apart can't be read", extra=self._about(error))
            return Outcome({}, problem=UNFINISHED, is_known=None, room=self._room)
        return self._ended(UNFINISHED)

    def _jobs(self) -> Iterator[Job]:
        """Jobs of what the schedules owe now, or of some of them, but for what waits by other keys."""
        here, order = self._here, self._order
        now_ms, alive, closed = here.now_ms(), here.schedules.alive(), order.closed - {order.key}
        assert now_ms is not None, "once it is known, time stays known"
        sources = {source: count for source, count in here.sources().items() if source not in closed}
        records = 0
        for name in sorted(order.names.keys() & alive.keys()):
            entry = alive[name].entry
            if entry is None or here.owes_nothing(entry) or entry.source not in sources or records >= ROOM.records:
                continue
            progress = self._writer.standing(entry, alive[name])
            progress = progress._replace(waiting_ms=progress.waiting_ms or order.since_ms)
            job = job_of(entry, progress, now_ms, here.limits, sources)
            if job is None:
                continue
            mine, place = before(job, closed)
            if mine is None:
                self._elsewhere[place] = {**self._elsewhere.get(place, {}), name: entry.version}
                continue
            records += max(len(mine.parcels), 1)
            yield mine

    def _room_now(self) -> Room:
        is_probe = self._order.is_probe and not self._written
        return Room(1, self._room.size) if is_probe else self._room

    def _write(self, batch: list[Job]) -> Outcome | None:
        """Write a batch; None when it is written."""
        begun_s = time.monotonic()
        try:
            self._writer.write(batch, {}, ACKNOWLEDGED_S)
        except (TakenOver, SchedulesUnavailable):  # the tenure is over
            return self._ended()
        except (Unanswered, Refused, TargetRefused) as error:
            return self._failed(batch, error)
        except ShipmentFailed as error:
            if not self._is_written_after_all(batch[0]):
                return self._failed(batch, error)
        took_s = time.monotonic() - begun_s
        self._quick = self._quick + 1 if took_s < ACKNOWLEDGED_S * QUICK else 0
        if self._quick == QUICK_MIN:
            self._quick, self._room = 0, self._room.doubled(ROOM)
        self._slowest_s = max(self._slowest_s, took_s)
        self._written += batch
        return None

    def _is_written_after_all(self, job: Job) -> bool:
        """Nobody has heard how its transaction ended: to begin again decides it, and the topic says how."""
        try:
            self._writer.begin()
        except (ShipmentFailed, SchedulesUnavailable) as error:
            log.warning("nobody knows whether occurrences are written", extra=self._about(error))
            self._is_known = False
            return False
        known = self._here.schedules.alive().get(job.name)
        return known is not None and self._writer.standing(job.entry, known) == job.progress

    def _failed(self, batch: list[Job], error: Exception) -> Outcome:
        """Outcome of a failed try, by what the error says of whom. Where it says nothing, and of refused records, each
        schedule goes alone.

        But not while nobody knows how far they have come: by this key, that is found out first.
        """
        if not self._is_known:
            return self._ended(_words(error))
        key, names = self._order.key, self._order.names
        guilty = blame(batch, error)
        if key == key_of_name(batch[0].name) or (not guilty and len(names) == 1):
            guilty = {key: dict(names)}
        elif not guilty:
            guilty = {key_of_name(name): {name: version} for name, version in names.items()}
        stays = guilty.pop(key, None)
        if sum(len(job.parcels) for job in batch) > 1:
            self._room = self._room.halved()
        return self._ended(_words(error) if stays and not self._written else "")._replace(moved=guilty)

    def _ended(self, problem: str = "") -> Outcome:
        progress: dict[str, Progress] = {}
        if self._is_known:
            alive = self._here.schedules.alive()
            for name in self._order.names.keys() & alive.keys():
                progress[name] = self._writer.progress.get(name, alive[name].progress)
        known, slowest_s = self._is_known, self._slowest_s
        return Outcome(progress, self._written, problem, is_known=known, room=self._room, slowest_s=slowest_s)

    def _about(self, error: Exception) -> dict[str, str]:
        return {"apart": self._order.key, "error": str(error)}


def _words(error: Exception) -> str:
    match error:
        case Unanswered():
            text = f"{error}: a partition without a leader, one with too few replicas, or a cluster that is slow"
        case Refused() | TargetRefused():
            text = f"Kafka refuses the record: {error}"
        case _:
            text = f"Kafka does not take the record: {error}"
    return text[:PROBLEM_LENGTH_MAX]
