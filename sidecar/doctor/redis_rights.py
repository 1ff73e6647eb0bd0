"""Rights of the sidecar's user in Redis: keys, one channel, and the commands that are called, those in scripts too.

CONFIG is not among them: where Redis doesn't tell its `save` setting, tickover says so only if there is no append-only
file either.
"""

from typing import Final, NamedTuple

from sidecar.settings.redis_url import CLUSTER, SENTINEL, read_redis_url
from sidecar.settings.settings import Settings

_HOLDING: Final = (
    "del", "eval", "evalsha", "exists", "get", "hdel", "hexists", "hget", "hscan", "hset", "info", "set", "unlink",
    "zadd", "zcount", "zmscore", "zrange", "zrangebyscore", "zrank", "zrem", "zremrangebyscore", "zscore",
)  # fmt: skip
_IDEMPOTENCY: Final = ("expire", "hmget", "hsetnx", "time")
_LOOKING_UP: Final = ("blpop", "publish", "rpush", "subscribe")
_ONE_SERVER: Final = ("script|load",)  # in a Cluster scripts are sent whole, where a node doesn't know them
_OF_PRIMARY: Final = ("role",)
_CLUSTER: Final = ("asking", "cluster|slots", "command")


class RedisRights(NamedTuple):
    """Patterns of keys and channels, commands in lower case (`script|load` is SCRIPT LOAD)."""

    keys: tuple[str, ...]
    channels: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def rules(self) -> list[str]:
        """As ACL SETUSER takes them, behind a user's name and password."""
        return [
            "resetkeys", "resetchannels", "-@all", *(f"~{key}" for key in self.keys),
            *(f"&{channel}" for channel in self.channels), *(f"+{command}" for command in self.commands),
        ]  # fmt: skip


def redis_rights(settings: Settings) -> RedisRights:
    """Exactly what is used of one server, or of a Cluster or what Sentinels name where the settings say so."""
    group = settings.group
    there = None if settings.redis.embedded else read_redis_url(settings.redis.url)
    kind = "" if there is None else there.kind
    commands = {*_HOLDING, *_IDEMPOTENCY, *_LOOKING_UP, *(_CLUSTER if kind == CLUSTER else _ONE_SERVER)}
    if kind == SENTINEL:
        commands |= set(_OF_PRIMARY)
    if there is not None and there.database:
        commands.add("select")
    keys = (f"{{{group}:*", f"tickover:{group}:answer:*", f"tickover:{group}:idempotency:*")
    return RedisRights(keys, (f"tickover:{group}:questions",), tuple(sorted(commands)))
