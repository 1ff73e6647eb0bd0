"""Three real brokers that are each other's controllers: leaders and coordinators move when one goes."""

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple
from unittest.mock import patch

from broker.cluster.settings import RACK_AWARE
from sidecar.embedded.java_kafka import MavenKafka
from tests.services.class_archive import JAVA_OPTIONS
from tests.services.kafka_servers import PROPERTIES, send_signal

NODES = 3
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
REPLICATED = {
    **PROPERTIES,
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "6000",
    "replica.selector.class": RACK_AWARE,
}


class Place(NamedTuple):
    """Where a broker runs: its IP address, and the words before a command that make it run there."""

    address: str
    prefix: tuple[str, ...] = ()


LOOPBACK: Final = Place("127.0.0.1")


class PlacedKafka(MavenKafka):
    """A broker at a place that need not be the loopback interface of this machine."""

    def __init__(self, directory: Path, place: Place) -> None:
        super().__init__(directory, java_options=JAVA_OPTIONS)
        self._place = place
        self.controller = f"{place.address}:{self._controller_port}"

    @property
    def bootstrap(self) -> str:
        return f"{self._place.address}:{self._port}"

    def _java(self, jars: Path) -> list[str]:
        return [*self._place.prefix, *super()._java(jars)]


class ClusterServer:
    """Brokers in child processes, each in a rack of its own; `nodes` may be stopped and started one by one."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] = MappingProxyType({}),
        places: Sequence[Place] = (LOOPBACK,) * NODES,
    ) -> None:
        self.nodes = [PlacedKafka(directory / str(number), place) for number, place in enumerate(places, 1)]
        voters = ",".join(f"{number}@{node.controller}" for number, node in enumerate(self.nodes, 1))
        for number, node in enumerate(self.nodes, 1):
            own = {
                "node.id": str(number),
                "broker.rack": f"rack-{number}",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{node.controller}",
            }
            node._properties = {**REPLICATED, **properties, **own}
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        """All of them at once: each waits for a majority."""
        with (
            patch("sidecar.embedded.java_kafka._cluster_id", lambda: CLUSTER_ID),
            ThreadPoolExecutor(NODES) as executor,
        ):
            for _ in executor.map(MavenKafka.start, self.nodes):
                pass

    def stop(self) -> None:
        """All of them, in order: the last would wait for a majority, and is killed."""
        for node in self.nodes[1:]:
            node.stop()
        self.nodes[0].kill()

    def kill(self) -> None:
        """SIGKILL for all."""
        for node in self.nodes:
            node.kill()

    def pause(self, number: int) -> None:
        """SIGSTOP."""
        send_signal(self.nodes[number - 1], signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT."""
        send_signal(self.nodes[number - 1], signal.SIGCONT)

    def remove(self) -> None:
        """As `kill`: the directory belongs to the test run."""
        self.kill()
