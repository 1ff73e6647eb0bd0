"""The examples, run as they stand against a sidecar with the policies that stand beside them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.embedded.child import free_port
from sidecar.embedded.kafka import available
from tests.services.fixtures import missing
from tests.services.kafka import Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.sidecar_process import Sidecar
from tests.source import ROOT

pytestmark = pytest.mark.integration

EXAMPLE_S = 60.0
TOPICS = ("reminders", "reminders-dlq", "push", "orders", "orders-retry", "orders-dlq")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the examples read. The broker is their own, because the examples' topics have plain names."""
    reason = available()
    if reason is not None:
        missing("Kafka from Maven", reason)
    directory = tmp_path_factory.mktemp("examples")
    server = MavenServer(directory / "kafka")
    server.start()
    try:
        kafka = Kafka(server)
        for name in TOPICS:
            kafka.create_topic(name)
        sidecar = Sidecar(
            {
                "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
                "DATA_DIR": str(directory / "data"),
                "POLICIES__FILE": str(ROOT / "examples" / "policies.yaml"),
            },
            free_port(),
            directory / "sidecar.log",
        )
        try:
            sidecar.start()
            yield {**os.environ, "TICKOVER_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "TICKOVER_URL": sidecar.url}
        finally:
            sidecar.kill()
    finally:
        server.remove()


def output_of(example: str, environment: dict[str, str]) -> str:
    """What the example prints; it must end in order."""
    command = [sys.executable, str(Path("examples") / example)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=EXAMPLE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_send_delayed(environment: dict[str, str]) -> None:
    assert output_of("send_delayed.py", environment) == (
        "sent to reminders, for push in 2 s\narrived on push after 2 s, with language=b'en'\n"
    )


def test_retrying_consumer(environment: dict[str, str]) -> None:
    assert output_of("retrying_consumer.py", environment) == (
        "order 1, attempt 1: the warehouse does not answer\n"
        "order 1, attempt 2: the warehouse does not answer\n"
        "order 1, attempt 3: done\n"
    )


def test_schedule_by_rest(environment: dict[str, str]) -> None:
    assert output_of("schedule_by_rest.py", environment) == (
        "202: written to reminders\nsent again: the same message\n422: No source\n"
    )


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_are_short(example: str) -> None:
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 40
