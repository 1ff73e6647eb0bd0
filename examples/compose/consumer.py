"""The flaky consumer of docker-compose.yml: it fails on two of three orders, at their first two attempts."""

import os

from confluent_kafka import Consumer, KafkaException, Producer

BROKERS = {"bootstrap.servers": os.environ["TICKOVER_KAFKA__BOOTSTRAP_SERVERS"]}


def handle(order: bytes, attempt: int) -> None:
    if int(order.split()[1]) % 3 and attempt < 3:
        raise ConnectionError("the warehouse does not answer")


def check(error: object, _record: object = None) -> None:
    if error is not None:
        raise KafkaException(error)  # before the order is committed: it is read again


producer = Producer(BROKERS)
consumer = Consumer(BROKERS | {"group.id": "shop", "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe(["orders"])
while True:
    message = consumer.poll()
    check(message.error())
    headers = [pair for pair in message.headers() or [] if not pair[0].startswith("tickover-error-")]
    attempt = int(dict(headers).get("tickover-attempt", b"1"))
    try:
        handle(message.value(), attempt)
        print(f"{message.value().decode()}, attempt {attempt}: done", flush=True)
    except ConnectionError as error:
        print(f"{message.value().decode()}, attempt {attempt}: {error}", flush=True)
        why = ("tickover-error-class", type(error).__name__)
        producer.produce("orders-retry", message.value(), message.key(), headers=[*headers, why], on_delivery=check)
        producer.flush()
    consumer.commit(message, asynchronous=False)
