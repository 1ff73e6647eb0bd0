"""Settings of Redis: where it is, who we are there, and whom we trust. `redis.url` is taken apart here:

    redis[s]://[user:password@]host[:port][/database]
    redis[s]+cluster://[user:password@]host[:port][,host[:port]...]
    redis[s]+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]
    unix://[user:password@]/path[?db=database]

In a user's name and password `%` and two hexadecimal digits stand for a byte of UTF-8; whatever else is there stands
for itself. Only `/ ? #` must be written so: each of them ends the hosts. What is said of a wrong URL shows nothing of
it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self
from urllib.parse import unquote

from pydantic import Field, SecretStr, model_validator

from sidecar.settings.types import CONTENT_WHILE_RUNNING, Section
from sidecar.settings.watched_file import FileSecret

EMBEDDED: Final = "embedded"
PORT_MAX: Final = 65_535
SERVER: Final = "server"
CLUSTER: Final = "cluster"
SENTINEL: Final = "sentinel"
SOCKET: Final = "socket"
Kind = Literal["server", "cluster", "sentinel", "socket"]
Host = tuple[str, int]

_KINDS: Final[dict[str, Kind]] = {"": SERVER, "+cluster": CLUSTER, "+sentinel": SENTINEL}
_PORTS: Final = {SERVER: 6379, CLUSTER: 6379, SENTINEL: 26379}
_URL: Final = re.compile(r"(rediss?)(\+cluster|\+sentinel|)://([^/?#]*)(.*)", re.DOTALL)
_SOCKET: Final = re.compile(r"unix://(?:([^/?#]*)@)?(/[^?#]+)(?:\?db=(\d{1,9}))?", re.DOTALL)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^\[\]:%\s]+))(?::(\d{1,5}))?")
_PATHS: Final = {
    SERVER: re.compile(r"/?(?P<database>\d{0,9})"),
    CLUSTER: re.compile(r"/?0?"),
    SENTINEL: re.compile(r"/(?P<service>[A-Za-z0-9._-]+)(?:/(?P<database>\d{0,9}))?"),
}


class RedisUrlError(ValueError):
    """A URL of Redis that can't be meant; the text shows nothing of it."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where Redis is. `path` is that of a socket, `service` the name by which Sentinels know the servers; `bare` is the
    URL without a user's name and password.
    """

    bare: str
    kind: Kind
    is_tls: bool
    hosts: tuple[Host, ...]
    path: str
    service: str
    database: int
    username: str
    password: str


def read_redis_url(url: str) -> RedisUrl:
    """Raises RedisUrlError."""
    if any(ord(character) < 32 or ord(character) == 127 for character in url):
        raise RedisUrlError("redis.url has a line end or another control character in it: percent-encode it")
    if url.startswith("unix:"):
        return _socket(url)
    match = _URL.fullmatch(url)
    if match is None:
        raise RedisUrlError(
            "redis.url must be `embedded`, redis[s]://host[:port][/database], redis[s]+cluster://host[:port],..., "
            "redis[s]+sentinel://host[:port],.../service[/database] or unix:///path"
        )
    scheme, suffix, authority, rest = match.groups()
    if "@" in rest:  # the hosts seem to end within the password
        raise RedisUrlError("redis.url has no valid host; percent-encode / ? # in a password as %2F %3F %23")
    if "?" in rest or "#" in rest:  # a password, or what undoes our time-outs
        raise RedisUrlError("redis.url takes no options behind ? or #; redis.password, ca_file and others are settings")
    kind = _KINDS[suffix]
    login, _, there = authority.rpartition("@")
    hosts = tuple(_host(host, _PORTS[kind]) for host in there.split(","))
    if len(hosts) > 1 and kind == SERVER:
        raise RedisUrlError("redis.url names several hosts, which only +cluster:// and +sentinel:// have")
    path = _PATHS[kind].fullmatch(rest)
    if path is None:
        raise RedisUrlError(_WRONG_PATHS[kind])
    parts = path.groupdict()
    database = int(parts.get("database") or 0)
    bare = f"{scheme}{suffix}://{there}{rest}"
    return RedisUrl(bare, kind, scheme == "rediss", hosts, "", parts.get("service") or "", database, *_login(login))


_WRONG_PATHS: Final = {
    SERVER: "redis.url has something else than the number of a database behind its host",
    CLUSTER: "redis.url names a database, which a Cluster doesn't have: leave it out",
    SENTINEL: "redis.url must end with the name by which the Sentinels know the servers: "
    "redis+sentinel://host:26379,host:26379/service[/database]",
}


def _socket(url: str) -> RedisUrl:
    match = _SOCKET.fullmatch(url)
    if match is None:
        raise RedisUrlError("redis.url of a socket must be unix:///path, or unix:///path?db=1")
    login, path, database = match.groups()
    bare = f"unix://{path}" + (f"?db={database}" if database else "")
    return RedisUrl(bare, SOCKET, False, (), _unescaped(path), "", int(database or 0), *_login(login or ""))


def _host(text: str, port: int) -> Host:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match[3] or port) <= PORT_MAX:
        raise RedisUrlError(
            "redis.url has no valid host: it is host, host:port or [IPv6 address]:port behind the last @"
        )
    return (match[1] or match[2]).lower(), int(match[3] or port)


def _login(text: str) -> tuple[str, str]:
    name, _, password = text.partition(":")
    return _unescaped(name), _unescaped(password)


def _unescaped(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RedisUrlError("redis.url has escapes (%..) that are no UTF-8") from None


class RedisSettings(Section):
    """The server of the overflow. A user name and password in the URL are taken out of it and kept apart."""

    url: str = Field(
        default=EMBEDDED,
        description=(
            "`embedded` starts the bundled server; else redis[s]://host:6379/0, redis[s]+cluster://host:6379,...,"
            " redis[s]+sentinel://host:26379,.../service/0 or unix:///path?db=0; of several hosts, by commas, any that"
            " answers will do"
        ),
    )
    username: str = Field(default="", description="User name; empty for the default user")
    password: SecretStr = Field(
        default=SecretStr(""), json_schema_extra=CONTENT_WHILE_RUNNING,
        description="Password; better given by redis.password_file",
    )  # fmt: skip
    ca_file: str = Field(default="", description="PEM file of who signs the server's certificate; empty: the system's")
    certificate_file: str = Field(default="", description="PEM file of a certificate of our own, where Redis wants one")
    key_file: str = Field(default="", description="PEM file of its key")
    key_password: SecretStr = Field(
        default=SecretStr(""), description="Password of that key; better given by redis.key_password_file"
    )
    tls_name: str = Field(
        default="",
        description=(
            "Name that the certificates of Redis and of Sentinels must have, where those are reached by address or by"
            " another name; empty: the host's"
        ),
    )
    sentinel_username: str = Field(default="", description="User name in Sentinels; empty for their default user")
    sentinel_password: SecretStr = Field(
        default=SecretStr(""), json_schema_extra=CONTENT_WHILE_RUNNING,
        description="Password of Sentinels; better given by redis.sentinel_password_file",
    )  # fmt: skip
    signing_key_file: str = Field(
        default="",
        description=(
            "File of keys, one in each line: what replicas write to Redis is signed by the first, and what none of them"
            " has signed counts as lost; empty: whoever may write to Redis is trusted"
        ),
    )
    allow_eviction: bool = Field(
        default=False,
        description=(
            "Start although Redis throws held records away when it is full (maxmemory-policy allkeys-*); what it has"
            " thrown away is rebuilt from Kafka, late"
        ),
    )
    rebuild_rate: int = Field(
        default=100_000, ge=0, le=10_000_000,
        description="Records per second that are written back after Redis lost them, 0 to 10,000,000; 0: no limit",
    )  # fmt: skip

    @property
    def embedded(self) -> bool:
        return self.url == EMBEDDED

    def client_options(self) -> dict[str, Any]:
        """Options that `connect` takes beside the URL, with the secrets in the clear. A password of a file that may
        change is a `FileSecret`.
        """
        options = {
            "username": self.username,
            "password": _of_file(self.password),
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.certificate_file,
            "ssl_keyfile": self.key_file,
            "ssl_password": self.key_password.get_secret_value(),
            "tls_name": self.tls_name,
            "sentinel_username": self.sentinel_username,
            "sentinel_password": _of_file(self.sentinel_password),
        }
        return {name: value for name, value in options.items() if value}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        options = self.client_options()
        if any(name.startswith(("ssl_", "tls_")) for name in options) and not self.url.startswith("rediss"):
            raise ValueError(
                "redis.ca_file, certificate_file, key_file and tls_name are for rediss:// only: set redis.url so"
            )
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("redis.certificate_file and redis.key_file belong together: set both")
        if any(name.startswith(SENTINEL) for name in options) and f"+{SENTINEL}" not in self.url:
            raise ValueError(
                "redis.sentinel_username and sentinel_password are for redis[s]+sentinel:// only: set redis.url so"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _take_credentials_out(cls, values: Any) -> Any:
        url = values.get("url", EMBEDDED) if isinstance(values, Mapping) else None
        if not isinstance(url, str) or url == EMBEDDED:
            return values
        there = read_redis_url(url)
        given = {"username": there.username, "password": there.password}
        for name, item in given.items():
            if item and values.get(name):
                raise ValueError(f"redis.{name} is given twice: in redis.url and by itself")
        login = {name: item for name, item in given.items() if item}
        return {**values, **login, "url": there.bare} if login else values


def _of_file(secret: SecretStr) -> SecretStr | str:
    return secret if isinstance(secret, FileSecret) else secret.get_secret_value()
