"""Interfaces of the rest of the process that the API needs: small ones, given to `create_app` in one `Ports`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from api.access.gate import Gate
from api.lookup import LookUp
from policies.model import ManagedBy, Policy, Removed, Versioned
from policies.table import PolicyTable
from sidecar.conditions.attribution import Recorded
from sidecar.doctor.facts import Examined
from sidecar.lookup.receipts import Receipts
from sidecar.model.condition import Pausable, Pause, Subject, Switch
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.model.stats import Left, Stats
from sidecar.operations.bulk.changes import Changes
from sidecar.operations.dead_letters.reading import Reading
from sidecar.operations.dead_letters.redrive_plan import Governor
from sidecar.operations.dead_letters.redrives import Redrives
from sidecar.operations.dead_letters.resending import Resending
from sidecar.operations.schedules.owing import Limits as ScheduleLimits
from sidecar.operations.schedules.schedule import Entry, Schedule
from sidecar.operations.schedules.schedule_book import Known
from sidecar.overview.seen import Seen
from sidecar.settings.settings import Settings


class Policies(Protocol):
    """The policy topic (`policies.topic.store.PolicyStore`). Calls block; the API makes them in threads."""

    @property
    def table(self) -> PolicyTable: ...

    @property
    def healthy(self) -> bool: ...

    @property
    def reason(self) -> str: ...

    def put(self, policy: Policy, expected_version: int, author: str, managed_by: ManagedBy) -> Versioned: ...

    def delete(self, name: str, expected_version: int, author: str, managed_by: ManagedBy) -> Removed: ...

    def versions(self, name: str) -> Sequence[Versioned | Removed]: ...


class Sources(Protocol):
    """Topics that the group consumes (`sidecar.service.sources.Sources`)."""

    @property
    def reserved(self) -> ReservedTopics:
        """Topics that are never a source and never a target: tickover's own, and Kafka's."""

    @property
    def topics(self) -> Collection[str]:
        """Topics that are consumed, as last seen, and are sources by the policies of now."""

    def is_source(self, topic: str) -> bool:
        """The topic is a source now, be it since a moment ago. Blocks, and raises LookUpUnavailable."""

    def would_leave(self, policies: Sequence[Policy]) -> Mapping[str, Left]:
        """Under these policies: the topics that would be sources no more, and what is held of each. Blocks, and raises
        LookUpUnavailable.
        """


class Conditions(Protocol):
    """Conditions that kept records waiting, as recorded (`sidecar.conditions.recorder.ConditionRecorder`)."""

    def recorded(self, since_ms: int, subjects: Collection[Subject]) -> Recorded:
        """Conditions of these subjects that reach beyond `since_ms`, epoch ms. Blocks; raises nothing: `problem` says
        what may lack.
        """


class Schedules(Protocol):
    """The topic of schedules (`sidecar.operations.schedules.store.ScheduleStore`). Writes block: the API makes them in
    threads.

    They raise what that module defines.
    """

    def get(self, name: str) -> Known: ...

    def alive(self) -> Mapping[str, Known]: ...

    def unread(self) -> Mapping[str, Known]: ...

    def unwritten(self) -> frozenset[str]: ...

    def put(self, schedule: Schedule, source: str, expected: int, author: str) -> Entry: ...

    def rewind(self, name: str, to_ms: int, expected: int, author: str) -> Entry: ...

    def delete(self, name: str, expected: int, author: str) -> None: ...


class Group(Protocol):
    """All processes of the group (`sidecar.overview.group_overview.GroupOverview`)."""

    def look(self) -> Seen:
        """All of them as of now. Blocks, and raises nothing."""


class Outgoing(NamedTuple):
    """A record for a source topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Acknowledged(NamedTuple):
    """Where Kafka put it; `timestamp_ms` is the broker's where the topic says so."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class SenderError(Exception):
    """A record was not acknowledged."""


class SenderRefused(SenderError):
    """Kafka will never take this record."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class SenderUnavailable(SenderError):
    """Kafka did not answer; whether it has the record is unknown."""


class Sender(Protocol):
    """Kafka, as the API writes to it (`api.sender.KafkaSender`)."""

    async def send(self, record: Outgoing) -> Acknowledged: ...

    async def partition_count(self, topic: str) -> int | None: ...


class Fresh(NamedTuple):
    """Go on: nobody has answered this key. `timestamp_ms` is the time of the first try, to be used again; `holder` is
    the name of the lease.
    """

    timestamp_ms: int
    holder: str


class Answered(NamedTuple):
    """The key has its answer."""

    response: bytes


class Busy(NamedTuple):
    """An equal request is under way under the key, here or on another replica."""


class Mismatch(NamedTuple):
    """The key was used for another body."""


class IdempotencyUnavailable(Exception):
    """The store can't be asked; without it a promise of once can't be given."""


class Idempotency(Protocol):
    """Answers by key, shared by all replicas (`api.idempotency.RedisIdempotency`).

    All raise `IdempotencyUnavailable`.
    """

    async def begin(self, key: str, fingerprint: bytes, now_ms: int) -> Fresh | Answered | Busy | Mismatch: ...

    async def finish(self, key: str, holder: str, response: bytes) -> None:
        """The answer to every later try. Does nothing when the lease is somebody else's by now, or there is one."""

    async def release(self, key: str, holder: str) -> None:
        """The try failed and may have reached Kafka: the same body may try again at once, another may not.

        Does nothing when the lease is somebody else's by now, or there is an answer.
        """

    async def forget(self, key: str, holder: str) -> None:
        """The try was refused before anything was sent: the key is free. Does nothing, as `release`."""


class About(Protocol):
    """How this process is set, and what is wrong around it (`sidecar.doctor.about.About`)."""

    @property
    def settings(self) -> Settings:
        """Settings in force now."""

    async def examine(self) -> Examined:
        """All findings, not older than half a minute. Raises nothing: what can't be looked at is one of them."""


class Pauses(Protocol):
    """Pauses as all replicas know them (`sidecar.operations.pauses.store.PauseStore`)."""

    def alive(self) -> Mapping[Pausable, Pause]: ...

    def put(self, paused: Pausable, pause: Pause) -> None: ...

    def remove(self, paused: Pausable) -> bool: ...

    def switch_breaker(self, target: str, switch: Switch, by: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what one request may ask for."""

    body_bytes: int = 1 << 20
    headers: int = 1_000
    header_bytes: int = 256 << 10
    turn_age_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything `create_app` works with. Clocks are arguments: epoch milliseconds and monotonic seconds."""

    policies: Policies
    stats: Callable[[], Stats]
    sender: Sender
    audit_sender: Sender
    audit_topic: str
    idempotency: Idempotency
    receipts: Receipts
    lookup: LookUp
    conditions: Conditions
    letters: Reading
    redrives: Redrives
    governor: Governor
    changes: Changes
    change_rate: int  # messages a second where a plan says nothing; 0: no limit
    schedules: Schedules
    schedule_limits: ScheduleLimits
    metrics: Callable[[], bytes]
    gate: Gate
    now_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    sources: Sources
    about: About
    group: Group  # all processes of it, at a glance
    resending: Resending
    pauses: Pauses
    limits: Limits = Limits()
    path: str = ""  # under which a proxy shows the API
