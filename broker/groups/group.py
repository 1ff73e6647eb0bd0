"""A consumer group: its members, its state, its generation.

    Empty               no members, perhaps offsets         -> PreparingRebalance, Dead
    PreparingRebalance  waits for all members to join       -> CompletingRebalance, Empty, Dead
    CompletingRebalance waits for the leader's assignment   -> Stable, PreparingRebalance, Dead
    Stable              every member has its part           -> PreparingRebalance, Dead
    Dead                forgotten, or moved to another broker

No timers and no log here: `group_rebalance` and `group_store` have them.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from broker.groups.consumer_protocol import subscribed_topics
from broker.groups.offsets import GroupOffsets
from broker.groups.types import Client, JoinedMember, JoinResult, LeavingMember, Protocol, SyncResult
from purgatory.delayed.delayed_group import GroupSnapshot, GroupState
from purgatory.errors import ApiError, Errors
from purgatory.locks import Rank, monitor

CONSUMER: Final = "consumer"

_FORMER: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


@dataclass(slots=True)
class Member:
    """A member. What it waits for is answered once by the function that stands here."""

    member_id: str
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    group_instance_id: str | None = None
    assignment: bytes = b""
    is_new: bool = False  # it waits in its first join, and doesn't know its id: it can't send heartbeats
    heartbeat_satisfied: bool = False
    answer_join: Callable[[JoinResult], None] | None = None
    answer_sync: Callable[[SyncResult], None] | None = None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the member is alive: in a join or sync it is, but a new one may be gone without our knowing."""
        if self.is_new:
            return self.heartbeat_satisfied
        return self.answer_join is not None or self.answer_sync is not None or self.heartbeat_satisfied

    def metadata_of(self, protocol_name: str | None) -> bytes:
        """The member's subscription for a protocol."""
        return next((one.metadata for one in self.protocols if one.name == protocol_name), b"")


class Group:
    """One group. `lock` is what its waiting operations share; one thread uses it all."""

    def __init__(self, group_id: str, now_ms: float = -1) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp = int(now_ms)
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.pending_members: set[str] = set()  # given an id, not joined yet
        self.pending_sync_members: set[str] = set()
        self.is_initial_rebalance = False  # it had no members before this rebalance
        self.new_member_added = False
        self.offsets = GroupOffsets()
        self.lock = monitor(Rank.OPERATION)

    def transition_to(self, state: GroupState, now_ms: float) -> None:
        """Go into another state."""
        assert self.state in _FORMER[state], f"{state.value} after {self.state.value}"
        self.is_initial_rebalance = self.state is GroupState.EMPTY and state is GroupState.PREPARING_REBALANCE
        self.state = state
        self.state_timestamp = int(now_ms)

    def snapshot(self) -> GroupSnapshot:
        """Snapshot that waiting operations decide by."""
        joined = sum(member.answer_join is not None for member in self.members.values())
        has_joined = joined >= len(self.members) and not self.pending_members
        return GroupSnapshot(self.state, self.generation_id, has_joined, not self.pending_sync_members)

    # Members

    def add(self, member: Member, protocol_type: str) -> None:
        """The first one is the leader until a rebalance finds another."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.pending_members.discard(member.member_id)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> None:
        """Forget a member. Whoever waits for it is answered by the caller, before."""
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_members.discard(member_id)
        self.pending_sync_members.discard(member_id)

    def replace_static_member(self, group_instance_id: str, new_id: str) -> Member:
        """A static member has come again: what its former self waits for ends as fenced."""
        old_id = self.static_members[group_instance_id]
        member = self.members.pop(old_id)
        answer_join(member, JoinResult(Errors.FENCED_INSTANCE_ID, old_id))
        answer_sync(member, SyncResult(Errors.FENCED_INSTANCE_ID))
        member.member_id = new_id
        self.members[new_id] = member
        self.static_members[group_instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync_members:
            self.pending_sync_members.discard(old_id)
            self.pending_sync_members.add(new_id)
        return member

    def check_member(self, member_id: str, group_instance_id: str | None) -> None:
        """FENCED_INSTANCE_ID or UNKNOWN_MEMBER_ID unless this is a member of now."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise ApiError(Errors.UNKNOWN_MEMBER_ID, "there is no such static member")
            if current != member_id:
                raise ApiError(Errors.FENCED_INSTANCE_ID, "another one has taken this instance id")
        if member_id not in self.members:
            raise ApiError(Errors.UNKNOWN_MEMBER_ID, "there is no such member")

    def find_leaving(self, leaving: LeavingMember) -> Member:
        """Whom a request to leave means. ApiError as of `check_member`."""
        if leaving.group_instance_id is not None and not leaving.member_id:
            current = self.static_members.get(leaving.group_instance_id)
            if current is None:
                raise ApiError(Errors.UNKNOWN_MEMBER_ID, "there is no such static member")
            return self.members[current]
        self.check_member(leaving.member_id, leaving.group_instance_id)
        return self.members[leaving.member_id]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Members as the leader is told of them, to assign by."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata_of(self.protocol_name))
            for member in self.members.values()
        )

    # Protocols

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a member that offers these may join."""
        if not self.members:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and any(name in self._candidates() for name in names)

    def select_protocol(self) -> str:
        """Each member votes for the first it offers that all have; the most votes win."""
        candidates = self._candidates()
        votes = Counter(
            next(one.name for one in member.protocols if one.name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def subscribed_topics(self) -> set[str] | None:
        """Topics that members consume; None if what they sent can't be read, so that it may be any."""
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata_of(self.protocol_name))
            if found is None:
                return None
            topics |= found
        return topics

    def _candidates(self) -> set[str]:
        offered = [{one.name for one in member.protocols} for member in self.members.values()]
        return set.intersection(*offered) if offered else set()

    # Generations

    def maybe_elect_new_joined_leader(self) -> bool:
        """Whether the leader is one who has joined again."""
        leader = self.members.get(self.leader_id or "")
        if leader is None:
            return False
        if leader.answer_join is None:
            joined = (member.member_id for member in self.members.values() if member.answer_join is not None)
            found = next(joined, None)
            if found is None:
                return False
            self.leader_id = found
        return True

    def init_next_generation(self, now_ms: float) -> None:
        """Begin the next generation, which is all members of now; without any the group is empty."""
        self.generation_id += 1
        self.pending_sync_members.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)

    def join_result(self, member_id: str, *, with_members: bool = True) -> JoinResult:
        """Answer to the join of a member of this generation."""
        is_leader = member_id == self.leader_id
        return JoinResult(
            Errors.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader_id or "",
            self.joined_members() if is_leader and with_members else (),
        )


def answer_join(member: Member, result: JoinResult) -> None:
    """Answer, if it waits."""
    answer, member.answer_join = member.answer_join, None
    if answer is not None:
        answer(result)


def answer_sync(member: Member, result: SyncResult) -> bool:
    """Answer, if it waits. Whether it did."""
    answer, member.answer_sync = member.answer_sync, None
    if answer is not None:
        answer(result)
    return answer is not None
