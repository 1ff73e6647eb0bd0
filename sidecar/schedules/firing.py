"""Writing what schedules owe: each occurrence as a delayed record in its schedule's source, a little ahead of its time.

From there it is a message like any other: held, emitted when due, looked up and cancelled by its id. One replica does
this, the one that has a certain source partition. To begin is to take over: a transactional producer, under an id that
all replicas share, fences off whoever came before and ends what it had left open; then the progress is read past
everything that is in the topic. Occurrences and the progress that speaks of them are one transaction. So two that think
they are the one, a crash at any point, and a process that wakes up after its time are one case: each occurrence is
written once.

`Firing.step` is housekeeping's, once a second. It needs no better timing: the wheel has that.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from sidecar.jobs.shipment import Parcel, Refused, ShipmentFailed, TakenOver, TargetRefused
from sidecar.partitioner import source_partition
from sidecar.record import DELIVER_AT, ID, TARGET
from sidecar.schedules.errors import SchedulesUnavailable
from sidecar.schedules.occurrences import occurrences
from sidecar.schedules.owing import Limits, Owed, after_writing, owed
from sidecar.schedules.schedule import Entry, Progress, bytes_of, headers_of, occurrence_id, standing
from sidecar.schedules.schedule_book import Known
from sidecar.schedules.schedule_store import Pen, progress_parcel
from sidecar.waits import is_over

BATCH_MAX: Final = 1_000  # occurrences in one transaction, but for those of one schedule that were missed
ROUNDS_MAX: Final = 100  # transactions in one step
AGAIN_MS: Final = 30_000  # so long a schedule whose record was refused isn't tried
PROBLEM_LENGTH_MAX: Final = 500
STOP_S: Final = 5.0
_NEVER_MS: Final = 1 << 62

log = logging.getLogger("tickover.schedules")


class Schedules(Protocol):
    """The topic of schedules (`schedule_store.ScheduleStore`)."""

    topic: str

    def alive(self) -> Mapping[str, Known]: ...

    def catch_up(self) -> None: ...


class Surroundings(NamedTuple):
    """What firing needs of its process."""

    pen: Callable[[], Pen]
    owns: Callable[[], bool]  # whether this replica is the one
    sources: Callable[[], Mapping[str, int]]  # partition counts of the topics that are consumed
    now_ms: Callable[[], int | None]  # never ahead of the brokers'; None: their clock wasn't seen yet
    written: Callable[[str, int, int, bool], None]  # schedule, in time, made up for, whether some were passed over


class Job(NamedTuple):
    """What one schedule owes."""

    entry: Entry
    owed: Owed
    progress: Progress  # when that is written
    parcels: list[Parcel]


class Firing:
    """For one thread at a time. `step` raises what a step can't go on after; the next one begins anew."""

    def __init__(self, schedules: Schedules, limits: Limits, here: Surroundings) -> None:
        self._schedules = schedules
        self._limits = limits
        self._here = here
        self._pen: Pen | None = None
        self._progress: dict[str, Progress] = {}  # what this life of the pen has written; the topic lags behind
        self._next: dict[str, tuple[int, int, int]] = {}  # by name: version, since, and the next occurrence
        self._suspects: set[str] = set()  # Kafka has refused something of them, or of a neighbour: they go alone
        self._held_back: dict[str, tuple[int, str]] = {}  # until when nothing is tried, and why
        self._stepping = threading.Lock()

    @property
    def is_owner(self) -> bool:
        """Whether this process writes what schedules owe."""
        return self._pen is not None

    def stop(self) -> None:
        """Let go of the pen, when the transaction under way has ended. Twice is harmless."""
        in_time = self._stepping.acquire(timeout=STOP_S)
        try:
            self._let_go()
        finally:
            if in_time:
                self._stepping.release()

    def step(self) -> None:
        """Write all that is owed now."""
        with self._stepping:
            self._step()

    def _let_go(self) -> None:
        pen, self._pen = self._pen, None
        if pen is not None:
            pen.close()

    def _step(self) -> None:
        if not self._here.owns():
            self._let_go()
            return
        try:
            pen = self._pen or self._take()
            for _ in range(ROUNDS_MAX):
                now_ms = self._here.now_ms()
                if now_ms is None:  # this machine's clock may be hours ahead: a progress would silence all until then
                    return
                jobs, problems = self._gather(now_ms)
                if not jobs and not problems:
                    return
                self._ship(pen, jobs, problems, now_ms)
        except TakenOver:
            log.info("another replica writes what schedules owe, or has done so")
            self._let_go()
        except (Refused, TargetRefused) as error:
            self._let_go()  # always a new one: a client that aborted after a refusal may be out of sequence
            log.warning("records of schedules were refused", extra={"error": str(error)})
        except (ShipmentFailed, SchedulesUnavailable):
            self._let_go()
            raise

    def _take(self) -> Pen:
        """Fence off whoever came before, and learn how far they have come."""
        pen = self._here.pen()
        try:
            pen.init()
            self._schedules.catch_up()
        except BaseException:
            pen.close()
            raise
        self._progress.clear()
        self._next.clear()
        self._pen = pen
        log.info("this replica writes what schedules owe")
        return pen

    # --- what is owed ---------------------------------------------------------------------------------------------

    def _gather(self, now_ms: int) -> tuple[list[Job], dict[str, Progress]]:
        """The next batch, and what is newly wrong or right again with schedules that are not in it."""
        sources = self._here.sources()
        jobs: list[Job] = []
        problems: dict[str, Progress] = {}
        count = 0
        for name, known in self._schedules.alive().items():
            entry = known.entry
            if entry is None or entry.schedule.paused or count >= BATCH_MAX:
                continue
            progress = standing(entry, self._progress.get(name, known.progress))
            if (problem := self._hindrance(entry, sources, now_ms)) != progress.problem:
                problems[name] = progress._replace(problem=problem)
            if problem or self._next_ms(entry, progress.last_ms) > now_ms + self._limits.ahead_ms:
                continue
            found = owed(entry.schedule, progress, now_ms, self._limits, BATCH_MAX - count)
            if found.through_ms == progress.last_ms:
                continue
            job = self._job(entry, found, after_writing(progress, found, now_ms), sources)
            if name in self._suspects:
                return [job], problems
            jobs.append(job)
            count += max(len(job.parcels), 1)
        return jobs, problems

    def _hindrance(self, entry: Entry, sources: Mapping[str, int], now_ms: int) -> str:
        """Why nothing can be written; empty: nothing is in the way."""
        until_ms, reason = self._held_back.get(entry.schedule.name, (0, ""))
        if not is_over(now_ms, until_ms, AGAIN_MS):
            return reason
        if entry.source not in sources:
            return f"the source topic {entry.source} does not exist, or no policy and no setting lets it be consumed"
        return ""

    def _next_ms(self, entry: Entry, since_ms: int) -> int:
        """The first occurrence after `since_ms`; remembered, since most schedules wait for theirs for long."""
        name, schedule = entry.schedule.name, entry.schedule
        version, since, next_ms = self._next.get(name, (0, 0, 0))
        if (version, since) != (entry.version, since_ms):
            next_ms = next(occurrences(schedule.cron, schedule.time_zone, since_ms), _NEVER_MS)
            self._next[name] = entry.version, since_ms, next_ms
        return next_ms

    def _job(self, entry: Entry, found: Owed, progress: Progress, sources: Mapping[str, int]) -> Job:
        schedule, source = entry.schedule, entry.source
        key, value, headers = bytes_of(schedule.key), bytes_of(schedule.value), headers_of(schedule)
        parcels = []
        for at_ms in found.due:
            id = occurrence_id(schedule.name, at_ms).encode()
            controls = [(DELIVER_AT, b"%d" % at_ms), (TARGET, schedule.target.encode()), (ID, id)]
            partition = source_partition(key, id, sources[source])
            parcels.append(Parcel(source, key, value, [*headers, *controls], partition))
        return Job(entry, found, progress, parcels)

    # --- writing it -----------------------------------------------------------------------------------------------

    def _ship(self, pen: Pen, jobs: list[Job], problems: Mapping[str, Progress], now_ms: int) -> None:
        """One transaction. What Kafka refuses is found by sending each schedule's alone."""
        done = {job.entry.schedule.name: job.progress for job in jobs}
        wanted = {**problems, **done}
        facts = [progress_parcel(self._schedules.topic, name, progress) for name, progress in wanted.items()]
        try:
            pen.write([parcel for job in jobs for parcel in job.parcels], facts)
        except (Refused, TargetRefused) as error:
            self._refuse(list(done), error, now_ms)
            raise
        self._progress |= wanted
        for job in jobs:
            name = job.entry.schedule.name
            self._suspects.discard(name)
            self._here.written(name, len(job.owed.due) - job.owed.made_up, job.owed.made_up, job.owed.dropped)
            if job.owed.dropped:
                log.warning("missed occurrences of a schedule are passed over", extra={"schedule": name})

    def _refuse(self, names: list[str], error: Exception, now_ms: int) -> None:
        if len(names) > 1:
            self._suspects.update(names)
            return
        for name in names:
            log.error("a schedule's record is refused", extra={"schedule": name, "error": str(error)})
            reason = f"Kafka refuses the record: {error}"[:PROBLEM_LENGTH_MAX]
            self._held_back[name] = now_ms + AGAIN_MS, reason
