"""A consumer group's waits: members that join, members that wait for their assignment, heartbeats.

These operations share the group's lock: their check looks at the group, and their completion changes it. What
completing means is the coordinator's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from purgatory.locks import Monitor
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.versions import LATEST, KafkaVersion

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000  # a new member's heartbeat while its group rebalances


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Key of a waiting heartbeat."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class GroupJoinKey:
    """Key of a waiting join. Joins and syncs of a group wait in one purgatory: equal names must not be equal keys."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupSyncKey:
    """Key of a waiting sync."""

    group_id: str


class GroupState(Enum):
    """Where a group stands."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as its waiting operations see it."""

    state: GroupState
    generation_id: int = 0
    has_all_members_joined: bool = False  # every known member has asked to join, and no pending one is missing
    has_received_sync_from_all_members: bool = False


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as its heartbeat sees it. A pending member has an id, but has not joined with it yet."""

    group_state: GroupState
    is_pending: bool = False  # this is the heartbeat of a pending member
    has_member: bool = True
    heartbeat_satisfied: bool = False  # it waits in a join or sync, or has just sent a heartbeat


def decide_join(group: GroupSnapshot) -> bool:
    """Whether the next generation can be made."""
    return group.has_all_members_joined


def decide_sync(generation_id: int, group: GroupSnapshot) -> bool:
    """Whether a sync is over: all have synced, or its generation is."""
    if group.generation_id != generation_id:
        return True
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        return True
    return group.has_received_sync_from_all_members


def decide_heartbeat(member: MemberSnapshot) -> bool:
    """Whether a session need not be watched any more, or again from now."""
    if member.group_state is GroupState.DEAD:
        return True
    if member.is_pending:
        return member.has_member  # it has joined
    return not member.has_member or member.heartbeat_satisfied


def extend_initial_join(configured_delay_ms: int, remaining_ms: int) -> tuple[int, int]:
    """The next delay of a first join to which new members came, and what then remains of the rebalance timeout."""
    delay_ms = min(configured_delay_ms, remaining_ms)
    return delay_ms, max(remaining_ms - delay_ms, 0)


def first_initial_join(configured_delay_ms: int, rebalance_timeout_ms: int) -> tuple[int, int]:
    """The first delay, and what then remains. The delay counts even if it is longer than the rebalance timeout."""
    return configured_delay_ms, max(rebalance_timeout_ms - configured_delay_ms, 0)


class JoinCoordinator(Protocol):
    """The coordinator as a join needs it. All calls are under the group's lock."""

    def group(self) -> GroupSnapshot:
        """The group now."""

    def on_complete_join(self) -> None:
        """Make the next generation of those who have joined; dynamic members who have not are out. Without a leader
        among those left, wait again with a new DelayedJoin."""

    def try_complete_actions(self) -> None:
        """Drain the action queue: a join that appends does so from the timer, behind which nobody drains."""

    def take_new_member_added(self) -> bool:
        """Whether a member has come since this was asked last."""


class DelayedJoin(DelayedOperation):
    """Waits until all members have joined again, for the rebalance timeout. Both ends are the same."""

    def __init__(
        self, coordinator: JoinCoordinator, rebalance_timeout_ms: int, lock: Monitor, version: KafkaVersion = LATEST
    ) -> None:
        super().__init__(rebalance_timeout_ms, lock, version)
        self.coordinator = coordinator

    def try_complete(self) -> bool:
        """Have all joined?"""
        return decide_join(self.coordinator.group()) and self.force_complete()

    def on_complete(self) -> None:
        """Make the next generation."""
        with self.lock:
            self.coordinator.on_complete_join()

    def on_expiration(self) -> None:
        """Drain the action queue for what completing has appended: behind the timer nobody else does."""
        self.coordinator.try_complete_actions()


class InitialDelayedJoin(DelayedJoin):
    """The first join of an empty group: it waits its time, and longer as long as members come.

    `watch_again(join)` puts the next wait into the purgatory.
    """

    def __init__(
        self,
        coordinator: JoinCoordinator,
        configured_delay_ms: int,
        delay_and_remaining_ms: tuple[int, int],
        watch_again: Callable[["InitialDelayedJoin"], object],
        lock: Monitor,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(coordinator, delay_and_remaining_ms[0], lock, version)
        self.remaining_ms = delay_and_remaining_ms[1]
        self._configured_delay_ms = configured_delay_ms
        self._watch_again = watch_again
        self._version = version

    def try_complete(self) -> bool:
        """Never: there may always come one more."""
        return False

    def on_complete(self) -> None:
        """Wait again if somebody came and time remains, otherwise make the first generation."""
        with self.lock:
            if self.remaining_ms and self.coordinator.take_new_member_added():
                delays_ms = extend_initial_join(self._configured_delay_ms, self.remaining_ms)
                self._watch_again(
                    InitialDelayedJoin(
                        self.coordinator,
                        self._configured_delay_ms,
                        delays_ms,
                        self._watch_again,
                        self.lock,
                        self._version,
                    )
                )
            else:
                self.coordinator.on_complete_join()


class DelayedSync(DelayedOperation):
    """Waits until all members of a generation have asked for their assignment. `expire` removes who has not, and
    starts a rebalance."""

    def __init__(
        self,
        generation_id: int,
        rebalance_timeout_ms: int,
        look: Callable[[], GroupSnapshot],
        expire: Callable[[int], None],
        lock: Monitor,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(rebalance_timeout_ms, lock, version)
        self.generation_id = generation_id
        self._look = look
        self._expire = expire

    def try_complete(self) -> bool:
        """Have all synced, or is the generation over?"""
        return decide_sync(self.generation_id, self._look()) and self.force_complete()

    def on_complete(self) -> None:
        """Each member is answered when the leader's assignment comes, not here."""

    def on_expiration(self) -> None:
        """Somebody has not synced."""
        with self.lock:
            self._expire(self.generation_id)


class DelayedHeartbeat(DelayedOperation):
    """Waits for a member's next sign of life. `expire` removes the member; a rebalance may follow."""

    def __init__(
        self,
        timeout_ms: int,
        look: Callable[[], MemberSnapshot],
        expire: Callable[[], None],
        lock: Monitor,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(timeout_ms, lock, version)
        self._look = look
        self._expire = expire

    def try_complete(self) -> bool:
        """Has it given one, or is it gone?"""
        return decide_heartbeat(self._look()) and self.force_complete()

    def on_complete(self) -> None:
        """The next heartbeat is watched by whoever received this one."""

    def on_expiration(self) -> None:
        """Expire the member: its session is over."""
        with self.lock:
            self._expire()
