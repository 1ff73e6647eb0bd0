"""A plain client that tells when Kafka itself serves again.

Every attempt is a client of its own, which knows nothing of before, and asks for all that an emission needs: leaders
of a partition on each broker, a transaction's coordinator, a group's, and that a commit is acknowledged. A new attempt
begins every quarter of a second, whatever has become of the ones before, so a hanging one delays nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.services.kafka import Kafka
from tests.services.kafka_cluster import NODES
from tests.services.sidecar_process import now_ms
from tests.services.waiting import wait_until

EVERY_S: Final = 0.25
ATTEMPT_S: Final = 4.0
ATTEMPTS_MAX: Final = 8  # at a time
SERVED_S: Final = 120.0
GROUP: Final = "nemesis-probe"


class Probe:
    """Attempts on a topic that has a leader on each broker."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._topic = kafka.topic("probe", NODES)
        self._served_ms: list[int] = []  # when an attempt came to its end
        self._over = threading.Event()
        self._slots = threading.BoundedSemaphore(ATTEMPTS_MAX)

    @contextmanager
    def looking(self, bootstrap: str, on: bool = False) -> Iterator["Probe"]:
        """Try, by way of these brokers, until an attempt comes to its end, or `on` to the end of the block."""
        self._served_ms = []
        self._over.clear()
        starter = threading.Thread(target=self._start_attempts, args=(bootstrap, on), daemon=True)
        starter.start()
        try:
            yield self
        finally:
            self._over.set()
            starter.join()

    def wait_until_served(self) -> int:
        """When an attempt first came to its end; AssertionError when none does."""
        wait_until(lambda: bool(self._served_ms), SERVED_S, lambda: "Kafka itself serves nobody")
        return self._served_ms[0]

    def longest_silence_ms(self, since_ms: int) -> int:
        """The longest time, from then to now, in which no attempt came to its end."""
        ends = [since_ms, *sorted(self._served_ms), now_ms()]
        return max(end - before for before, end in pairwise(ends))

    def _start_attempts(self, bootstrap: str, on: bool) -> None:
        attempts = []
        while (on or not self._served_ms) and not self._over.is_set():
            if self._slots.acquire(blocking=False):
                attempts.append(threading.Thread(target=self._attempt, args=(bootstrap,), daemon=True))
                attempts[-1].start()
            self._over.wait(EVERY_S)
        for attempt in attempts:
            attempt.join()

    def _attempt(self, bootstrap: str) -> None:
        try:
            if self._is_served(bootstrap):
                self._served_ms.append(now_ms())
        except KafkaException:  # not yet; the next attempt is on its way
            pass
        finally:
            self._slots.release()

    def _is_served(self, bootstrap: str) -> bool:
        refused: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "transactional.id": f"probe-{uuid4().hex[:12]}",
                "transaction.timeout.ms": int(ATTEMPT_S * 1_000),
                "message.timeout.ms": int(ATTEMPT_S * 1_000),
                "socket.timeout.ms": int(ATTEMPT_S * 1_000),
            }
        )
        reader = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, "group.id": GROUP})
        try:
            producer.init_transactions(ATTEMPT_S)
            producer.begin_transaction()
            for partition in range(NODES):
                producer.produce(
                    self._topic, b"probe", partition=partition,
                    on_delivery=lambda error, _: refused.append(error) if error is not None else None,
                )  # fmt: skip
            offset = TopicPartition(self._topic, 0, 1)
            producer.send_offsets_to_transaction([offset], reader.consumer_group_metadata(), ATTEMPT_S)
            producer.commit_transaction(ATTEMPT_S)
        finally:
            with suppress(KafkaException, RuntimeError):
                reader.close()
        return not refused
