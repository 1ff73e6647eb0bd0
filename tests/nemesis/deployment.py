"""Place of the faults: three brokers and two sidecars in a network, a Valkey, and traffic that is timed."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import TopicMetadata

from sidecar.embedded.valkey import EmbeddedValkey
from tests.faults.failpoints import EXACTLY_ONCE
from tests.nemesis.judge import PARTITIONS, TimedTraffic
from tests.nemesis.network import Loopback, Namespaces, Network, NetworkUnavailableError, mount, unmount
from tests.nemesis.probe import Probe
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.kafka_cluster import NODES, ClusterServer, Place, PlacedKafka
from tests.services.oracle import Traffic
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

BROKERS: Final = tuple(f"broker-{number}" for number in range(1, NODES + 1))
SIDECARS: Final = ("sidecar-1", "sidecar-2")
RECOVERY_S: Final = 240.0  # how long it takes is told, not judged here
GROUP_TOPIC: Final = "__consumer_offsets"  # of one partition, as is the next: one broker coordinates all groups
TRANSACTION_TOPIC: Final = "__transaction_state"
SMALL_DISK: Final = NODES  # the broker whose log directory can be filled
SMALL_DISK_BYTES: Final = 1 << 30


class Deployment:
    """All of it, from `running` on. Brokers are called by their numbers, from 1."""

    def __init__(self, directory: Path, network: Network, rate: int, seed: int) -> None:
        self.network = network
        self.rate = rate
        self.seed = seed
        places = [Place(network.address(name), network.prefix(name)) for name in BROKERS]
        self.cluster = ClusterServer(directory / "kafka", places=places)
        self.disk = directory / "kafka" / str(SMALL_DISK) / "log"
        self.can_fill = network.can_cut  # a mount needs root, too
        self.ended: list[str] = []  # sidecars that ended by themselves, and were started again, with their status
        self._directory = directory
        self._valkey = EmbeddedValkey(directory / "valkey")
        self.kafka: Kafka
        self.site: Site
        self.sidecars: list[Sidecar]
        self.traffic: TimedTraffic
        self.probe: Probe

    @contextmanager
    def running(self) -> Iterator["Deployment"]:
        """Everything up and records falling due; everything ends with the block."""
        with ExitStack() as stack:
            if self.can_fill:
                self.disk.mkdir(parents=True)
                mount(self.disk, SMALL_DISK_BYTES)
                stack.callback(unmount, self.disk)
            stack.callback(self.cluster.remove)
            self.cluster.start()
            stack.callback(self._valkey.kill)
            self._valkey.start()
            self.kafka = Kafka(self.cluster, NODES)
            self.site = Site(self.kafka, self._valkey.url, self._directory)
            stack.callback(self.site.close)
            Traffic.prepare(self.site, PARTITIONS)
            self.probe = Probe(self.kafka)
            self.sidecars = [self._sidecar(name) for name in SIDECARS]
            for sidecar in self.sidecars:
                sidecar.launch()
            for sidecar in self.sidecars:
                sidecar.wait_until_ready()
            self.traffic = TimedTraffic(self.site, self.rate, self.seed)
            stack.callback(self.traffic.close)
            self.traffic.start()
            yield self

    def _sidecar(self, name: str) -> Sidecar:
        address = self.network.address(name)
        settings = {"GUARANTEE": EXACTLY_ONCE, "API__HOST": address, "API__ALLOW_UNAUTHENTICATED": "true"}
        sidecar = self.site.sidecar(name, **settings)
        sidecar.prefix = self.network.prefix(name)
        sidecar.url = f"http://{address}:{sidecar.url.rpartition(':')[2]}"
        return sidecar

    # --- who is who -----------------------------------------------------------------------------------------------

    def busiest(self) -> int:
        """The broker that leads most partitions of the sources and targets."""
        topics = self._topics()
        names = [self.site.name(role) for role in ("load", "work-retry", "load-out", "work")]
        leaders = Counter(partition.leader for name in names for partition in topics[name].partitions.values())
        return max(range(1, NODES + 1), key=lambda number: leaders[number])

    def coordinator(self, topic: str) -> int:
        """The broker that coordinates groups, or transactions."""
        return int(self._topics()[topic].partitions[0].leader)

    def controller(self) -> int:
        """The broker that leads the quorum of controllers, as they wrote it down themselves."""
        states = [json.loads((node._directory / QUORUM_STATE).read_text()) for node in self.cluster.nodes]
        return int(max(states, key=lambda state: int(state["leaderEpoch"]))["leaderId"])

    def node(self, number: int) -> PlacedKafka:
        """A broker's process."""
        return self.cluster.nodes[number - 1]

    def has_ended(self, number: int) -> bool:
        """Whether a broker's process has ended by itself."""
        child = self.node(number)._child
        return child is not None and child.has_ended

    def others(self, *numbers: int) -> str:
        """host:port of all brokers but these."""
        return ",".join(node.bootstrap for each, node in enumerate(self.cluster.nodes, 1) if each not in numbers)

    def _topics(self) -> dict[str, TopicMetadata]:
        topics: dict[str, TopicMetadata] = self.kafka.admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
        return topics

    # --- the disk -------------------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Leave no byte free on the small disk."""
        piece = SMALL_DISK_BYTES
        with (self.disk / FILLER).open("wb") as file:
            while piece >= PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
                except OSError:  # no room for so much
                    piece //= 2

    def empty_disk(self) -> None:
        """Give it back. Twice is harmless."""
        (self.disk / FILLER).unlink(missing_ok=True)

    # --- recovery -------------------------------------------------------------------------------------------------

    def wait(self, true: str, seconds: float = RECOVERY_S) -> None:
        """Until `is_whole` or `flows`, whichever is named; sidecars that end are started again meanwhile."""
        look = {"whole": self.is_whole, "flowing": self.flows}[true]

        def holds() -> bool:
            self.supervise()
            return look()

        wait_until(holds, seconds, lambda: f"not {true}: {self.last_words()}")

    def is_whole(self) -> bool:
        """Whether all replicas of all partitions are in sync."""
        partitions = [each for topic in self._topics().values() for each in topic.partitions.values()]
        return all(each.leader > 0 and len(each.isrs) == len(each.replicas) for each in partitions)

    def flows(self) -> bool:
        """Whether nothing is overdue and each partition of the source has been heard of."""
        return not self.traffic.overdue()

    def wait_until_emitting(self, since_ms: int) -> int:
        """When a record of each source partition had arrived from then on."""

        def emits() -> bool:
            self.supervise()
            return self.traffic.emits_again_ms(since_ms) >= 0

        wait_until(emits, RECOVERY_S, lambda: f"no emissions: {self.last_words()}")
        return self.traffic.emits_again_ms(since_ms)

    def supervise(self) -> None:
        """As a supervisor does: what ended by itself is started again."""
        for name, sidecar in zip(SIDECARS, self.sidecars, strict=True):
            if sidecar.ended:
                self.ended.append(f"{name} ended with status {sidecar.wait_until_ended()}")
                sidecar.launch()

    def heal(self) -> None:
        """Undo whatever a round has left, when it broke off: all links, all brokers."""
        self.network.mend()
        if self.can_fill:
            self.empty_disk()
        for number, node in enumerate(self.cluster.nodes, 1):
            if node._child is not None and not self.has_ended(number):
                self.cluster.resume(number)
            else:
                node.kill()
                node.start()

    def last_words(self) -> str:
        """The ends of the sidecars' logs."""
        return "\n".join(sidecar.last_words()[-1_500:] for sidecar in self.sidecars)


PAGE_BYTES: Final = 4_096
QUORUM_STATE: Final = Path("log", "__cluster_metadata-0", "quorum-state")
FILLER: Final = "filler"


def open_network(wanted: str) -> tuple[Network, str]:
    """The network that was asked for (auto, namespaces or none), and why links can't be cut in it; "" when they can.

    Raises NetworkUnavailableError when only namespaces would do.
    """
    if wanted == "none":
        return Loopback(), "no network namespaces were wanted"
    try:
        return Namespaces((*BROKERS, *SIDECARS)), ""
    except NetworkUnavailableError as error:
        if wanted == "namespaces":
            raise
        return Loopback(), str(error)
