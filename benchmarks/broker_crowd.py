"""The reference broker in a crowd: thousands of fetches that wait, each at its own connection, beside a real Kafka.

    python -m benchmarks.broker_crowd [--waiting 0,1000,10000] [--singles 200]

Brokers run one after the other. First each of so many connections sends a fetch that waits at the end of a partition,
for an hour. Then single records are produced with acks=1 to another partition, one after the other, and a fetch of a
further connection waits for each: the crowd is in the way of both. At the end one record is produced to the crowd's
partition, and all are answered. The crowd is read by this process, in Python, on the same machine: the time of the last
answer is its own work too.
"""

import argparse
import gc
import resource
import selectors
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Report
from broker.protocol.api_keys import ApiKey
from broker.records.records import Record, build_batch
from sidecar.embedded.java_kafka import MavenKafka
from sidecar.embedded.kafka import ReferenceKafka
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until

HOUR_MS: Final = 3_600_000
CROWDED, QUIET = 0, 1  # partitions
FILES_BESIDE: Final = 200
TARGETS: Final = {"produce_ms": 2, "fetch_ms": 5}


@dataclass(frozen=True, slots=True)
class Found:
    """Of one crowd, in ms; memory in MB. `last` is when the whole crowd had been answered."""

    connect: float
    produce_ms: float
    fetch_ms: float
    first: float
    last: float
    memory: float


def records() -> bytes:
    return bytes(build_batch([Record(0, int(time.time() * 1000), None, b"x" * 200)]))


def singles(client: RawClient, reader: RawClient, topic: str, count: int) -> tuple[float, float]:
    """Medians: until a record is acknowledged, and from then until a fetch that waited for it is answered."""
    produced, fetched = [], []
    for _ in range(count):
        end = client.fetch(topic, 0, partition=QUIET).high_watermark
        reader.send(ApiKey.FETCH, 12, **reader.fetch_body(topic, end, partition=QUIET, max_wait_ms=HOUR_MS))
        client.fetch(topic, end, partition=QUIET)  # the broker's only thread has seen the one before
        began_s = time.perf_counter()
        client.produce(topic, records(), acks=1, partition=QUIET)
        acked_s = time.perf_counter()
        reader.receive_frame()
        produced.append((acked_s - began_s) * 1000)
        fetched.append((time.perf_counter() - acked_s) * 1000)
    return median(produced), median(fetched)


def release(client: RawClient, crowd: list[RawClient], topic: str) -> tuple[float, float]:
    """From one record's produce to the first and to the last answer."""
    if not crowd:
        return 0.0, 0.0
    with selectors.DefaultSelector() as selector:
        for one in crowd:
            selector.register(one.socket, selectors.EVENT_READ, one)
        began_s, first_s = time.perf_counter(), 0.0
        client.produce(topic, records(), acks=1, partition=CROWDED)
        while selector.get_map():
            for key, _ in selector.select(60):
                key.data.receive_frame()
                first_s = first_s or time.perf_counter()
                selector.unregister(key.fileobj)
        return (first_s - began_s) * 1000, (time.perf_counter() - began_s) * 1000


def look(kafka: MavenKafka | ReferenceKafka, waiting: int, count: int) -> Found:
    """One crowd at one broker."""
    topic = f"crowd-{waiting}"
    with ExitStack() as stack:
        client, reader = (stack.enter_context(RawClient(kafka.bootstrap)) for _ in range(2))
        client.create_topic(topic, 2)
        for partition in (CROWDED, QUIET):
            wait_until(lambda of=partition: client.fetch(topic, 0, partition=of).error_code == 0)  # type: ignore[misc]
        began_s = time.perf_counter()
        crowd = []
        for _ in range(waiting):
            one = stack.enter_context(RawClient(kafka.bootstrap))
            one.send(ApiKey.FETCH, 12, **one.fetch_body(topic, 0, partition=CROWDED, max_wait_ms=HOUR_MS))
            crowd.append(one)
        client.fetch(topic, 0, partition=CROWDED)
        connect = (time.perf_counter() - began_s) * 1000
        produce_ms, fetch_ms = singles(client, reader, topic, count)
        assert all(one.is_silent(0) for one in crowd), "somebody was answered before there was anything"
        memory = memory_mb(kafka)
        return Found(connect, produce_ms, fetch_ms, *release(client, crowd, topic), memory)


def memory_mb(kafka: MavenKafka | ReferenceKafka) -> float:
    """Resident."""
    child = kafka._child
    assert child is not None
    lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--waiting", type=lambda text: [int(one) for one in text.split(",")], default=[0, 1_000, 10_000]
    )
    parser.add_argument("--singles", type=int, default=200)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < max(arguments.waiting) + FILES_BESIDE:
        parser.error(f"this process may have {most} files, and each connection is one")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()
    rows = []
    with tempfile.TemporaryDirectory(prefix="tickover-bench-") as directory:
        places: dict[str, MavenKafka | ReferenceKafka] = {
            "reference broker": ReferenceKafka(Path(directory) / "reference"),
            "Kafka": MavenKafka(Path(directory) / "kafka"),
        }
        for name, kafka in places.items():
            kafka.start()
            look(kafka, 1, arguments.singles)  # to warm up
            try:
                for waiting in arguments.waiting:
                    found = look(kafka, waiting, arguments.singles)
                    row = (found.connect, found.produce_ms, found.fetch_ms, found.first, found.last, found.memory)
                    rows.append((f"{name}, {waiting:,}", *(f"{value:,.2f}" for value in row)))
            finally:
                kafka.stop()
    columns = ("waiting", "all wait, ms", "produce p50", "then fetch p50", "first answer", "last answer", "memory, MB")
    targets = ", ".join(f"{name} <= {most} ms" for name, most in TARGETS.items())
    Report(columns, rows, (f"targets: {targets}", "the crowd's client is this process, on the same machine")).show()


if __name__ == "__main__":
    main()
