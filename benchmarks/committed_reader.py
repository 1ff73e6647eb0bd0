"""When a read_committed consumer sees records: its own clock minus due, in a process of its own.

    python -m benchmarks.committed_reader BOOTSTRAP TOPIC RECORDS FIRST_MS

Prints p50, p99 and maximum in milliseconds, and how many came early, of the records due later than FIRST_MS after the
first, when all have come.
"""

import gc
import sys
import time
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.harness import PARTITIONS
from benchmarks.traffic import Arrival, arrival_of, lateness

BATCH: Final = 500
IDLE_S: Final = 0.001


def main() -> None:
    gc.disable()  # it would look at all that has arrived, for up to 150 ms: the reader's lateness, not what it reads
    bootstrap, topic, count, first_ms = sys.argv[1:]
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-committed",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "5",
            "fetch.queue.backoff.ms": "1",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    seen: list[Arrival] = []
    while len(seen) < int(count):
        messages = consumer.consume(BATCH, 0)
        now_ms = time.time_ns() // 1_000_000
        seen += [Arrival(now_ms, arrival_of(message).due_ms) for message in messages if not message.error()]
        if not messages:
            time.sleep(IDLE_S)
    print(*lateness(seen, int(first_ms)), flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
