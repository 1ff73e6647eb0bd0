"""Faults in the middle of redrives, changes by filter and a schedule: each message once, or cancelled, all the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.embedded.jars import KafkaUnavailable
from tests.faults.catalogue import FAULTS
from tests.faults.failpoints import EXACTLY_ONCE
from tests.faults.scene import Scene, Servers
from tests.services.fixtures import missing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

HERE = ("kill -9 of all", "Redis wiped", "kill -9", "broker restarted")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A broker and a Redis that may be harmed."""
    servers = Servers(tmp_path)
    try:
        servers.start()
        yield servers
    except KafkaUnavailable as error:
        missing("Kafka from maven", error)
    finally:
        servers.stop()


def test_each_fault_in_the_middle_of_what_is_governed(servers: Servers, guarantee: str) -> None:
    scene = Scene(servers, guarantee, seed=1, rate=50, processes=2)
    with scene.running():
        for name in HERE:
            scene.governed.wait_until_busy()
            print(f"{name} meets {scene.governed.word}")
            FAULTS[name].do(scene)
            scene.wait_until_flowing()
        verdict, imbalance = scene.verdict()
    print(f"\n{guarantee}: {verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, imbalance) == (0, 0, 0, 0), "\n".join(verdict.faults)
    assert verdict.repeated == 0 or guarantee != EXACTLY_ONCE
