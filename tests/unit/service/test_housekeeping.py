import logging
import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from apscheduler.schedulers import base

from sidecar.service.housekeeping import LATER_THREADS_MAX, Housekeeping, Interval
from tests.services.waiting import wait_until

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


def test_jobs_that_hang_hold_up_no_job_of_the_start() -> None:
    go_on, runs = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        go_on.wait(WAIT_S)

    hanging = {f"hangs-{n}": Interval(hang, 0.01) for n in range(LATER_THREADS_MAX + 1)}
    housekeeping = Housekeeping({"first": Interval(runs.release, 0.01)})
    housekeeping.start()
    housekeeping.add(hanging)
    wait_until(lambda: _threads_of_housekeeping() > LATER_THREADS_MAX, WAIT_S)
    while runs.acquire(blocking=False):
        pass
    for _ in range(5):
        assert runs.acquire(timeout=WAIT_S)
    go_on.set()
    housekeeping.stop()


def test_jobs_that_are_removed_run_no_more_and_the_others_do() -> None:
    first, later, gone = (threading.Semaphore(0) for _ in range(3))
    housekeeping = Housekeeping({"first": Interval(first.release, 0.01)})
    housekeeping.start()
    housekeeping.add({"later": Interval(later.release, 0.01), "gone": Interval(gone.release, 0.01)})
    assert gone.acquire(timeout=WAIT_S)
    housekeeping.remove(["gone"])
    while gone.acquire(blocking=False):
        pass
    for runs in (first, later):
        for _ in range(5):
            assert runs.acquire(timeout=WAIT_S)
    more = sum(iter(lambda: gone.acquire(blocking=False), False))
    assert more <= 1, "one may have been under way"
    housekeeping.stop()


def test_jobs_of_one_interval_share_a_thread() -> None:
    """Each that began at the same moment would have one of its own."""
    ran_in: set[str] = set()
    done = threading.Semaphore(0)

    def job() -> None:
        ran_in.add(threading.current_thread().name)
        done.release()

    housekeeping = Housekeeping({})
    housekeeping.start()
    housekeeping.add({f"job-{n}": Interval(job, 0.5) for n in range(8)})
    for _ in range(8):
        assert done.acquire(timeout=WAIT_S)
    housekeeping.stop()
    assert len(ran_in) < 8


def _threads_of_housekeeping() -> int:
    return sum(thread.name.startswith("housekeeping") for thread in threading.enumerate())
