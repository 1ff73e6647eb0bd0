"""Requests of clients to a group coordinator, and its answers, free of any version of the protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition

UNKNOWN_MEMBER: Final = ""
NO_GENERATION: Final = -1
NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
NAME_MAX: Final = 8_000  # characters: in the log a name has at most 32,767 bytes, a member's id is longer than its name


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's settings of groups, with Kafka's defaults. Times are in ms."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 86_400_000
    offsets_partitions: int = 50


class Client(NamedTuple):
    """Sender of a request, for those who describe groups."""

    client_id: str
    client_host: str


class Protocol(NamedTuple):
    """A way to assign that a member offers, and its subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member wants to be in the next generation. Timeouts are in ms."""

    group_id: str
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None
    requires_known_member_id: bool = False  # version 4 on, for dynamic members
    supports_skipping_assignment: bool = False  # version 9 on


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """`members` are told to the leader only. `skip_assignment`: a leader that came back and need not assign."""

    error: Errors
    member_id: str = UNKNOWN_MEMBER
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = UNKNOWN_MEMBER
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class MemberClaim(NamedTuple):
    """Claim of a member: the group, generation and ids that it says are its own."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A member wants its part; the leader brings everyone's. Type and name are checked if given (version 5 on)."""

    claim: MemberClaim
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """A member's part."""

    error: Errors
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    """A member that leaves, or a static one that an administrator removes by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """An error for the whole request, or one for each member."""

    error: Errors
    members: tuple[tuple[LeavingMember, Errors], ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset as a group commits it. `appended_offset` is where that stands in the log: later ones win."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int | None = None  # of version 1 only
    appended_offset: int = -1


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """Offsets to be kept. A transactional one names its producer."""

    claim: MemberClaim
    offsets: Mapping[TopicPartition, CommittedOffset]
    producer_id: int = -1
    producer_epoch: int = -1
    transactional_id: str | None = None


class FetchedOffset(NamedTuple):
    """A committed offset as it is answered; -1 if there is none."""

    error: Errors = Errors.NONE
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as administrators see it. Metadata and assignment are those of a stable group."""

    member_id: str
    group_instance_id: str | None
    client: Client
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as administrators see it. One that isn't there is Dead."""

    error: Errors
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[DescribedMember] = ()
    message: str | None = None


class ListedGroup(NamedTuple):
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
