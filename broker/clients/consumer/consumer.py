"""Kafka's consumer:

poll: metadata -> group (give back, join, take) -> positions (committed, else reset) -> records of former fetches
                                                                                   -> fetches for the next poll

Left out: patterns of topics, fetch sessions and followers, checks of positions by leader epochs, deserializers, the new
group protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from broker.clients.consumer.consumer_metadata import ConsumerMetadata
from broker.clients.consumer.consumer_records import (
    ConsumerRecord,
    ConsumerSettings,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetReset,
    RebalanceListener,
    RetriableError,
)
from broker.clients.consumer.fetcher import Fetcher
from broker.clients.consumer.group.consumer_coordinator import ConsumerCoordinator
from broker.clients.consumer.group.coordinator_link import CoordinatorLink
from broker.clients.consumer.group.group_member import Generation
from broker.clients.consumer.list_offsets import ListOffsets
from broker.clients.consumer.subscription_state import SubscriptionState
from broker.clients.network_client import NetworkClient
from purgatory.log_offsets import TopicPartition

Result = TypeVar("Result")


class Consumer:
    """Lives in one event loop and is used by one task; heartbeats and fetches are tasks of their own.

    `subscribe` or `assign`, then `poll` more often than each `max_poll_interval_ms`, then `close`.
    """

    def __init__(self, bootstrap_servers: str, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._network = NetworkClient(bootstrap_servers, settings.request_timeout_ms)
        self._metadata = ConsumerMetadata(settings, self._network)
        self._subscriptions = SubscriptionState()
        self._list_offsets = ListOffsets(settings, self._network, self._metadata)
        self._fetcher = Fetcher(settings, self._network, self._metadata, self._subscriptions)
        self._coordinator: ConsumerCoordinator | None = None
        if settings.group_id is not None:
            link = CoordinatorLink(settings.group_id, settings, self._network)
            changed = self._fetcher.changed.set
            self._coordinator = ConsumerCoordinator(settings, link, self._metadata, self._subscriptions, changed)

    # What is read

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Read these topics with the group `group_id`, from the next `poll` on. ValueError: partitions are assigned by
        hand, or there is no group."""
        self._group()
        self._subscriptions.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these, without a group's help. ValueError: topics are subscribed."""
        self._subscriptions.assign_by_user(partitions)

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        if self._coordinator is not None and self._subscriptions.topics is not None:
            await self._coordinator.leave(says_so=self._coordinator.member.is_dynamic)
        self._subscriptions.unsubscribe()

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions that are assigned now."""
        return frozenset(self._subscriptions.partitions)

    # Records

    async def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        """Records that are there, at most `max_poll_records`, waiting `timeout_ms` for the first. What rebalances and
        positions need is done first; a request for it may take longer.

        NoOffsetForPartition, OffsetOutOfRange: there is no position, and nobody to say one. ApiError: a broker refuses;
        FENCED_INSTANCE_ID: another member has this one's `group_instance_id`.
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
            # Who waits here takes part in the group all the time: max.poll.interval.ms is about who doesn't poll.
            wait_ms = self._settings.heartbeat_interval_ms if is_settled else self._settings.retry_backoff_ms
            again_s = min(now() + wait_ms / 1000, self._metadata.expires_s if is_settled else deadline_s)
            try:
                async with asyncio.timeout(max(0.0, min(deadline_s, again_s) - now())):
                    await self._fetcher.changed.wait()
            except TimeoutError:
                if now() >= deadline_s:
                    return []

    def pause(self, *partitions: TopicPartition) -> None:
        """`poll` gives nothing of these until `resume`; what was fetched is kept. ValueError: one isn't assigned."""
        for partition in partitions:
            self._subscriptions.state(partition).is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these. ValueError: one isn't assigned."""
        for partition in partitions:
            self._subscriptions.state(partition).is_paused = False

    # Positions

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

        async def attempt() -> int:
            if state.position is None:
                await self._metadata.update(self._subscriptions.wanted_topics())
                await self._update_positions()
            if state.position is None:
                raise RetriableError(f"no position in {partition} yet")
            return state.position

        return await self._retrying(attempt)

    async def offsets(self, times: Mapping[TopicPartition, int | OffsetReset]) -> dict[TopicPartition, int]:
        """Of each partition the first offset that isn't older than this (ms), the beginning, or the end; -1: none.
        TimeoutError after `default_api_timeout_ms`."""
        wanted = {one: int(time.value or 0) if isinstance(time, OffsetReset) else time for one, time in times.items()}
        found: dict[TopicPartition, int] = {}

        async def attempt() -> dict[TopicPartition, int]:
            await self._metadata.update({one.topic for one in wanted})
            found.update(await self._list_offsets.ask({one: wanted[one] for one in wanted if one not in found}))
            if len(found) < len(wanted):
                raise RetriableError("not all leaders have answered")
            return found

        return await self._retrying(attempt)

    # The group's offsets

    async def commit_sync(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit these, or all positions. TimeoutError after `default_api_timeout_ms`. ApiError, and nothing is
        committed: REBALANCE_IN_PROGRESS (poll, then try again), ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID (the partitions
        may be another's), FENCED_INSTANCE_ID, OFFSET_METADATA_TOO_LARGE."""
        committed, is_member = self._group().offsets, self._subscriptions.topics is not None
        chosen = self._subscriptions.consumed() if offsets is None else offsets
        if chosen:
            await self._retrying(lambda: committed.commit(chosen, as_member=is_member))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """Read the offsets that the group has committed, where it has. TimeoutError after `default_api_timeout_ms`."""
        return await self._retrying(lambda: self._group().offsets.fetch(partitions))

    def generation(self) -> Generation:
        """The group's generation that this consumer is a member of, and its id there. ValueError: there is no group."""
        return self._group().member.generation

    # Its end

    async def close(self, *, leave_group: bool | None = None) -> None:
        """Commit if `enable_auto_commit`, give partitions back, leave the group, end. A static member stays in the
        group until its session ends, unless told otherwise. Twice is harmless."""
        try:
            if self._coordinator is not None:
                says_so = self._coordinator.member.is_dynamic if leave_group is None else leave_group
                await self._coordinator.leave(says_so=says_so)
        finally:  # also when the listener has failed
            self._subscriptions.unsubscribe()
            if self._coordinator is not None:
                await self._coordinator.member.close()
            await self._fetcher.close()
            await self._network.close()

    def _group(self) -> ConsumerCoordinator:
        if self._coordinator is None:
            raise ValueError("group.id is needed for this")
        return self._coordinator

    async def _advance(self) -> bool:
        """All that is to be done before records can be fetched, as far as it can be. Whether it is done."""
        is_settled = await self._metadata.update(self._subscriptions.wanted_topics())
        if self._coordinator is not None:
            is_settled = await self._coordinator.poll() and is_settled
        return await self._update_positions() and is_settled

    async def _update_positions(self) -> bool:
        """Give those a position that have none: what is committed, else as `auto_offset_reset` says."""
        partitions = self._subscriptions.partitions
        lost = self._subscriptions.matching(lambda state: state.position is None and state.reset is None)
        if lost and self._coordinator is not None:
            try:
                committed = await self._coordinator.offsets.fetch(lost)
            except OSError:
                return False
            for one, found in committed.items():
                partitions[one].seek(found.offset)
            lost = [one for one in lost if one not in committed]
        if lost and self._settings.auto_offset_reset is OffsetReset.NONE:
            raise NoOffsetForPartition(lost)
        for one in lost:
            partitions[one].begin_reset(self._settings.auto_offset_reset)
        resets = {one: int(state.reset.value or 0) for one, state in partitions.items() if state.reset is not None}
        offsets = await self._list_offsets.ask(resets) if resets else {}
        for one, offset in offsets.items():
            partitions[one].seek(offset)
        return len(offsets) == len(resets)

    async def _retrying(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        async with asyncio.timeout(self._settings.default_api_timeout_ms / 1000):
            while True:
                try:
                    return await attempt()
                except OSError:
                    await asyncio.sleep(self._settings.retry_backoff_s)
