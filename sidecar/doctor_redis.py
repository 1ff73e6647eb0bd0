"""What the overflow's server says about itself."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sidecar.config import Settings
from sidecar.finding import Finding, Severity

TIMEOUT_S: Final = 2.0
SKEW_MAX_MS: Final = 1_000
OLDEST_VERSION: Final = (6, 2)
PART: Final = "redis"


def inspect_redis(settings: Settings, wall_ms: Callable[[], int]) -> Iterator[Finding]:
    """All findings about Redis. Of a Cluster the node that the URL names is looked at."""
    if settings.redis.embedded:
        yield Finding(Severity.OK, PART, "redis.url is `embedded`: `tickover run` starts its own")
        return
    try:
        with _client(settings) as client:
            before_ms = wall_ms()
            seconds, microseconds = client.time()
            after_ms = wall_ms()
            information: Mapping[str, Any] = client.info()
            try:
                configuration: Mapping[str, Any] = client.config_get("*")
            except redis.ResponseError:
                configuration = {}
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        yield Finding(
            Severity.ERROR, PART, f"refuses the login: {error}", "correct redis.username and redis.password"
        )
        return
    except (redis.RedisError, OSError, ValueError) as error:
        fix = "check that it runs there, and redis.url (TICKOVER_REDIS__URL); TLS needs rediss://"
        yield Finding(Severity.ERROR, PART, f"no answer from {settings.redis.url}: {error}", fix)
        return
    yield from _server(settings, information)
    yield from _clock(seconds * 1_000 + microseconds // 1_000, before_ms, after_ms)
    yield from _configuration(information, configuration)


def _client(settings: Settings) -> "redis.Redis":
    url = settings.redis.url.replace("+cluster", "")
    client: redis.Redis = redis.Redis.from_url(
        url,
        username=settings.redis.username or None,
        password=settings.redis.password.get_secret_value() or None,
        socket_connect_timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    return client


def _server(settings: Settings, information: Mapping[str, Any]) -> Iterator[Finding]:
    name = "Valkey" if information.get("server_name") == "valkey" else "Redis"
    version = str(information.get("valkey_version") or information.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_VERSION:
        yield Finding(
            Severity.ERROR, PART, f"{name} {version} is too old", "use Redis 6.2 or newer, or Valkey"
        )
    else:
        yield Finding(Severity.OK, PART, f"{name} {version} at {settings.redis.url}")
    if information.get("role") == "slave":
        fix = "name the primary in redis.url"
        yield Finding(Severity.ERROR, PART, "this is a replica: it takes no writes", fix)
    clustered = str(information.get("redis_mode")) == "cluster"
    if clustered != ("+cluster" in settings.redis.url):
        scheme = "redis+cluster://" if clustered else "redis://"
        what = "this is a Cluster" if clustered else "this is no Cluster"
        yield Finding(
            Severity.ERROR, PART, f"the server {what}, redis.url says otherwise", f"use {scheme} in redis.url"
        )


def _clock(server_ms: int, before_ms: int, after_ms: int) -> Iterator[Finding]:
    """Redis's clock is nobody's reference, but where two clocks differ one of them is wrong."""
    ahead_ms = before_ms - server_ms if before_ms > server_ms else min(0, after_ms - server_ms)
    if abs(ahead_ms) > SKEW_MAX_MS:
        side = "ahead of" if ahead_ms > 0 else "behind"
        what = f"this machine's clock is {abs(ahead_ms)} ms {side} Redis's"
        yield Finding(Severity.WARNING, "clock", what, "synchronise the clocks (chrony or systemd-timesyncd)")


def _configuration(information: Mapping[str, Any], configuration: Mapping[str, Any]) -> Iterator[Finding]:
    """Eviction, persistence and room. Managed servers hide CONFIG; INFO has most of it too."""
    policy = str(information.get("maxmemory_policy") or configuration.get("maxmemory-policy", ""))
    if policy != "noeviction":
        what = f"maxmemory-policy is {policy or 'unknown'}: short of memory, it throws held records away"
        yield Finding(
            Severity.ERROR, PART, what, "redis-cli CONFIG SET maxmemory-policy noeviction (and in its file)"
        )
    if not int(information.get("maxmemory", 0)):
        what = "maxmemory is not set: a growing overflow ends with the kernel killing the server"
        fix = "redis-cli CONFIG SET maxmemory <at most 60 % of the host's memory>"
        yield Finding(Severity.WARNING, PART, what, fix)
    if not int(information.get("aof_enabled", 0)):
        what = "appendonly is off: after its restart all that is held must be read again from Kafka"
        yield Finding(Severity.WARNING, PART, what, "redis-cli CONFIG SET appendonly yes (and in its file)")
    elif configuration.get("appendfsync", "always") != "always":
        what = f"appendfsync is {configuration['appendfsync']}: after a power cut the last writes are redone"
        yield Finding(
            Severity.WARNING, PART, what, "redis-cli CONFIG SET appendfsync always (and in its file)"
        )
    if configuration.get("save"):
        what = "snapshots (save) are on: each forks the server and may double its memory"
        yield Finding(Severity.WARNING, PART, what, 'redis-cli CONFIG SET save "" (and in its file)')
