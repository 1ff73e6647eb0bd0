"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup; ListGroups, DescribeGroups, DeleteGroups."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.groups.admin import CLASSIC, delete_group, describe_group, list_groups
from broker.groups.types import (
    Client,
    DescribedGroup,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberClaim,
    Protocol,
    SyncRequest,
    SyncResult,
)
from broker.protocol.request import Request
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import Errors

MEMBER_ID_REQUIRED_SINCE: Final = 4
NULLABLE_PROTOCOL_SINCE: Final = 7
SKIP_ASSIGNMENT_SINCE: Final = 9
LEAVE_MANY_SINCE: Final = 3
SYNC_PROTOCOL_SINCE: Final = 5
GROUP_NOT_FOUND_SINCE: Final = 6
NO_OPERATIONS: Final = -(1 << 31)


async def join_group(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when the generation is there."""
    body = request.body
    instance_id = getattr(body, "group_instance_id", None)
    session_ms = _milliseconds(body.session_timeout)
    join = JoinRequest(
        group_id=body.group_id,
        client=Client(request.header.client_id, f"/{request.peer.rpartition(':')[0]}"),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=_milliseconds(getattr(body, "rebalance_timeout", body.session_timeout)),
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(one.name, bytes(one.metadata)) for one in body.protocols),
        member_id=body.member_id,
        group_instance_id=instance_id,
        requires_known_member_id=request.version >= MEMBER_ID_REQUIRED_SINCE and instance_id is None,
        supports_skipping_assignment=request.version >= SKIP_ASSIGNMENT_SINCE,
    )
    result: JoinResult = await broker.answer_of(partial(broker.coordinators.groups.join, join))
    name = result.protocol_name
    return {
        "error_code": result.error,
        "generation_id": result.generation_id,
        "protocol_type": result.protocol_type,
        "protocol_name": name if name is not None or request.version >= NULLABLE_PROTOCOL_SINCE else "",
        "leader": result.leader_id,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.group_instance_id, "metadata": one.metadata}
            for one in result.members
        ],
    }


async def sync_group(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when the leader has assigned."""
    body = request.body
    if request.version >= SYNC_PROTOCOL_SINCE and (body.protocol_type is None or body.protocol_name is None):
        return {"error_code": Errors.INCONSISTENT_GROUP_PROTOCOL}
    sync = SyncRequest(
        _claim(body),
        getattr(body, "protocol_type", None),
        getattr(body, "protocol_name", None),
        {one.member_id: bytes(one.assignment) for one in body.assignments},
    )
    result: SyncResult = await broker.answer_of(partial(broker.coordinators.groups.sync, sync))
    return {
        "error_code": result.error,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }


async def heartbeat(broker: Broker, request: Request) -> Mapping[str, Any]:
    """A sign of life."""
    return {"error_code": broker.coordinators.groups.heartbeat(_claim(request.body))}


async def leave_group(broker: Broker, request: Request) -> Mapping[str, Any]:
    """One member, or since version 3 many."""
    body = request.body
    if request.version < LEAVE_MANY_SINCE:
        result = broker.coordinators.groups.leave(body.group_id, [LeavingMember(body.member_id)])
        return {"error_code": result.error or result.members[0][1]}
    leaving = [LeavingMember(one.member_id, one.group_instance_id) for one in body.members]
    result = broker.coordinators.groups.leave(body.group_id, leaving)
    return {
        "error_code": result.error,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.group_instance_id, "error_code": error}
            for one, error in result.members
        ],
    }


async def list_all_groups(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Groups of this broker."""
    states = getattr(request.body, "states_filter", ())
    types = getattr(request.body, "types_filter", ())
    error, groups = list_groups(broker.coordinators.group_store, states, types)
    return {
        "error_code": error,
        "groups": [
            {
                "group_id": one.group_id,
                "protocol_type": one.protocol_type,
                "group_state": one.state,
                "group_type": CLASSIC,
            }
            for one in groups
        ],
    }


async def describe_groups(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Groups with their members. Of operations that are allowed nothing is said: there is no authorizer."""
    store = broker.coordinators.group_store
    return {
        "groups": [_described(describe_group(store, group_id), request.version) for group_id in request.body.groups]
    }


async def delete_groups(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Each answered when it is in the log that it is gone."""
    store = broker.coordinators.group_store
    results = []
    for group_id in dict.fromkeys(request.body.groups_names):
        error: Errors = await broker.answer_of(partial(delete_group, store, group_id))
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}


def _described(group: DescribedGroup, version: int) -> Mapping[str, Any]:
    is_missing = group.state == GroupState.DEAD.value and version >= GROUP_NOT_FOUND_SINCE
    return {
        "error_code": Errors.GROUP_ID_NOT_FOUND if is_missing else group.error,
        "error_message": group.message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.group_instance_id,
                "client_id": one.client.client_id,
                "client_host": one.client.client_host,
                "member_metadata": one.metadata,
                "member_assignment": one.assignment,
            }
            for one in group.members
        ],
        "authorized_operations": NO_OPERATIONS,
    }


def _claim(body: Any) -> MemberClaim:
    return MemberClaim(body.group_id, body.generation_id, body.member_id, getattr(body, "group_instance_id", None))


def _milliseconds(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
