"""A primary, its replica and a Sentinel that watches them: real Valkey servers, and a fail-over within two seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from sidecar.embedded.child import Child, free_port
from sidecar.embedded.valkey import EmbeddedValkey, bundled_server
from tests.services.waiting import wait_until

SERVICE = "held"
USER, PASSWORD = "watcher", "sentinel-password-7d"
DOWN_AFTER_MS = 400
_WATCHER = f"user {USER} on >{PASSWORD} -@all +sentinel|get-master-addr-by-name\n"


class SentinelGroup:
    """`url` is for `redis.url`; the Sentinel wants `USER` and `PASSWORD` of all but this test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        at_once = {"repl-diskless-sync-delay": "0"}
        self.primary = EmbeddedValkey(directory / "first", free_port(), at_once)
        self.replica = EmbeddedValkey(directory / "second", free_port(), at_once)
        self.port = free_port()
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}"
        self._sentinel: Child | None = None

    def start(self) -> None:
        """All three, the replica in step with its primary."""
        self.primary.start()
        self.replica.start()
        self.follow(port_of(self.primary))
        wait_until(lambda: ask(self.replica).info("replication")["master_link_status"] == "up")
        configuration = self._directory / "sentinel.conf"
        configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {port_of(self.primary)} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 2000\n"
            f"user default on >{PASSWORD} ~* &* +@all\n{_WATCHER}"
        )
        with (self._directory / "sentinel.log").open("ab") as output:
            self._sentinel = Child([str(bundled_server()), str(configuration), "--sentinel"], output)
        wait_until(lambda: self._replicas() == 1)

    def stop(self) -> None:
        """All of them. Twice is harmless."""
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.kill()
        self.primary.kill()
        self.replica.kill()

    def follow(self, port: int) -> None:
        """The replica follows whoever listens on this port, be it nobody: what is written meanwhile it lacks."""
        ask(self.replica).execute_command("REPLICAOF", "127.0.0.1", port)

    def fail_over(self) -> None:
        """The primary dies, and the replica takes its place."""
        self.primary.kill()
        wait_until(self._has_taken_over, otherwise=self.last_words)

    def sentinel(self, *command: str) -> Any:
        """A command to the Sentinel."""
        with Redis("127.0.0.1", self.port, password=PASSWORD, protocol=2) as client:
            return client.execute_command("SENTINEL", *command)

    def last_words(self) -> str:
        return (self._directory / "sentinel.log").read_text()[-1_500:]

    def _has_taken_over(self) -> bool:
        try:
            return bool(ask(self.replica).execute_command("ROLE")[0] == b"master")
        except RedisError:  # the Sentinel closes all connections of whom it makes the primary
            return False

    def _replicas(self) -> int:
        try:
            return len(self.sentinel("REPLICAS", SERVICE))
        except RedisError:  # it is starting
            return 0


def port_of(server: EmbeddedValkey) -> int:
    return int(server.url.rpartition(":")[2])


def ask(server: EmbeddedValkey) -> Any:
    """A client of one server alone."""
    return Redis.from_url(server.url, protocol=2)


@contextmanager
def watched_servers(directory: Path) -> Iterator[SentinelGroup]:
    """A group of the test's own."""
    group = SentinelGroup(directory)
    try:
        group.start()
        yield group
    finally:
        group.stop()
