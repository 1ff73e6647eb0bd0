"""A consumer that retries by way of `orders-retry`: create it and `orders`, and run tickover with policies.yaml."""

import os

from confluent_kafka import Consumer, KafkaException, Producer

BROKERS = {"bootstrap.servers": os.environ.get("TICKOVER_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")}


def handle(order: bytes, attempt: int) -> None:
    if attempt < 3:
        raise ConnectionError("the warehouse does not answer")


def check(error: object, _record: object = None) -> None:
    if error is not None:
        raise KafkaException(error)  # before the order is committed: it is read again


producer = Producer(BROKERS)
consumer = Consumer(BROKERS | {"group.id": "shop", "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe(["orders"])
producer.produce("orders", key="customer-7", value="order 1")
for message in (consumer.poll() for _delivery in range(3)):  # yours goes on: `while True`
    check(message.error())
    headers = [pair for pair in message.headers() or [] if not pair[0].startswith("tickover-error-")]  # keep all others
    attempt = int(dict(headers).get("tickover-attempt", b"1"))
    try:
        handle(message.value(), attempt)
        print(f"{message.value().decode()}, attempt {attempt}: done")
    except Exception as error:  # noqa: BLE001 - whatever it is, the order must not be lost
        print(f"{message.value().decode()}, attempt {attempt}: {error}")
        headers.append(("tickover-error-class", f"{type(error).__module__}.{type(error).__qualname__}"))
        headers.append(("tickover-error-message", str(error).encode("utf-8", "replace")))
        producer.produce("orders-retry", message.value(), message.key(), headers=headers, on_delivery=check)
        producer.flush()
    consumer.commit(message, asynchronous=False)
consumer.close()
