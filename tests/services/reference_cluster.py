"""Three reference brokers whose leaders and coordinators move when one goes, as `kafka_cluster` has them of real ones.

`python -m tests.services.reference_cluster` with `--data` is the brokers, in a process of their own: clients in the
test's process may hold the interpreter's lock while they wait for them. One process has them all, so it takes orders
to let one of them go: a line `stop 3`, `kill 3`, `start 3`, `pause 3` or `resume 3` to its first port, answered when it
is done.
"""

import argparse
import asyncio
import random
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.cluster.settings import RACK_AWARE, BrokerSettings
from broker.server.cluster import Chance, Cluster
from broker.server.serving import serve
from sidecar.embedded.child import free_port
from tests.services.kafka_cluster import NODES
from tests.services.kafka_servers import ReferenceServer
from tests.services.waiting import WAIT_S

MODULE: Final = "tests.services.reference_cluster"
DONE: Final = b"done\n"
FOR_EVER_MS: Final = 1 << 62
RACKS: Final = tuple(f"rack-{number}" for number in range(1, NODES + 1))
# As the real ones of kafka_cluster, else as `tickover broker`.
SETTINGS: Final = BrokerSettings(
    default_replication_factor=NODES,
    offsets_retention_ms=FOR_EVER_MS,
    replica_selector_class=RACK_AWARE,
    topic_defaults={"retention.ms": "-1", "min.insync.replicas": "2"},
)


class ReferenceNode:
    """One broker of the process. Its data and its port stay."""

    def __init__(self, orders_port: int, number: int) -> None:
        self._orders_port = orders_port
        self._number = number

    def stop(self) -> None:
        """Orderly end: others lead first."""
        self.order("stop")

    def kill(self) -> None:
        """End the broker without a word."""
        self.order("kill")

    def start(self) -> None:
        """Bring it back."""
        self.order("start")

    def order(self, word: str) -> None:
        """Have it done."""
        with socket.create_connection(("127.0.0.1", self._orders_port), timeout=WAIT_S) as connection:
            connection.sendall(f"{word} {self._number}\n".encode())
            with connection.makefile("rb") as answers:
                answer = answers.readline()
        assert answer == DONE, answer.decode()


class ReferenceClusterServer(ReferenceServer):
    """All of them, for tests; `nodes` may be stopped and started one by one."""

    def __init__(self, directory: Path, lag_ms: int = SETTINGS.replica_lag_time_max_ms) -> None:
        ports = [free_port() for _ in range(NODES + 1)]
        super().__init__(directory, (sys.executable, "-m", MODULE, *map(str, ports), "--lag", str(lag_ms)))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[1:])
        self.nodes = [ReferenceNode(ports[0], number) for number in range(1, NODES + 1)]

    def pause(self, number: int) -> None:
        """Have the broker of this number follow nobody."""
        self.nodes[number - 1].order("pause")

    def resume(self, number: int) -> None:
        """Have the broker of this number follow again."""
        self.nodes[number - 1].order("resume")


class CommandedCluster(Cluster):
    """Takes orders from the moment it serves."""

    _orders: asyncio.Server | None = None

    async def start(self, ports: Sequence[int], racks: Sequence[str | None] = ()) -> None:
        orders_port, *self._ports = ports
        await super().start(self._ports, racks or RACKS)
        self._orders = await asyncio.start_server(self._obey, "127.0.0.1", orders_port)

    async def stop(self) -> None:
        if self._orders is not None:
            self._orders.close()
        await super().stop()

    async def _obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word, number = (await reader.readline()).decode().split()
        do: dict[str, Callable[[int], Awaitable[None]]] = {
            "stop": self.stop_broker,
            "kill": self.kill_broker,
            "start": self._start_again,
            "pause": self._pause,
            "resume": self._resume,
        }
        try:
            await do[word](int(number))
            writer.write(DONE)
        except Exception as error:  # noqa: BLE001 - whatever it was, the test is told
            writer.write(f"{type(error).__name__}: {error}\n".encode())
        writer.close()

    async def _start_again(self, number: int) -> None:
        await self.start_broker(number, self._ports[number - 1], RACKS[number - 1])

    async def _pause(self, number: int) -> None:
        self.brokers[number].fetcher.pause()

    async def _resume(self, number: int) -> None:
        self.brokers[number].fetcher.resume()


def main() -> None:
    """Until it is asked to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs=NODES + 1)
    parser.add_argument("--lag", type=int, required=True, help="replica.lag.time.max.ms")
    parser.add_argument("--data", type=Path, required=True)
    given, _ = parser.parse_known_args()

    def make_cluster() -> Cluster:
        chance = Chance(lambda: str(uuid.uuid4()), random.randrange)
        settings = replace(SETTINGS, replica_lag_time_max_ms=given.lag)
        return CommandedCluster(given.data, settings, lambda: time.time() * 1000, chance)

    asyncio.run(serve(make_cluster, given.ports, lambda bootstrap: print(bootstrap, flush=True)))


if __name__ == "__main__":
    main()
