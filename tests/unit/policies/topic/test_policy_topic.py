"""The policy topic where it may not be made: the command that makes it."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from policies.errors import PolicyStoreUnavailable
from policies.topic import topic as module


class Forbidding:
    """A client of brokers that have no topics, and let nobody make one."""

    def __init__(self, _: dict[str, str]) -> None:
        self.list_topics = lambda timeout: SimpleNamespace(topics={}, brokers={1: "k"})

    def create_topics(self, topics: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        future: Future[None] = Future()
        future.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {topic.topic: future for topic in topics}


def test_a_topic_that_may_not_be_made_is_asked_for_with_command_and_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AdminClient", Forbidding)
    client = {"bootstrap.servers": "k:9092", "security.protocol": "SSL"}
    with pytest.raises(PolicyStoreUnavailable) as caught:
        module.ensure_topic(client, "tickover.policies", -1, 1.0)
    words, command, note, line = str(caught.value).splitlines()
    assert words.startswith("topic tickover.policies is missing and cannot be created")
    head = "kafka-topics.sh --bootstrap-server k:9092 --command-config admin.properties --create"
    assert command.startswith(f"{head} --topic tickover.policies --partitions 1 --config")
    assert (note, line) == ("admin.properties has the login of somebody who may do this:", "security.protocol=SSL")
