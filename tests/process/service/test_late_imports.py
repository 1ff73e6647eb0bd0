"""All that a process does for the first time, it does before it says that it is ready.

An import holds the interpreter up for as long as it takes, in whichever thread it is made: the engine stands still.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from tests.services.late_imports import VARIABLE, read_late
from tests.services.reference_broker import ReferenceBroker
from tests.services.sidecar_process import Sidecar

Headers = list[tuple[str, str | bytes | None]]

UNDER_LOAD_S = 15.0  # longer than until the first look at partitions that nobody has
MEMBERS = ("", "me-1")
BURST = 20
PAUSE_S = 0.1
ASKED = (
    "/v1/stats",
    "/metrics",
    "/v1/policies",
    "/v1/messages?limit=10",
    "/v1/schedules",
    "/v1/dead-letters",
    "/v1/redrives",
)
POLICIES = """\
name: delays
match: {{topics: ["{0}-source"]}}
delay: {{max: 1d}}
target: {{allow: ["{0}-target"]}}
---
name: retries
match: {{topics: ["{0}-retry"]}}
retry: {{attempts: 2, backoff: {{kind: fixed, delay: 1s}}}}
target: {{topic: "{0}-target", allow: ["{0}-target"]}}
dead_letter: {{topic: "{0}-dead"}}
"""


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedValkey(tmp_path / "valkey", free_port())
    server.start()
    yield server.url
    server.stop()


def launched(broker: ReferenceBroker, redis_url: str, directory: Path, instance: str) -> Sidecar:
    """A process with a group and topics of its own, on its way."""
    group = f"late-{instance or 'dynamic'}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(f"{group}-{role}", 2, 1) for role in ("source", "retry", "target", "dead")]
    for made in admin.create_topics(topics).values():
        made.result(60)
    policies = directory / f"{group}.yaml"
    policies.write_text(POLICIES.format(group))
    settings = {
        "GROUP": group,
        "INSTANCE_ID": instance,
        "HORIZON": "1s",
        "KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "REDIS__URL": redis_url,
        "POLICIES__TOPIC": f"{group}.policies",
        "POLICIES__FILE": str(policies),
        "DATA_DIR": str(directory / group),
        VARIABLE.removeprefix("TICKOVER_"): str(directory / f"{group}.imports"),
    }
    sidecar = Sidecar(settings, free_port(), directory / f"{group}.log")
    sidecar.module = "tests.services.late_imports"
    sidecar.launch()
    return sidecar


def put_under_load(broker: ReferenceBroker, sidecars: dict[str, Sidecar]) -> None:
    """Records that are due at once, soon and later, retries, dead letters, bad ones, and questions to the API."""
    producer, number, end_s = Producer({"bootstrap.servers": broker.bootstrap}), 0, time.monotonic() + UNDER_LOAD_S
    while time.monotonic() < end_s:
        for group, sidecar in sidecars.items():
            for delay in ("0ms", "300ms", "3s", "90s", "nonsense") * (BURST // 5):
                headers: Headers = [
                    ("tickover-delay", delay),
                    ("tickover-target", f"{group}-target"),
                ]
                producer.produce(f"{group}-source", b"value", b"key", headers=headers)
            attempt: Headers = [("tickover-attempt", str(number % 4)), ("tickover-error-class", "Error")]
            producer.produce(f"{group}-retry", b"value", b"key", headers=attempt)
            assert sidecar.call("GET", ASKED[number % len(ASKED)]).status_code == 200
            number += 1
        body = {"target": f"{group}-target", "value": "hello", "delay": "1s"}
        sidecar.call("POST", "/v1/messages", json=body)
        producer.poll(PAUSE_S)
    producer.flush(60)


def test_nothing_is_imported_or_compiled_once_a_process_is_ready(
    broker: ReferenceBroker, redis_url: str, tmp_path: Path
) -> None:
    with ExitStack() as ending:
        sidecars = {}
        for instance in MEMBERS:
            sidecar = launched(broker, redis_url, tmp_path, instance)
            ending.callback(sidecar.kill)
            sidecars[f"late-{instance or 'dynamic'}"] = sidecar
        ready_s = {}
        for group, sidecar in sidecars.items():
            sidecar.wait_until_ready()
            ready_s[group] = time.time()
        put_under_load(broker, sidecars)
        counts = {group: sidecar.stats()["topics"].get(f"{group}-source") for group, sidecar in sidecars.items()}
        late = {group: read_late(tmp_path / f"{group}.imports", ready_s[group]) for group in sidecars}
    assert late == {group: [] for group in sidecars}
    assert all(topic is not None and topic["emitted"] > 0 for topic in counts.values()), f"under load: {counts}"
