"""Follows a topic of one partition for as long as the process lives: whatever is committed there is taken in, in order.

For topics that are the memory of all replicas (jobs, schedules): small, compacted, read from their beginning.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import follower_settings, uncommitted_reader_settings
from sidecar.kafka.topic_reader import ANSWER_S, PASSING, LogUnavailable

PARTITION: Final = 0
POLL_S: Final = 0.2
STOP_S: Final = 15.0
CATCH_UP_S: Final = 30.0  # longer than a transaction that somebody left open can hold up readers

log = logging.getLogger("tickover.follower")

Apply = Callable[[bytes, bytes, int], None]  # key, value, and the broker's time of it in ms (0: not known)


class TopicFollower:
    """Reads in a thread of its own; `apply` is called in it, with `changed` held. A null key or value is empty.

    A record that `apply` fails of is passed over: whatever bytes somebody writes to the topic, the thread goes on.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, name: str, apply: Apply) -> None:
        self.changed = threading.Condition()
        self._client = client
        self._topic = topic
        self._apply = apply
        self._read_up_to = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Twice is harmless."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Twice is harmless."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def catch_up(self, seconds: float = CATCH_UP_S) -> None:
        """Wait until everything that is in the topic now has been read; what is in open transactions, too.

        Raises LogUnavailable.
        """
        anyone = Consumer(uncommitted_reader_settings(self._client, self._topic))
        try:
            _, end = anyone.get_watermark_offsets(TopicPartition(self._topic, PARTITION), timeout=ANSWER_S)
        except KafkaException as error:
            raise LogUnavailable(error.args[0].str()) from None
        finally:
            anyone.close()
        self.wait_for(end - 1, seconds)

    def wait_for(self, offset: int, seconds: float = CATCH_UP_S) -> None:
        """Until what is at this offset has been read. Raises LogUnavailable."""
        with self.changed:
            self.changed.wait_for(lambda: self._read_up_to > offset or self._stopping.is_set(), seconds)
            if self._read_up_to <= offset:
                raise LogUnavailable(f"{self._topic} can't be read to its end")

    def _follow(self) -> None:
        """Read for ever. A consumer that fails is made anew; what was read stays."""
        while not self._stopping.is_set():
            consumer = Consumer(follower_settings(self._client, self._topic))
            try:
                consumer.assign([TopicPartition(self._topic, PARTITION, self._read_up_to)])
                while not self._stopping.is_set():
                    for message in consumer.consume(500, POLL_S):
                        self.take(message)
            except KafkaException as error:
                log.warning("reading again", extra={"topic": self._topic, "error": error.args[0].str()})
                self._stopping.wait(POLL_S)
            finally:
                consumer.close()

    def take(self, message: Any) -> None:
        """One record, or the news that there are no more. Raises KafkaException for what the client can't mend."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() not in PASSING:
                raise KafkaException(error)
            return
        with self.changed:
            if error is None:
                self._take_in(message)
            self._read_up_to = max(self._read_up_to, message.offset() + (1 if error is None else 0))
            self.changed.notify_all()

    def _take_in(self, message: Any) -> None:
        try:
            self._apply(message.key() or b"", message.value() or b"", _appended_ms(message))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next record must be read
            about = {"topic": self._topic, "offset": message.offset(), "error": type(error).__name__}
            log.warning("a record can't be read, and is passed over", extra=about)


def _appended_ms(message: Any) -> int:
    kind, stamp_ms = message.timestamp()
    return stamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0
