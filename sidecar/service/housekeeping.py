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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from sidecar.model.stats import Stats

log = logging.getLogger(__name__)
logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it would tell of every run, and of every skipped one

Job = Callable[[], None]

EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - in no zone of this world


@dataclass(frozen=True, slots=True)
class Interval:
    """One job and the seconds between its runs."""

    job: Job
    seconds: float
    at_once: bool = False  # the first time at the start, not after the first interval


class Housekeeping:
    """The jobs of one process. Runs of one job never overlap; runs that were missed are made up for by one.

    `monotonic_s` never goes back.
    """

    def __init__(self, jobs: Mapping[str, Interval], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        zone = _Monotonic(monotonic_s)
        self._scheduler = BackgroundScheduler(
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}, timezone=zone
        )
        for name, interval in jobs.items():
            first = {"next_run_time": datetime.now(zone)} if interval.at_once else {}
            job, every = _logged(name, interval.job), _Every(timedelta(seconds=interval.seconds))
            self._scheduler.add_job(job, every, id=name, name=name, **first)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """No more runs; one under way ends by itself, since it may be waiting for brokers. Twice is harmless."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


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
