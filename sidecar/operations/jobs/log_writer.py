"""One record at a time, written to a topic that this process follows, and read back by it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from policies.kafka_clients import Producer
from sidecar.kafka.background import give_up
from sidecar.kafka.client_settings import job_writer_settings
from sidecar.kafka.topic_follower import PARTITION, LogUnavailable
from sidecar.model.ports import refusal

WRITE_S: Final = 15.0


class LogWriter:
    """For any thread. `wait_for` returns when this process has read the record of an offset."""

    def __init__(self, client: Mapping[str, Any], topic: str, wait_for: Callable[[int], None]) -> None:
        self._client = client
        self._topic = topic
        self._wait_for = wait_for
        self._producer: Producer | None = None
        self._writing = threading.Lock()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Returns when this process has read it back. Raises LogUnavailable."""
        offsets: list[int] = []
        problems: list[str] = []

        def report(error: KafkaError | None, message: Any) -> None:
            refused = refusal(error, message)
            if refused is None:
                offsets.append(message.offset())
            else:
                problems.append(refused.str())

        with self._writing:
            if self._producer is None:
                self._producer = Producer(job_writer_settings(self._client))
            try:
                self._producer.produce(self._topic, value, key, PARTITION, on_delivery=report)
                self._producer.flush(WRITE_S)
            except (KafkaException, BufferError) as error:
                self._let_go()
                raise LogUnavailable(f"{self._topic} can't be written: {error}") from None
            if not offsets:
                self._let_go()
                raise LogUnavailable(f"{self._topic} can't be written: {''.join(problems) or 'no answer'}")
        self._wait_for(offsets[0])

    def _let_go(self) -> None:
        """A producer that has failed may be of no use for ever: the next write makes another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            give_up(producer)
