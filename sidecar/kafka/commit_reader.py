"""Commits of a group, asked for from outside: who asks joins no group, and each call has a client of its own.

By a consumer, never by the admin client's list_consumer_group_offsets: that one ends the process where another broker
has become the group's coordinator (docs/decisions/0070).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import (
    ANSWER_TIMEOUT_S,
    commit_reader_settings,
    uncommitted_commit_reader_settings,
)
from sidecar.kafka.errors import is_away

ROUND_S: Final = 1.0  # between two looks whether the coordinator has refused
ASK_AGAIN_S: Final = 0.05  # while the group has no coordinator
PLACES_MAX: Final = 1_000  # in one question: while the client takes them over, no other thread goes on
INTERNAL: Final = "__"  # topics of the brokers' own begin with it


def group_commits(
    client: Mapping[str, Any], group: str, *, stable: bool = False, timeout_s: float = ANSWER_TIMEOUT_S
) -> list[TopicPartition]:
    """All offsets that the group has committed, with their metadata: also for topics that it reads no more. (For one
    that was deleted brokers have none.) Those that can't be told are left out. Joins no group.

    `stable`: wait for transactions that hide some. Raises KafkaException when the brokers don't answer in time, or
    refuse to.
    """
    consumer = _asking(client, group, stable=stable)
    try:
        topics = consumer.list_topics(timeout=timeout_s).topics
        places = [
            TopicPartition(name, partition)
            for name, topic in sorted(topics.items())
            if not name.startswith(INTERNAL)
            for partition in topic.partitions
        ]
        return _commits(consumer, places, timeout_s)
    finally:
        consumer.close()


def commits_at(
    client: Mapping[str, Any],
    group: str,
    places: Sequence[TopicPartition],
    *,
    stable: bool = False,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> list[TopicPartition]:
    """As `group_commits`, for these partitions."""
    if not places:
        return []
    consumer = _asking(client, group, stable=stable)
    try:
        return _commits(consumer, places, timeout_s)
    finally:
        consumer.close()


def _asking(client: Mapping[str, Any], group: str, *, stable: bool) -> Consumer:
    settings = commit_reader_settings if stable else uncommitted_commit_reader_settings
    return Consumer(settings(client, group))


def _commits(consumer: Consumer, places: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
    until_s = time.monotonic() + timeout_s
    found: list[TopicPartition] = []
    for first in range(0, len(places), PLACES_MAX):
        some = list(places[first : first + PLACES_MAX])
        while (told := _told(consumer, some, until_s)) is None:
            time.sleep(ASK_AGAIN_S)
        found += told
    return [one for one in found if one.error is None and one.offset != OFFSET_INVALID]


def _told(consumer: Consumer, places: list[TopicPartition], until_s: float) -> list[TopicPartition] | None:
    """The commits of these partitions; None: nobody knows yet, ask again."""
    left_s = until_s - time.monotonic()
    try:
        told: list[TopicPartition] = consumer.committed(places, timeout=min(max(left_s, ASK_AGAIN_S), ROUND_S))
    except KafkaException as error:
        if (refusal := _refusal(consumer)) is not None:
            raise KafkaException(refusal) from error
        if left_s <= 0 or not is_away(error):
            raise
        return None
    return told


def _refusal(consumer: Consumer) -> KafkaError | None:
    """Refusal of the group's coordinator, None without: the client tells it to who polls, and who asks just waits."""
    while (message := consumer.poll(0)) is not None:
        error: KafkaError | None = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return error
    return None
