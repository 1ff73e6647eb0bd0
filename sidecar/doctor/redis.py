"""Findings about the overflow's server: what it says about itself, and whether the settings know it."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError

from sidecar.doctor.acl_commands import redis_rules_command
from sidecar.doctor.finding import Finding, Severity
from sidecar.doctor.redis_rights import redis_rights
from sidecar.doctor.redis_server import inspect, server_information
from sidecar.overflow.connection import WRONG_SERVERS, Client, connect
from sidecar.overflow.interface import OverflowUnavailable
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
            problems = inspect(client, redis.allow_eviction)
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
            fix = redis_rules_command(redis_rights(settings), redis.username)
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
