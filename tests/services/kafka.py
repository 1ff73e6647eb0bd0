"""Calls of tests to a Kafka: fresh topics, records in and out, byte for byte."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic, OffsetSpec

from policies.kafka_clients import AdminClient
from tests.services.kafka_servers import KafkaServer
from tests.services.waiting import wait_until

ANSWER_TIMEOUT_S = 90.0  # a broker or a sidecar may stand still for a while on a busy machine

Headers = Sequence[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A record to produce; without timestamp it is now, without partition the key decides as in Java."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    partition: int = -1


class Kafka:
    """A running broker and the few calls that tests need."""

    def __init__(self, server: KafkaServer, replicas: int = 1) -> None:
        self._server = server
        self._replicas = replicas
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": "0"})

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return self._server.bootstrap

    @property
    def admin(self) -> AdminClient:
        """For what has no method of its own here."""
        return self._admin

    def topic(self, prefix: str = "test", partitions: int = 1, **config: object) -> str:
        """A new topic with a name of its own."""
        return self.create_topic(f"{prefix}-{uuid4().hex[:8]}", partitions, **config)

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic and wait until all partitions are served; `retention_ms=1` means `retention.ms=1`."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, partitions, self._replicas, config=settings)
        wait_until(lambda: self._is_created(topic), otherwise=lambda: f"there are no brokers for topic {name}")
        wait_until(lambda: self._has_leaders(name, partitions), otherwise=lambda: f"topic {name} has no leaders")
        return name

    def produce(self, topic: str, records: Iterable[Sequence[object]]) -> list[Message]:
        """Send `(key, value, headers, timestamp_ms, partition)`, any tail left out; reports in order."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        reports: list[tuple[KafkaError | None, Message]] = []
        for record in records:
            sent = Sent(*record)  # type: ignore[arg-type]
            producer.produce(
                topic,
                value=sent.value,
                key=sent.key,
                headers=list(sent.headers),
                timestamp=sent.timestamp_ms,
                partition=sent.partition,
                on_delivery=lambda error, message: reports.append((error, message)),
            )
            producer.poll(0)
        if producer.flush(ANSWER_TIMEOUT_S):
            raise TimeoutError(f"not all records for {topic} were acknowledged")
        for error, _ in reports:
            if error is not None:
                raise KafkaException(error)
        return [message for _, message in reports]

    def read(
        self,
        topic: str,
        count: int,
        timeout: float = ANSWER_TIMEOUT_S,
        isolation: str = "read_committed",
    ) -> list[Message]:
        """The first `count` records of a topic, waiting for them; TimeoutError says how many there were."""
        with self._reader(topic, isolation) as consumer:
            messages: list[Message] = []
            deadline = time.monotonic() + timeout
            while len(messages) < count:
                message = consumer.poll(max(0.0, deadline - time.monotonic()))
                if message is None:
                    raise TimeoutError(f"{len(messages)} of {count} records in {topic} after {timeout} s")
                if _is_record(message):
                    messages.append(message)
            return messages

    def read_all(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """Every record up to each partition's end as it is now."""
        with self._reader(topic, isolation) as consumer:
            messages: list[Message] = []
            unread = {place.partition for place in consumer.assignment()}
            while unread:
                message = consumer.poll(ANSWER_TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"no end of {topic} seen")
                if _is_record(message):
                    messages.append(message)
                else:
                    unread.discard(message.partition())
            return messages

    def stop(self) -> None:
        """Stop the broker in order; `start` brings it back with its data and address."""
        self._server.stop()

    def kill(self) -> None:
        """Kill the broker as a crash would; `start` brings it back with its data and address."""
        self._server.kill()

    def start(self) -> None:
        """Bring a stopped or killed broker back."""
        self._server.start()

    def restart(self) -> None:
        """Stop the broker in order and bring it back."""
        self.stop()
        self.start()

    def _reader(self, topic: str, isolation: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "test-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
            }
        )
        partitions = consumer.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        return consumer

    def _is_created(self, topic: NewTopic) -> bool:
        """False while too few brokers take part: one that stood still for longer than its session is shut out."""
        [created] = self._admin.create_topics([topic]).values()
        try:
            created.result(ANSWER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                raise
            return False
        return True

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        found = self._admin.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic]
        leaders = [partition for partition in found.partitions.values() if partition.leader >= 0]
        return found.error is None and len(leaders) == partitions and self._lead(topic, partitions)

    def _lead(self, topic: str, partitions: int) -> bool:
        """Whether the leaders know it, too: others may be told first."""
        latest: Any = OffsetSpec.latest()
        asked = {TopicPartition(topic, partition): latest for partition in range(partitions)}
        answers = self._admin.list_offsets(asked, request_timeout=ANSWER_TIMEOUT_S).values()
        return all(answer.exception(ANSWER_TIMEOUT_S + 1) is None for answer in answers)


def _is_record(message: Message) -> bool:
    """False at the end of a partition; any other error is raised."""
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    raise KafkaException(error)
