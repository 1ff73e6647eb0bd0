"""Commands of redis-cli as they are printed: for a shell, with the server's address and without any secret.

A password is read from the variable REDISCLI_AUTH. Where it isn't set, the shell says so and asks nobody.
"""

import shlex
from typing import Final, NamedTuple

from sidecar.settings.redis import CLUSTER, SENTINEL, SOCKET, RedisSettings, read_redis_url

CLI: Final = "redis-cli"
_LOGIN: Final = 'REDISCLI_AUTH="${REDISCLI_AUTH:?the password of somebody who may do this}" '


class RedisTools(NamedTuple):
    """Parts of a line: before and after the words of a command, and before one that reads its standard input."""

    before: str = CLI
    after: str = ""
    reading: str = CLI

    def command(self, words: str) -> str:
        """A line for a shell; in a Cluster for all its nodes."""
        return f"{self.before} {words}{self.after}"


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
        return RedisTools(f"{cli} --cluster call {address}", "", at)
    if there.kind == SENTINEL:
        asked = f"{at} SENTINEL get-master-addr-by-name {shlex.quote(there.service)}"
        primary = f'(set -- $({asked}); {cli} -h "$1" -p "$2"'
        return RedisTools(primary, ")", at)
    return _alike(at)


def _alike(cli: str) -> RedisTools:
    return RedisTools(cli, "", cli)
