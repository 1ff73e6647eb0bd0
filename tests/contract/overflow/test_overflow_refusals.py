"""A real server that refuses for a while: puts wait, reading goes on where it can, and all resumes within a second."""

import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey, bundled_server
from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from tests.contract.redis_servers import (
    RedisServer,
    commands_called,
    is_ok,
    redis_server_fixture,
    slots_of,
    start_cluster,
    valkey_fixture,
)
from tests.services.fixtures import missing
from tests.services.waiting import wait_until

pytestmark = pytest.mark.slow

__all__ = ["redis_server_fixture", "valkey_fixture"]

HORIZON_MS = 4_000
FAR_MS = 3_600_000
BACK_S = 1.0
SLACK_S = 2.0  # of a busy machine; the retry itself comes within 0.5 s
TURN_S = 0.002
TURN_MAX_S = 0.02  # what of a turn counts as time: the rest of it the machine stood still
SOON_S = 30.0
BLOCK = 10
DISK_BYTES = 4 << 20
PAGE_BYTES = 4_096


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Engine:
    """The engine's thread, as far as the overflow is concerned: one lane, its worker, real time."""

    def __init__(self, url: str, group: str = "g") -> None:
        self.overflow: RedisOverflow = open_overflow(url, group)
        self.in_wheel: list[int] = []
        self._never = threading.Event()
        self.worker = OverflowWorker(self.overflow, HORIZON_MS, self._to_wheel, ThreadPoolExecutor(1))
        self.lane = SourcePartition(TopicPartition("t", 0), Wheel(now_ms()), PromotionWindows(Position(now_ms(), -1)))

    def _to_wheel(self, lane: SourcePartition, records: list[Held]) -> None:
        self.in_wheel += [record.offset for record in records]

    def put(self, delay_ms: int) -> None:
        """One more committed change block."""
        lane = self.lane
        records = {}
        for _ in range(BLOCK):
            offset = lane.offsets.next
            lane.accept(offset)
            due_ms = now_ms() + delay_ms
            records[offset] = Held(due_ms, offset, "t", -1, None, b"v", [], "p@1", None, 0, -1, [], -1, "", 1)
        lane.number += 1
        earliest = min(held.position for held in records.values())
        lane.changes.append(ChangeBlock(lane.number, records, set(), earliest, 0, committed=True))

    def turn(self) -> None:
        """One turn, and a moment for the worker's thread: the engine's own pace."""
        self.worker.step([self.lane], now_ms(), 10_000)
        self._never.wait(TURN_S)

    def turn_until(self, condition: Callable[[], object], timeout_s: float = SOON_S) -> None:
        """Turn until it is so."""
        spent_s = 0.0
        while not condition():
            assert spent_s < timeout_s, f"not in time: {self.worker.problem}, {self.lane.loss}"
            started_s = time.monotonic()
            self.turn()
            spent_s += min(time.monotonic() - started_s, TURN_MAX_S)

    def hold(self) -> None:
        """Some far, and some that come near in a moment."""
        self.put(FAR_MS)
        self.put(HORIZON_MS + 1_500)
        self.turn_until(lambda: not self.lane.changes)

    def refused(self, words: str) -> None:
        """A put that waits; until it is known why."""
        self.put(FAR_MS)
        self.turn_until(lambda: words in self.worker.problem)

    def is_back(self) -> None:
        """The server is well again from now on."""
        self.turn_until(lambda: not self.lane.changes and not self.worker.problem, BACK_S + SLACK_S)
        assert self.lane.loss is None

    def close(self) -> None:
        self.worker.stop()
        self.overflow.close()


@pytest.fixture(name="engine")
def engine_fixture(valkey: EmbeddedValkey) -> Iterator[Engine]:
    engine = Engine(valkey.url)
    engine.hold()
    yield engine
    engine.close()


def client_of(server: EmbeddedValkey) -> Any:
    return Redis.from_url(server.url, protocol=2)


def drains(engine: Engine) -> None:
    """Turn until what comes near is promoted, although puts are refused."""
    engine.turn_until(lambda: len(engine.in_wheel) == BLOCK)
    assert engine.lane.changes
    assert engine.worker.problem, "that something was read doesn't mean that all is well"


def test_out_of_memory(valkey: EmbeddedValkey, engine: Engine) -> None:
    with client_of(valkey) as client:
        client.config_set("maxmemory", "1mb")
        engine.refused("takes no more writes")
        drains(engine)
        client.config_set("maxmemory", "1gb")
    engine.is_back()


def test_a_disk_that_takes_no_snapshot(valkey: EmbeddedValkey, engine: Engine, tmp_path: Path) -> None:
    """MISCONF: writes are refused after a snapshot has failed."""
    with client_of(valkey) as client:
        obstacle = Path(client.config_get("dir")["dir"]) / "dump.rdb"
        obstacle.mkdir()
        client.config_set("save", "3600 1")
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        engine.refused("takes no more writes")
        drains(engine)
        client.config_set("save", "")
    engine.is_back()


def on_a_small_disk(directory: Path, script: Path) -> Path:
    """A server whose data directory is a disk of its own, seen by nobody else."""
    try_it = ["unshare", "--mount", "--map-root-user", "true"]
    tried = subprocess.run(try_it, check=False, capture_output=True, text=True)
    if tried.returncode:
        missing("a place to mount a small disk", tried.stderr)
    mount = f'mount -t tmpfs -o size={DISK_BYTES} none "{directory}" && cd "{directory}"'
    script.write_text(f"""#!/bin/sh
exec unshare --mount --map-root-user sh -c '{mount} && exec "{bundled_server()}" "$@"' sh "$@"
""")
    script.chmod(0o755)
    return script


@pytest.mark.integration
def test_a_full_disk(tmp_path: Path) -> None:
    """MISCONF: the append-only file can't be written. What was acknowledged before is still there when it can."""
    directory = tmp_path / "valkey"
    server = EmbeddedValkey(
        directory, free_port(), {"appendfsync": "everysec"}, on_a_small_disk(directory, tmp_path / "server")
    )
    server.start()
    try:
        filler = Path(f"/proc/{server.process_id}/root{directory}/filler")
        engine = Engine(server.url)
        engine.hold()
        with client_of(server) as client:
            with pytest.raises(OSError, match="No space left"):
                filler.write_bytes(bytes(DISK_BYTES))
            client.set("padding", bytes(PAGE_BYTES))  # the file's last page has room for a little
            engine.refused("takes no more writes")
            drains(engine)
            assert client.info("persistence")["aof_last_write_status"] == "err"
            filler.unlink()
            wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")
        engine.is_back()
        engine.close()
    finally:
        server.stop()


def test_a_server_that_has_become_a_replica(valkey: EmbeddedValkey, engine: Engine) -> None:
    """READONLY: the client still speaks to the former master."""
    with client_of(valkey) as client:
        client.replicaof("127.0.0.1", 1)
        engine.refused("refuses")
        drains(engine)
        client.replicaof("NO", "ONE")
    engine.is_back()


def test_a_right_that_is_missing_within_a_script(redis_server: RedisServer) -> None:
    """NOPERM, in other words than outside: the script may be called, and something in it may not."""
    group = uuid4().hex
    rules = ("resetpass", f">{group}", "allkeys", "+@all")
    redis_server.on_each_node(lambda node: node.execute_command("ACL", "SETUSER", group, "on", *rules))
    engine = Engine(redis_server.url.replace("guest:guest@", f"{group}:{group}@"), group)
    engine.hold()
    redis_server.on_each_node(lambda node: node.execute_command("ACL", "SETUSER", group, "-zadd"))
    engine.refused("refuses")
    drains(engine)
    redis_server.on_each_node(lambda node: node.execute_command("ACL", "SETUSER", group, "+zadd"))
    engine.is_back()
    engine.close()
    redis_server.on_each_node(lambda node: node.execute_command("ACL", "DELUSER", group))


class LoadingServer(socketserver.ThreadingTCPServer):
    """On the port that a server had a moment ago."""

    allow_reuse_address = True
    daemon_threads = True


class Loading(socketserver.BaseRequestHandler):
    """Answers as a server does that is reading its data: a real one reads ours too fast to be met at it."""

    def handle(self) -> None:
        while received := self.request.recv(1 << 20):
            commands = 1 + received.count(b"\r\n*")
            self.request.sendall(commands * b"-LOADING Redis is loading the dataset in memory\r\n")


def test_a_server_that_is_loading_its_data(tmp_path: Path) -> None:
    port = free_port()
    server = EmbeddedValkey(tmp_path / "loading", port)
    server.start()
    engine = Engine(server.url)
    engine.hold()
    server.kill()
    with LoadingServer(("127.0.0.1", port), Loading) as loading:
        threading.Thread(target=loading.serve_forever, daemon=True).start()
        engine.refused("loading")
        loading.shutdown()
    server.start()
    engine.is_back()
    engine.close()
    server.stop()


def test_connections_that_are_cut(valkey: EmbeddedValkey, engine: Engine) -> None:
    with client_of(valkey) as client:
        for _ in range(20):
            engine.put(FAR_MS)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            engine.turn_until(lambda: not engine.lane.changes, BACK_S + SLACK_S)
    engine.is_back()


@pytest.fixture(name="cluster")
def cluster_fixture(tmp_path: Path) -> Iterator[RedisServer]:
    with ExitStack() as stack:
        yield start_cluster(stack, tmp_path)


@pytest.mark.integration
def test_a_slot_that_moves_to_another_node_of_the_cluster(cluster: RedisServer) -> None:
    engine = Engine(cluster.url)
    engine.hold()
    key = f"{{g:{engine.lane.id.topic}:0}}:hw"
    clients = [Redis.from_url(node.url, protocol=2) for node in cluster.nodes]
    slot = int(clients[0].execute_command("CLUSTER KEYSLOT", key))
    [source] = [client for client in clients if client.execute_command("CLUSTER COUNTKEYSINSLOT", slot)]
    target = next(client for client in clients if client is not source)
    ids = {client: client.execute_command("CLUSTER MYID").decode() for client in clients}
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    port = target.connection_pool.connection_kwargs.get("port") or target.config_get("port")["port"]
    moved = 0
    while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
        source.execute_command("MIGRATE", "127.0.0.1", port, keys[0], 0, 60_000)
        moved += 1
        engine.put(FAR_MS)
        for _ in range(20):
            engine.turn()
    assert moved > 1
    engine.turn_until(lambda: "asking" in commands_called(cluster))  # a right that nothing else needs
    for client in (target, source, *clients):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    engine.is_back()
    assert int(target.get(key) or 0) == engine.lane.number
    engine.turn_until(lambda: len(engine.in_wheel) >= BLOCK)
    for client in clients:
        client.close()
    engine.close()


@pytest.mark.integration
def test_a_failover_to_a_replica(cluster: RedisServer, tmp_path: Path) -> None:
    engine = Engine(cluster.url)
    engine.hold()
    key = f"{{g:{engine.lane.id.topic}:0}}:hw"
    clients = [Redis.from_url(node.url, protocol=2) for node in cluster.nodes]
    slot = int(clients[0].execute_command("CLUSTER KEYSLOT", key))
    place = next(n for n, client in enumerate(clients) if client.execute_command("CLUSTER COUNTKEYSINSLOT", slot))
    master = clients[place]
    other = (place + 1) % len(clients)
    replica = clients[other]
    for client in clients:
        client.config_set("cluster-allow-replica-migration", "no")  # by itself none becomes one
    # The replica gives its own slots away first: a master with slots can't become one. Its own word comes before the
    # others': what it says of its slots in between would take them back.
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    third = 3 - place - other
    first, last = 16_384 * other // 3, 16_384 * (other + 1) // 3 - 1
    for owner in (replica, clients[third], master):
        with owner.pipeline(transaction=False) as calls:
            for one in range(first, last + 1):
                calls.execute_command("CLUSTER SETSLOT", one, "NODE", ids[third])
            calls.execute()
    replica.execute_command("CLUSTER REPLICATE", ids[place])
    wait_until(lambda: replica.info("replication").get("master_link_status") == "up")
    engine.put(FAR_MS)
    engine.turn_until(lambda: not engine.lane.changes)
    wait_until(
        lambda: replica.info("replication")["slave_repl_offset"] >= master.info("replication")["master_repl_offset"]
    )
    cluster.nodes[place].kill()
    engine.put(FAR_MS)
    replica.execute_command("CLUSTER FAILOVER", "TAKEOVER")
    # A client asks whichever lives: both must have heard of it.
    wait_until(lambda: all(is_ok(one) and ids[place] not in slots_of(one) for one in (replica, clients[third])))
    engine.is_back()
    assert int(replica.get(key) or 0) == engine.lane.number
    for client in clients:
        client.close()
    engine.close()
