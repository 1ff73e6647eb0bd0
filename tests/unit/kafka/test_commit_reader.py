"""Answers about a group's commits, and their use."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from sidecar.kafka import commit_reader
from sidecar.kafka.commit_reader import PLACES_MAX, commits_at, group_commits

SOON_S = 0.2
ALL = {"orders": 3, "mail": 1}


class Asked:
    """A consumer: `shown` are the brokers' lists of topics with their partitions, the last one for good."""

    def __init__(self, shown: list[dict[str, int]], answer: Callable[[list[TopicPartition], float], Any]) -> None:
        self.shown = shown
        self.answer = answer
        self.asked: list[int] = []
        self.closed = False

    def list_topics(self, timeout: float) -> Any:
        topics = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(count)))
                for name, count in topics.items()
            }
        )

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked.append(len(places))
        told: list[TopicPartition] = self.answer(places, timeout)
        return told

    def poll(self, _: float) -> None:
        """Nothing is refused."""

    def close(self) -> None:
        self.closed = True


def first_of_each(places: list[TopicPartition], _: float) -> list[TopicPartition]:
    """Each first partition has a commit."""
    return [TopicPartition(one.topic, one.partition, OFFSET_INVALID if one.partition else 7) for one in places]


def asked(monkeypatch: pytest.MonkeyPatch, answer: Any = first_of_each, *shown: dict[str, int]) -> Asked:
    consumer = Asked(list(shown or (ALL,)), answer)
    monkeypatch.setattr(commit_reader, "Consumer", lambda _: consumer)
    return consumer


def topics_of(commits: list[TopicPartition]) -> list[str]:
    return [one.topic for one in commits]


def test_all_partitions_of_the_cluster_are_asked_about_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = asked(monkeypatch, first_of_each, {**ALL, "__former": 2 * PLACES_MAX})
    assert topics_of(group_commits({}, "g")) == ["__former", "mail", "orders"]
    assert consumer.asked == [PLACES_MAX, PLACES_MAX, 4]
    assert consumer.closed


def test_a_topic_that_brokers_lost_sight_of_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for unknown in ({}, {**ALL, "mail": 0}):
        asked(monkeypatch, first_of_each, unknown, ALL)
        assert topics_of(group_commits({}, "g")) == ["mail", "orders"]


def test_who_must_know_all_is_told_that_something_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, first_of_each, {**ALL, "mail": 0})
    assert topics_of(group_commits({}, "g", timeout_s=SOON_S)) == ["orders"]
    with pytest.raises(KafkaException, match="show no partitions of mail"):
        group_commits({}, "g", strict=True, timeout_s=SOON_S)
    asked(monkeypatch, first_of_each, {})
    with pytest.raises(KafkaException, match="show no topics"):
        group_commits({}, "g", strict=True, timeout_s=SOON_S)


def test_who_must_know_all_is_told_of_a_partition_that_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstable:
        topic, partition, offset = "mail", 0, 7
        error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)

    asked(monkeypatch, lambda *_: [Unstable(), TopicPartition("orders", 0, 7)])
    assert topics_of(group_commits({}, "g")) == ["orders"]
    with pytest.raises(KafkaException, match="UNSTABLE_OFFSET_COMMIT"):
        group_commits({}, "g", strict=True)


def test_a_slow_coordinator_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if timeout < 1.5:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return first_of_each(places, timeout)

    consumer = asked(monkeypatch, slowly)
    assert len(commits_at({}, "g", [TopicPartition("mail", 0)])) == 1
    assert len(consumer.asked) == 4


@pytest.mark.parametrize("code", [KafkaError._DESTROY_BROKER, KafkaError.NOT_COORDINATOR])
def test_a_coordinator_that_moves_is_asked_again_for_as_long_as_it_may_take(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def move(*_: object) -> None:
        raise KafkaException(KafkaError(code))

    consumer = asked(monkeypatch, move)
    with pytest.raises(KafkaException):
        commits_at({}, "g", [TopicPartition("mail", 0)], timeout_s=SOON_S)
    assert len(consumer.asked) > 1
    assert consumer.closed


def test_any_other_error_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    consumer = asked(monkeypatch, refuse)
    with pytest.raises(KafkaException):
        commits_at({}, "g", [TopicPartition("mail", 0)])
    assert len(consumer.asked) == 1
