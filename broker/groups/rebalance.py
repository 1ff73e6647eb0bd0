"""A group's way from one generation to the next, and who is taken out of it on the way: what waits, and for how long.

prepare            members are told to join again; a DelayedJoin waits for all of them
joined             who has joined is the next generation; a DelayedSync waits for all to ask for their part
heartbeat expired  a member is gone; the others join again
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from broker.groups.group import Group, Member, answer_join, answer_sync
from broker.groups.store import GroupStore
from broker.groups.types import JoinResult, SyncResult
from purgatory.delayed.delayed_group import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    GroupJoinKey,
    GroupSnapshot,
    GroupState,
    GroupSyncKey,
    InitialDelayedJoin,
    MemberKey,
    MemberSnapshot,
    first_initial_join,
)
from purgatory.errors import Errors
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer.timer import DrivenTimer

CAN_REBALANCE = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)


class GroupRebalance:
    """The waits of all groups of a broker."""

    def __init__(self, store: GroupStore, make_timer: Callable[[], DrivenTimer]) -> None:
        self._store = store
        self._heartbeat: DelayedOperationPurgatory[DelayedHeartbeat] = DelayedOperationPurgatory(
            "Heartbeat", make_timer()
        )
        self._rebalance: DelayedOperationPurgatory[DelayedOperation] = DelayedOperationPurgatory(
            "Rebalance", make_timer()
        )

    @property
    def purgatories(self) -> tuple[DelayedOperationPurgatory[Any], ...]:
        """Purgatories that a driver has to bring forward."""
        return (self._heartbeat, self._rebalance)

    # Joining

    def maybe_prepare(self, group: Group) -> None:
        """Begin a rebalance unless there is one."""
        if group.state in CAN_REBALANCE:
            self.prepare(group)

    def prepare(self, group: Group) -> None:
        """All members have to join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.propagate(group, Errors.REBALANCE_IN_PROGRESS)
        group.pending_sync_members.clear()
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self._store.clock())
        self._rebalance.check_and_complete(GroupSyncKey(group.group_id))
        if not is_initial:
            self._await_join(group)
            return
        configured_ms = self._store.settings.initial_rebalance_delay_ms
        delays_ms = first_initial_join(configured_ms, group.rebalance_timeout_ms)
        self._watch_join(
            group,
            InitialDelayedJoin(
                _Joining(self, group), configured_ms, delays_ms, partial(self._watch_join, group), group.lock
            ),
        )

    def maybe_complete_join(self, group: Group) -> None:
        """Somebody has joined, or is not waited for any more."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.check_and_complete(GroupJoinKey(group.group_id))

    def complete_join(self, group: Group) -> None:
        """All have joined, or the time is over: who has not is out, static members excepted."""
        for member in list(group.members.values()):
            if member.answer_join is None and member.group_instance_id is None:
                self.forget(group, member)
        if group.state is GroupState.DEAD:
            return
        if not group.maybe_elect_new_joined_leader() and group.members:
            self._await_join(group)  # none of the static members that are left has come back yet
            return
        group.init_next_generation(self._store.clock())
        if group.state is GroupState.EMPTY:
            self._store.store_group(group, {}, lambda error: None)  # it is written again with whatever comes next
            return
        for member in list(group.members.values()):
            answer_join(member, group.join_result(member.member_id))
            self.schedule_heartbeat(group, member)
            member.is_new = False
            group.pending_sync_members.add(member.member_id)
        self._await_sync(group)

    def _await_join(self, group: Group) -> None:
        self._watch_join(group, DelayedJoin(_Joining(self, group), group.rebalance_timeout_ms, group.lock))

    def _watch_join(self, group: Group, join: DelayedJoin) -> None:
        self._rebalance.try_complete_else_watch(join, [GroupJoinKey(group.group_id)])

    # Syncing

    def synced(self, group: Group, member_id: str) -> None:
        """A member has asked for its part."""
        group.pending_sync_members.discard(member_id)
        self._rebalance.check_and_complete(GroupSyncKey(group.group_id))

    def propagate(self, group: Group, error: Errors) -> None:
        """Answer those who wait for their part. With an error nobody has one."""
        is_assigned = error is Errors.NONE
        for member in list(group.members.values()):
            if not is_assigned:
                member.assignment = b""
            protocol = (group.protocol_type, group.protocol_name) if is_assigned else (None, None)
            if answer_sync(member, SyncResult(error, *protocol, member.assignment)):
                # Its session may have ended while it waited, which did not count: it is watched again from now on.
                self.schedule_heartbeat(group, member)

    def _await_sync(self, group: Group) -> None:
        operation = DelayedSync(
            group.generation_id,
            group.rebalance_timeout_ms,
            group.snapshot,
            partial(self._sync_expired, group),
            group.lock,
        )
        self._rebalance.try_complete_else_watch(operation, [GroupSyncKey(group.group_id)])

    def _sync_expired(self, group: Group, generation_id: int) -> None:
        is_waiting = group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
        if generation_id != group.generation_id or not is_waiting or not group.pending_sync_members:
            return
        for member_id in list(group.pending_sync_members):
            member = group.members.get(member_id)
            if member is not None:
                self.forget(group, member)
        self.prepare(group)

    # Heartbeats

    def schedule_heartbeat(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """A sign of life: its session is watched again from now."""
        key = MemberKey(group.group_id, member.member_id)
        self._satisfy(member, key)
        look = partial(_look_at_member, group, member.member_id)
        expire = partial(self._session_ended, group, member.member_id)
        operation = DelayedHeartbeat(
            member.session_timeout_ms if timeout_ms is None else timeout_ms, look, expire, group.lock
        )
        self._heartbeat.try_complete_else_watch(operation, [key])

    def schedule_new_member(self, group: Group, member: Member) -> None:
        """Watch a member in its first join, as it can't send heartbeats: should it be gone, it isn't waited for so
        long.
        """
        self.schedule_heartbeat(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)

    def schedule_pending_member(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Someone was given an id: it has to join with it in time."""
        look = partial(_look_at_pending, group, member_id)
        expire = partial(self._session_ended, group, member_id)
        operation = DelayedHeartbeat(session_timeout_ms, look, expire, group.lock)
        self._heartbeat.try_complete_else_watch(operation, [MemberKey(group.group_id, member_id)])

    def pending_joined(self, group: Group, member_id: str) -> None:
        """Note that a member has joined with the id that it was given."""
        self._heartbeat.check_and_complete(MemberKey(group.group_id, member_id))

    def _satisfy(self, member: Member, key: MemberKey) -> None:
        member.heartbeat_satisfied = True
        self._heartbeat.check_and_complete(key)
        member.heartbeat_satisfied = False

    def _session_ended(self, group: Group, member_id: str) -> None:
        if group.state is GroupState.DEAD:
            return
        if member_id in group.pending_members:
            self.remove_pending(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.has_satisfied_heartbeat:
            self.remove_member(group, member)

    # Leaving

    def remove_member(self, group: Group, member: Member) -> None:
        """A member left, or is gone: the others rebalance."""
        self.forget(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group)
        else:
            self.maybe_complete_join(group)

    def remove_pending(self, group: Group, member_id: str) -> None:
        """Someone who was given an id will not join with it."""
        group.pending_members.discard(member_id)
        self.maybe_complete_join(group)

    def forget(self, group: Group, member: Member) -> None:
        """Take a member out. What it waits for ends: it is not known any more."""
        answer_join(member, JoinResult(Errors.UNKNOWN_MEMBER_ID, member.member_id))
        answer_sync(member, SyncResult(Errors.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        self._satisfy(member, MemberKey(group.group_id, member.member_id))

    def unload(self, group: Group) -> None:
        """Another broker has this group: who waits shall ask there."""
        for member in group.members.values():
            answer_join(member, JoinResult(Errors.NOT_COORDINATOR, member.member_id))
            answer_sync(member, SyncResult(Errors.NOT_COORDINATOR))
        group.pending_members.clear()
        self._rebalance.cancel_for_key(GroupJoinKey(group.group_id))
        self._rebalance.cancel_for_key(GroupSyncKey(group.group_id))
        for member_id in group.members:
            self._heartbeat.cancel_for_key(MemberKey(group.group_id, member_id))


class _Joining:
    """A group as its waiting join sees it: `JoinCoordinator`."""

    def __init__(self, rebalance: GroupRebalance, group: Group) -> None:
        self._rebalance = rebalance
        self._group = group

    def group(self) -> GroupSnapshot:
        return self._group.snapshot()

    def on_complete_join(self) -> None:
        self._rebalance.complete_join(self._group)

    def try_complete_actions(self) -> None:
        """Nothing to do: the coordinator's log appends in turns of its own, and looks after what they leave."""

    def take_new_member_added(self) -> bool:
        added, self._group.new_member_added = self._group.new_member_added, False
        return added


def _look_at_member(group: Group, member_id: str) -> MemberSnapshot:
    member = group.members.get(member_id)
    if member is None:
        return MemberSnapshot(group.state, has_member=False)
    return MemberSnapshot(group.state, heartbeat_satisfied=member.has_satisfied_heartbeat)


def _look_at_pending(group: Group, member_id: str) -> MemberSnapshot:
    return MemberSnapshot(group.state, is_pending=True, has_member=member_id in group.members)
