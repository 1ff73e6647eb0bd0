"""A minute of the soak, with the same faults in the same order each time; and the soak's own table."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.embedded.java_kafka import KafkaUnavailable
from tests.faults.catalogue import FAULTS, promised
from tests.faults.failpoints import EXACTLY_ONCE
from tests.faults.scene import Scene, Servers
from tests.integration.conftest import SOAK
from tests.services.fixtures import missing
from tests.soak.__main__ import Row, table

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

# Brokers that go are the nemesis's and those of test_faults, too: here in a longer run only.
OF_BROKERS = ("broker killed", "broker frozen")
SHORT = ("kill -9 of all", "zombie", "clock steps", "Redis wiped", *(OF_BROKERS if SOAK else ()))
FAULTS_MIN = 15


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


def test_one_fault_after_the_other(servers: Servers, guarantee: str) -> None:
    faults = promised(guarantee)
    scene = Scene(servers, guarantee, seed=1, rate=200, processes=2)
    with scene.running():
        for name in SHORT:
            if name in faults:
                faults[name].do(scene)
                scene.wait_until_flowing()
        verdict, imbalance = scene.verdict()
    print(f"\n{guarantee}: {verdict}; {scene.raised} processes ended by themselves")
    assert (verdict.lost, verdict.early, verdict.changed, imbalance) == (0, 0, 0, 0), "\n".join(verdict.faults)
    assert verdict.repeated == 0 or guarantee != EXACTLY_ONCE


def test_a_violation_shows() -> None:
    well = Row(1, "at_least_once", ("kill -9",), sent=10, lost=0, early=0, changed=0, repeated=3, imbalance=0)
    assert not well.violated
    for wrong in (
        Row(1, "at_least_once", (), sent=10, lost=1, early=0, changed=0, repeated=0, imbalance=0),
        Row(1, "at_least_once", (), sent=10, lost=0, early=1, changed=0, repeated=0, imbalance=0),
        Row(1, "at_least_once", (), sent=10, lost=0, early=0, changed=0, repeated=0, imbalance=1),
        Row(1, "exactly_once", (), sent=10, lost=0, early=0, changed=0, repeated=1, imbalance=0),
        Row(1, "at_least_once", (), sent=0, lost=0, early=0, changed=0, repeated=0, imbalance=0, error="x"),
    ):
        assert wrong.violated
    assert "| at_least_once | 1 | 10 | 0 | 0 | 0 | 3 | 0 | 0 |" in table([well])


def test_the_catalogue_is_large_enough() -> None:
    assert len(FAULTS) >= FAULTS_MIN
    assert set(SHORT) <= set(FAULTS)
