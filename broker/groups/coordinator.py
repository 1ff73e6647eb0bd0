"""Groups as their members see them: join, sync, heartbeat, leave. Kafka's classic protocol.

Answers are given to functions, once, at once or when the others have come. All in one thread: a request's function is
called by the event loop, and so are the timers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker.groups.group import Group, Member, answer_join
from broker.groups.rebalance import GroupRebalance
from broker.groups.store import GroupStore
from broker.groups.types import (
    NAME_MAX,
    UNKNOWN_MEMBER,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    MemberClaim,
    SyncRequest,
    SyncResult,
)
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import ApiError, Errors

AnswerJoin = Callable[[JoinResult], None]
AnswerSync = Callable[[SyncResult], None]


class GroupCoordinator:
    """The members of all groups of a broker. `new_id` makes what is unique in a member's id."""

    def __init__(self, store: GroupStore, rebalance: GroupRebalance, new_id: Callable[[], str]) -> None:
        self._store = store
        self._rebalance = rebalance
        self._new_id = new_id

    def on_loaded(self, group: Group) -> None:
        """A group was read from the log: its members have to give a sign of life."""
        for member in group.members.values():
            self._rebalance.schedule_heartbeat(group, member)

    # Join

    def join(self, request: JoinRequest, answer: AnswerJoin) -> None:
        """Be in the next generation. `answer` is called when it is there, or at once with an error."""
        try:
            self._join(request, answer)
        except ApiError as error:
            answer(JoinResult(error.error, request.member_id))

    def _join(self, request: JoinRequest, answer: AnswerJoin) -> None:
        self._store.check(request.group_id)
        settings = self._store.settings
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise ApiError(Errors.INVALID_SESSION_TIMEOUT, "the session timeout is out of range")
        names = (request.client.client_id, request.group_instance_id or "", request.protocol_type)
        if max(map(len, (*names, *(one.name for one in request.protocols)))) > NAME_MAX:
            raise ApiError(Errors.INVALID_REQUEST, "a name does not fit into the log")
        is_new = request.member_id == UNKNOWN_MEMBER
        if not is_new and request.group_id not in self._store.groups:
            raise ApiError(Errors.UNKNOWN_MEMBER_ID, "there is no such group")
        is_known = request.group_id in self._store.groups
        group = self._store.get_or_create(request.group_id)
        try:
            self._check_room(group, request.member_id)
            if not group.supports(request.protocol_type, [one.name for one in request.protocols]):
                raise ApiError(Errors.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all members have")
            if is_new:
                self._join_new(group, request, answer)
            else:
                self._join_current(group, request, answer)
        except ApiError:
            if not is_known:
                del self._store.groups[request.group_id]  # nothing came of it
            raise
        self._rebalance.maybe_complete_join(group)

    def _check_room(self, group: Group, member_id: str) -> None:
        """GROUP_MAX_SIZE_REACHED if the group is full. In a rebalance the first to join again have the places."""
        if group.state is GroupState.PREPARING_REBALANCE:
            members = {one.member_id for one in group.members.values() if one.answer_join is not None}
        else:
            members = set(group.members)
        if member_id not in members and len(members) >= self._store.settings.max_size:
            group.remove(member_id)
            raise ApiError(Errors.GROUP_MAX_SIZE_REACHED, "the group is full")

    def _join_new(self, group: Group, request: JoinRequest, answer: AnswerJoin) -> None:
        instance_id = request.group_instance_id
        member_id = f"{instance_id or request.client.client_id}-{self._new_id()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, member_id, request, answer)
        elif instance_id is None and request.requires_known_member_id:
            group.pending_members.add(member_id)
            self._rebalance.schedule_pending_member(group, member_id, request.session_timeout_ms)
            answer(JoinResult(Errors.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(group, member_id, request, answer)

    def _join_current(self, group: Group, request: JoinRequest, answer: AnswerJoin) -> None:
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.group_instance_id is not None:
                raise ApiError(Errors.UNKNOWN_MEMBER_ID, "a static member is never pending")
            self._add(group, member_id, request, answer)
            self._rebalance.pending_joined(group, member_id)
            return
        group.check_member(member_id, request.group_instance_id)
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                self._update(group, member, request, answer)
            case GroupState.COMPLETING_REBALANCE if is_same:
                answer(group.join_result(member_id))  # it didn't get the answer of this generation
            case GroupState.STABLE if is_same and member_id != group.leader_id:
                answer(group.join_result(member_id))
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                self._update(group, member, request, answer)
            case _:
                raise ApiError(Errors.UNKNOWN_MEMBER_ID, "the group has no members")

    def _add(self, group: Group, member_id: str, request: JoinRequest, answer: AnswerJoin) -> None:
        member = Member(
            member_id,
            request.client,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
            request.group_instance_id,
            is_new=True,
            answer_join=answer,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.is_initial_rebalance:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        self._rebalance.schedule_new_member(group, member)
        self._rebalance.maybe_prepare(group)

    def _update(self, group: Group, member: Member, request: JoinRequest, answer: AnswerJoin) -> None:
        _take(member, request)
        answer_join(member, JoinResult(Errors.REBALANCE_IN_PROGRESS, member.member_id))  # an earlier one, given up
        member.answer_join = answer
        self._rebalance.maybe_prepare(group)

    # Static members

    def _replace_static(self, group: Group, member_id: str, request: JoinRequest, answer: AnswerJoin) -> None:
        """A static member comes again under a new id. In a stable group that needs no rebalance, if it makes no
        difference to the protocol; what it is now has to be in the log before it is told."""
        assert request.group_instance_id is not None
        old_id = group.static_members[request.group_instance_id]
        old_leader = group.leader_id or ""
        member = group.replace_static_member(request.group_instance_id, member_id)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        _take(member, request)
        self._rebalance.schedule_heartbeat(group, member)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            member.answer_join = answer
            self._rebalance.maybe_prepare(group)
            return

        def stored(error: Errors) -> None:
            is_current = group.static_members.get(request.group_instance_id or "") == member_id
            if error is Errors.NONE:
                result = group.join_result(member_id, with_members=request.supports_skipping_assignment)
                if request.supports_skipping_assignment:
                    answer(replace(result, skip_assignment=group.leader_id == member_id))
                else:  # told of its former self as leader, it doesn't assign
                    answer(replace(result, leader_id=old_leader))
                return
            if is_current and member_id in group.members:
                group.replace_static_member(request.group_instance_id or "", old_id)
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                self._rebalance.schedule_heartbeat(group, member)
            answer(JoinResult(error))

        assignments = {one.member_id: one.assignment for one in group.members.values()}
        self._store.store_group(group, assignments, stored)

    # Sync

    def sync(self, request: SyncRequest, answer: AnswerSync) -> None:
        """Have one's part. The leader's assignment is in the log before anybody has his."""
        try:
            self._sync(request, answer)
        except ApiError as error:
            # While the groups are read their rebalances are lost: members have to begin again.
            is_loading = error.error is Errors.COORDINATOR_LOAD_IN_PROGRESS
            answer(SyncResult(Errors.REBALANCE_IN_PROGRESS if is_loading else error.error))

    def _sync(self, request: SyncRequest, answer: AnswerSync) -> None:
        claim = request.claim
        group = self._member_group(claim)
        for given, own in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if given is not None and given != own:
                raise ApiError(Errors.INCONSISTENT_GROUP_PROTOCOL, "another protocol was chosen")
        member = group.members[claim.member_id]
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                raise ApiError(Errors.REBALANCE_IN_PROGRESS, "join again")
            case GroupState.COMPLETING_REBALANCE:
                if member.answer_sync is not None:
                    member.answer_sync(SyncResult(Errors.REBALANCE_IN_PROGRESS))  # an earlier one, given up
                member.answer_sync = answer
                self._rebalance.synced(group, claim.member_id)
                if claim.member_id == group.leader_id:
                    self._assign(group, dict(request.assignments or {}))
            case GroupState.STABLE:
                self._rebalance.synced(group, claim.member_id)
                answer(SyncResult(Errors.NONE, group.protocol_type, group.protocol_name, member.assignment))
                self._rebalance.schedule_heartbeat(group, member)
            case _:
                raise ApiError(Errors.UNKNOWN_MEMBER_ID, "the group has no members")

    def _assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        generation_id = group.generation_id

        def stored(error: Errors) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return  # a rebalance has begun since: everyone who waited was answered then
            if error is not Errors.NONE:
                self._rebalance.propagate(group, error)
                self._rebalance.maybe_prepare(group)
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            self._rebalance.propagate(group, Errors.NONE)
            group.transition_to(GroupState.STABLE, self._store.clock())

        self._store.store_group(group, assignments, stored)

    # Heartbeat

    def heartbeat(self, claim: MemberClaim) -> Errors:
        """A sign of life. REBALANCE_IN_PROGRESS tells to join again."""
        try:
            group = self._member_group(claim)
        except ApiError as error:
            # Its place may be read in a moment: whoever believes that he is a member shall go on.
            return Errors.NONE if error.error is Errors.COORDINATOR_LOAD_IN_PROGRESS else error.error
        if group.state is GroupState.EMPTY:
            return Errors.UNKNOWN_MEMBER_ID
        self._rebalance.schedule_heartbeat(group, group.members[claim.member_id])
        is_joining = group.state is GroupState.PREPARING_REBALANCE
        return Errors.REBALANCE_IN_PROGRESS if is_joining else Errors.NONE

    def _member_group(self, claim: MemberClaim) -> Group:
        """The group of a member of the current generation. ApiError: what makes it none, in Kafka's order."""
        self._store.check(claim.group_id)
        group = self._store.groups.get(claim.group_id)
        if group is None:
            raise ApiError(Errors.UNKNOWN_MEMBER_ID, "there is no such group")
        group.check_member(claim.member_id, claim.group_instance_id)
        if claim.generation_id != group.generation_id:
            raise ApiError(Errors.ILLEGAL_GENERATION, f"the generation is {group.generation_id}")
        return group

    # Leave

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveResult:
        """Take members out: a member itself, or an administrator."""
        try:
            self._store.check(group_id)
        except ApiError as error:
            return LeaveResult(error.error)
        group = self._store.groups.get(group_id)
        return LeaveResult(Errors.NONE, tuple((leaving, self._leave(group, leaving)) for leaving in members))

    def _leave(self, group: Group | None, leaving: LeavingMember) -> Errors:
        if group is None:
            return Errors.UNKNOWN_MEMBER_ID
        if leaving.member_id in group.pending_members:
            if leaving.group_instance_id is not None:
                return Errors.UNKNOWN_MEMBER_ID
            self._rebalance.remove_pending(group, leaving.member_id)
            return Errors.NONE
        try:
            member = group.find_leaving(leaving)
        except ApiError as error:
            return error.error
        self._rebalance.remove_member(group, member)
        return Errors.NONE


def _take(member: Member, request: JoinRequest) -> None:
    member.protocols = request.protocols
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
