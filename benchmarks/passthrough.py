"""The baseline: confluent-kafka alone, consume and produce on, with the clients' settings and headers of the sidecar.

    python -m benchmarks.passthrough BOOTSTRAP GROUP SOURCE TARGET RECORDS

No decision, no wheel, no ledger, no commit. Ends when so many records are acknowledged.
"""

import gc
import sys
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from policies.headers import DUE, ORIGIN, POLICY
from sidecar.kafka.client_settings import consumer_settings, producer_settings

BATCH: Final = 500
USER_HEADERS: Final = 2
IDLE_S: Final = 0.001


class Acknowledged:
    """Counts delivery reports."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, error: Any, _: Any) -> None:
        """Of any record."""
        if error is not None:
            raise RuntimeError(f"refused: {error}")
        self.count += 1


def main() -> None:
    bootstrap, group, source, target, count = sys.argv[1:]
    client = {"bootstrap.servers": bootstrap}
    consumer: Any = Consumer({**consumer_settings(client, group, ""), "auto.offset.reset": "earliest"})
    producer: Any = Producer(producer_settings(client))
    consumer.subscribe([source])
    gc.disable()
    run(consumer, producer, source, target, int(count))
    consumer.close()


def run(consumer: Any, producer: Any, source: str, target: str, count: int) -> None:
    """Until all are acknowledged."""
    acknowledged = Acknowledged()
    report, produce = acknowledged.report, producer.produce
    here = source.encode() + b"/"
    while acknowledged.count < count:
        messages = consumer.consume(BATCH, 0)
        for message in messages:
            headers: Any = message.headers()
            origin = here + b"%d/%d" % (message.partition(), message.offset())
            due = b"%d" % message.timestamp()[1]
            own = [*headers[:USER_HEADERS], (ORIGIN, origin), (DUE, due), (POLICY, b"bench@1")]
            while True:
                try:
                    produce(target, message.value(), message.key(), -1, report, None, 0, own)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        if not messages:
            time.sleep(IDLE_S)


if __name__ == "__main__":
    main()
