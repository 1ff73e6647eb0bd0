"""Groups as administrators see them: listed, described, deleted."""

from collections.abc import Callable, Collection
from dataclasses import replace

from broker.groups.group import Member
from broker.groups.store import GroupStore
from broker.groups.types import DescribedGroup, DescribedMember, ListedGroup
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import ApiError, Errors

CLASSIC = "classic"


def list_groups(store: GroupStore, states: Collection[str], types: Collection[str]) -> tuple[Errors, list[ListedGroup]]:
    """Groups in these states (any if none is named), whatever the case. While some are read: only those there are,
    and COORDINATOR_LOAD_IN_PROGRESS."""
    if not store.ownership.is_active:
        return Errors.COORDINATOR_NOT_AVAILABLE, []
    wanted = {state.lower() for state in states}
    is_of_type = not types or CLASSIC in {one.lower() for one in types}
    error = Errors.COORDINATOR_LOAD_IN_PROGRESS if store.ownership.loading else Errors.NONE
    return error, [
        ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
        for group in store.groups.values()
        if is_of_type and (not wanted or group.state.value.lower() in wanted)
    ]


def describe_group(store: GroupStore, group_id: str) -> DescribedGroup:
    """One group. A group that isn't there is Dead, without an error: newer versions say so with one."""
    try:
        store.check(group_id)
    except ApiError as error:
        return DescribedGroup(error.error, group_id)
    group = store.groups.get(group_id)
    if group is None:
        message = f"Group {group_id} not found."
        return DescribedGroup(Errors.NONE, group_id, GroupState.DEAD.value, message=message)
    described = DescribedGroup(Errors.NONE, group_id, group.state.value, group.protocol_type or "")
    if group.state is not GroupState.STABLE:
        return replace(described, members=[_described(one) for one in group.members.values()])
    return replace(
        described,
        protocol=group.protocol_name or "",
        members=[
            replace(_described(one), metadata=one.metadata_of(group.protocol_name), assignment=one.assignment)
            for one in group.members.values()
        ],
    )


def _described(member: Member) -> DescribedMember:
    return DescribedMember(member.member_id, member.group_instance_id, member.client)


def delete_group(store: GroupStore, group_id: str, answer: Callable[[Errors], None]) -> None:
    """Forget a group without members, and its offsets."""
    try:
        store.check(group_id)
        group = store.groups.get(group_id)
        if group is None:
            raise ApiError(Errors.GROUP_ID_NOT_FOUND, "there is no such group")
        if group.state is not GroupState.EMPTY:
            raise ApiError(Errors.NON_EMPTY_GROUP, "the group has members")
    except ApiError as error:
        answer(error.error)
        return
    keys = list(group.offsets.committed)
    group.offsets.remove(keys)
    group.transition_to(GroupState.DEAD, store.clock())
    store.remove(group, keys, answer)
