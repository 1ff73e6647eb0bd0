"""Conditions that keep records waiting: what a process knows of itself, and as it is told of a late record. And pauses,
which somebody has made, and since when. Times are epoch milliseconds.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Kind(StrEnum):
    """Kinds of conditions. The values are public: answers of REST have them."""

    RUNNING = "running"  # a partition is owned and served: keeps nothing waiting, but says who had it
    RECOVERING = "recovering"
    REVOKED = "revoked"  # a partition was let go of in order: told for a while, only its begin has a meaning
    REBUILD = "rebuild"
    REDIS = "redis"
    KAFKA = "kafka"
    STALLED = "stalled"
    BREAKER = "breaker"
    RATE = "rate"
    SUSPENDED = "suspended"
    ORDER = "order"
    SETTLE = "settle"
    PAUSED = "paused"
    TARGET_PAUSED = "target_paused"
    POLICY_PAUSED = "policy_paused"
    SOURCE_PAUSED = "source_paused"


OF_PARTITIONS: Final = frozenset((Kind.RUNNING, Kind.RECOVERING, Kind.REVOKED, Kind.REBUILD, Kind.ORDER))
OF_TARGETS: Final = frozenset((Kind.BREAKER, Kind.RATE, Kind.SUSPENDED, Kind.TARGET_PAUSED))
OF_POLICIES: Final = frozenset((Kind.POLICY_PAUSED,))
OF_SOURCES: Final = frozenset((Kind.SOURCE_PAUSED,))
# What a cause of lateness means, for people.
CAUSES: Final[Mapping[str, str]] = {
    "settle": "handed over, until it was a fact in the ledger",
    "revoked": "its replica had let go of its partition in order, and no other had it yet",
    "unowned": "no replica had its partition",
    "recovering": "a replica was taking its partition over",
    "stalled": "the process did not run",
    "kafka": "Kafka did not answer as it should",
    "rebuild": "what Redis lost of its partition was being written again",
    "redis": "Redis did not answer",
    "breaker": "its target's circuit breaker held retries up",
    "rate": "waited for its target's rate",
    "suspended": "its target did not acknowledge",
    "order": "records of its partition waited behind others of their key",
    "paused": "the process read nothing more: its limits were reached",
    "target_paused": "its target was paused",
    "policy_paused": "its policy was paused",
    "source_paused": "its source was paused: nothing new was read",
    "unaccounted": "nothing that is recorded",
    "not_recorded": "not recorded",
}
SAMPLE_MS: Final = 1_000  # between two looks at what the engine publishes: so exact are begin and end
WAIT_MIN_MS: Final = 1_000  # a queue whose first record has waited less is no condition: it is the usual way


class Subject(NamedTuple):
    """A kind, and what it is of: a partition, or (partition -1) a target, a source, a policy by its name in place of a
    topic, or the process ("").
    """

    kind: Kind
    topic: str = ""
    partition: int = -1


class Condition(NamedTuple):
    """A condition as of a snapshot. `since_ms`: epoch ms at which it began, -1 where the engine doesn't know."""

    subject: Subject
    since_ms: int = -1


class PauseKind(StrEnum):
    """Kinds of what can be paused. The values are public: paths of REST have them."""

    POLICY = "policy"
    SOURCE = "source"
    TARGET = "target"
    SCHEDULE = "schedule"


class Pausable(NamedTuple):
    """A thing that can be paused: a policy or a schedule by its name, a source or a target by its topic."""

    kind: PauseKind
    name: str


class Pause(NamedTuple):
    """Why, by whom and since when something is paused, and until when: -1 until somebody resumes it."""

    reason: str
    by: str
    since_ms: int
    until_ms: int = -1

    def is_over(self, now_ms: int) -> bool:
        """Whether its time has passed."""
        return 0 <= self.until_ms <= now_ms


class Switch(NamedTuple):
    """A breaker opened or closed by hand, and when, by the clock of the replica that was asked."""

    opens: bool
    at_ms: int


Pauses = Mapping[Pausable, Pause]
NO_PAUSES: Final[Pauses] = MappingProxyType({})
Switches = Mapping[str, Switch]  # the last of each target's breaker
NO_SWITCHES: Final[Switches] = MappingProxyType({})


def in_force(pauses: Pauses, now_ms: int) -> frozenset[Pausable]:
    """All that is paused at this time."""
    return frozenset(one for one, pause in pauses.items() if not pause.is_over(now_ms))
