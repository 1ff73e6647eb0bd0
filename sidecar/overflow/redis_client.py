"""Connections to Redis: what redis-py's leave out.

* The certificate is checked for a name of the settings' choice, where servers are reached by address.
* A server that has become a replica refuses writes. Its connection is closed after that, for the next one may lead
  to another server: by a name that points elsewhere now, or by what the Sentinels say.
* A Cluster that is away at the start is looked for later, as a single server is.
* Which server is the primary is asked of the Sentinels at each connection, and of the server itself: a Sentinel that
  was cut off names the former one.
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from sidecar.settings.redis import Host

SENTINEL_TIMEOUT_S: Final = 2.0  # the next one is asked then
_REFUSES_WRITES: Final = "READONLY"
_PRIMARY: Final = b"master"


class SentinelRefused(RedisConnectionError):
    """Sentinels answer, but don't say where the primary is."""


class _Replaceable:
    """A connection to a server that may become a replica."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError as error:
            if _REFUSES_WRITES in f"{type(error).__name__} {error}".upper():
                self.mark_for_reconnect()  # type: ignore[attr-defined]
            raise


class PlainConnection(_Replaceable, Connection):
    """Without TLS."""


class TlsConnection(_Replaceable, SSLConnection):
    """With TLS; `tls_name` is the name that the certificate must have, "" for the host that is connected to."""

    def __init__(self, tls_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._tls_name = tls_name

    def _wrap_socket_with_ssl(self, sock: Any) -> ssl.SSLSocket:
        there, self.host = self.host, self._tls_name or self.host
        try:
            wrapped: ssl.SSLSocket = super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
            return wrapped
        finally:
            self.host = there


class _OfPrimary:
    """A connection to the server that the Sentinels name, which must say so itself."""

    host: str
    port: int

    def __init__(self, sentinels: "Sentinels", **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    def _connect(self) -> Any:
        self.host, self.port = self._sentinels.primary()
        return super()._connect()  # type: ignore[misc]

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health)  # type: ignore[misc]
        self.send_command("ROLE", check_health=False)  # type: ignore[attr-defined]
        role = self.read_response()[0]  # type: ignore[attr-defined]
        if role != _PRIMARY:
            what = f"as the primary of {self._sentinels.service} {self.host}:{self.port}, which is none now"
            raise SentinelRefused(f"the Sentinels name {what}")


class PrimaryConnection(_OfPrimary, PlainConnection):
    """Without TLS."""


class PrimaryTlsConnection(_OfPrimary, TlsConnection):
    """With TLS."""


class Pool(ConnectionPool):
    """redis-py's pool of these connections. A Cluster makes one for each node."""

    def __init__(self, connection_class: Any = Connection, tls_name: str = "", **options: Any) -> None:
        ours = _OURS.get(connection_class, connection_class)
        name: dict[str, Any] = {"tls_name": tls_name} if issubclass(ours, TlsConnection) else {}
        super().__init__(connection_class=ours, **name, **options)


_OURS: Final[Mapping[Any, Any]] = {Connection: PlainConnection, SSLConnection: TlsConnection}


class LateCluster:
    """A client of a Cluster, which is looked for when it is first used: who starts while it is away goes on without it.

    `look` raises redis-py's errors, and so does whatever is asked of this client. From any thread.
    """

    def __init__(self, look: Callable[[], RedisCluster]) -> None:
        self._look = look
        self._lock = Lock()
        self._found: RedisCluster | None = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._found is None:
                self._found = self._look()
        return getattr(self._found, name)

    def close(self) -> None:
        """Let the connections go. Twice is harmless."""
        if self._found is not None:
            self._found.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sentinels:
    """The Sentinels of a service, which know its primary. From any thread; `options` are of connections to them."""

    def __init__(self, hosts: Sequence[Host], service: str, is_tls: bool, options: Mapping[str, Any]) -> None:
        self.service = service
        self._hosts = hosts
        self._connection_class = SSLConnection if is_tls else Connection
        self._options = {
            **options, "socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S,
            "protocol": 2, "retry": Retry(NoBackoff(), 0),
        }  # fmt: skip
        self._first = 0  # who answered the last time

    def primary(self) -> Host:
        """Host and port of the primary. Raises SentinelRefused, its text says what each of them answered."""
        answers = []
        for turn in range(len(self._hosts)):
            place = (self._first + turn) % len(self._hosts)
            name, port = self._hosts[place]
            try:
                found = self._ask(name, port)
            except (RedisError, OSError) as error:
                answers.append(f"{name}:{port}: {_refusal(error)}")
                continue
            if found is not None:
                self._first = place
                return found
            answers.append(f"{name}:{port}: knows no {self.service}, which the end of redis.url names")
        raise SentinelRefused(f"no Sentinel names the primary of {self.service} ({'; '.join(answers)})")

    def _ask(self, host: str, port: int) -> Host | None:
        client: Any = Redis.from_pool(Pool(self._connection_class, host=host, port=port, **self._options))
        try:
            found = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        finally:
            client.close()
        return None if found is None else (found[0].decode(), int(found[1]))


def _refusal(error: Exception) -> str:
    if isinstance(error, AuthenticationError):
        return f"refuses the login of redis.sentinel_username and redis.sentinel_password: {error}"
    return str(error)
