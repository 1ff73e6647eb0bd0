"""Work beside the engine, on APScheduler: nothing on a record's path is a job.

Each job is a plain function that can be called by hand; the scheduler only says when. A job that fails is logged
and runs again at its next time.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.schedulers.background import BackgroundScheduler

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
