"""A change: which held messages are meant and what becomes of them (the plan), how far it has come (the progress).

Meant is what is held under an offset before `ends`, and matches. A record held under an offset never changes, and what
is moved goes on under another: so what came later is not meant, nor what somebody has moved meanwhile, nor what this
change has moved itself.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictInt,
    model_serializer,
    model_validator,
)

from policies.decision import CANCEL, FIRE, RESCHEDULE
from policies.duration import TIME_MAX_MS
from sidecar.lookup.query import ALL, START, Key, Query, hashes_of
from sidecar.model.record import with_places
from sidecar.model.times import StoredTime, with_times
from sidecar.operations.jobs.job import MODEL, OF_PAYLOAD, Job, PlanHead, ProgressHead, State, form_of, summed

SCHEMA: Final = 1
SAMPLE_MAX: Final = 10
NAMES_MAX: Final = 200  # of targets, and of policies, that are counted apart
OTHERS: Final = "(others)"
WORD_LENGTH_MAX: Final = 1_024
IDS_MAX: Final = 10_000
IDS_BYTES_MAX: Final = 512 << 10  # of all together: a plan is one record of Kafka
TOKEN_LENGTH: Final = 16
HIDDEN: Final = "***"  # in place of what an answer or an audit record must not have
IN_THE_PAST: Final = "in_the_past"  # why a message isn't moved by a shift that would make it due long ago
DONE: Final = {CANCEL: "cancelled", RESCHEDULE: "rescheduled", FIRE: "fired"}

Counts = Mapping[str, int]
Word = Annotated[str, Field(min_length=1, max_length=WORD_LENGTH_MAX)]


class Selection(BaseModel):
    """Held messages that fit everything given, as `GET /v1/messages` takes it; `due_to` is excluded."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="MessageSelection")
    topic: Word | None = Field(
        default=None, description="The source, also given as `source`", validation_alias=AliasChoices("topic", "source")
    )
    partition: Annotated[StrictInt, Field(ge=0, lt=1 << 31)] | None = None
    policy: Word | None = Field(default=None, description="A name, or name@version")
    target: Word | None = None
    key_prefix: Word | None = Field(default=None, description="First characters of the key in UTF-8")
    error_class: Word | None = None
    due_from: StoredTime | None = Field(default=None, description="RFC 3339 or epoch milliseconds")
    due_to: StoredTime | None = Field(default=None, description="RFC 3339 or epoch milliseconds")
    id: Word | None = None
    header: Annotated[Word, Field(pattern=r"(?s)^[^=]+=")] | None = Field(
        default=None, description="name=value, of a header of the message"
    )
    ids: Annotated[tuple[Word, ...], Field(min_length=1, max_length=IDS_MAX)] | None = Field(
        default=None, description=f"Ids of the messages that are meant; at most {IDS_BYTES_MAX >> 10} KiB together"
    )

    @model_serializer(mode="wrap")
    def _without_nulls(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Older versions read plans, and refuse those with a field that they don't know, if only as null."""
        fields: dict[str, Any] = plain(self)
        return {name: value for name, value in fields.items() if value is not None}

    @model_validator(mode="after")
    def _not_too_long(self) -> "Selection":
        if sum(len(id.encode(errors="surrogatepass")) for id in self.ids or ()) > IDS_BYTES_MAX:
            raise ValueError(f"ids must have at most {IDS_BYTES_MAX} bytes together")
        return self

    @model_validator(mode="after")
    def _in_order(self) -> "Selection":
        if self.due_from is not None and self.due_to is not None and self.due_to <= self.due_from:
            raise ValueError("due_to must be later than due_from")
        return self

    @property
    def query(self) -> Query:
        """As look-ups ask. What they find by `ids` may be more than is meant (`Query.ids`)."""
        given = {_FIELDS.get(name, name): value for name, value in self.model_dump(exclude_none=True).items()}
        return Query(**given if self.ids is None else {**given, "ids": hashes_of(self.ids)})

    def shown(self) -> dict[str, Any]:
        """Selection for an answer or an audit record: it tells that keys are chosen by a prefix, or messages by a
        header, and not which; of ids, how many.
        """
        told = self.model_dump(exclude_none=True)
        told |= {name: HIDDEN for name in OF_PAYLOAD if name in told}
        return told if self.ids is None else {**told, "ids": len(self.ids)}

    @property
    def is_everything(self) -> bool:
        """Whether every held message fits."""
        query = self.query
        always = query.due_from_ms <= 0 and query.due_to_ms >= TIME_MAX_MS
        return always and query._replace(due_from_ms=ALL.due_from_ms, due_to_ms=ALL.due_to_ms) == ALL


_FIELDS: Final = {"due_from": "due_from_ms", "due_to": "due_to_ms"}


class When(BaseModel):
    """New due time of a reschedule, one of three: from now, at a time, or later (or earlier) than each was due."""

    model_config = MODEL
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    by_ms: int | None = None


class End(NamedTuple):
    """Of one source partition: the offset of the next record that was to be read when the plan was made."""

    topic: str
    partition: int
    offset: int


class ChangePlan(PlanHead):
    """Plan of a change: one action on the messages selected. `ttl_ms`: how long after it was counted it may be run.
    `topic_ids`: Kafka's, of the sources; a topic of the same name with another id isn't meant. Empty in plans of older
    versions. `past`: messages may be moved to more than a minute before this was asked for; older versions let them.
    """

    schema_version: int = SCHEMA
    action: Literal["cancel", "reschedule", "fire"]
    selection: Selection
    when: When = When()
    past: bool = True
    ends: tuple[End, ...]
    topic_ids: dict[str, str] = Field(default_factory=dict)
    rate: Annotated[int, Field(ge=0)]  # messages a second at most; 0: no limit
    ttl_ms: int


class Item(BaseModel):
    """One message that is meant."""

    model_config = MODEL
    id: str
    topic: str
    partition: int
    offset: int  # under which it is held
    due_ms: int
    target: str
    policy: str

    @property
    def place(self) -> tuple[str, int, int]:
        """Where it is held."""
        return self.topic, self.partition, self.offset

    def document(self) -> dict[str, Any]:
        """As REST shows it."""
        position = {"topic": self.topic, "partition": self.partition, "offset": self.offset}
        told = {"id": self.id, "source": self.topic, "due": self.due_ms, "target": self.target, "policy": self.policy}
        return with_places({**with_times(told, "due"), "position": position}, "position")


class Counted(BaseModel):
    """Count of the messages that a plan means. Of these `refused` would be, by reason, if the plan ran at once, and
    `overdue` were due already, so that they may leave before it comes to them. `skipped`: messages that match and are
    not meant, as they can't be changed, by reason.
    """

    model_config = MODEL
    messages: int = 0
    targets: dict[str, int] = {}
    policies: dict[str, int] = {}
    refused: dict[str, int] = {}
    overdue: int = 0
    skipped: dict[str, int] = {}
    sample: tuple[Item, ...] = ()

    def plus(self, items: list[Item], skipped: Counts, refused: Counts, overdue: int) -> "Counted":
        """New count, with more items, of which so many are refused and overdue, and more skipped messages."""
        targets, policies = dict(self.targets), dict(self.policies)
        for item in items:
            _count(targets, item.target)
            _count(policies, item.policy)
        return Counted(
            messages=self.messages + len(items),
            targets=targets,
            policies=policies,
            refused=summed(self.refused, refused),
            overdue=self.overdue + overdue,
            skipped=summed(self.skipped, skipped),
            sample=(*self.sample, *items[: SAMPLE_MAX - len(self.sample)]),
        )


class Progress(ProgressHead):
    """How far a change has come. `pending` is sent, or about to be, and its outcome not written yet."""

    schema_version: int = SCHEMA
    planned: Counted = Counted()
    planned_ms: int = -1  # when it was counted
    at: Key = START  # while planning: counted up to here; then: changed up to here
    pending: tuple[Item, ...] = ()
    outcomes: dict[str, int] = Field(default_factory=dict)
    receipts_from: int = -1  # the first offset where receipts may be


class Change(Job[ChangePlan, Progress]):
    """A plan with its progress, and who asked for its end."""

    progress: Progress = Progress()

    @property
    def token(self) -> str | None:
        """Token that a run has to name: it stands for the plan and its count. None while the plan is being counted.

        Processes of older versions say the same token: it is made of what they know.
        """
        if self.progress.planned_ms < 0:
            return None
        counted = self.progress.planned.model_dump(exclude={"refused", "overdue"})
        said = [self.plan.id, self.progress.planned_ms, counted]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:TOKEN_LENGTH]

    @property
    def expires_ms(self) -> int | None:
        """Until then it may be run."""
        return None if self.progress.planned_ms < 0 else self.progress.planned_ms + self.plan.ttl_ms

    def document(self) -> dict[str, Any]:
        """As REST shows it."""
        plan, progress = self.plan, self.progress
        left = max(progress.planned.messages - sum(progress.outcomes.values()), 0)
        ended = self.state in (State.DONE, State.ABORTED)
        when = {name.removesuffix("_ms"): value for name, value in plan.when.model_dump(exclude_none=True).items()}
        told = {
            **self.document_head(),
            "action": plan.action,
            **when,
            "filter": with_times(plan.selection.shown(), "due_from", "due_to"),
            **self.document_owner(),
            "limits": {"rate": plan.rate},
            "planned": {
                **progress.planned.model_dump(exclude={"sample"}),
                "sample": [item.document() for item in progress.planned.sample],
            },
            "token": self.token,
            "expires": self.expires_ms,
            "outcomes": progress.outcomes,
            "pending": len(progress.pending),
            "remaining": 0 if ended else left,
            "gone": left if self.state is State.DONE else None,
        }
        return with_times(told, "deliver_at", "expires")


def _count(counts: dict[str, int], name: str) -> None:
    name = name if name in counts or len(counts) < NAMES_MAX else OTHERS
    counts[name] = counts.get(name, 0) + 1


FORM: Final = form_of(ChangePlan, Progress, Change, SCHEMA)
