import logging
import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from apscheduler.schedulers import base

from sidecar.service.housekeeping import Housekeeping, Interval

WAIT_S = 60


def test_jobs_run_again_even_after_one_failed(caplog: pytest.LogCaptureFixture) -> None:
    runs = threading.Semaphore(0)

    def job() -> None:
        runs.release()
        raise OSError("no disk")

    housekeeping = Housekeeping({"sweep": Interval(job, 0.01)})
    with caplog.at_level(logging.WARNING, "sidecar.service.housekeeping"):
        housekeeping.start()
        assert runs.acquire(timeout=WAIT_S)
        assert runs.acquire(timeout=WAIT_S)
        housekeeping.stop()
        housekeeping.stop()
    assert any(record.__dict__.get("job") == "sweep" for record in caplog.records)


def test_a_job_never_runs_twice_at_a_time() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    other_ran = threading.Semaphore(0)

    def slow() -> None:
        begun.release()
        go_on.wait(WAIT_S)

    housekeeping = Housekeeping({"slow": Interval(slow, 0.01), "other": Interval(other_ran.release, 0.01)})
    housekeeping.start()
    for _ in range(10):
        assert other_ran.acquire(timeout=WAIT_S)
    assert begun.acquire(timeout=WAIT_S)
    assert not begun.acquire(blocking=False)
    housekeeping.stop()
    go_on.set()


def test_jobs_go_on_when_the_clock_is_set_back_or_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, runs = [timedelta(0)], threading.Semaphore(0)

    class Wall(datetime):
        """The wall clock as somebody sets it, shown in the zone that is asked for."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return (datetime.now(UTC) + moved[0]).astimezone(tz)

    monkeypatch.setattr(base, "datetime", Wall)
    housekeeping = Housekeeping({"soon": Interval(runs.release, 0.01)})
    housekeeping.start()
    for moved[0] in (timedelta(hours=-1), timedelta(days=20_000)):
        for _ in range(5):
            assert runs.acquire(timeout=WAIT_S)
    housekeeping.stop()


def test_jobs_keep_their_intervals_by_the_monotonic_clock() -> None:
    ahead_s = [0.0]
    often, seldom = threading.Semaphore(0), threading.Semaphore(0)
    jobs = {"often": Interval(often.release, 0.01), "seldom": Interval(seldom.release, 3_600)}
    housekeeping = Housekeeping(jobs, lambda: time.monotonic() + ahead_s[0])
    housekeeping.start()
    for _ in range(2):
        assert often.acquire(timeout=WAIT_S)
    assert not seldom.acquire(blocking=False)
    ahead_s[0] = 36_000.0
    assert seldom.acquire(timeout=WAIT_S)
    for _ in range(2):
        assert often.acquire(timeout=WAIT_S)
    assert not seldom.acquire(blocking=False), "what was missed is made up for by one run"
    housekeeping.stop()


def test_a_job_may_begin_at_once() -> None:
    ran = threading.Event()
    housekeeping = Housekeeping({"soon": Interval(ran.set, 3_600, at_once=True)})
    housekeeping.start()
    assert ran.wait(WAIT_S)
    housekeeping.stop()
