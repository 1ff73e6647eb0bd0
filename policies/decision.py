"""Facts that a decision depends on, and the decisions that there are."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple


class Repeated(Enum):
    """The place of a value for a control header that was given more than once."""

    REPEATED = "repeated"


REPEATED: Final = Repeated.REPEATED

Control = bytes | None | Repeated

# Why a record is quarantined (contract, `tickover-reason`); the engine finds some of them.
BAD_HEADER: Final = "bad_header"
NO_POLICY: Final = "no_policy"
TARGET_NOT_ALLOWED: Final = "target_not_allowed"
UNKNOWN_TARGET: Final = "unknown_target"
TOO_LARGE: Final = "too_large"
TOO_MANY_HEADERS: Final = "too_many_headers"
TOO_FAR: Final = "too_far"
LOOP: Final = "loop"
BAD_TIMESTAMP: Final = "bad_timestamp"
QUOTA_EXCEEDED: Final = "quota_exceeded"
QUARANTINE_REASONS: Final = frozenset(
    {BAD_HEADER, NO_POLICY, TARGET_NOT_ALLOWED, UNKNOWN_TARGET, TOO_LARGE, TOO_MANY_HEADERS, TOO_FAR, LOOP}
    | {BAD_TIMESTAMP, QUOTA_EXCEEDED}
)

# What a control record asks for (contract, `tickover-action`).
CANCEL: Final = "cancel"
RESCHEDULE: Final = "reschedule"
FIRE: Final = "fire"

# Why a record is dead.
ATTEMPTS_EXHAUSTED: Final = "attempts_exhausted"
NOT_RETRYABLE: Final = "not_retryable"
ORDER_FULL: Final = "order_full"
TIMEOUT: Final = "timeout"
EXPIRED: Final = "expired"
DEAD_REASONS: Final = frozenset({ATTEMPTS_EXHAUSTED, NOT_RETRYABLE, ORDER_FULL, TIMEOUT, EXPIRED})


class Facts(NamedTuple):
    """All that a decision may depend on: no clock, no random number."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int  # -1 when the record has none
    headers: Sequence[tuple[str, bytes | None]]  # the user's own
    controls: Mapping[str, Control]  # tickover's, by full name
    arrived_ms: int = -1  # when it was read, where its timestamp is of quite another time; -1: the timestamp says it


class Hold(NamedTuple):
    """Emit the record when it is due."""

    due_ms: int
    target: str
    target_partition: int  # -1: by key
    policy: str  # name@version; the same object for all records of one policy version and topic
    attempt: int  # the number the emitted record will carry; 0: a delay policy
    first_failure_ms: int  # -1: a delay policy
    expires_ms: int  # -1: never
    dead_letter: str  # the topic for a record that expires while it is held
    id: str | None


class Dead(NamedTuple):
    """Give the record up: to the dead-letter topic, now."""

    reason: str
    topic: str  # the dead-letter topic
    policy: str
    attempt: int  # the one that failed; 0: a delay policy
    first_failure_ms: int  # -1: a delay policy
    id: str | None
    due_ms: int  # the record's timestamp
    target: str = ""  # of a retry: where it failed
    fires_ms: int = -1  # when it would have fired, if it is given up for that; -1: nothing was due


class Quarantine(NamedTuple):
    """Set the record aside: nothing sensible can be done with it. The detail never shows a header's value."""

    reason: str
    detail: str


class Act(NamedTuple):
    """Do something with the held record of this id: the record at hand is a control record."""

    action: str  # CANCEL, RESCHEDULE or FIRE
    id: str
    due_ms: int  # of a reschedule; -1 for others
    policy: str  # name@version
    at_ms: int  # the control record's timestamp
    if_offset: int  # acts on the record held under this offset alone; -1: on whichever is held with the id


Decision = Hold | Dead | Quarantine | Act


class Refusal(Exception):
    """Ends a decision early; becomes a Quarantine."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
