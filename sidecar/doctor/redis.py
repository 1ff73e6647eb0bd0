"""Findings about the overflow's server: what it says about itself, and whether the settings know it.

What can be wrong with it is said at start too (`inspect`), and while it runs (`state`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError, ResponseError

from sidecar.doctor.acl import redis_rights, redis_rules_command
from sidecar.doctor.facts import Finding, Severity
from sidecar.doctor.redis_tools import RedisTools, redis_tools
from sidecar.overflow.connection import WRONG_SERVERS, Client, connect, failures
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.overflow.keys import SERVER_VERSION_MIN
from sidecar.overflow.redis_client import LateCluster, SentinelRefused
from sidecar.settings.settings import Settings

SKEW_MAX_MS: Final = 1_000
PART: Final = "redis"
_WRONG_SERVERS: Final = {
    "unknown command 'SENTINEL'": "this is no Sentinel: a server needs redis:// in redis.url",
    "Cluster mode is not enabled": "this is no Cluster: use redis:// in redis.url",
    **WRONG_SERVERS,
}
_PRIMARY: Final = "name the primary in redis.url, or Sentinels that know it (redis+sentinel://host:26379,.../service)"

HOST_MEMORY_SHARE_MAX: Final = 0.6
POLICY: Final = "maxmemory_policy"  # as INFO names it
NO_EVICTION: Final = "noeviction"
PLAIN: Final = RedisTools()
VOLATILE: Final = "volatile-"  # policies for keys with an expiry alone

Facts = Mapping[str, Any]


def inspect_redis(settings: Settings, wall_ms: Callable[[], int]) -> Iterator[Finding]:
    """All findings about Redis."""
    if settings.redis.embedded:
        yield Finding(Severity.OK, PART, "`embedded`: `tickover run` starts its own")
        return
    redis = settings.redis
    try:
        client = connect(redis.url, redis.client_options())
        try:
            skew_ms = _skew_ms(client, wall_ms)
            servers = server_information(client)
            problems = inspect(client, redis.allow_eviction, redis_tools(redis))
        finally:
            client.close()
    except (OverflowUnavailable, RedisError, RedisClusterException, OSError, ValueError) as error:
        yield _unreachable(settings, error)
        return
    for information in servers:
        name = "Valkey" if information.get("server_name") == "valkey" else "Redis"
        version = information.get("valkey_version") or information.get("redis_version")
        yield Finding(Severity.OK, PART, f"{name} {version} answers at {redis.url}")
        yield from _fitting(redis.url, information)
    for problem in problems:
        yield Finding(problem.severity, PART, problem.message, problem.fix)
    yield from _clock(skew_ms)


def _unreachable(settings: Settings, error: Exception) -> Finding:
    redis, cause = settings.redis, error.__cause__ or error
    if isinstance(cause, AuthenticationError):
        fix = "correct redis.username and redis.password (TICKOVER_REDIS__PASSWORD_FILE)"
        return Finding(Severity.ERROR, PART, f"{redis.url} refuses the login: {error}", fix)
    if isinstance(cause, NoPermissionError):
        fix = "make a user for tickover, and name it by redis.username: `tickover acl print --principal User:tickover`"
        if redis.username:
            fix = redis_rules_command(redis_rights(settings), redis.username, redis_tools(redis))
        return Finding(Severity.ERROR, PART, f"{redis.url} gives too few rights: {error}", fix)
    fix = "check that it runs there, and redis.url (TICKOVER_REDIS__URL); TLS needs rediss://"
    if "mismatch" in str(error):
        fix = "its certificate has other names than the host in use: set redis.tls_name to one of them"
    elif "SSL" in str(error):
        fix = (
            "correct redis.ca_file, and where the server wants a certificate redis.certificate_file and redis.key_file"
        )
    elif wrong := next((words for reply, words in _WRONG_SERVERS.items() if reply in str(error)), ""):
        fix = wrong
    elif "redis.sentinel_password" in str(error):
        fix = "correct redis.sentinel_username and redis.sentinel_password (TICKOVER_REDIS__SENTINEL_PASSWORD_FILE)"
    elif isinstance(cause, SentinelRefused):
        fix = "check that the Sentinels run there, and the service that ends redis.url (TICKOVER_REDIS__URL)"
    return Finding(Severity.ERROR, PART, f"no answer from {redis.url}: {error}", fix)


def _fitting(url: str, information: Any) -> Iterator[Finding]:
    """Whether it is the kind of server that the URL says."""
    if information.get("role") == "slave":
        yield Finding(Severity.ERROR, PART, "this is a replica: it takes no writes", _PRIMARY)
    clustered = information.get("redis_mode") == "cluster"
    if clustered != ("+cluster:" in url):
        what = "this is a Cluster" if clustered else "this is no Cluster"
        scheme = "redis+cluster://" if clustered else "redis://"
        yield Finding(Severity.ERROR, PART, f"{what}, but redis.url says otherwise", f"use {scheme} in redis.url")


def _skew_ms(client: Client, wall_ms: Callable[[], int]) -> int:
    """How far this clock is surely ahead of Redis's (negative: behind), whatever the way took."""
    server: Client = client
    if isinstance(client, LateCluster):
        server = client.get_redis_connection(next(iter(client.get_primaries())))
    before_ms = wall_ms()
    seconds, microseconds = (int(part) for part in server.time())
    after_ms = wall_ms()
    server_ms = seconds * 1_000 + microseconds // 1_000
    return max(0, before_ms - server_ms) + min(0, after_ms - server_ms)


def _clock(skew_ms: int) -> Iterator[Finding]:
    """Redis's clock is nobody's reference, but where two clocks differ one of them is wrong."""
    if abs(skew_ms) > SKEW_MAX_MS:
        side = "ahead of" if skew_ms > 0 else "behind"
        what = f"this machine's clock is {abs(skew_ms)} ms {side} Redis's"
        yield Finding(Severity.WARNING, "clock", what, "synchronise the clocks (chrony or systemd-timesyncd)")


class RedisFinding(NamedTuple):
    """One thing that should be mended, and how."""

    severity: Severity
    message: str
    fix: str


def inspect(client: Client, allow_eviction: bool = False, tools: RedisTools = PLAIN) -> list[RedisFinding]:
    """Findings of all primaries, worst first; none when all is well. Fixes are commands of `tools`. Raises
    OverflowUnavailable.
    """
    found: dict[RedisFinding, None] = {}
    for information in server_information(client):
        found.update(dict.fromkeys(_judge(information, allow_eviction, tools)))
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


def _judge(information: Facts, allow_eviction: bool, tools: RedisTools) -> Iterator[RedisFinding]:
    version = str(information.get("redis_version", "0"))  # Valkey says here which Redis it is compatible with
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < SERVER_VERSION_MIN:
        yield RedisFinding(
            Severity.ERROR, f"Redis {version} is too old", "use Redis 6.2 or newer, or Valkey 7.2 or newer"
        )
    yield from _judge_eviction(information, allow_eviction, tools)
    if not _number(information, "aof_enabled") and not information["save"]:
        if information["save"] is None:
            message = "no append-only file, and whether there are snapshots is not told"
        else:
            message = "neither append-only file nor snapshots: a restart of Redis loses all it holds"
        settings = ("CONFIG SET appendonly yes", "CONFIG SET appendfsync always")
        fix = " && ".join(map(tools.command, settings))
        yield RedisFinding(Severity.WARNING, message, fix)
    yield from _judge_memory(information, tools)


def _judge_eviction(information: Facts, allow_eviction: bool, tools: RedisTools) -> Iterator[RedisFinding]:
    policy, severity, consequence = information.get(POLICY), Severity.WARNING, ""
    if not policy:
        yield RedisFinding(
            severity, "whether Redis throws keys away when it is full is not told", "set maxmemory-policy to noeviction"
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
    yield RedisFinding(severity, f"maxmemory-policy is {policy}: {consequence}", keep_command(tools))


def keep_command(tools: RedisTools) -> str:
    """The command after which Redis throws nothing away."""
    return tools.command(f"CONFIG SET maxmemory-policy {NO_EVICTION}")


def _judge_memory(information: Facts, tools: RedisTools) -> Iterator[RedisFinding]:
    allowed, host = _number(information, "maxmemory"), _number(information, "total_system_memory")
    wanted = int(host * HOST_MEMORY_SHARE_MAX)
    fix = tools.command(f"CONFIG SET maxmemory {wanted}") if wanted else "set maxmemory to 60 % of the host's memory"
    if not allowed:
        yield RedisFinding(Severity.WARNING, "maxmemory is not set: the host may run out of memory", fix)
    elif host and allowed > host * HOST_MEMORY_SHARE_MAX:
        share = f"{allowed / host:.0%} of the host's memory"
        message = f"maxmemory is {share}: a rewrite of the append-only file may need as much again"
        yield RedisFinding(Severity.WARNING, message, fix)


def _number(information: Facts, name: str) -> int:
    return int(information.get(name) or 0)
