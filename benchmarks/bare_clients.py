"""The baseline of `benchmarks.idle`: a consumer and a producer of confluent-kafka that pass records on one by one.

    python -m benchmarks.bare_clients BOOTSTRAP GROUP SOURCE TARGET

With the sidecar's client settings. Waits in the client, holds nothing, commits nothing, ends by a signal.
"""

import sys
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from sidecar.kafka.client_settings import consumer_settings, producer_settings

WAIT_S: Final = 0.25


def main() -> None:
    bootstrap, group, source, target = sys.argv[1:]
    client = {"bootstrap.servers": bootstrap}
    consumer: Any = Consumer({**consumer_settings(client, group, ""), "auto.offset.reset": "earliest"})
    producer: Any = Producer(producer_settings(client))
    consumer.subscribe([source])
    while True:
        message = consumer.poll(WAIT_S)
        if message is not None and message.error() is None:
            producer.produce(target, message.value(), message.key(), headers=message.headers())
        producer.poll(0)


if __name__ == "__main__":
    main()
