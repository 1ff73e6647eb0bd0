"""Kafka's ConsumerMetadata: what a consumer knows of topics, asked again when it is needed, or old."""

import asyncio
from collections.abc import Collection
from typing import Final

from broker.clients.assignors.assignor import PartitionRacks
from broker.clients.consumer.consumer_records import ConsumerSettings
from broker.clients.network_client import NetworkClient
from purgatory.log_offsets import TopicPartition

LONG_AGO_S: Final = float("-inf")


class ConsumerMetadata:
    """`needs_update` is set by whoever finds that it is wrong."""

    def __init__(self, settings: ConsumerSettings, network: NetworkClient) -> None:
        self._settings = settings
        self._network = network
        self._topics: set[str] = set()
        self._updated_s = LONG_AGO_S
        self._tried_s = LONG_AGO_S
        self.needs_update = True

    @property
    def expires_s(self) -> float:
        """When it will be old, by the event loop's time."""
        return self._updated_s + self._settings.metadata_max_age_ms / 1000

    async def update(self, topics: Collection[str]) -> bool:
        """Ask if that is due, not again and again. Whether all is known that could be."""
        now_s = asyncio.get_running_loop().time()
        if not self.needs_update and now_s < self.expires_s and self._topics.issuperset(topics):
            return True
        if now_s - self._tried_s < self._settings.retry_backoff_s:
            return False
        self._tried_s = now_s
        try:
            await self.refresh(topics)
        except OSError:
            return False
        return True

    async def refresh(self, topics: Collection[str]) -> None:
        """Ask now. OSError: nobody answers."""
        self.needs_update = False
        await self._network.refresh(*topics)
        self._topics.update(topics)
        self._updated_s = asyncio.get_running_loop().time()

    def leader(self, partition: TopicPartition) -> int | None:
        """None: there is none, or it isn't known, and will be asked for."""
        leader = self._network.metadata.leader(partition)
        if leader is None:
            self.needs_update = True
        return leader

    def partition_racks(self, topics: Collection[str]) -> PartitionRacks:
        """Of those topics that exist, what assignors look at."""
        metadata = self._network.metadata
        return {
            topic: [
                frozenset(rack for broker in replicas if (rack := metadata.racks.get(broker)))
                for replicas in metadata.replicas[topic]
            ]
            for topic in sorted(topics)
            if topic in metadata.replicas
        }
