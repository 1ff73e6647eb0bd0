"""Topics that are followed by one consumer in one thread."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sidecar.kafka import topic_follower as module
from sidecar.kafka.topic_follower import LogUnavailable, TopicFollower, TopicReader

WAIT_S = 60.0


class Message:
    def __init__(self, topic: str | None, offset: int = 0, value: bytes = b"", code: int | None = None) -> None:
        self._topic, self._offset, self._value, self._code = topic, offset, value, code

    def topic(self) -> str | None:
        return self._topic

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)


class Cluster:
    """Topics as lists of values; `refused` can't be read. Clients that live, and places that they were told."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {"a": [b"a0", b"a1"], "b": [b"b0"]}
        self.refused: set[str] = set()
        self.errors: deque[Exception] = deque()
        self.made: list[Consumer] = []

    def consumer(self, _: Any) -> "Consumer":
        self.made.append(Consumer(self))
        return self.made[-1]


class Consumer:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._at: dict[str, int] = {}
        self._fetched: deque[Message] = deque()
        self.told: list[dict[str, int]] = []
        self.is_closed = False

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._at = {place.topic: place.offset for place in places}
        self._fetched.clear()
        self.told.append(dict(self._at))

    def poll(self, seconds: float) -> Message | None:
        if self._cluster.errors:
            raise self._cluster.errors.popleft()
        if not self._fetched:
            self._fetch()
        if not self._fetched:
            threading.Event().wait(seconds)
            return None
        return self._fetched.popleft()

    def consume(self, most: int, _: float) -> list[Message]:
        return [self._fetched.popleft() for _ in range(min(most, len(self._fetched)))]

    def _fetch(self) -> None:
        for topic, at in self._at.items():
            if topic in self._cluster.refused:
                self._fetched.append(Message(topic, code=KafkaError.TOPIC_AUTHORIZATION_FAILED))
                continue
            values = self._cluster.topics[topic]
            self._fetched += [Message(topic, offset, values[offset]) for offset in range(at, len(values))]
            self._at[topic] = len(values)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    monkeypatch.setattr(module, "Consumer", made.consumer)
    monkeypatch.setattr(module, "READ_WAIT_S", 0.001)
    monkeypatch.setattr(module, "REPLACED_S", 0.05)
    before = set(threading.enumerate())
    yield made
    assert {one for one in threading.enumerate() if one.name == "topics"} <= before, "its thread has ended"
    assert all(consumer.is_closed for consumer in made.made)


def follow(reader: TopicReader, topic: str) -> tuple[TopicFollower, list[bytes]]:
    values: list[bytes] = []
    follower = TopicFollower(reader, topic, lambda _, value, __: values.append(value))
    follower.start()
    return follower, values


def test_one_consumer_reads_all_topics_each_record_once(cluster: Cluster) -> None:
    reader = TopicReader({})
    (a, of_a), (b, of_b) = follow(reader, "a"), follow(reader, "b")
    a.wait_for(1, WAIT_S)
    b.wait_for(0, WAIT_S)
    cluster.topics["a"].append(b"a2")
    a.wait_for(2, WAIT_S)
    a.start()
    a.stop()
    cluster.topics["b"].append(b"b1")
    b.wait_for(1, WAIT_S)
    b.stop()
    b.stop()
    assert (of_a, of_b, len(cluster.made)) == ([b"a0", b"a1", b"a2"], [b"b0", b"b1"], 1)
    assert cluster.made[0].told[-1] == {"b": 1}, "it goes on where it was"


def test_a_topic_that_is_refused_holds_up_no_other_and_is_read_once_it_may(cluster: Cluster) -> None:
    cluster.refused = {"a"}
    reader = TopicReader({})
    (a, of_a), (b, of_b) = follow(reader, "a"), follow(reader, "b")
    b.wait_for(0, WAIT_S)
    with pytest.raises(LogUnavailable):
        a.wait_for(0, 0.01)
    cluster.refused = set()
    a.wait_for(1, WAIT_S)
    cluster.topics["b"].append(b"b1")
    b.wait_for(1, WAIT_S)
    a.stop()
    b.stop()
    assert (of_a, of_b) == ([b"a0", b"a1"], [b"b0", b"b1"])


def test_a_consumer_that_fails_has_a_successor_which_goes_on(cluster: Cluster) -> None:
    reader = TopicReader({})
    a, of_a = follow(reader, "a")
    a.wait_for(1, WAIT_S)
    cluster.errors.append(KafkaException(KafkaError(KafkaError._FATAL)))
    cluster.topics["a"].append(b"a2")
    a.wait_for(2, WAIT_S)
    a.stop()
    assert of_a == [b"a0", b"a1", b"a2"]
    assert len(cluster.made) == 2


def test_who_waits_is_told_at_once_when_reading_ends(cluster: Cluster) -> None:
    a, _ = follow(TopicReader({}), "a")
    stopping = threading.Timer(0.05, a.stop)
    stopping.start()
    began_s = time.monotonic()
    with pytest.raises(LogUnavailable):
        a.wait_for(1_000, WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 2
    stopping.join()
