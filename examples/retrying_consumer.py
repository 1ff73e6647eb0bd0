"""A consumer with retries: what it fails on it forwards to `orders-retry`, and tickover brings it back.

Needs a sidecar with the policies of examples/policies.yaml, and the topics `orders` and `orders-retry`.
"""

import os

from confluent_kafka import Consumer, Producer

BROKERS = os.environ.get("TICKOVER_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")
ERRORS = ("tickover-error-class", "tickover-error-message")


def handle(order: bytes, attempt: int) -> None:
    if attempt < 3:
        raise ConnectionError("the warehouse does not answer")


consumer = Consumer({"bootstrap.servers": BROKERS, "group.id": "shop", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
producer = Producer({"bootstrap.servers": BROKERS})
producer.produce("orders", key="customer-7", value="order 1")

for message in iter(consumer.poll, None):
    headers = message.headers() or []
    attempt = int(dict(headers).get("tickover-attempt", b"1"))
    try:
        handle(message.value(), attempt)
    except Exception as error:  # noqa: BLE001 - whatever it is, the order must not be lost
        print(f"{message.value().decode()}, attempt {attempt}: {error}")
        # The headers as they came, so that attempts are counted; why it failed is said anew.
        why = [("tickover-error-class", type(error).__name__), ("tickover-error-message", str(error))]
        kept = [header for header in headers if header[0] not in ERRORS]
        producer.produce("orders-retry", message.value(), message.key(), headers=kept + why)
        producer.flush()
    else:
        print(f"{message.value().decode()}, attempt {attempt}: done")
        break
consumer.close()
