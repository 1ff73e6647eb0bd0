"""Work beside the engine, on APScheduler: nothing on a record's path is a job.

Each job is a plain function that can be called by hand; the scheduler only says when. A job that fails is logged
and runs again at its next time.

`Memory` is one of them. glibc keeps freed memory for the next request, by thread; after millions of records were read
at full speed the client's buffers are some of it. It is given back once there is time.
"""

import ctypes
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler

from sidecar.model.stats import Stats

log = logging.getLogger(__name__)
logging.getLogger("apscheduler").setLevel(logging.ERROR)  # it would tell of every run, and of every skipped one

Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Interval:
    """One job and the seconds between its runs."""

    job: Job
    seconds: float
    at_once: bool = False  # the first time at the start, not after the first interval


class Housekeeping:
    """The jobs of one process. Runs of one job never overlap; runs that were missed are made up for by one."""

    def __init__(self, jobs: Mapping[str, Interval]) -> None:
        self._scheduler = BackgroundScheduler(
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}, timezone="UTC"
        )
        for name, interval in jobs.items():
            first = {"next_run_time": datetime.now(UTC)} if interval.at_once else {}
            self._scheduler.add_job(
                _logged(name, interval.job), "interval", seconds=interval.seconds, id=name, name=name, **first
            )

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()

    def stop(self) -> None:
        """No more runs; one under way ends by itself, since it may be waiting for brokers. Twice is harmless."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


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
