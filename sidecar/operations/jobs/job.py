"""Jobs of every kind: a plan that never changes, how far it has come, and who asked for its end.

    planning -> planned -> canary -> canaried -> running -> done
                   |          |         |           |
                   +----------+---------+-----------+----> stopped (may run again), aborted

A job that somebody works on is *aborting* from the moment at which its end was asked for until the one who works on it,
or a successor that has fenced that one off, has written that it is aborted: only then nothing more is done by it.

A plan with approval `other` begins only when somebody else than its author has approved it.

A plan that can't be counted, as brokers have no transactions, is given up with a reason: nobody can write a progress.

Plan and progress are JSON in a topic of jobs, read by every replica (`JobLog`). A job may leave out the canary.

Partition 0 of the topic, compacted. Keys are `<plan id>/plan`, `/progress`, `/abort` and `/approval`, values JSON. All
but the progress are written by the process that was asked; a progress only within the transactions of the process that
does the work, so that a process that was taken over can't write one. The plan of a job that takes long is written again
(`runner.py`), and compaction leaves the last of each key. So what is said of a job may stand before its plan: it waits
for that.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.retention import JOBS_KEPT_MS
from sidecar.kafka.topic_follower import LogUnavailable, TopicFollower, TopicReader
from sidecar.model.times import with_times
from sidecar.operations.jobs.log_writer import LogWriter

MODEL: Final = ConfigDict(frozen=True, extra="ignore")

OTHER: Final = "other"
BEGUN_WITHIN_MS: Final = JOBS_KEPT_MS - 86_400_000  # of its plan: what is begun later might be forgotten meanwhile
OF_PAYLOAD: Final = ("key_prefix", "header")  # words of a plan's selection that who may only read must not see
SCHEMA_WITH_APPROVAL: Final = 2  # of plans of any kind: a program that knows of no approval must not begin one

Approval = Literal["none", "other"]  # by whom a plan is to be approved before it begins: nobody, or another person
Model = TypeVar("Model", bound=BaseModel)


class State(StrEnum):
    """Where a job stands."""

    PLANNING = "planning"
    PLANNED = "planned"
    CANARY = "canary"
    CANARIED = "canaried"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    ABORTING = "aborting"  # seen, never written
    ABORTED = "aborted"

    @property
    def is_active(self) -> bool:
        """Whether somebody works on it."""
        return self in (State.PLANNING, State.CANARY, State.RUNNING, State.ABORTING)

    @property
    def may_start(self) -> bool:
        """Whether a canary or a run may begin."""
        return self in (State.PLANNED, State.CANARIED, State.STOPPED)


class PlanHead(BaseModel):
    """Fields that every plan begins with. `schema_version` is of its kind."""

    model_config = MODEL
    schema_version: int = 1
    id: str
    author: str
    created_ms: int
    approval: Approval = "none"  # as the settings said when it was made


class ProgressHead(BaseModel):
    """Fields that every progress begins with. `schema_version` is of its kind."""

    model_config = MODEL
    schema_version: int = 1
    state: State = State.PLANNING
    reason: str = ""  # why it waits, or has stopped
    owner: str = ""
    updated_ms: int = 0


AnyPlan = TypeVar("AnyPlan", bound=PlanHead)
AnyProgress = TypeVar("AnyProgress", bound=ProgressHead)


class Job(BaseModel, Generic[AnyPlan, AnyProgress]):
    """A plan with its progress, who approved it, and who asked for its end."""

    model_config = MODEL
    plan: AnyPlan
    progress: AnyProgress
    approved_by: str | None = None
    approved_ms: int = 0
    aborted_by: str | None = None
    given_up: str = ""  # why, where nobody asked for it

    @property
    def state(self) -> State:
        """As everybody sees it."""
        return state_of(self.progress.state, self.aborted_by, self.given_up)

    @property
    def waits_for(self) -> str:
        """The person without whom it can't begin, in words; empty: it waits for nobody, or is past that."""
        waits = self.plan.approval == OTHER and self.approved_by is None
        is_open = self.state is State.PLANNING or self.state.may_start
        return f"approval by somebody other than {self.plan.author}" if waits and is_open else ""

    def is_too_old(self, now_ms: int) -> bool:
        """Whether the topic might forget its plan while it runs, were it begun now."""
        return now_ms - self.plan.created_ms > BEGUN_WITHIN_MS

    def document_head(self) -> dict[str, Any]:
        """Fields that REST shows first of every job."""
        return {"id": self.plan.id, "state": self.state, "reason": self.progress.reason or self.given_up or None}

    def document_owner(self) -> dict[str, Any]:
        """Fields by which REST shows who wanted a job, and who works on it."""
        told = {
            "author": self.plan.author,
            "created": self.plan.created_ms,
            "approval": self.plan.approval,
            "waits_for": self.waits_for or None,
            "approved_by": self.approved_by,
            "approved": self.approved_ms or None,
            "aborted_by": self.aborted_by,
            "updated": self.progress.updated_ms or None,
            "owner": self.progress.owner or None,
        }
        return with_times(told, "created", "approved", "updated")

    def document(self) -> dict[str, Any]:
        """All that REST shows; each kind of job adds its own fields."""
        return {**self.document_head(), **self.document_owner()}


AnyJob = TypeVar("AnyJob", bound=Job[Any, Any])


@dataclass(frozen=True, slots=True)
class Form(Generic[AnyJob]):
    """Readers of a topic's records, by kind. None: nothing that this version understands; it is passed over."""

    planned: Callable[[bytes], AnyJob | None]
    progressed: Callable[[AnyJob, bytes], AnyJob | None]
    aborted: Callable[[AnyJob, str, str], AnyJob]  # by whom, and why it was given up
    approved: Callable[[AnyJob, str, int], AnyJob]  # by whom, and when


def state_of(state: State, aborted_by: str | None, given_up: str = "") -> State:
    """As everybody sees it, where `state` is what the progress says. `given_up`: why its count never ends.

    Nobody works on a job whose progress is not active: an end that was asked for is there at once. Whoever begins later
    reads the request before anything is done.
    """
    if aborted_by is None or state in (State.DONE, State.ABORTED):
        return state
    return State.ABORTING if state.is_active and not (given_up and state is State.PLANNING) else State.ABORTED


def decoded(model: type[Model], value: bytes, newest: int) -> Model | None:
    """Decode a record; None when it isn't of this model, or is of a newer version than `newest` (`schema_version`)."""
    try:
        found = model.model_validate_json(value)
    except ValidationError:
        return None
    version: int = getattr(found, "schema_version")  # noqa: B009 - of all that is written
    return found if version <= newest else None


def form_of(plan: type[BaseModel], progress: type[BaseModel], job: Callable[..., AnyJob], newest: int) -> Form[AnyJob]:
    """The form of jobs that are made of these models: `job(plan=)`."""

    def planned(value: bytes) -> AnyJob | None:
        found = decoded(plan, value, max(newest, SCHEMA_WITH_APPROVAL))
        return None if found is None else job(plan=found)

    def progressed(known: AnyJob, value: bytes) -> AnyJob | None:
        found = decoded(progress, value, newest)
        return None if found is None else known.model_copy(update={"progress": found})

    def aborted(known: AnyJob, author: str, given_up: str) -> AnyJob:
        return known.model_copy(update={"aborted_by": author, "given_up": given_up})

    def approved(known: AnyJob, author: str, time_ms: int) -> AnyJob:
        return known.model_copy(update={"approved_by": author, "approved_ms": time_ms})

    return Form(planned, progressed, aborted, approved)


def summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Sums by name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


EARLY_MAX: Final = 1_000  # jobs of which something is known before their plan is


def progress_key(plan_id: str) -> bytes:
    """The key of a plan's progress."""
    return f"{plan_id}/progress".encode()


class JobLog(Generic[AnyJob]):
    """Follows the topic, by the reader of all topics of its process. Methods raise LogUnavailable."""

    def __init__(self, reader: TopicReader, topic: str, form: Form[AnyJob]) -> None:
        self.topic = topic
        self._form = form
        self._jobs: dict[str, AnyJob] = {}
        self._early: dict[str, dict[str, bytes]] = {}  # by plan, then kind: what was said before the plan was known
        self._follower = TopicFollower(reader, topic, self._apply)
        self._changed = self._follower.changed
        self._writer = LogWriter(reader.client, topic, self._follower.wait_for)
        self.start = self._follower.start
        self.stop = self._follower.stop
        self.catch_up = self._follower.catch_up
        self.take = self._follower.take

    def all(self) -> dict[str, AnyJob]:
        """Every job by its plan's id, as far as this process has read."""
        with self._changed:
            return dict(self._jobs)

    def get(self, plan_id: str) -> AnyJob | None:
        with self._changed:
            return self._jobs.get(plan_id)

    def write_plan(self, plan: PlanHead) -> AnyJob:
        """Returns when this process has read it back."""
        self._writer.write(f"{plan.id}/plan".encode(), plan.model_dump_json().encode())
        job = self.get(plan.id)
        if job is None:
            raise LogUnavailable("the plan could not be read back")
        return job

    def write_abort(self, plan_id: str, author: str, given_up: str = "") -> None:
        """Ask whoever works on it to end; `given_up`: say why nobody can."""
        said = {"author": author, **({"given_up": given_up} if given_up else {})}
        self._writer.write(f"{plan_id}/abort".encode(), json.dumps(said).encode())

    def write_approval(self, plan_id: str, author: str) -> None:
        """Let a plan begin that waits for it. Returns when this process has read it back."""
        said = {"author": author, "time": self.now_ms()}
        self._writer.write(f"{plan_id}/approval".encode(), json.dumps(said).encode())

    def _apply(self, key: bytes, value: bytes, _appended_ms: int) -> None:
        """Garbage, and what a newer version wrote, is passed over."""
        plan_id, _, kind = key.decode(errors="replace").rpartition("/")
        job = self._jobs.get(plan_id)
        if job is not None:
            self._jobs[plan_id] = self._told(job, kind, value)
        elif kind == "plan":
            fresh = self._form.planned(value)
            if fresh is not None and fresh.plan.id == plan_id:
                for early, said in self._early.pop(plan_id, {}).items():
                    fresh = self._told(fresh, early, said)
                self._jobs[plan_id] = fresh
                self._forget_before(fresh.plan.created_ms - JOBS_KEPT_MS)
        elif kind in ("progress", "abort", "approval"):
            self._keep_early(plan_id, kind, value)

    def _told(self, job: AnyJob, kind: str, value: bytes) -> AnyJob:
        """The job, with what a record says of it."""
        match kind:
            case "progress":
                return self._form.progressed(job, value) or job
            case "abort":
                return self._form.aborted(job, *_end(value))
            case "approval":
                given = _approval(value)
                if given is None or given.author == job.plan.author:
                    return job
                return self._form.approved(job, given.author, given.time)
            case _:
                return job

    def _keep_early(self, plan_id: str, kind: str, value: bytes) -> None:
        """The last words about so many jobs: of most the plan is gone for good."""
        self._early[plan_id] = {**self._early.pop(plan_id, {}), kind: value}
        if len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def _forget_before(self, created_ms: int) -> None:
        """The topic forgets after so long, too. What somebody works on is known for as long as that takes."""
        jobs = self._jobs.items()
        self._jobs = {id: job for id, job in jobs if job.plan.created_ms >= created_ms or job.state.is_active}

    def now_ms(self) -> int:
        """Time by the clock of this machine, epoch milliseconds: leases are judged by it."""
        return time.time_ns() // 1_000_000


class _Approval(BaseModel):
    """Approval of a plan, as its record says it."""

    model_config = MODEL
    author: str = Field(min_length=1)
    time: int = Field(ge=0)  # epoch ms


def _approval(value: bytes) -> _Approval | None:
    """The approval that a record is; None: it is none."""
    try:
        return _Approval.model_validate_json(value)
    except ValidationError:
        return None


def _end(value: bytes) -> tuple[str, str]:
    """The author of an abort, and why the job was given up."""
    try:
        said = json.loads(value)
        author, given_up = said["author"], said.get("given_up", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "?", ""
    return author if isinstance(author, str) else "?", given_up if isinstance(given_up, str) else ""
