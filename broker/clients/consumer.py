"""Kafka's consumer, the part that needs no group: assigned partitions, positions, records."""

import asyncio
from collections.abc import Iterable, Mapping

from broker.clients.assignor import TopicPartition
from broker.clients.consumer_metadata import ConsumerMetadata
from broker.clients.consumer_records import ConsumerRecord, ConsumerSettings, NoOffsetForPartition, OffsetReset
from broker.clients.fetcher import Fetcher
from broker.clients.list_offsets import ListOffsets
from broker.clients.network_client import NetworkClient
from broker.clients.subscription_state import SubscriptionState


class Consumer:
    """Lives in one event loop and is used by one task."""

    def __init__(self, bootstrap_servers: str, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._network = NetworkClient(bootstrap_servers, settings.request_timeout_ms)
        self._metadata = ConsumerMetadata(settings, self._network)
        self._subscriptions = SubscriptionState()
        self._list_offsets = ListOffsets(settings, self._network, self._metadata)
        self._fetcher = Fetcher(settings, self._network, self._metadata, self._subscriptions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these, without a group's help. ValueError: topics are subscribed."""
        self._subscriptions.assign_by_user(partitions)

    async def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        """Records that are there, waiting `timeout_ms` for the first; a request about positions may take longer.

        NoOffsetForPartition, OffsetOutOfRange: there is no position, and nobody to say one. ApiError: a broker refuses.
        """
        now = asyncio.get_running_loop().time
        deadline_s = now() + timeout_ms / 1000
        while True:
            self._fetcher.changed.clear()
            is_settled = await self._advance()
            records = self._fetcher.collect()
            is_settled = self._fetcher.send() and is_settled
            if records:
                return records
            again_s = self._metadata.expires_s if is_settled else now() + self._settings.retry_backoff_s
            try:
                async with asyncio.timeout(max(0.0, min(deadline_s, again_s) - now())):
                    await self._fetcher.changed.wait()
            except TimeoutError:
                if now() >= deadline_s:
                    return []

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on there. ValueError: it isn't assigned."""
        self._subscriptions.state(partition).seek(offset)

    def seek_to(self, reset: OffsetReset, *partitions: TopicPartition) -> None:
        """Go on at the beginning or the end, as it will be at the next `poll` or `position`."""
        for partition in partitions:
            self._subscriptions.state(partition).begin_reset(reset)

    async def position(self, partition: TopicPartition) -> int:
        """The next offset to be read, found out if need be. TimeoutError after `default_api_timeout_ms`."""
        state = self._subscriptions.state(partition)
        async with asyncio.timeout(self._settings.default_api_timeout_ms / 1000):
            while state.position is None:
                if not await self._advance():
                    await asyncio.sleep(self._settings.retry_backoff_s)
        return state.position

    def pause(self, *partitions: TopicPartition) -> None:
        """`poll` gives nothing of these until `resume`; what was fetched is kept."""
        for partition in partitions:
            self._subscriptions.state(partition).is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these."""
        for partition in partitions:
            self._subscriptions.state(partition).is_paused = False

    def assignment(self) -> frozenset[TopicPartition]:
        """What is assigned now."""
        return frozenset(self._subscriptions.partitions)

    async def offsets(self, times: Mapping[TopicPartition, int | OffsetReset]) -> dict[TopicPartition, int]:
        """Of each partition the first offset that isn't older than this (ms), the beginning, or the end; -1: none.
        TimeoutError after `default_api_timeout_ms`."""
        wanted = {one: int(time.value or 0) if isinstance(time, OffsetReset) else time for one, time in times.items()}
        found: dict[TopicPartition, int] = {}
        async with asyncio.timeout(self._settings.default_api_timeout_ms / 1000):
            while True:
                await self._metadata.update({one.topic for one in wanted})
                found |= await self._list_offsets.ask({one: wanted[one] for one in wanted if one not in found})
                if len(found) == len(wanted):
                    return found
                await asyncio.sleep(self._settings.retry_backoff_s)

    async def close(self) -> None:
        """Twice is harmless."""
        await self._fetcher.close()
        await self._network.close()

    async def _advance(self) -> bool:
        """All that is to be done before records can be fetched, as far as it can be. Whether it is done."""
        is_settled = await self._metadata.update(self._subscriptions.wanted_topics())
        return await self._update_positions() and is_settled

    async def _update_positions(self) -> bool:
        """Give those a position that have none."""
        partitions = self._subscriptions.partitions
        lost = self._subscriptions.matching(lambda state: state.position is None and state.reset is None)
        if lost and self._settings.auto_offset_reset is OffsetReset.NONE:
            raise NoOffsetForPartition(lost)
        for one in lost:
            partitions[one].begin_reset(self._settings.auto_offset_reset)
        resets = {one: int(state.reset.value or 0) for one, state in partitions.items() if state.reset is not None}
        found = await self._list_offsets.ask(resets) if resets else {}
        for one, offset in found.items():
            partitions[one].seek(offset)
        return len(found) == len(resets)
