"""Commits of a group, asked for from outside: who asks joins no group, and each call has a client of its own.

By a consumer, never by the admin client's list_consumer_group_offsets: that one ends the process where another broker
has become the group's coordinator (docs/decisions/0070).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import (
    ANSWER_TIMEOUT_S,
    commit_reader_settings,
    uncommitted_commit_reader_settings,
)
from sidecar.kafka.errors import is_away

FIRST_ROUND_S: Final = 0.25  # then it is looked whether the coordinator has refused; the next round is twice as long
ASK_AGAIN_S: Final = 0.05  # while the group has no coordinator, or the brokers show no topics yet
PLACES_MAX: Final = 1_000  # in one question: while the client takes them over, no other thread goes on


def group_commits(
    client: Mapping[str, Any],
    group: str,
    *,
    stable: bool = False,
    strict: bool = False,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> list[TopicPartition]:
    """All offsets that the group has committed, with their metadata: also for topics that it reads no more. (For one
    that was deleted brokers have none.) Joins no group.

    `stable`: wait for transactions that hide some. What can't be told is left out; with `strict` it is an error, and so
    is a topic that brokers list without its partitions. Raises KafkaException when the brokers don't answer, each
    question in `timeout_s`, or refuse to.
    """
    with closing(_asking(client, group, stable=stable)) as consumer:
        return _commits(consumer, _places(consumer, strict, timeout_s), timeout_s, strict=strict)


def commits_at(
    client: Mapping[str, Any],
    group: str,
    places: Sequence[TopicPartition],
    *,
    stable: bool = False,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> list[TopicPartition]:
    """As `group_commits`, for these partitions; what can't be told is left out."""
    if not places:
        return []
    with closing(_asking(client, group, stable=stable)) as consumer:
        return _commits(consumer, places, timeout_s)


def _asking(client: Mapping[str, Any], group: str, *, stable: bool) -> Consumer:
    settings = commit_reader_settings if stable else uncommitted_commit_reader_settings
    return Consumer(settings(client, group))


def _places(consumer: Consumer, strict: bool, timeout_s: float) -> list[TopicPartition]:
    """Every partition of the cluster. Brokers may list a topic before they know its partitions, and none at all just
    after they have started.
    """
    until_s, pause_s = time.monotonic() + timeout_s, ASK_AGAIN_S
    while True:
        topics = consumer.list_topics(timeout=timeout_s).topics
        hidden = sorted(name for name, topic in topics.items() if topic.error is not None or not topic.partitions)
        if (topics and not hidden) or time.monotonic() >= until_s:
            break
        time.sleep(pause_s)
        pause_s *= 2
    if strict and (hidden or not topics):
        what = f"the brokers show no partitions of {hidden[0]}" if hidden else "the brokers show no topics"
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, what))
    return [TopicPartition(name, partition) for name, topic in sorted(topics.items()) for partition in topic.partitions]


def _commits(
    consumer: Consumer, places: Sequence[TopicPartition], timeout_s: float, *, strict: bool = False
) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for first in range(0, len(places), PLACES_MAX):
        found += _told(consumer, list(places[first : first + PLACES_MAX]), timeout_s)
    if strict and (errors := [one.error for one in found if one.error is not None]):
        raise KafkaException(errors[0])
    return [one for one in found if one.error is None and one.offset != OFFSET_INVALID]


def _told(consumer: Consumer, places: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    """Answer of the coordinator about these partitions; it is asked again while there is none, or it is starting."""
    until_s, round_s = time.monotonic() + timeout_s, FIRST_ROUND_S
    while True:
        left_s = max(until_s - time.monotonic(), ASK_AGAIN_S)
        try:
            told: list[TopicPartition] = consumer.committed(places, timeout=min(left_s, round_s))
        except KafkaException as error:
            if (refusal := _refusal(consumer)) is not None:
                raise KafkaException(refusal) from error
            if left_s <= ASK_AGAIN_S or not is_away(error):
                raise
        else:
            return told
        round_s *= 2
        time.sleep(ASK_AGAIN_S)


def _refusal(consumer: Consumer) -> KafkaError | None:
    """Refusal of the group's coordinator, None without: the client tells it to who polls, and who asks just waits."""
    while (message := consumer.poll(0)) is not None:
        error: KafkaError | None = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return error
    return None
