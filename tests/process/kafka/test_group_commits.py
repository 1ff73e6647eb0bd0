"""The commits of a group, asked for from outside while its coordinator moves."""

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from sidecar.kafka.commit_reader import commits_at, group_commits
from tests.services.errant_broker import ErrantServer
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka

pytestmark = pytest.mark.slow

MOVES = (Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, Errors.COORDINATOR_LOAD_IN_PROGRESS)
numbers = count(1)


@pytest.fixture(name="server", scope="module")
def server_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ErrantServer]:
    with own_broker(ErrantServer(tmp_path_factory.mktemp("kafka"))) as server:
        kafka = Kafka(server)
        for topic in ("orders", "mail"):
            kafka.create_topic(topic, 3)
        member = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        commits = [TopicPartition("orders", 1, 7, "ours"), TopicPartition("mail", 0, 3, "")]
        member.commit(offsets=commits, asynchronous=False)
        member.close()
        yield server


def told(commits: list[TopicPartition]) -> set[tuple[str, int, int, str]]:
    return {(one.topic, one.partition, one.offset, one.metadata or "") for one in commits}


def test_all_commits_of_a_group_are_told_and_none_of_another(server: ErrantServer) -> None:
    client = {"bootstrap.servers": server.bootstrap}
    assert told(group_commits(client, "g")) == {("orders", 1, 7, "ours"), ("mail", 0, 3, "")}
    assert group_commits(client, "another") == []
    places = [TopicPartition("orders", partition) for partition in range(3)]
    assert told(commits_at(client, "g", places)) == {("orders", 1, 7, "ours")}


@pytest.mark.parametrize("error", MOVES)
@pytest.mark.parametrize("stable", [False, True])
def test_a_coordinator_that_moves_is_asked_again(server: ErrantServer, error: Errors, stable: bool) -> None:
    """The admin client's call for it ends the process where the answer is NOT_COORDINATOR."""
    number = next(numbers)
    server.errand.want(number, ApiKey.OFFSET_FETCH.name, error)
    commits = group_commits({"bootstrap.servers": server.bootstrap}, "g", stable=stable)
    assert server.errand.given == number
    assert len(commits) == 2


def test_what_is_refused_is_not_asked_again(server: ErrantServer) -> None:
    number = next(numbers)
    server.errand.want(number, ApiKey.OFFSET_FETCH.name, Errors.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as refused:
        group_commits({"bootstrap.servers": server.bootstrap}, "g")
    assert refused.value.args[0].code() == Errors.GROUP_AUTHORIZATION_FAILED
