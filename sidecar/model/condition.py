"""Conditions that keep records waiting: what a process knows of itself, and as it is told of a late record."""

from collections.abc import Mapping
from enum import StrEnum
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
