"""The in-sync replicas: what is committed, what is proposed, and what the controller says about it."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from purgatory.errors import Errors


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The ISR as the controller has committed it, and a proposal that it has not answered yet.

    The high watermark waits for the *maximal* ISR: with an expansion in flight the new member counts already, with a
    shrink in flight the leaving one counts still. Whichever the controller decided, nothing committed is lost.
    """

    isr: frozenset[int]
    proposed: frozenset[int] | None = None

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All who may be in the ISR, whatever the answer is."""
        return self.isr if self.proposed is None else self.isr | self.proposed

    @property
    def is_in_flight(self) -> bool:
        """Whether a proposal is open. There is at most one."""
        return self.proposed is not None


@dataclass(frozen=True, slots=True)
class PartitionAssignment:
    """Assignment of a partition by the controller. `leader_id` is -1 when there is none."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A proposal to the controller. `isr` has (broker id, its epoch or -1), by id."""

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReply:
    """The controller's answer: an error, or the state that holds now."""

    error: Errors = Errors.NONE
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: frozenset[int] = frozenset()


class AlterOutcome(Enum):
    """Consequence for the leader of an answer to its proposal."""

    APPLIED = "the ISR is as answered"
    IGNORED = "about a state that is no longer"
    ROLLED_BACK = "the ISR stays as it was committed"
    KEPT = "the proposal stays open until new metadata comes"
    RETRY = "send it again"


ROLL_BACK = frozenset({Errors.INELIGIBLE_REPLICA, Errors.OPERATION_NOT_ATTEMPTED})
KEEP = frozenset(
    {
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.UNKNOWN_TOPIC_ID,
        Errors.FENCED_LEADER_EPOCH,
        Errors.INVALID_UPDATE_VERSION,
        Errors.INVALID_REQUEST,
        Errors.NEW_LEADER_ELECTED,
    }
)


class ClusterMetadata(Protocol):
    """Facts that a broker knows about the others."""

    def is_eligible(self, broker_id: int) -> bool:
        """Alive, neither fenced nor shutting down: may be in an ISR."""

    def is_alive(self, broker_id: int) -> bool:
        """Registered and not fenced: counts for the low watermark."""

    def broker_epoch(self, broker_id: int) -> int | None:
        """The epoch of its registration, None if it has none."""


def outcome_of(error: Errors) -> AlterOutcome:
    """Outcome of a proposal that was answered with an error."""
    if error in ROLL_BACK:
        return AlterOutcome.ROLLED_BACK
    return AlterOutcome.KEPT if error in KEEP else AlterOutcome.RETRY
