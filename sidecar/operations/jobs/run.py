"""The work on one job by one process.

Crash-only. To begin is to take over: the plan's producer fences off whoever came before, then the progress is read past
everything that is in the topic, and the work goes on from there. A failure that nobody understands ends in the same
place: begin anew.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from confluent_kafka import KafkaException

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.jobs.job import AnyJob, JobLog, State
from sidecar.operations.jobs.transactional_sender import NoTransactions, ShipmentFailed, TakenOver, TransactionalSender

AUTHOR: Final = "tickover"  # of an end that nobody has asked for
FAILURES_MAX: Final = 5  # in a row; then the lease runs out, and somebody tries again later

log = logging.getLogger("tickover.jobs")


class Work(Protocol):
    """One attempt: what is in memory between two crashes."""

    shipping: TransactionalSender

    def go_on(self) -> None: ...

    def close(self) -> None: ...


AnyWork = TypeVar("AnyWork", bound=Work)


@dataclass(frozen=True, slots=True)
class RunContext(Generic[AnyJob, AnyWork]):
    """Parts for legs of a kind: `transactional_id` of a plan, `work` for one attempt, `wait` to sleep (True: stop)."""

    client: Mapping[str, Any]
    log: JobLog[AnyJob]
    transactional_id: Callable[[str], str]
    work: Callable[[AnyJob, TransactionalSender], AnyWork]
    wait: Callable[[float], bool]


class JobRun(Generic[AnyJob, AnyWork]):
    """`run` returns when the leg has ended, was taken over, or the process stops."""

    def __init__(
        self, plan_id: str, begin: Callable[[AnyWork], None] | None, stage: RunContext[AnyJob, AnyWork]
    ) -> None:
        """`begin` writes that a new leg has begun; None: go on with what somebody began."""
        self._plan_id = plan_id
        self._begin = begin
        self._stage = stage
        self.problem = ""  # why nothing can come of it; empty: nothing is known to be in the way
        self.begun = threading.Event()  # set when the leg stands in the log, or never will

    def run(self) -> None:
        try:
            self._run()
        finally:
            self.begun.set()

    def _run(self) -> None:
        failures = 0
        while failures < FAILURES_MAX:
            try:
                self._attempt()
                return
            except TakenOver:
                log.info("a job was taken over", extra={"plan": self._plan_id})
                return
            except NoTransactions as error:
                self.problem = str(error)
                log.error("a job can't be worked on", extra={"plan": self._plan_id, "error": self.problem})
                self._give_up(self.problem)
                return
            except (ShipmentFailed, LogUnavailable, KafkaException) as error:
                failures += 1
                log.warning("a job begins anew", extra={"plan": self._plan_id, "error": str(error)})
                if self._stage.wait(min(2**failures, 10)):
                    return
        log.error("a job is given up for now", extra={"plan": self._plan_id})

    def _give_up(self, reason: str) -> None:
        """End a plan that was still being counted: nothing was sent. Any other job waits for what is in the way."""
        job = self._stage.log.get(self._plan_id)
        if job is None or job.progress.state is not State.PLANNING or job.aborted_by is not None:
            return
        try:
            self._stage.log.write_abort(self._plan_id, AUTHOR, reason)
        except LogUnavailable as error:
            log.warning("a plan can't be ended now", extra={"plan": self._plan_id, "error": str(error)})

    def _attempt(self) -> None:
        stage = self._stage
        shipping = TransactionalSender(stage.client, stage.transactional_id(self._plan_id), stage.log.topic)
        try:
            shipping.init()
            stage.log.catch_up()
            job = stage.log.get(self._plan_id)
            if job is None:
                raise LogUnavailable("the plan is gone")
            if self._begin is not None and job.is_too_old(stage.log.now_ms()):  # it stood still since it was asked for
                log.warning("a job was not begun in time", extra={"plan": self._plan_id})
                return
            work = stage.work(job, shipping)
            try:
                if self._begin is not None:
                    self._begin(work)
                    self._begin = None
                stage.log.catch_up()
                self.begun.set()
                work.go_on()
            finally:
                shipping = work.shipping
                work.close()
        finally:
            shipping.close()
