"""Writing policies when Kafka's answers are lost, or say less than they seem to: the topic says what is there."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from policies.errors import PolicyConflict, PolicyStoreUnavailable
from policies.model import Policy
from policies.table import PolicyTable
from policies.topic import store as module
from policies.topic.log import PolicyLog
from policies.topic.store import PolicyStore
from tests.unit.api_world import NOW_MS, REMINDERS

POLICY = Policy.model_validate(REMINDERS)


class Topic:
    """The topic of policies: what producers write, and what becomes of a record and of its delivery report."""

    def __init__(self) -> None:
        self.log = PolicyLog()
        self.settle: Callable[[Any], None] = lambda verdict: None
        self.producers: list[Producer] = []
        self.report: KafkaError | None = None  # of what is written
        self.takes = True  # whether it is

    def append(self, value: bytes) -> None:
        verdict = self.log.apply(self.log.position, value, NOW_MS)
        assert verdict is not None
        self.settle(verdict)


class Producer:
    """confluent-kafka's, as far as it is used: reports come with `poll`."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._reports: list[Callable[[], None]] = []
        self.raises: KafkaException | None = None
        self.is_lost = False
        topic.producers.append(self)

    def produce(self, _: str, value: bytes, key: str, partition: int, on_delivery: Any) -> None:
        if self.raises is not None:
            raise self.raises
        error = self._topic.report
        self._reports.append(lambda: on_delivery(error, None))
        if self._topic.takes:
            self._reports.append(lambda: self._topic.append(value))  # the report comes first

    def poll(self, _: float) -> int:
        for report in self._reports:
            report()
        self._reports.clear()
        return 0

    def __len__(self) -> int:
        return len(self._reports)

    def purge(self, **_: bool) -> None: ...

    def close(self) -> None:
        raise AssertionError("another thread may be in the middle of a call")


class Reader:
    """`PolicyReader` that has read everything there is."""

    reason = ""
    stopped = False

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def start(self, _: float) -> None: ...

    def stop(self) -> None: ...

    @property
    def table(self) -> PolicyTable:
        return self._topic.log.table


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def store(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> PolicyStore:
    def reader(_: Any, __: str, settle: Callable[[Any], None]) -> Reader:
        topic.settle = settle
        return Reader(topic)

    monkeypatch.setattr(module, "PolicyReader", reader)
    monkeypatch.setattr(module, "Producer", lambda _: Producer(topic))
    monkeypatch.setattr(module, "ensure_topic", lambda *_: None)
    monkeypatch.setattr(module, "SERVE_S", 0.01)
    made = PolicyStore({}, "tickover.policies")
    made.start()
    return made


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._FATAL, KafkaError.NOT_ENOUGH_REPLICAS])
def test_a_write_that_is_there_is_a_success_whatever_was_reported(store: PolicyStore, topic: Topic, code: int) -> None:
    """No answer in time says nothing of the topic: who took it for a refusal and wrote again had a conflict."""
    topic.report = KafkaError(code)
    assert store.put(POLICY, 0, "me").version == 1
    topic.report = None
    assert store.put(POLICY, 1, "me").version == 2
    with pytest.raises(PolicyConflict):
        store.put(POLICY, 1, "me")


def test_a_write_that_is_not_there_may_come_yet(
    store: PolicyStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_TIMEOUT_S", 0.1)
    topic.report, topic.takes = KafkaError(KafkaError._MSG_TIMED_OUT), False
    with pytest.raises(PolicyStoreUnavailable, match="may still take effect"):
        store.put(POLICY, 0, "me")


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_write_that_is_refused_is_told_so_at_once(store: PolicyStore, topic: Topic, code: int) -> None:
    topic.report, topic.takes = KafkaError(code), False
    with pytest.raises(Exception, match=r"was not written|larger than the broker takes"):
        store.put(POLICY, 0, "me")


def test_after_a_fatal_error_of_its_producer_it_writes_with_another(store: PolicyStore, topic: Topic) -> None:
    """Such a one takes nothing more, for as long as the process lives."""
    assert store.put(POLICY, 0, "me").version == 1
    topic.producers[0].raises = KafkaException(KafkaError(KafkaError._FATAL))
    assert store.put(POLICY, 1, "me").version == 2
    assert store.put(POLICY, 2, "me").version == 3
    assert len(topic.producers) == 2


def test_an_error_that_passes_is_told_and_changes_no_producer(store: PolicyStore, topic: Topic) -> None:
    assert store.put(POLICY, 0, "me").version == 1
    topic.producers[0].raises = KafkaException(KafkaError(KafkaError._QUEUE_FULL))
    with pytest.raises(PolicyStoreUnavailable, match="cannot be written"):
        store.put(POLICY, 1, "me")
    topic.producers[0].raises = None
    assert store.put(POLICY, 1, "me").version == 2
    assert len(topic.producers) == 1


def test_the_producer_is_let_go_when_nothing_was_written_for_a_while(
    store: PolicyStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert topic.producers == [], "made with the first write"
    store.put(POLICY, 0, "me")
    store.rest()
    store.put(POLICY, 1, "me")
    assert len(topic.producers) == 1
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    store.rest()
    assert store.put(POLICY, 2, "me").version == 3
    assert len(topic.producers) == 2
