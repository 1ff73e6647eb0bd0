"""Offsets by time, asked of the partitions' leaders: where to begin, or where the end is."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.clients.consumer.consumer_metadata import ConsumerMetadata
from broker.clients.consumer.consumer_records import ConsumerSettings
from broker.clients.network_client import NetworkClient
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

CONSUMER: Final = -1  # no replica's id

STALE: Final = frozenset(
    {
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.LEADER_NOT_AVAILABLE,
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.REPLICA_NOT_AVAILABLE,
        Errors.KAFKA_STORAGE_ERROR,
        Errors.OFFSET_NOT_AVAILABLE,
        Errors.FENCED_LEADER_EPOCH,
        Errors.UNKNOWN_LEADER_EPOCH,
    }
)
"""What a leader says that isn't one, or not ready: ask again, with newer metadata."""


class ListOffsets:
    """The request of this name."""

    def __init__(self, settings: ConsumerSettings, network: NetworkClient, metadata: ConsumerMetadata) -> None:
        self._settings = settings
        self._network = network
        self._metadata = metadata

    async def ask(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """By partition and timestamp (ms; -2: the beginning; -1: the end, which for readers of committed records is
        the last stable offset): the first offset that isn't older, -1 if there is none. What leaders can't say now is
        left out. ApiError: they refuse."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in times:
            leader = self._metadata.leader(partition)
            if leader is not None:
                by_leader[leader].append(partition)
        answers = await asyncio.gather(*(self._ask(leader, of, times) for leader, of in by_leader.items()))
        return {partition: offset for answer in answers for partition, offset in answer.items()}

    async def _ask(
        self, leader: int, partitions: Iterable[TopicPartition], times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in partitions:
            row = {"partition_index": one.partition, "current_leader_epoch": -1, "timestamp": times[one]}
            rows[one.topic].append(row)
        body: dict[str, Any] = {
            "replica_id": CONSUMER,
            "isolation_level": self._settings.isolation_level,
            "topics": [{"name": topic, "partitions": of} for topic, of in rows.items()],
        }
        try:
            told = await self._network.ask(leader, ApiKey.LIST_OFFSETS, **body)
        except OSError:
            self._metadata.needs_update = True
            return {}
        found = {}
        for topic in told.topics:
            for row in topic.partitions:
                error = Errors(row.error_code)
                if error is Errors.NONE:
                    found[TopicPartition(topic.name, row.partition_index)] = int(row.offset)
                elif error in STALE:
                    self._metadata.needs_update = True
                else:
                    raise ApiError(error, f"{error.name} for the offsets of {topic.name}-{row.partition_index}")
        return found
