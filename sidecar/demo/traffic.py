"""The demo's traffic over Kafka: a sender, a flaky consumer that forwards what it failed on, and a checker."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.demo.messages import (
    Sending,
    attempt_of,
    failure,
    forwarding,
    order,
    order_number,
    reminder,
    undecidable,
)
from sidecar.demo.oracle import Arrived, Expected, Identity, Oracle
from sidecar.demo.setup import ANSWER_S, DemoTopics
from sidecar.kafka.client_settings import client_log

log = logging.getLogger(__name__)

REMINDERS_PER_ORDER: Final = 4
SENT_PER_STEP_MAX: Final = 1_000
QUEUED_MAX: Final = 20_000
TAKEN_PER_STEP_MAX: Final = 500
WAIT_S: Final = 0.02


class Traffic:
    """All of the demo's own clients, used by one thread that calls `send` and `take` in turn."""

    def __init__(
        self, client: Mapping[str, Any], topics: DemoTopics, prefix: str, with_long: bool, now_ms: Callable[[], int]
    ) -> None:
        self.oracle = Oracle()
        self.announced: SimpleQueue[Expected] = SimpleQueue()  # by others, before they send it
        self.sent = 0  # delayed messages
        self.not_sent = 0
        self._topics = topics
        self._prefix = prefix
        self._with_long = with_long
        self._now_ms = now_ms
        self._producer = Producer(
            {
                "linger.ms": "5",
                "topic.metadata.propagation.max.ms": "5000",
                **client,
                "logger": client_log,
                "enable.idempotence": "true",
                "partitioner": "murmur2_random",
            }
        )
        self._consumer = Consumer(
            {
                "fetch.wait.max.ms": "10",
                **client,
                "logger": client_log,
                "group.id": f"{prefix or 'tickover-'}demo-checker",  # never joined
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )

    def start(self) -> None:
        """Read all that arrives from now on, from the end of what is there. Raises KafkaException."""
        places = [
            TopicPartition(topic, partition)
            for topic in self._topics.watched
            for partition in self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        ]
        bounds = self._consumer.log_bounds(places, ANSWER_S)
        self._consumer.assign([TopicPartition(*place, end) for place, (_, end) in bounds.items()])

    def send(self, wanted: int) -> None:
        """Send until `wanted` delayed messages were sent in all, with an order for every few of them."""
        now_ms = self._now_ms()
        for number in range(self.sent, min(wanted, self.sent + SENT_PER_STEP_MAX)):
            if len(self._producer) > QUEUED_MAX:
                break
            self._produce(reminder(number, now_ms, self._topics, self._prefix, self._with_long))
            if number % REMINDERS_PER_ORDER == 0:
                self._produce(order(number // REMINDERS_PER_ORDER, now_ms, self._topics))
            beside = undecidable(number, now_ms, self._topics)
            if beside is not None:
                self._produce(beside)
            self.sent += 1

    def take(self) -> None:
        """Judge what has arrived, and consume the orders among it as the flaky consumer does."""
        self._producer.poll(0)
        messages = self._consumer.consume(TAKEN_PER_STEP_MAX, WAIT_S)
        while not self.announced.empty():  # looked at behind the records: what they come of was announced before
            self.oracle.expect(self.announced.get())
        for message in messages:
            if message.error() is not None:
                log.warning("demo consumer", extra={"error": str(message.error())})
                continue
            arrived = _arrived(message)
            expected = self.oracle.judge(arrived)
            if expected is not None and expected.identity.topic == self._topics.orders and not expected.is_redriven:
                self._consume_order(expected, arrived)

    def stop(self) -> None:
        """Leave. Twice is harmless."""
        self._producer.purge()
        self._producer.flush(1)
        self._consumer.close()

    def _consume_order(self, expected: Expected, arrived: Arrived) -> None:
        error = failure(order_number(expected), attempt_of(expected))
        if error:
            place = (self._topics, self._prefix)
            self._produce(forwarding(expected, arrived, error, self._now_ms(), place))

    def _produce(self, sending: Sending) -> None:
        self.oracle.expect(sending.expected)
        self._producer.produce(
            sending.topic,
            sending.value,
            sending.key,
            timestamp=sending.timestamp_ms,
            headers=[*sending.headers],
            on_delivery=partial(self._delivered, sending.expected.identity),
        )

    def _delivered(self, identity: Identity, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.not_sent += 1
            self.oracle.withdraw(identity)
            log.warning("demo producer", extra={"error": str(error)})


def _arrived(message: Message) -> Arrived:
    headers: Any = message.headers()  # bytes or None, whatever their stub says
    return Arrived(message.topic() or "", message.key(), message.value(), headers or [], message.timestamp()[1])
