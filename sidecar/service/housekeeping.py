"""Work beside the engine, on APScheduler: nothing on a record's path is a job.

Each job is a plain function that can be called by hand; the scheduler only says when. A job that fails is logged
and runs again at its next time.

Intervals are kept by the monotonic clock. APScheduler itself goes by the wall clock: set back by an hour, it ran no job
for an hour, and a token that was taken back stayed good; set forward by years, it counted every run in between. It
asks for the time in its zone (`datetime.now(zone)`), so that a zone whose time is the monotonic clock's gives it that.

`Memory` is one of them. glibc keeps freed memory for the next request, by thread; after millions of records were read
at full speed the client's buffers are some of it. It is given back once there is time.
"""

import ctypes
import gc
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from sidecar.model.stats import Stats

log = logging.getLogger(__name__)
logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it would tell of every run, and of every skipped one

Job = Callable[[], None]

FIRST: Final = "default"  # APScheduler makes one of this name in any case
LATER: Final = "later"
LATER_THREADS_MAX: Final = 10
APART_S: Final = 0.04
EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - in no zone of this world


@dataclass(frozen=True, slots=True)
class Interval:
    """One job and the seconds between its runs."""

    job: Job
    seconds: float
    at_once: bool = False  # the first time at the start, not after the first interval


class Housekeeping:
    """The jobs of one process. Runs of one job never overlap; runs that were missed are made up for by one.

    The jobs of the start have threads of their own: whatever holds up those that are added, brokers that are away say,
    they go on. Those that are added run one after the other, `APART_S` apart, where their times would be the same:
    else each would have a thread, for good. `monotonic_s` never goes back.
    """

    def __init__(self, jobs: Mapping[str, Interval], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._zone = _Monotonic(monotonic_s)
        self._scheduler = BackgroundScheduler(
            executors={FIRST: _threads(len(jobs)), LATER: _threads(LATER_THREADS_MAX)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=self._zone,
        )
        for name, interval in jobs.items():
            self._add(name, interval, FIRST, 0.0)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def add(self, jobs: Mapping[str, Interval]) -> None:
        """Run these, too."""
        for place, (name, interval) in enumerate(jobs.items()):
            self._add(name, interval, LATER, place * APART_S)

    def remove(self, names: Collection[str]) -> None:
        """No more runs of these; one under way ends by itself, since it may be waiting for brokers."""
        for name in names:
            self._scheduler.remove_job(name)

    def _add(self, name: str, interval: Interval, executor: str, after_s: float) -> None:
        every = timedelta(seconds=interval.seconds)
        first = datetime.now(self._zone) + timedelta(seconds=after_s) + (timedelta(0) if interval.at_once else every)
        self._scheduler.add_job(
            _logged(name, interval.job), _Every(every), id=name, name=name, executor=executor, next_run_time=first
        )

    def stop(self) -> None:
        """No more runs; one under way ends by itself, since it may be waiting for brokers. Twice is harmless."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(count, 1), {"thread_name_prefix": "housekeeping"})


class _Monotonic(tzinfo):
    """A zone whose time is a monotonic clock's, counted from `EPOCH`: the wall clock's is left out of account."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s

    def fromutc(self, _: datetime) -> datetime:
        return EPOCH.replace(tzinfo=self) + timedelta(seconds=self._monotonic_s())

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "monotonic"


class _Every(BaseTrigger):  # type: ignore[misc]
    """The times at which a job runs. APScheduler's own makes them from timestamps, which would ask the zone again."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The first time after now, whole intervals from the previous one."""
        if previous_fire_time is None:
            return now + self._interval
        return previous_fire_time + ((now - previous_fire_time) // self._interval + 1) * self._interval


def _logged(name: str, job: Job) -> Job:
    def run() -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a job must not end the scheduler; it runs again
            log.warning("housekeeping failed", extra={"job": name, "error": str(error)})

    return run


GARBAGE_HELD_MAX: Final = 10_000
BUSY_RECORDS: Final = 30_000  # read and emitted between two steps: with fewer there is time


class Memory:
    """One thread's own: housekeeping's."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats
        self._done = 0
        self._is_owed = True  # something was freed since it was given back last

    def step(self) -> None:
        """Collect cycles while little is held, and give freed memory back after a busy time.

        A collection looks at every held record with the interpreter's lock in hand: 17 to 38 ms for 150,000 of them,
        which would be lateness. While much is held the few cycles wait: REST makes some, the engine none.
        """
        topics = self._stats().topics.values()
        if sum(counts.wheel for counts in topics) < GARBAGE_HELD_MAX:
            gc.collect()
        done = sum(counts.accepted + counts.emitted for counts in topics)
        is_busy, self._done = abs(done - self._done) >= BUSY_RECORDS, done
        if self._is_owed and not is_busy:
            give_back()
        self._is_owed = is_busy


def give_back() -> bool:
    """Have the C library return what it keeps of freed memory to the system; False where it can't (not glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
