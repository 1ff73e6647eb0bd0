"""Conditions that keep records waiting: what a process knows of itself, and as it is told of a late record."""

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


OF_PARTITIONS: Final = frozenset((Kind.RUNNING, Kind.RECOVERING, Kind.REVOKED, Kind.REBUILD, Kind.ORDER))
OF_TARGETS: Final = frozenset((Kind.BREAKER, Kind.RATE, Kind.SUSPENDED))
SAMPLE_MS: Final = 1_000  # between two looks at what the engine publishes: so exact are begin and end
WAIT_MIN_MS: Final = 1_000  # a queue whose first record has waited less is no condition: it is the usual way


class Subject(NamedTuple):
    """A kind, and what it is of: a partition, a target (partition -1), or the process ("" and -1)."""

    kind: Kind
    topic: str = ""
    partition: int = -1


class Condition(NamedTuple):
    """A condition as of a snapshot. `since_ms`: epoch ms at which it began, -1 where the engine doesn't know."""

    subject: Subject
    since_ms: int = -1
