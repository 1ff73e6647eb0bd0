"""The reference broker with thousands of topics, beside a real Kafka: how long they take, and who waits meanwhile.

    python -m benchmarks.broker_topics [--topics 100,500,1000,2000] [--partitions 4]

One broker each, one after the other. Topics are made in requests of 20, one request after the other, each with 20 s as
an admin client has. Beside them another connection asks for ApiVersions each 5 ms: the longest it waits is the longest
turn of the broker's event loop, or pause of its JVM, with what the machine's scheduler adds. Kafka answers before it
has made any log, so both are measured until every partition made can be fetched from. At the end all topics are asked
for at once, and one record goes to a partition of each. Then the broker is stopped, or killed after 20 s, and started
again; an empty field says that it did not within two minutes.

Kafka has a file open for each partition, so topics times partitions must be less than the files that the system allows.
"""

import argparse
import gc
import resource
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.harness import JAVA_OPTIONS, BenchmarkError, Report
from broker.protocol.api_keys import ApiKey
from broker.records.records import Record, build_batch
from sidecar.embedded.java_kafka import KafkaUnavailable, MavenKafka
from sidecar.embedded.kafka import ReferenceKafka
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until

REQUEST_TOPICS: Final = 20
PATIENCE_MS: Final = 20_000
LOOK_S: Final = 0.005
USABLE_S: Final = 600.0

Kafka = MavenKafka | ReferenceKafka


class Asking:
    """Another client, which asks for next to nothing again and again, and keeps how long its answers took, in ms."""

    def __init__(self, bootstrap: str) -> None:
        self._client = RawClient(bootstrap)
        self._waits: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def longest(self) -> float:
        """Since it was asked last."""
        waits, self._waits = self._waits, []
        return max(waits, default=0.0)

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _ask(self) -> None:
        while not self._ended.wait(LOOK_S):
            began_s = time.perf_counter()
            self._client.ask(ApiKey.API_VERSIONS, 0)
            self._waits.append((time.perf_counter() - began_s) * 1000)


@dataclass(slots=True)
class Found:
    """Of one broker, by what was done: seconds, and the longest wait of another client in ms."""

    rows: dict[str, tuple[float, float]] = field(default_factory=dict)

    def time(self, what: str, asking: Asking | None, began_s: float) -> None:
        """Note the seconds since `began_s` and the longest wait of `asking` in ms, 0 without one; print the seconds."""
        self.rows[what] = (time.perf_counter() - began_s, asking.longest() if asking is not None else 0.0)
        print(f"{what}: {self.rows[what][0]:,.2f} s", file=sys.stderr)


def make(client: RawClient, first: int, last: int, partitions: int) -> None:
    """Topics of these numbers."""
    for start in range(first, last, REQUEST_TOPICS):
        topics = [
            {
                "name": f"topic-{number}",
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for number in range(start, min(start + REQUEST_TOPICS, last))
        ]
        began_s = time.perf_counter()
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=PATIENCE_MS)
        took_ms = (time.perf_counter() - began_s) * 1000
        codes = {one.error_code for one in answer.topics}
        if codes != {0} or took_ms > PATIENCE_MS:
            raise BenchmarkError(f"topics {start} and on: {codes}, {took_ms:,.0f} ms")


def wait_until_usable(client: RawClient, first: int, last: int, partitions: int) -> None:
    """Until these topics can be fetched from, the first partition and the last of each."""
    for number in range(first, last):
        for partition in (0, partitions - 1):
            wait_until(
                lambda of=partition, topic=f"topic-{number}": client.fetch(topic, 0, partition=of).error_code == 0,  # type: ignore[misc]
                USABLE_S,
                lambda: "a partition can't be used",
            )


def count_all(client: RawClient) -> int:
    """The partitions that have a leader, of all topics."""
    answer = client.ask(ApiKey.METADATA, 12, topics=None, allow_auto_topic_creation=False)
    return sum(partition.leader_id > 0 for topic in answer.topics for partition in topic.partitions)


def produce(client: RawClient, topics: int) -> None:
    """One record to each."""
    records = bytes(build_batch([Record(0, int(time.time() * 1000), None, b"x" * 200)]))
    for number in range(topics):
        answer = client.produce(f"topic-{number}", records, acks=1)
        if answer.error_code:
            raise BenchmarkError(f"topic-{number}: {answer.error_code}")


def look(kafka: Kafka, steps: list[int], partitions: int) -> Found:
    """One broker, from its start on."""
    found = Found()
    kafka.start()
    with ExitStack() as stack:
        stack.callback(kafka.stop)
        client = RawClient(kafka.bootstrap)
        client.create_topic("warm-up")
        asking = Asking(kafka.bootstrap)
        for known, wanted in zip([0, *steps], steps, strict=False):
            began_s = time.perf_counter()
            make(client, known, wanted, partitions)
            found.time(f"topics {known:,} to {wanted:,}: answered", None, began_s)
            wait_until_usable(client, known, wanted, partitions)
            found.time(f"topics {known:,} to {wanted:,}: usable", asking, began_s)
        expected = steps[-1] * partitions + 1
        wait_until(lambda: count_all(client) == expected, USABLE_S, lambda: "not all have leaders")
        asking.longest()
        began_s = time.perf_counter()
        count_all(client)
        found.time("metadata of all", asking, began_s)
        began_s = time.perf_counter()
        produce(client, steps[-1])
        found.time("a record to each topic", asking, began_s)
        asking.close()
        client.close()
        began_s = time.perf_counter()
        kafka.stop()
        found.time("stop", None, began_s)
        began_s = time.perf_counter()
        try:
            kafka.start()
        except KafkaUnavailable as error:
            print(error, file=sys.stderr)
            return found
        found.time("start again", None, began_s)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--topics", type=lambda text: [int(one) for one in text.split(",")], default=[100, 500, 1_000, 2_000]
    )
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--only", choices=("reference", "kafka"), help="one of both, without a comparison")
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.topics[-1] * arguments.partitions >= most and arguments.only != "reference":
        parser.error(f"a process may have {most} files, and Kafka has one for each partition")
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="tickover-bench-") as directory:
        places: dict[str, Kafka] = {
            "reference": ReferenceKafka(Path(directory) / "reference"),
            "kafka": MavenKafka(Path(directory) / "kafka", java_options=JAVA_OPTIONS),
        }
        all_found = {
            name: look(kafka, arguments.topics, arguments.partitions)
            for name, kafka in places.items()
            if arguments.only in (None, name)
        }
    nothing = Found()
    ours, theirs = (all_found.get(name, nothing).rows for name in ("reference", "kafka"))
    rows: list[tuple[str, ...]] = []
    for what in ours or theirs:
        (took, waited), (their_took, their_waited) = ours.get(what, (0.0, 0.0)), theirs.get(what, (0.0, 0.0))
        ratio = f"{took / their_took:.2f}" if took and their_took else ""
        rows.append((what, *(f"{value:,.2f}" if value else "" for value in (took, their_took)), ratio))
        rows[-1] += tuple(f"{value:,.0f}" if value else "" for value in (waited, their_waited))
    Report(
        ("what", "reference, s", "Kafka, s", "ratio", "longest wait beside, ms", "of Kafka, ms"),
        rows,
        ("targets: a ratio of 3 at most, and no wait of 100 ms", "the disk is shared: flushes take as long as it does"),
    ).show()


if __name__ == "__main__":
    main()
