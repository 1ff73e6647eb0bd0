"""Inspection of a Redis that is to hold the overflow: what can be wrong is said at start, and by `tickover doctor`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from sidecar.doctor.finding import Severity
from sidecar.overflow.connection import Client, failures
from sidecar.overflow.keys import SERVER_VERSION_MIN
from sidecar.overflow.redis_client import LateCluster

HOST_MEMORY_SHARE_MAX: Final = 0.6
POLICY: Final = "maxmemory_policy"  # as INFO names it
NO_EVICTION: Final = "noeviction"
VOLATILE: Final = "volatile-"  # policies for keys with an expiry alone

Facts = Mapping[str, Any]


class RedisFinding(NamedTuple):
    """One thing that should be mended, and how."""

    severity: Severity
    message: str
    fix: str


def inspect(client: Client, allow_eviction: bool = False) -> list[RedisFinding]:
    """Findings of all primaries, worst first; none when all is well. Raises OverflowUnavailable."""
    found: dict[RedisFinding, None] = {}
    for information in server_information(client):
        found.update(dict.fromkeys(_judge(information, allow_eviction)))
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


class RedisState(NamedTuple):
    """State of Redis that changes while it runs; of several primaries the worst."""

    memory_ratio: float  # used of allowed memory, 0 where there is no limit
    is_persistent: bool  # every primary writes an append-only file or snapshots; true where it does not tell
    evicting: str = ""  # the policy by which a primary throws held records away when it is full; "": none does
    evicted_keys: int = 0  # of anybody, by all primaries since they were started


def state(client: Client) -> RedisState:
    """How Redis is now. Raises OverflowUnavailable."""
    ratios = [0.0]
    is_persistent = True
    evicting, evicted_keys = "", 0
    for information in server_information(client):
        if allowed := _number(information, "maxmemory"):
            ratios.append(_number(information, "used_memory") / allowed)
        is_persistent &= bool(_number(information, "aof_enabled")) or information["save"] != ""
        evicting = evicting or evicting_policy(information)
        evicted_keys += _number(information, "evicted_keys")
    return RedisState(max(ratios), is_persistent, evicting, evicted_keys)


def evicting_policy(information: Facts) -> str:
    """The policy by which this server throws held records away when it is full; "" where it doesn't, or doesn't tell.

    Nothing that is held has an expiry, so a policy for keys with one leaves it alone.
    """
    policy = str(information.get(POLICY) or NO_EVICTION)
    is_limited = information.get("maxmemory") is None or _number(information, "maxmemory") > 0
    return policy if is_limited and policy != NO_EVICTION and not policy.startswith(VOLATILE) else ""


def server_information(client: Client) -> list[Facts]:
    """INFO of each primary, with the settings `save` and `maxmemory-policy` where the server tells them."""
    with failures():
        if not isinstance(client, LateCluster):
            return [_of_server(client)]
        # By the Cluster's client, not by a node's own: it looks for the nodes anew where one does not answer.
        cluster: Client = client
        return [_of_server(cluster, target_nodes=node) for node in cluster.get_primaries()]


def _of_server(server: Client, **node: Any) -> Facts:
    information: dict[str, Any] = dict(server.info(**node))
    information["save"] = _setting(server, "save", **node)
    if POLICY not in information:
        information[POLICY] = _setting(server, "maxmemory-policy", **node)
    return information


def _setting(server: Client, name: str, **node: Any) -> str | None:
    try:
        return str(server.config_get(name, **node).get(name, ""))
    except ResponseError:  # managed servers hide CONFIG
        return None


def _judge(information: Facts, allow_eviction: bool) -> Iterator[RedisFinding]:
    version = str(information.get("redis_version", "0"))  # Valkey says here which Redis it is compatible with
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < SERVER_VERSION_MIN:
        yield RedisFinding(
            Severity.ERROR, f"Redis {version} is too old", "use Redis 6.2 or newer, or Valkey 7.2 or newer"
        )
    yield from _judge_eviction(information, allow_eviction)
    if not _number(information, "aof_enabled") and not information["save"]:
        if information["save"] is None:
            message = "no append-only file, and whether there are snapshots is not told"
        else:
            message = "neither append-only file nor snapshots: a restart of Redis loses all it holds"
        fix = "CONFIG SET appendonly yes, CONFIG SET appendfsync always"
        yield RedisFinding(Severity.WARNING, message, fix)
    yield from _judge_memory(information)


def _judge_eviction(information: Facts, allow_eviction: bool) -> Iterator[RedisFinding]:
    policy, severity, consequence = information.get(POLICY), Severity.WARNING, ""
    if not policy:
        yield RedisFinding(
            severity, "whether Redis throws keys away when it is full is not told", "set maxmemory-policy noeviction"
        )
        return
    if policy == NO_EVICTION:
        return
    if evicting_policy(information):
        severity = Severity.WARNING if allow_eviction else Severity.ERROR
        consequence = "short of memory, Redis throws held records away"
    elif str(policy).startswith(VOLATILE):
        consequence = "short of memory, Redis throws answers kept by Idempotency-Key away"
    else:
        consequence = "with maxmemory set, Redis would throw held records away"
    yield RedisFinding(
        severity, f"maxmemory-policy is {policy}: {consequence}", f"CONFIG SET maxmemory-policy {NO_EVICTION}"
    )


def _judge_memory(information: Facts) -> Iterator[RedisFinding]:
    allowed, host = _number(information, "maxmemory"), _number(information, "total_system_memory")
    fix = f"CONFIG SET maxmemory {int(host * HOST_MEMORY_SHARE_MAX) or '<60 % of the host>'}"
    if not allowed:
        yield RedisFinding(Severity.WARNING, "maxmemory is not set: the host may run out of memory", fix)
    elif host and allowed > host * HOST_MEMORY_SHARE_MAX:
        share = f"{allowed / host:.0%} of the host's memory"
        message = f"maxmemory is {share}: a rewrite of the append-only file may need as much again"
        yield RedisFinding(Severity.WARNING, message, fix)


def _number(information: Facts, name: str) -> int:
    return int(information.get(name) or 0)
