"""Jobs of every kind: a plan that never changes, how far it has come, and who asked for its end.

    planning -> planned -> canary -> canaried -> running -> done
                   |          |         |           |
                   +----------+---------+-----------+----> stopped (may run again), aborted

A job that somebody works on is *aborting* from the moment at which its end was asked for until the one who works on it,
or a successor that has fenced that one off, has written that it is aborted: only then nothing more is done by it.

A plan that can't be counted, as brokers have no transactions, is given up with a reason: nobody can write a progress.

Plan and progress are JSON in a topic of jobs (`job_log.py`). A job may leave out the canary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

MODEL: Final = ConfigDict(frozen=True, extra="ignore")

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
    """A plan with its progress, and who asked for its end."""

    model_config = MODEL
    plan: AnyPlan
    progress: AnyProgress
    aborted_by: str | None = None
    given_up: str = ""  # why, where nobody asked for it

    @property
    def state(self) -> State:
        """As everybody sees it."""
        return state_of(self.progress.state, self.aborted_by, self.given_up)

    def document_head(self) -> dict[str, Any]:
        """Fields that REST shows first of every job."""
        return {"id": self.plan.id, "state": self.state, "reason": self.progress.reason or self.given_up or None}

    def document_owner(self) -> dict[str, Any]:
        """Fields by which REST shows who wanted a job, and who works on it."""
        return {
            "author": self.plan.author,
            "created": self.plan.created_ms,
            "aborted_by": self.aborted_by,
            "updated": self.progress.updated_ms or None,
            "owner": self.progress.owner or None,
        }

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
    """The form of jobs that are made of these models: `job(plan=, progress=, aborted_by=, given_up=)`."""

    def planned(value: bytes) -> AnyJob | None:
        found = decoded(plan, value, newest)
        return None if found is None else job(plan=found)

    def progressed(known: AnyJob, value: bytes) -> AnyJob | None:
        found = decoded(progress, value, newest)
        if found is None:
            return None
        return job(plan=known.plan, progress=found, aborted_by=known.aborted_by, given_up=known.given_up)

    def aborted(known: AnyJob, author: str, given_up: str) -> AnyJob:
        return job(plan=known.plan, progress=known.progress, aborted_by=author, given_up=given_up)

    return Form(planned, progressed, aborted)


def summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Sums by name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
