"""`redis.url`, taken apart: which servers, and who we are there.

    redis[s]://[user:password@]host[:port][/database]
    redis[s]+cluster://[user:password@]host[:port][,host[:port]...]
    redis[s]+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]
    unix://[user:password@]/path[?db=database]

In a user's name and password `%` and two hexadecimal digits stand for a byte of UTF-8; whatever else is there stands
for itself. Only `/ ? #` must be written so: each of them ends the hosts. What is said of a wrong URL shows nothing of
it.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import unquote

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
PORT_MAX: Final = 65_535


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
