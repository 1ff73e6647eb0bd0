"""Measures one case: a producer at a steady rate, a consumer, and a bare connection that fetches beside it.

All three are in this process, so that their times are of one clock. The append time is the broker's (`LogAppendTime`),
which is the same clock as long as the broker runs on this machine. It has whole milliseconds: records are sent at
random moments, so on average half a millisecond is missing, and added.
"""

import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata

from sidecar.lab.bare_connection import BareConnection, LabError
from sidecar.lab.latency import Case, Measured

ANSWER_S: Final = 30.0
POLL_S: Final = 0.1
STATISTICS_MS: Final = 100
WARM_UP_S: Final = 0.5  # connections, caches: what comes first is not counted
CLUSTER_WARM_UP_S: Final = 1.5  # a broker in Java compiles its code while it works
HALF_A_MILLISECOND: Final = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """Records per second, at random intervals; for how long; how large. `seed`: when each is sent."""

    rate: int
    seconds: float
    record_bytes: int
    seed: int = 1


class Place:
    """A cluster to measure."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        self.name = name
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def broker_count(self) -> int:
        """LabError when nobody answers."""
        try:
            return len(self._admin.list_topics(timeout=ANSWER_S).brokers)
        except KafkaException as error:
            raise LabError(f"{self.bootstrap_servers}: {error.args[0].str()}") from None

    def create_topic(self, replicas: int) -> str:
        """One partition with all its replicas in sync, stamped by the broker."""
        topic = f"tickover-lab-{uuid4().hex[:8]}"
        settings = {"message.timestamp.type": "LogAppendTime"}
        try:
            self._admin.create_topics([NewTopic(topic, 1, replicas, config=settings)])[topic].result(ANSWER_S)
        except KafkaException as error:
            raise LabError(f"{self.bootstrap_servers}: no topic can be created: {error.args[0].str()}") from None
        deadline = time.monotonic() + ANSWER_S
        while len(self._partition(topic).isrs) < replicas:
            if time.monotonic() > deadline:
                raise LabError(f"{self.bootstrap_servers}: {topic} has no {replicas} replicas in sync")
            time.sleep(POLL_S)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; where that isn't allowed it stays."""
        with suppress(KafkaException):
            self._admin.delete_topics([topic])[topic].result(ANSWER_S)

    def connect_to_leader(self, topic: str) -> BareConnection:
        """Of partition 0."""
        leader = self._partition(topic).leader
        broker = self._admin.list_topics(topic, ANSWER_S).brokers[leader]
        return BareConnection(str(broker.host), broker.port)

    def _partition(self, topic: str) -> PartitionMetadata:
        found = self._admin.list_topics(topic, ANSWER_S).topics[topic].partitions
        return found.get(0) or PartitionMetadata()


def warm_up(place: Place, load: Load) -> None:
    """A first case that doesn't count. LabError as `measure`."""
    measure(place, Case(acks=1, replicas=1, linger_ms=0, batch_size=16_384), replace(load, seconds=CLUSTER_WARM_UP_S))


def measure(place: Place, case: Case, load: Load) -> Measured:
    """One case. LabError: nobody answers, a record isn't taken or doesn't come."""
    topic = place.create_topic(case.replicas)
    try:
        return _Measurement(place, case, load, topic).run()
    except TimeoutError:
        raise LabError(f"{place.bootstrap_servers}: not all records came within {ANSWER_S:.0f} s") from None
    except (KafkaException, OSError) as error:
        raise LabError(f"{place.bootstrap_servers}: {error}") from error
    finally:
        place.delete_topic(topic)


class _Measurement:
    """The producer's thread and those that watch. Record n has offset n: one partition, one producer, no retry.

    Times are lists by n, in seconds, each written by one thread."""

    def __init__(self, place: Place, case: Case, load: Load, topic: str) -> None:
        self._place, self._case, self._load, self._topic = place, case, load, topic
        chance = random.Random(load.seed)
        self._moments: list[float] = []
        moment = chance.expovariate(load.rate)
        while moment < WARM_UP_S + load.seconds:
            self._moments.append(moment)
            moment += chance.expovariate(load.rate)
        self._count = len(self._moments)
        self._called, self._acked = [0.0] * self._count, [0.0] * self._count
        self._appended, self._received = [0.0] * self._count, [0.0] * self._count
        self._fetched = [0.0] * self._count
        self._refused: KafkaError | None = None
        self._is_warm = False
        self._windows: dict[str, list[int]] = {"int_latency": [0, 0], "outbuf_latency": [0, 0]}
        self._has_statistics = threading.Event()
        self._is_over = threading.Event()

    def run(self) -> Measured:
        connection = self._place.connect_to_leader(self._topic)
        consumer = self._consumer()
        producer = self._producer()
        try:
            round_trip = connection.round_trip_ms()
            with ThreadPoolExecutor(3, thread_name_prefix="lab") as threads:
                try:
                    watching = [
                        threads.submit(self._serve, producer),
                        threads.submit(self._watch, consumer),
                        threads.submit(self._fetch, connection),
                    ]
                    self._send(producer)
                    for one in watching[1:]:
                        one.result(ANSWER_S)
                    self._has_statistics.wait(ANSWER_S)
                finally:
                    self._is_over.set()
        finally:
            connection.close()
            consumer.close()
        return self._result(round_trip)

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._place.bootstrap_servers,
                "log_level": 0,
                "acks": self._case.acks,
                "linger.ms": self._case.linger_ms,
                "batch.size": self._case.batch_size,
                "enable.idempotence": False,  # it would ask for acks=-1
                "message.send.max.retries": 0,
                "message.timeout.ms": int(ANSWER_S * 1_000),
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._take_statistics,
            }
        )

    def _consumer(self) -> Consumer:
        settings = {"bootstrap.servers": self._place.bootstrap_servers, "log_level": 0, "group.id": "tickover-lab"}
        consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.min.bytes": 1})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        return consumer

    # The producer: one thread sends, the other is told

    def _send(self, producer: Producer) -> None:
        padding = b"x" * self._load.record_bytes
        start = time.time()
        for number, moment in enumerate(self._moments):
            time.sleep(max(start + moment - time.time(), 0))
            self._is_warm = moment >= WARM_UP_S
            self._called[number] = time.time()
            producer.produce(self._topic, padding, partition=0, on_delivery=partial(self._report, number))
        if producer.flush(ANSWER_S) or self._refused is not None:
            reason = "not all were acknowledged" if self._refused is None else self._refused.str()
            raise LabError(f"{self._place.bootstrap_servers}: {reason}")

    def _serve(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            producer.poll(POLL_S)

    def _report(self, number: int, error: KafkaError | None, _message: Message) -> None:
        self._acked[number] = time.time()
        if error is not None:
            self._refused = error

    def _take_statistics(self, text: str) -> None:
        """Sum and count of what the library has measured since it told us last, in microseconds."""
        if not self._is_warm:
            return
        for broker in json.loads(text)["brokers"].values():
            for name, total in self._windows.items():
                window = broker[name]
                if broker["nodeid"] >= 0:
                    total[0] += window["sum"]
                    total[1] += window["cnt"]
        if self._windows["int_latency"][1]:
            self._has_statistics.set()

    # Those that read

    def _watch(self, consumer: Consumer) -> None:
        left = self._count
        while left and not self._is_over.is_set():
            message = consumer.poll(POLL_S)
            if message is None:
                continue
            now = time.time()
            if message.error() is not None:
                raise KafkaException(message.error())
            number = message.offset()
            assert number is not None
            self._received[number] = now
            self._appended[number] = (message.timestamp()[1] + HALF_A_MILLISECOND) / 1_000
            left -= 1

    def _fetch(self, connection: BareConnection) -> None:
        for offsets, moment in connection.arrivals(self._topic, self._count):
            for number in offsets:
                self._fetched[number] = moment
            if self._is_over.is_set():
                return

    def _result(self, round_trip_ms: float) -> Measured:
        counted = [number for number, moment in enumerate(self._moments) if moment >= WARM_UP_S]
        if not counted:
            raise LabError("no record was sent: raise --rate or --seconds")

        def since_call(moments: Sequence[float]) -> list[float]:
            return [(moments[number] - self._called[number]) * 1_000 for number in counted]

        return Measured(
            cluster=self._place.name,
            case=self._case,
            acked=since_call(self._acked),
            received=since_call(self._received),
            sent=sum(total / count for total, count in self._windows.values() if count) / 1_000,
            appended=fmean(since_call(self._appended)),
            fetched=fmean(since_call(self._fetched)),
            round_trip=round_trip_ms,
        )
