"""A deployment of its own to be broken: a broker, a Redis behind a proxy, a site with its processes under load."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from tests.faults.failpoints import EXACTLY_ONCE
from tests.faults.lying_clock import LyingClock
from tests.services.acted_traffic import ActedTraffic
from tests.services.fixtures import own_cluster, own_server
from tests.services.governed_traffic import GovernedTraffic
from tests.services.kafka import Kafka
from tests.services.kafka_servers import KafkaNode, KafkaServer
from tests.services.oracle import Traffic, Verdict
from tests.services.redis_proxy import RedisProxy
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

RECOVERY_S = 300.0  # how long it takes is not what is judged here
FLOWING_RECORDS = 200
BACKLOG_S = 3.0  # records wait two seconds on average; with this much more outstanding there is a backlog
PARTITIONS = 4
ACTED_PART = 10  # one in so many messages more has an id, and most of these are acted on
FAULTS_SHOWN = 20
# So that faults meet them: what schedules owe is written just ahead, changes are made in small steps.
SETTINGS = {"SCHEDULES__LOOK_AHEAD": "2s", "CHANGES__IN_FLIGHT": "20"}


class Servers:
    """Kafka and Redis of a run; they outlive its rounds."""

    def __init__(self, directory: Path, brokers: int = 1) -> None:
        self.broker: KafkaServer
        self.nodes: Sequence[KafkaNode] = ()  # those that may go one by one; none when there is only one
        if brokers > 1:
            self.broker = cluster = own_cluster(directory / "kafka")
            self.nodes = cluster.nodes
        else:
            self.broker = own_server(directory / "kafka")
        self.redis_files = directory / "valkey"
        self.valkey = EmbeddedValkey(self.redis_files, free_port())
        self.proxy = RedisProxy(int(self.valkey.url.rpartition(":")[2]))
        self.kafka: Kafka
        self.directory = directory

    def start(self) -> None:
        self.broker.start()
        self.kafka = Kafka(self.broker, len(self.nodes) or 1)
        self.valkey.start()
        self.proxy.start()

    def stop(self) -> None:
        """End them all; harmless when some were never started."""
        self.broker.remove()
        self.valkey.kill()
        self.proxy.stop()


class Scene:
    """One round: its site, its processes, its traffic. Faults are done to it, one at a time. `governed`: with redrives,
    changes by filter and a schedule in the load, which takes a minute more.
    """

    # tidy: what a round is made of
    def __init__(
        self, servers: Servers, guarantee: str, seed: int, rate: int, processes: int, governed: bool = False
    ) -> None:
        self.servers = servers
        self.guarantee = guarantee
        self.chance = random.Random(seed)
        self.rate = rate
        self.site = Site(servers.kafka, servers.proxy.url, servers.directory)
        more_policies = ActedTraffic.prepare(self.site, PARTITIONS) + GovernedTraffic.prepare(self.site)
        Traffic.prepare(self.site, PARTITIONS, more_policies)
        self.traffic = Traffic(self.site, PARTITIONS, rate, seed)
        self.acted = ActedTraffic(self.site, PARTITIONS, rate // ACTED_PART, seed)
        self.clock = LyingClock(servers.directory)
        settings = {"GUARANTEE": guarantee, **SETTINGS}
        self.sidecars = [self.site.sidecar(f"p{number}", **settings) for number in range(processes)]
        self.raised = 0  # processes that ended by themselves, and were started again
        self.governed = GovernedTraffic(self.site, self.sidecars, seed) if governed else None

    @contextmanager
    def running(self) -> Iterator["Scene"]:
        """All processes up and the traffic flowing; everything ends with the block."""
        try:
            for sidecar in self.sidecars:
                sidecar.launch()
            for sidecar in self.sidecars:
                sidecar.wait_until_ready()
            self.traffic.start()
            self.acted.start()
            if self.governed is not None:
                self.governed.start()
            self.wait_until_flowing()
            yield self
        finally:
            if self.governed is not None:
                self.governed.close()
            self.acted.close()
            self.traffic.close()
            self.site.close()

    def victim(self) -> Sidecar:
        """One of the processes."""
        return self.chance.choice(self.sidecars)

    def wait_until_flowing(self) -> None:
        """Until what is due arrives again and the backlog is worked off."""
        goal = self.traffic.arrived + FLOWING_RECORDS
        most = int(self.rate * (2 + BACKLOG_S))

        def flows() -> bool:
            self._raise_the_dead()
            return self.traffic.arrived >= goal and self.traffic.outstanding < most

        wait_until(flows, RECOVERY_S, lambda: f"{self.traffic.outstanding} outstanding: {self.last_words()}")

    def _raise_the_dead(self) -> None:
        """As a supervisor does: what ended by itself is started again."""
        for sidecar in self.sidecars:
            if sidecar.ended:
                sidecar.wait_until_ended()
                sidecar.launch()
                self.raised += 1

    def wait_until_ready(self) -> None:
        """Until every process has recovered its partitions and all services answer."""

        def ready() -> bool:
            self._raise_the_dead()
            return all(sidecar.is_ready() for sidecar in self.sidecars)

        wait_until(ready, RECOVERY_S, lambda: f"not ready: {[s.readiness for s in self.sidecars]} {self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(sidecar.last_words()[-1_500:] for sidecar in self.sidecars)

    def verdict(self) -> tuple[Verdict, int]:
        """Let everything arrive, stop everyone in order, and judge; with the sum of all ledger imbalances."""
        self.wait_until_ready()
        if self.governed is not None:
            self.governed.quieten()
        self.acted.quieten()
        self.traffic.quieten()
        wait_until(self.acted.all_settled, RECOVERY_S, lambda: "messages with ids are not settled")
        if self.governed is not None:
            self.governed.finish()
        imbalance = sum(abs(int(sidecar.stats()["ledger_imbalance"])) for sidecar in self.sidecars)
        for sidecar in self.sidecars:
            status = sidecar.stop()
            assert status == 0, f"a clean stop ended with {status}: {sidecar.last_words()}"
        verdict = self._with_actions(self.traffic.verdict())
        return (self.governed.added_to(verdict) if self.governed is not None else verdict), imbalance

    def _with_actions(self, verdict: Verdict) -> Verdict:
        """The verdict with the messages that were acted on: whatever is wrong with them counts as changed."""
        faults = self.acted.faults(self.guarantee == EXACTLY_ONCE)
        return replace(
            verdict,
            sent=verdict.sent + self.acted.count,
            arrived=verdict.arrived + self.acted.count,
            changed=verdict.changed + len(faults),
            faults=(*verdict.faults, *faults[:FAULTS_SHOWN]),
        )
