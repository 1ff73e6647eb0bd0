"""The way to Redis: one server, a Cluster or what Sentinels name; scripts by hash, errors in the overflow's words."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakSet

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoScriptError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowFull, OverflowLoss, OverflowRefused, OverflowUnavailable
from sidecar.overflow.redis_client import LateCluster, Pool, PrimaryConnection, PrimaryTlsConnection, Sentinels
from sidecar.settings.redis import RedisUrl, read_redis_url
from sidecar.settings.watched_file import FileSecret

SOCKET_TIMEOUT_S: Final = 5.0
RETRIES: Final = 2
OF_SENTINELS: Final = "sentinel_"  # how options begin that are for connections to Sentinels

# First words of error replies. A script's error may have others in front (Redis 6).
_FULL: Final = ("OOM ", "MISCONF ")
_AWAY: Final = (
    "READONLY", "LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK ",
    "NOAUTH", "WRONGPASS", "NOPERM", "UNKILLABLE",
    # NOPERM within a script: of Redis to 7.0, and of later ones and Valkey.
    "user executing the script can't", "ACL failure in script",
)  # fmt: skip

# Replies of a server that can't be meant, and what to do.
WRONG_SERVERS: Final = {
    "DB index is out of range": "correct the database at the end of redis.url",
    "unknown command": "a Sentinel needs redis+sentinel:// in redis.url, and no command may be renamed",
}

Client = Any  # redis-py's own types for commands are unions of sync and async results: of no use to a checker
Call = tuple[str, Sequence[str], Sequence[Any]]  # script, keys, arguments


class Link:
    """Runs scripts. For one thread at a time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_cluster = isinstance(client, LateCluster)

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """One script; its keys are all of one lane. Raises OverflowLoss where one of them is of another type."""
        with failures():
            return self._run(script, keys, arguments)

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Scripts in order. On one server all at once: with an append-only file they share one fsync."""
        with failures():
            if self.is_cluster or len(calls) == 1:
                return [self._run(*call) for call in calls]
            try:
                return self._pipelined(calls)
            except NoScriptError:
                for script in {call[0] for call in calls}:
                    self.client.script_load(script)
                return self._pipelined(calls)

    def do(self, key: str, command: Callable[[Client], Any]) -> Any:
        """Any other command, on a key of a lane. Raises OverflowLoss where it is of another type."""
        with failures(), _known_types(key):
            return command(self.client)

    def close(self) -> None:
        self.client.close()

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        with _known_types(keys[0]):
            try:
                return self.client.evalsha(script_hash(script), len(keys), *keys, *arguments)
            except NoScriptError:
                return self.client.eval(script, len(keys), *keys, *arguments)

    def _pipelined(self, calls: Sequence[Call]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for script, keys, arguments in calls:
            pipeline.execute_command("EVALSHA", script_hash(script), len(keys), *keys, *arguments)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        # A missing script matters first: with it everything is sent again, and what was done is done once.
        for kind in (NoScriptError, Exception):
            for (_, keys, _), reply in zip(calls, replies, strict=True):
                if isinstance(reply, kind):
                    with _known_types(keys[0]):
                        raise reply
        return replies


@contextmanager
def _known_types(key: str) -> Iterator[None]:
    """A key that somebody has put another type in place of is lost, and its lane is rebuilt as for any other loss."""
    try:
        yield
    except ResponseError as error:
        if "WRONGTYPE" not in str(error):
            raise
        raise OverflowLoss(lane_of(key), 0, "a key is of another type than it was written with") from error


def lane_of(key: str) -> TopicPartition:
    """The lane whose key this is; neither a topic nor a group has a colon in its name."""
    _, topic, partition = key.partition("}")[0].removeprefix("{").split(":")
    return TopicPartition(topic, int(partition))


@contextmanager
def failures() -> Iterator[None]:
    """Turn redis-py's errors into the overflow's."""
    try:
        yield
    except AuthenticationError as error:
        raise OverflowUnavailable(f"Redis refuses the login of redis.username and redis.password: {error}") from error
    except (RedisConnectionError, RedisTimeoutError, RedisClusterException) as error:
        raise OverflowUnavailable(f"Redis does not answer: {error}") from error
    except ResponseError as error:
        text = f"{type(error).__name__} {error}"
        if any(word in text for word in _FULL) or type(error).__name__ == "OutOfMemoryError":
            raise OverflowFull(f"Redis takes no more writes: {error}") from error
        if any(word in text for word in _AWAY) or type(error).__name__ in _AWAY_TYPES:
            raise OverflowRefused(f"Redis refuses: {error}") from error
        if wrong := next((words for reply, words in WRONG_SERVERS.items() if reply in text), ""):
            raise OverflowRefused(f"Redis refuses: {error}; {wrong}") from error
        raise
    except RedisError as error:
        raise OverflowUnavailable(f"Redis: {error}") from error


_AWAY_TYPES: Final = frozenset(
    # redis-py strips the first word of replies for which it has a type
    {"ReadOnlyError", "MovedError", "AskError", "TryAgainError", "ClusterDownError", "MasterDownError",
     "NoPermissionError", "AuthenticationError", "AuthorizationError"}
)  # fmt: skip


def connect(url: str, options: Mapping[str, Any] = MappingProxyType({})) -> Client:
    """A client for what `read_redis_url` reads.

    `options` are those of `RedisSettings.client_options`: redis-py's, and some of ours. Nobody is contacted yet.
    """
    there = read_redis_url(url)
    settings: dict[str, Any] = {
        **_login(options),
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "protocol": 2,
        # A timeout is not retried: it has taken long enough, and the caller comes back by itself.
        "retry": Retry(
            ExponentialWithJitterBackoff(base=0.02, cap=0.2),
            RETRIES,
            supported_errors=(RedisConnectionError,),
        ),
    }
    if there.username or there.password:
        settings |= {"username": there.username or None, "password": there.password}
    sentinel = _login({name.removeprefix(OF_SENTINELS): settings.pop(name) for name in list(settings)
                       if name.startswith(OF_SENTINELS)})  # fmt: skip
    name = {"tls_name": settings.pop("tls_name")} if "tls_name" in settings else {}
    connection: Any = SSLConnection if there.is_tls else Connection
    match there.kind:
        case "cluster":
            return _cluster(there, name, settings)
        case "sentinel":
            tls = {key: value for key, value in settings.items() if key.startswith("ssl_")}
            settings["sentinels"] = Sentinels(there.hosts, there.service, there.is_tls, {**tls, **name, **sentinel})
            connection = PrimaryTlsConnection if there.is_tls else PrimaryConnection
            return Redis.from_pool(Pool(connection, db=there.database, **name, **settings))
        case "socket":
            return Redis.from_pool(Pool(UnixDomainSocketConnection, path=there.path, db=there.database, **settings))
    [(host, port)] = there.hosts
    return Redis.from_pool(Pool(connection, host=host, port=port, db=there.database, **name, **settings))


def _cluster(there: RedisUrl, name: Mapping[str, Any], settings: Mapping[str, Any]) -> Client:
    """Client of a Redis Cluster. Its first host is given by a URL: only then does redis-py take connections that it
    hasn't made itself.
    """
    make_node: Any = ClusterNode
    (host, port), *others = there.hosts
    pools = WeakSet[Pool]()

    def new_pool(**options: Any) -> Pool:
        pool = Pool(**name, **options)
        pools.add(pool)
        return pool

    def look() -> RedisCluster:
        try:
            return RedisCluster.from_url(
                f"redis{'s' * there.is_tls}://{f'[{host}]' if ':' in host else host}:{port}",
                startup_nodes=[make_node(*other) for other in others],
                # These hosts are asked again once nobody else answers: by their names, for all nodes may have moved.
                dynamic_startup_nodes=False,
                connection_pool_class=new_pool,
                **settings,
            )
        except Exception:
            for pool in pools:
                pool.disconnect()
            raise

    return LateCluster(look)


class FileLogin(CredentialProvider):
    """User name and password for Redis, asked for at each connection: the password is what its file says then."""

    def __init__(self, username: str, secret: FileSecret) -> None:
        self._username = username
        self._secret = secret
        self._password = secret.get_secret_value()

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        # Just being written: the password from before goes on, and `watched_files.py` tells of it.
        with suppress(OSError, ValueError):
            self._password = self._secret.now()
        return (self._username, self._password) if self._username else (self._password,)


def _login(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with a password that may change as redis-py takes one."""
    found = dict(options)
    if isinstance(secret := found.get("password"), FileSecret):
        del found["password"]
        found["credential_provider"] = FileLogin(found.pop("username", ""), secret)
    return found


@lru_cache(maxsize=16)
def script_hash(script: str) -> str:
    """The name by which a server knows a script."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
