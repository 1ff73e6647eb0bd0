"""Work on jobs by several processes: which jobs this one works on, and who goes on with those of one that ended.

A process that dies leaves its jobs active; they have a lease, and whoever sees it run out goes on with them.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol

from policies.retention import JOBS_KEPT_MS
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.jobs.job import OTHER, SCHEMA_WITH_APPROVAL, AnyJob, Approval, PlanHead, State

LEASE_MS: Final = 15_000
SUPERVISED_S: Final = 2.0
LEGS_MAX: Final = 4
BEGIN_S: Final = 20.0
STOP_S: Final = 5.0
PLANS_MAX: Final = 1_000
PLAN_BYTES_MAX: Final = 512 << 10  # it names each partition, and the progress has up to three numbers of each

log = logging.getLogger("tickover.jobs")


class JobRefused(Exception):
    """`type` is the last step of a problem's URI."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(detail)
        self.type = type


class Jobs(Protocol[AnyJob]):
    """A topic of jobs (`job.JobLog`)."""

    def all(self) -> dict[str, AnyJob]: ...

    def get(self, plan_id: str) -> AnyJob | None: ...

    def write_plan(self, plan: PlanHead) -> AnyJob: ...

    def write_abort(self, plan_id: str, author: str, given_up: str = "") -> None: ...

    def write_approval(self, plan_id: str, author: str) -> None: ...

    def catch_up(self) -> None: ...

    def now_ms(self) -> int: ...


class Heard(NamedTuple):
    """The last sign of work on a job: by the clock of who gave it, and when it was first seen here, by this one's."""

    said_ms: int
    heard_ms: int


class Work(Protocol):
    """One leg (`leg.Leg`)."""

    begun: threading.Event

    @property
    def problem(self) -> str: ...

    def run(self) -> None: ...


class JobRunner(Generic[AnyJob]):
    """`noun` is what people call such a job; `go_on(plan_id)` makes a leg that goes on with what somebody began.
    `approval`: by whom plans are to be approved that are made, or are to begin, in this process.

    Methods raise JobRefused and LogUnavailable. They block: not for an event loop.
    """

    def __init__(
        self, noun: str, jobs: Jobs[AnyJob], owner: str, go_on: Callable[[str], Work], approval: Approval = "none"
    ) -> None:
        self.noun = noun
        self.jobs = jobs
        self._approval = approval
        self._owner = owner
        self._go_on = go_on
        self._legs: dict[str, threading.Thread] = {}
        self._ended_ms: dict[str, int] = {}  # by job: when a leg of this life ended
        self._written_ms: dict[str, int] = {}  # by job: when its plan was written again
        self._heard: dict[str, Heard] = {}  # of those that are active
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name=f"{noun}s", daemon=True)

    def start(self) -> None:
        """Take over what others have left, from now on. Twice is harmless."""
        if not self._supervisor.is_alive():
            self._supervisor.start()

    def stop(self) -> None:
        """End all work. Jobs under way stay as they are, for whoever goes on with them. Twice is harmless."""
        self._stopping.set()
        for thread in [*self._legs.values(), self._supervisor]:
            if thread.is_alive():
                thread.join(STOP_S)

    def wait(self, seconds: float) -> bool:
        """Sleep; True when everything is to stop."""
        return self._stopping.wait(seconds)

    # --- what is asked for ----------------------------------------------------------------------------------------

    def all(self) -> list[AnyJob]:
        """The jobs of the last 30 days, and older ones that somebody works on; the newest first."""
        since_ms = self.jobs.now_ms() - JOBS_KEPT_MS
        kept = [job for job in self.jobs.all().values() if job.plan.created_ms >= since_ms or job.state.is_active]
        return sorted(kept, key=lambda job: (-job.plan.created_ms, job.plan.id))

    def get(self, plan_id: str) -> AnyJob:
        """Another replica's job, too: what is not known is looked for up to the topic's end."""
        job = self.jobs.get(plan_id)
        if job is None:
            self.jobs.catch_up()
            job = self.jobs.get(plan_id)
        if job is None:
            raise JobRefused(f"{self.noun}-not-found", f"There is no {self.noun} of this id.")
        return job

    def plan(self, plan: PlanHead) -> AnyJob:
        """Write a plan down and begin to count."""
        self._refuse_when_busy()
        if len(self.all()) >= PLANS_MAX:
            detail = f"There are {PLANS_MAX} {self.noun}s; the oldest go after 30 days."
            raise JobRefused(f"too-many-{self.noun}s", detail)
        if self._approval == OTHER:
            plan = plan.model_copy(update={"approval": OTHER, "schema_version": SCHEMA_WITH_APPROVAL})
        size = len(plan.model_dump_json().encode())
        if size > PLAN_BYTES_MAX:
            detail = f"It names all its partitions in {size} bytes, and may have {PLAN_BYTES_MAX}: plan topic by topic."
            raise JobRefused(f"{self.noun}-too-large", detail)
        self.jobs.write_plan(plan)
        self.begin(plan.id, self._go_on(plan.id))
        return self.get(plan.id)

    def startable(self, plan_id: str) -> AnyJob:
        """The job, if a canary or a run may begin."""
        job = self.get(plan_id)
        leg = self._legs.get(plan_id)
        if leg is not None and not job.state.is_active:
            leg.join(STOP_S)  # it has ended, and closes its clients
        if plan_id in self._legs or job.state.is_active:
            raise JobRefused(f"{self.noun}-active", f"The {self.noun} is {job.state} already.")
        if not job.state.may_start:
            raise JobRefused(f"{self.noun}-ended", f"The {self.noun} is {job.state}: plan a new one.")
        if job.is_too_old(self.jobs.now_ms()):
            detail = f"The {self.noun} was planned more than 29 days ago, and is forgotten after 30: plan a new one."
            raise JobRefused(f"{self.noun}-ended", detail)
        self._refuse_unapproved(job)
        return job

    def _refuse_unapproved(self, job: AnyJob) -> None:
        """Also a plan that was made while nobody had to approve: the settings of now count, too."""
        if OTHER not in (self._approval, job.plan.approval):
            return
        if job.approved_by is None:
            self.jobs.catch_up()  # it may have been approved by way of another replica, a moment ago
            job = self.get(job.plan.id)
        if job.approved_by is None:
            detail = f"It waits for approval by somebody other than {job.plan.author}, who planned it."
            raise JobRefused("approval-needed", detail)

    def approve(self, plan_id: str, author: str) -> AnyJob:
        """Let it begin, as somebody other than who planned it; its count is there by then. It counts for every canary
        and run of this plan. Approved already: nothing changes.
        """
        job = self.get(plan_id)
        if job.state is State.PLANNING:
            raise JobRefused(f"{self.noun}-active", f"The {self.noun} is being counted: see first what it means.")
        if not job.state.may_start:
            raise JobRefused(f"{self.noun}-ended", f"The {self.noun} is {job.state} already.")
        if author == job.plan.author:
            raise JobRefused("own-plan", f"{author} has planned it, and somebody else has to approve it.")
        if job.approved_by is None:
            self.jobs.write_approval(plan_id, author)
        return self.get(plan_id)

    def abort(self, plan_id: str, author: str) -> AnyJob:
        """Ask for its end. Once the state is `aborted` no more is done by this plan; what was done stays done.

        While it is `aborting` whoever works on it may still do a little: what was under way.
        """
        job = self.get(plan_id)
        if job.state is State.ABORTING:
            return job
        if not job.state.is_active and not job.state.may_start:
            raise JobRefused(f"{self.noun}-ended", f"The {self.noun} is {job.state} already.")
        self.jobs.write_abort(plan_id, author)
        return self.get(plan_id)

    def begin(self, plan_id: str, work: Work) -> None:
        """Returns when the leg stands in the log, or has ended. JobRefused where nothing can come of it, but for a plan
        that says so itself.
        """
        with self._changing:
            if plan_id in self._legs:
                raise JobRefused(f"{self.noun}-active", f"The {self.noun} is being started already.")
            self._refuse_when_busy()
            thread = threading.Thread(target=self._work, args=(plan_id, work), name=self.noun, daemon=True)
            self._legs[plan_id] = thread
        thread.start()
        work.begun.wait(BEGIN_S)
        if work.problem and self.get(plan_id).state is not State.ABORTED:
            raise JobRefused("transactions-unsupported", f"{work.problem}.")

    def _refuse_when_busy(self) -> None:
        if len(self._legs) >= LEGS_MAX:
            raise JobRefused(f"{self.noun}s-busy", f"{LEGS_MAX} {self.noun}s are under way in this process.")

    def works_on(self, plan_id: str) -> bool:
        """Whether a thread of this process does."""
        return plan_id in self._legs

    # --- parts ----------------------------------------------------------------------------------------------------

    def _work(self, plan_id: str, work: Work) -> None:
        try:
            work.run()
        except Exception as error:
            extra = {"plan": plan_id, "error": type(error).__name__}
            log.error("a %s failed", self.noun, extra=extra, exc_info=error)
        finally:
            with self._changing:
                self._ended_ms[plan_id] = self.jobs.now_ms()
                del self._legs[plan_id]

    def _supervise(self) -> None:
        while not self._stopping.wait(SUPERVISED_S):
            self.supervise()

    def supervise(self) -> None:
        """One look: plans of long jobs are written again, and what others have left is gone on with."""
        self._repeat_plans(list(self._legs))
        abandoned = self.abandoned()
        self._repeat_plans(abandoned)  # before they are begun: this process may end before its next look
        for plan_id in abandoned:
            log.info("going on with a %s that nobody works on", self.noun, extra={"plan": plan_id})
            try:
                self.begin(plan_id, self._go_on(plan_id))
            except (JobRefused, LogUnavailable) as error:
                log.warning("not now", extra={"plan": plan_id, "error": str(error)})

    def _repeat_plans(self, plan_ids: Sequence[str]) -> None:
        """Plans of what is under way for long are written again, before the topic forgets them."""
        now_ms = self.jobs.now_ms()
        for plan_id in plan_ids:
            job = self.jobs.get(plan_id)
            if job is None or now_ms - self._written_ms.get(plan_id, job.plan.created_ms) < JOBS_KEPT_MS // 4:
                continue
            try:
                self.jobs.catch_up()
                job = self.jobs.get(plan_id)
                if job is None or not job.state.is_active:
                    continue  # a successor has ended it: once its progress has expired, the plan alone would begin anew
                self.jobs.write_plan(job.plan)
                self._written_ms[plan_id] = now_ms
            except LogUnavailable as error:
                log.warning("a plan can't be written again now", extra={"plan": plan_id, "error": str(error)})

    def abandoned(self) -> list[str]:
        """Jobs whose lease has run out, and our own of a former life."""
        now_ms = self.jobs.now_ms()
        active = {plan_id: job for plan_id, job in self.jobs.all().items() if job.state.is_active}
        self._heard = {plan_id: self._hear(plan_id, job, now_ms) for plan_id, job in active.items()}
        return [
            plan_id
            for plan_id, job in active.items()
            if plan_id not in self._legs
            and (self._is_of_a_former_life(plan_id, job) or now_ms - self._seen_ms(plan_id) > LEASE_MS)
        ]

    def _is_of_a_former_life(self, plan_id: str, job: AnyJob) -> bool:
        return job.progress.owner == self._owner and plan_id not in self._ended_ms

    def _hear(self, plan_id: str, job: AnyJob, now_ms: int) -> Heard:
        said_ms = max(job.progress.updated_ms, job.plan.created_ms)
        known = self._heard.get(plan_id)
        if known is None or known.said_ms != said_ms or known.heard_ms > now_ms:
            return Heard(said_ms, now_ms)
        return known

    def _seen_ms(self, plan_id: str) -> int:
        """When somebody was seen working on it: never later than when that was heard, as clocks may be ahead. A leg of
        ours that has ended counts: whoever took it over may need a while until the progress says so, and two that take
        it from each other at once would never come to anything.
        """
        return max(min(self._heard[plan_id]), self._ended_ms.get(plan_id, 0))


def owner_of(instance_id: str) -> str:
    """The name of this process in the progress of its jobs: the same after a restart where the settings name it."""
    return instance_id or f"{socket.gethostname()}-{os.getpid()}"
