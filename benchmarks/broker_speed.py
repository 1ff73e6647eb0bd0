"""The reference broker beside a real Kafka: how fast records go in and out, and how long one record takes.

    python -m benchmarks.broker_speed [--records 400000] [--rounds 2]

Both run one after the other, each alone: two brokers at work at once would measure the machine. Four partitions, one
replica, 200-byte values, librdkafka without compression, acks=all, batches of up to 1 MB after 5 ms; logs in files on
both sides, in the page cache. Times of single records are those of the latency laboratory at 50 records a second, where
every fetch waits parked for its record. The best of all rounds counts.
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.harness import PARTITIONS, BenchmarkError, Report
from sidecar.embedded.java_kafka import MavenKafka
from sidecar.embedded.kafka import ReferenceKafka
from sidecar.lab.latency import Case, percentile
from sidecar.lab.measuring import Load, Place, measure

VALUE: Final = b"x" * 200
CHUNK: Final = 1_000
ANSWER_S: Final = 60.0
SINGLE: Final = Case(acks=1, replicas=1, linger_ms=0, batch_size=16_384)
SINGLES: Final = Load(rate=50, seconds=4.0, record_bytes=len(VALUE))

PRODUCED: Final = "produced, records/s"
CONSUMED: Final = "consumed, records/s"
PRODUCE_MS: Final = "one record, acks=1: p50, ms"
FETCH_MS: Final = "a parked fetch is answered after the append: mean, ms"
CONSUME_MS: Final = "one record from produce() to poll(): p50, ms"
TARGETS: Final = {
    PRODUCED: "1.0 of Kafka",
    CONSUMED: "0.9 of Kafka",
    PRODUCE_MS: "2",
    FETCH_MS: "5",
    CONSUME_MS: "",
}


def produce(bootstrap: str, topic: str, count: int) -> float:
    """Records per second until the last is acknowledged."""
    refused: list[object] = []

    def report(error: object, _message: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "on_delivery": report,
            "delivery.report.only.error": True,
        }
    )
    chunk = [{"value": VALUE} for _ in range(CHUNK)]
    start = time.perf_counter()
    for _ in range(count // CHUNK):
        producer.produce_batch(topic, chunk)
    if producer.flush(ANSWER_S) or refused:
        raise BenchmarkError(f"{topic}: not all records were taken: {refused[:1]}")
    return count / (time.perf_counter() - start)


def consume(bootstrap: str, topic: str, count: int) -> float:
    """Records per second from the first to the last."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "queued.min.messages": 100_000, "fetch.queue.backoff.ms": 10})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        taken = len(consumer.consume(1, ANSWER_S))
        start = time.perf_counter()
        while taken < count:
            messages = consumer.consume(min(CHUNK, count - taken), ANSWER_S)
            if not messages or messages[0].error() is not None:
                raise BenchmarkError(f"{topic}: {taken} of {count} records came")
            taken += len(messages)
        return count / (time.perf_counter() - start)
    finally:
        consumer.close()


def look(name: str, bootstrap: str, count: int) -> dict[str, float]:
    """One round with one broker."""
    topic = f"bench-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(ANSWER_S)
    found = {PRODUCED: produce(bootstrap, topic, count), CONSUMED: consume(bootstrap, topic, count)}
    single = measure(Place(name, bootstrap), SINGLE, SINGLES)
    found[PRODUCE_MS] = percentile(single.acked, 0.5)
    found[FETCH_MS] = single.fetched - single.appended
    found[CONSUME_MS] = percentile(single.received, 0.5)
    return found


def rounds_of(kafka: MavenKafka | ReferenceKafka, count: int, rounds: int) -> dict[str, float]:
    """The best of all rounds, and a first one to warm up that doesn't count."""
    kafka.start()
    try:
        look("warm-up", kafka.bootstrap, count // 4)
        all_found = [look(kafka.description, kafka.bootstrap, count) for _ in range(rounds)]
    finally:
        kafka.stop()
    best = {PRODUCED: max, CONSUMED: max}  # of rates; of times the least
    return {what: best.get(what, min)(found[what] for found in all_found) for what in TARGETS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="tickover-bench-") as directory:
        ours = rounds_of(ReferenceKafka(Path(directory) / "reference"), arguments.records, arguments.rounds)
        theirs = rounds_of(MavenKafka(Path(directory) / "kafka"), arguments.records, arguments.rounds)
    rows = []
    for what, target in TARGETS.items():
        form = "{:,.0f}" if ours[what] > 1_000 else "{:.2f}"
        ratio = f"{ours[what] / theirs[what]:.2f}"
        rows.append((what, form.format(ours[what]), form.format(theirs[what]), ratio, target))
    Report(
        ("what", "reference broker", "Kafka", "ratio", "target"),
        rows,
        (
            "clients and broker share the machine: a broker that leaves them more of it measures better",
            "append times have whole milliseconds; the mean of 200 at random moments is good to a tenth of one",
        ),
    ).show()


if __name__ == "__main__":
    main()
