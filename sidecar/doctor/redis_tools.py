"""Commands of redis-cli as they are printed: for a shell, with the server's address and without any secret.

A password is read from the variable REDISCLI_AUTH. Where it isn't set, the shell says so and asks nobody.
"""

import shlex
from typing import Final, NamedTuple

from sidecar.settings.redis import CLUSTER, SENTINEL, SOCKET, RedisSettings, read_redis_url

CLI: Final = "redis-cli"
_LOGIN: Final = 'REDISCLI_AUTH="${REDISCLI_AUTH:?the password of somebody who may do this}" '


# Each node of a Cluster: its address is the second word, `host:port@bus,name`. A node without one is passed over; one
# that doesn't know its own host is the one that was asked.
_EACH_NODE: Final = (
    """printf '%s\\n' "$nodes" | (status=0; while read -r _ at _; do case $at in :0@*) continue;; esac; """
    """at=${at%%@*}; host=${at%:*}; host=${host:-$asked}; """
)
_REPLICAS: Final = (
    "a user is of one server, and replicas don't get it: run the last line for each of them too, with its address for "
    "`$1` and `$2`, else tickover is refused after a failover"
)
_NODES: Final = "the last line makes the user on each node of the Cluster: run it again when a node joins"


class Piped(NamedTuple):
    """Parts of a line that hands output to redis-cli: before the program that writes it, and around the words."""

    first: str = ""
    before: str = CLI
    after: str = ""


class RedisTools(NamedTuple):
    """Parts of a line: before and after the words of a command, and around one that reads its standard input.

    `note`: what to know about a user that is made so; empty: nothing.
    """

    before: str = CLI
    after: str = ""
    piped: Piped = Piped()
    note: str = ""

    def command(self, words: str) -> str:
        """A line for a shell; in a Cluster for all its nodes."""
        return f"{self.before} {words}{self.after}"

    def reading(self, source: str, words: str) -> str:
        """A line for a shell that gives the output of `source` as the last word (-x); in a Cluster to all its nodes."""
        return f"{self.piped.first}{source} | {self.piped.before} -x {words}{self.piped.after}"


def redis_tools(redis: RedisSettings) -> RedisTools:
    """Tools for the server of the settings. Behind Sentinels the primary is asked for when the command is run."""
    if redis.embedded:
        return RedisTools()
    there = read_redis_url(redis.url)
    login = _LOGIN if redis.password.get_secret_value() else ""
    options = "".join(
        f" {name} {shlex.quote(value)}"
        for name, value in (
            ("--cacert", redis.ca_file), ("--cert", redis.certificate_file), ("--key", redis.key_file),
            ("--sni", redis.tls_name),
        )
        if value
    )  # fmt: skip
    cli = f"{login}{CLI}{' --tls' if there.is_tls else ''}{options}"
    if there.kind == SOCKET:
        return _alike(f"{cli} -s {shlex.quote(there.path)}")
    host, port = there.hosts[0]
    at = f"{cli} -h {shlex.quote(host)} -p {port}"
    if there.kind == CLUSTER:
        address = shlex.quote(f"{host}:{port}")
        # Not by --cluster call, which reads no standard input.
        nodes = f"asked={shlex.quote(host)}; nodes=$({at} CLUSTER NODES) && {_EACH_NODE}"
        each = Piped(nodes, f'{cli} -h "$host" -p "${{at##*:}}"', " || status=1; done; exit $status)")
        return RedisTools(f"{cli} --cluster call {address}", "", each, _NODES)
    if there.kind == SENTINEL:
        asked = f"{at} SENTINEL get-master-addr-by-name {shlex.quote(there.service)} </dev/null"
        primary = f'(set -- $({asked}); {cli} -h "$1" -p "$2"'
        return RedisTools(primary, ")", Piped("", primary, ")"), _REPLICAS)
    return _alike(at)


def _alike(cli: str) -> RedisTools:
    return RedisTools(cli, "", Piped("", cli))
