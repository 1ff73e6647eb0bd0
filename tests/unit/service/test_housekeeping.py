import logging
import threading

import pytest

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


def test_a_job_may_begin_at_once() -> None:
    ran = threading.Event()
    housekeeping = Housekeeping({"soon": Interval(ran.set, 3_600, at_once=True)})
    housekeeping.start()
    assert ran.wait(WAIT_S)
    housekeeping.stop()
