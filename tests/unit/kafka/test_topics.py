"""The topics that are tickover's own, against a client that answers as it is told to."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from policies.model import Policy
from policies.topic.kafka_tools import tools_of
from sidecar.kafka.topics import (
    CREATE_FOR_S,
    KNOWN_FOR_S,
    MissingTopicError,
    ensure_topic,
    ledger_config,
    source_topics,
    taken_as,
)
from sidecar.settings.settings import Settings
from tests.unit.policy_world import DELAY


class Admin:
    """Knows topics by their partition counts; `refusal` is what creating one ends with."""

    def __init__(self, topics: dict[str, int], refusal: int | None = None) -> None:
        self.topics = topics
        self.refusal = refusal
        self.created: list[Any] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        count = self.topics.get(topic)
        known = SimpleNamespace(error=None if count else KafkaError(3), partitions=dict.fromkeys(range(count or 0)))
        return SimpleNamespace(topics={topic: known})

    def create_topics(self, topics: list[Any], operation_timeout: float) -> dict[str, Future[None]]:
        future: Future[None] = Future()
        [topic] = topics
        self.created.append(topic)
        if self.refusal is None:
            self.topics[topic.topic] = topic.num_partitions
            future.set_result(None)
        else:
            future.set_exception(KafkaException(KafkaError(self.refusal)))
        return {topic.topic: future}


TOOLS = tools_of({"bootstrap.servers": "k:9092"})


def ensure(admin: Admin, pause: Callable[[float], None] = lambda _: None) -> int:
    config = ledger_config(604_800_000)
    return ensure_topic(admin, "tickover.g.ledger", 8, -1, config, TOOLS, pause)  # type: ignore[arg-type]


def test_brokers_that_are_not_quite_there_are_asked_again() -> None:
    admin = Admin({}, KafkaError.INVALID_REPLICATION_FACTOR)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            admin.refusal = None

    assert ensure(admin, pause) == 8
    assert len(pauses) == 3


def test_brokers_that_are_too_few_are_not_asked_for_ever() -> None:
    pauses: list[float] = []
    with pytest.raises(MissingTopicError):
        ensure(Admin({}, KafkaError.INVALID_REPLICATION_FACTOR), pauses.append)
    assert sum(pauses) == CREATE_FOR_S


class Managed(Admin):
    """Brokers of a managed cluster, which allow so much and no more; `replicas`: the only number they take."""

    def __init__(self, bytes_max: int, replicas: int | None = None, code: int = KafkaError.POLICY_VIOLATION) -> None:
        super().__init__({})
        self._bytes_max, self._replicas, self._code = bytes_max, replicas, code

    def list_topics(self, topic: str, timeout: float) -> Any:
        known = super().list_topics(topic, timeout)
        return SimpleNamespace(topics=known.topics, brokers=dict.fromkeys(range(3)))

    def create_topics(self, topics: list[Any], operation_timeout: float = 0, **asked: Any) -> dict[str, Future[None]]:
        [topic] = topics
        too_large = int(topic.config.get("max.message.bytes", "0")) > self._bytes_max
        other_count = self._replicas is not None and topic.replication_factor not in (-1, self._replicas)
        self.refusal = self._code if too_large or other_count else None
        answer = super().create_topics(topics, operation_timeout)
        if asked:
            self.topics.clear()  # asked only
        return answer


@pytest.mark.parametrize(
    ("bytes_max", "size"), [(10 << 20, "10485760"), (8 << 20, "8388608"), (2 << 20, None), (1 << 20, None)]
)
@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG])
def test_where_brokers_take_less_than_is_wanted_their_limit_is_used_and_said(
    caplog: pytest.LogCaptureFixture, bytes_max: int, size: str | None, code: int
) -> None:
    admin = Managed(bytes_max, code=code)
    assert ensure(admin) == 8
    assert admin.created[-1].config.get("max.message.bytes") == size
    assert admin.created[-1].config["retention.ms"] == "604800000"
    assert ("what the brokers take" in caplog.text) == (size != "10485760")


@pytest.mark.parametrize("code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_REPLICATION_FACTOR])
def test_where_brokers_take_one_number_of_replicas_alone_theirs_is_used(code: int) -> None:
    admin = Managed(8 << 20, replicas=3, code=code)
    config = ledger_config(604_800_000)
    assert ensure_topic(admin, "tickover.g.ledger", 8, 1, config, TOOLS, lambda _: None) == 8  # type: ignore[arg-type]
    made = admin.created[-1]
    assert (made.replication_factor, made.config["max.message.bytes"]) == (-1, "8388608")


def test_a_broker_that_comes_meanwhile_is_no_reason_for_fewer_replicas() -> None:
    class Growing(Managed):
        brokers = 2

        def list_topics(self, topic: str, timeout: float) -> Any:
            self.brokers = 3  # the third one is there now
            return super().list_topics(topic, timeout)

        def create_topics(
            self, topics: list[Any], operation_timeout: float = 0, **asked: Any
        ) -> dict[str, Future[None]]:
            self._replicas = None if self.brokers == 3 else 1
            return super().create_topics(topics, operation_timeout, **asked)

    admin = Growing(10 << 20, code=KafkaError.INVALID_REPLICATION_FACTOR)
    assert ensure_topic(admin, "tickover.g.audit", 1, 3, {}, TOOLS, lambda _: None) == 1  # type: ignore[arg-type]
    assert admin.created[-1].replication_factor == 3


def test_fewer_replicas_are_not_taken_because_brokers_are_missing() -> None:
    admin = Managed(10 << 20, replicas=2, code=KafkaError.INVALID_REPLICATION_FACTOR)
    with pytest.raises(MissingTopicError):
        ensure_topic(admin, "tickover.g.ledger", 8, 5, {}, TOOLS, lambda _: None)  # type: ignore[arg-type]
    assert {topic.replication_factor for topic in admin.created} == {5}


def test_brokers_are_asked_what_they_would_take_and_nothing_is_created() -> None:
    admin = Managed(8 << 20, replicas=3)
    wanted = NewTopic("tickover.g.ledger", 8, 1, config=ledger_config(604_800_000))
    taken = taken_as(admin, wanted, 1.0)  # type: ignore[arg-type]
    assert (taken.replication_factor, (taken.config or {})["max.message.bytes"]) == (-1, "8388608")
    assert admin.topics == {}


def test_a_topic_that_exists_is_left_as_it_is() -> None:
    admin = Admin({"tickover.g.ledger": 3})
    assert ensure(admin) == 3
    assert not admin.created


def test_a_missing_topic_is_created_as_it_must_be() -> None:
    admin = Admin({})
    assert ensure(admin) == 8
    [topic] = admin.created
    assert topic.config["cleanup.policy"] == "delete"
    assert topic.config["message.timestamp.type"] == "LogAppendTime"
    assert topic.config["retention.ms"] == "604800000"


class Lagging(Admin):
    """Brokers that show a topic, which has 3 partitions, only when they were asked so often."""

    def __init__(self, unseen: int, refusal: int | None = None) -> None:
        super().__init__({"tickover.g.ledger": 3}, refusal)
        self.unseen = unseen

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.unseen -= 1
        return super().list_topics(topic, timeout) if self.unseen < 0 else Admin({}).list_topics(topic, timeout)


@pytest.mark.parametrize(
    ("refusal", "size"), [(KafkaError.TOPIC_ALREADY_EXISTS, 3), (None, 8)], ids=["somebody else", "we"]
)
def test_whoever_made_a_topic_its_size_is_what_the_brokers_say(refusal: int | None, size: int) -> None:
    pauses: list[float] = []
    admin = Lagging(4, refusal)
    assert ensure(admin, pauses.append) == size
    assert len(pauses) == 3, "before the first it was not made yet"


def test_the_size_of_a_topic_that_exists_is_never_guessed() -> None:
    pauses: list[float] = []
    with pytest.raises(MissingTopicError, match=r"how many partitions[\s\S]*--describe --topic tickover.g.ledger"):
        ensure(Lagging(10_000, KafkaError.TOPIC_ALREADY_EXISTS), pauses.append)
    assert sum(pauses) == KNOWN_FOR_S


def test_what_may_not_be_created_is_asked_for_with_the_command() -> None:
    command = r"kafka-topics.sh --bootstrap-server k:9092 --create --topic tickover.g.ledger --partitions 8"
    with pytest.raises(MissingTopicError, match=command):
        ensure(Admin({}, KafkaError.TOPIC_AUTHORIZATION_FAILED))


def test_with_a_login_the_command_carries_it_and_says_what_it_is() -> None:
    tools = tools_of({"bootstrap.servers": "k:9092", "security.protocol": "SSL"})
    with pytest.raises(MissingTopicError) as caught:
        ensure_topic(Admin({}, KafkaError.TOPIC_AUTHORIZATION_FAILED), "t", 8, 3, {}, tools)  # type: ignore[arg-type]
    _, command, note, line = str(caught.value).splitlines()
    options = "--bootstrap-server k:9092 --command-config admin.properties"
    assert command.strip() == f"kafka-topics.sh {options} --create --topic t --partitions 8 --replication-factor 3"
    assert note.startswith("admin.properties has")
    assert line == "security.protocol=SSL"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["a"], ["a"]),
        (["a", "a*"], ["a", "a-retry"]),
        (["*"], ["B", "a", "a-retry"]),
        (["__*", "tickover.policies", "nope"], []),
        (["A"], []),
        (["a-dlq", "a*"], ["a", "a-dlq", "a-retry"]),
        (["*-dlq", "grave*"], ["a-dlq"]),
        (["grave", "?"], ["B", "a", "grave"]),
    ],
)
def test_sources_are_what_is_meant_and_there_and_no_dead_letters_by_chance(wanted: list[str], found: list[str]) -> None:
    existing = ["a", "a-retry", "a-dlq", "grave", "B", "tickover.policies", "__consumer_offsets"]
    policies = [
        Policy.model_validate({**DELAY, "match": {"topics": [glob]}, "dead_letter": {"topic": "grave"}})
        for glob in wanted
    ]
    assert source_topics(Settings(), policies, existing) == found
    assert source_topics(Settings(sources=tuple(wanted)), [policies[0]], existing) == found


def test_without_a_policy_nothing_is_consumed() -> None:
    assert source_topics(Settings(), [], ["a"]) == []
