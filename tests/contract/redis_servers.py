"""The servers on which the overflow must behave the same: bundled Valkey, Debian's Redis, a Cluster of three."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from sidecar.doctor.acl import redis_rights
from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.settings.settings import Settings
from tests.services.waiting import wait_until

SLOTS = 16_384
NODE_TIMEOUT_MS = "60000"  # a node that stands still on a busy machine is not one that has failed

_SERVICE = pytest.mark.integration
KINDS = ["valkey", pytest.param("redis", marks=_SERVICE), pytest.param("cluster", marks=_SERVICE)]


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server or Cluster."""

    url: str
    nodes: list[EmbeddedValkey]
    owner_url: str = ""  # as the owner, who may also look through all keys
    commands: frozenset[str] = frozenset()  # that are allowed by `url`

    def on_each_node(self, command: Callable[[Any], Any]) -> list[Any]:
        """Run a command on every node, past the overflow's own client."""
        answers = []
        for node in self.nodes:
            with Redis.from_url(node.url, protocol=2) as client:
                answers.append(command(client))
        return answers

    def configure(self, name: str, value: str) -> None:
        """CONFIG SET on every node."""
        self.on_each_node(lambda client: client.config_set(name, value))


@pytest.fixture(name="redis_server", scope="session", params=KINDS)
def redis_server_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """Each kind of server in turn, shared by the tests of a run: they use groups of their own."""
    directory = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        match request.param:
            case "valkey":
                yield _restricted(_one(stack, EmbeddedValkey(directory)))
            case "redis":
                yield _restricted(_one(stack, EmbeddedValkey(directory, free_port(), server=debian_redis())))
            case _:
                yield _restricted(start_cluster(stack, directory))


@pytest.fixture(name="valkey")
def valkey_fixture(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A bundled Valkey of the test's own, to be stopped, killed and misconfigured."""
    server = EmbeddedValkey(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


def debian_redis() -> Path:
    """The server's binary; skips where there is none, and fails in CI."""
    found = shutil.which("redis-server")
    if found is None:
        reason = "redis-server is not installed (apt-get install redis-server)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)


def _one(stack: ExitStack, server: EmbeddedValkey) -> RedisServer:
    stack.callback(server.stop)
    server.start()
    return RedisServer(server.url, [server])


def _restricted(server: RedisServer) -> RedisServer:
    """Entered as somebody who may call what `tickover acl print` says; on all keys, for tests have many groups."""
    url = "redis://h" if server.url.startswith("unix:") else server.url
    rights = redis_rights(Settings.model_validate({"redis": {"url": url}}))
    rules = rights._replace(keys=("*",), channels=("*",)).rules
    server.on_each_node(lambda node: node.execute_command("ACL", "SETUSER", "guest", "on", ">guest", *rules))
    guest = server.url.replace("://", "://guest:guest@", 1)
    return replace(server, url=guest, owner_url=server.url, commands=frozenset(rights.commands))


def commands_called(server: RedisServer) -> set[str]:
    """Commands called since CONFIG RESETSTAT, in scripts too: in ACL's words, as `script|load`."""
    counts = server.on_each_node(lambda client: client.info("commandstats"))
    return {name.removeprefix("cmdstat_") for of_node in counts for name, one in of_node.items() if one["calls"]}


def start_cluster(stack: ExitStack, directory: Path) -> RedisServer:
    """Three nodes that share the slots."""
    ports = [free_port() for _ in range(3)]
    bus_ports = [free_port() for _ in range(3)]
    nodes = []
    for port, bus_port in zip(ports, bus_ports, strict=True):
        settings = {"cluster-enabled": "yes", "cluster-port": str(bus_port), "cluster-node-timeout": NODE_TIMEOUT_MS}
        nodes.append(EmbeddedValkey(directory / str(port), port, settings))
        stack.callback(nodes[-1].stop)
        nodes[-1].start()
    cluster = RedisServer(f"redis+cluster://127.0.0.1:{ports[0]}", nodes)
    for number, node in enumerate(nodes):
        with Redis.from_url(node.url, protocol=2) as client:
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], bus_ports[0])
    wait_until(lambda: all(cluster.on_each_node(_knows_all)), otherwise=lambda: str(cluster.on_each_node(_information)))
    return cluster


def is_ok(client: Any) -> bool:
    """Whether this node of a Cluster finds every slot served."""
    text = _information(client)
    return "cluster_state:ok" in text or "'cluster_state': 'ok'" in text


def slots_of(client: Any) -> str:
    """Text of CLUSTER SLOTS: which node serves which slots, as this node of a Cluster knows it."""
    return str(client.execute_command("CLUSTER SLOTS"))


def _information(client: Any) -> str:
    information = client.execute_command("CLUSTER INFO")
    return information.decode() if isinstance(information, bytes) else str(information)


def _knows_all(client: Any) -> bool:
    text = _information(client)
    wanted = ("cluster_state:ok", "cluster_known_nodes:3", f"cluster_slots_ok:{SLOTS}")
    wanted_parsed = ("'cluster_state': 'ok'", "'cluster_known_nodes': '3'", f"'cluster_slots_ok': '{SLOTS}'")
    return all(word in text for word in wanted) or all(word in text for word in wanted_parsed)
