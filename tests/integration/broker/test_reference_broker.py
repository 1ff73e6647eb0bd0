"""The sidecar on the reference broker, exactly_once: as on Kafka, also when either of them is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.kafka_servers import ReferenceServer
from tests.services.oracle import Traffic
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

RATE = 200
FLOWING_S = 120.0  # a client that hangs in a call is given up after 10 s, and Kafka's state is read again


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReferenceServer]:
    with own_broker(ReferenceServer(tmp_path)) as server:
        yield server


@pytest.fixture
def site(server: ReferenceServer, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(Kafka(server), redis_url, tmp_path)
    yield site
    site.close()


def test_killed_sidecar_and_killed_broker_lose_and_repeat_nothing(server: ReferenceServer, site: Site) -> None:
    Traffic.prepare(site, partitions=2)
    traffic = Traffic(site, partitions=2, rate=RATE)
    sidecar = site.sidecar("only", GUARANTEE="exactly_once").start()
    traffic.start()

    def flow() -> None:
        goal = traffic.arrived + RATE
        wait_until(lambda: traffic.arrived >= goal, FLOWING_S, lambda: f"nothing fires: {sidecar.last_words()}")

    flow()
    sidecar.kill()
    sidecar.launch()
    flow()
    server.kill()  # also in the middle of transactions: they are ended, one way, when it is there again
    server.start()
    flow()
    traffic.quieten()
    assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"\n{verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)
