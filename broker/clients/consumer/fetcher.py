"""Kafka's Fetcher: one request at a time to each leader, for partitions of which nothing is buffered; the next one is
sent when records are given out, so that it travels while they are worked on.

Each is a full fetch, without a session: a session spares telling what has not changed, which counts for thousands of
partitions and hides from a reader of the code what is asked.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from broker.clients.consumer.consumer_metadata import ConsumerMetadata
from broker.clients.consumer.consumer_records import ConsumerRecord, ConsumerSettings, OffsetOutOfRange, OffsetReset
from broker.clients.consumer.fetched_records import CompletedFetch, completed_fetch
from broker.clients.consumer.list_offsets import CONSUMER, STALE
from broker.clients.consumer.subscription_state import SubscriptionState
from broker.clients.network_client import NetworkClient
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

NO_SESSION: Final = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}


class Fetcher:
    """`changed` is set when there is something to `collect`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        network: NetworkClient,
        metadata: ConsumerMetadata,
        subscriptions: SubscriptionState,
    ) -> None:
        self._settings = settings
        self._network = network
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._completed: dict[TopicPartition, CompletedFetch] = {}
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self.changed = asyncio.Event()

    def send(self) -> bool:
        """Ask leaders for what isn't there. False: some can't be asked now, for lack of a leader or after an error."""
        now_s = asyncio.get_running_loop().time()
        is_complete = True
        wanted: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, state in self._subscriptions.partitions.items():
            if state.position is None or state.is_paused or partition in self._completed:
                continue
            leader = self._metadata.leader(partition) if state.retry_at_s <= now_s else None
            if leader is None:
                is_complete = False
            elif leader not in self._in_flight:
                wanted[leader].append(partition)
        for leader, partitions in wanted.items():
            self._in_flight[leader] = asyncio.create_task(self._fetch(leader, partitions))
        return is_complete

    def collect(self) -> list[ConsumerRecord]:
        """At most `max_poll_records`; positions are behind them. What came before an error comes first, then
        OffsetOutOfRange, or ApiError: the broker refuses, or records can't be read."""
        records: list[ConsumerRecord] = []
        for partition, fetch in list(self._completed.items()):
            state = self._subscriptions.partitions.get(partition)
            if state is None or state.position != fetch.position:
                del self._completed[partition]  # taken away, or gone elsewhere meanwhile
            elif not state.is_paused:
                while fetch.records and len(records) < self._settings.max_poll_records:
                    records.append(fetch.take())
                    state.position = fetch.position
                if fetch.error is not None and not fetch.records:
                    if records:
                        return records
                    del self._completed[partition]
                    raise fetch.error
                if not fetch.records:
                    del self._completed[partition]
        if not records and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return records

    async def close(self) -> None:
        """Twice is harmless."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, leader: int, partitions: Iterable[TopicPartition]) -> None:
        offsets = {one: self._subscriptions.partitions[one].position or 0 for one in partitions}
        try:
            wait_s = self._settings.fetch_max_wait_ms / 1000
            told = await self._network.ask(leader, ApiKey.FETCH, wait_s, **self._body(offsets))
            if told.error_code != Errors.NONE:
                raise ApiError(Errors(told.error_code), "the whole fetch")
            for topic in told.responses:
                for row in topic.partitions:
                    partition = TopicPartition(topic.topic, row.partition_index)
                    self._deal(partition, offsets[partition], row)
        except OSError:
            self._metadata.needs_update = True
            self._retry_later(offsets)
        except ApiError as error:
            self._failure = error
            self._retry_later(offsets)
        finally:
            del self._in_flight[leader]
            self.changed.set()

    def _body(self, offsets: dict[TopicPartition, int]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for partition, offset in offsets.items():
            row = {
                "partition": partition.partition,
                "current_leader_epoch": -1,
                "last_fetched_epoch": -1,
                "fetch_offset": offset,
                "log_start_offset": -1,
                "partition_max_bytes": self._settings.max_partition_fetch_bytes,
            }
            topics[partition.topic].append(row)
        return {
            "replica_id": CONSUMER,
            "max_wait": self._settings.fetch_max_wait_ms,
            "min_bytes": self._settings.fetch_min_bytes,
            "max_bytes": self._settings.fetch_max_bytes,
            "isolation_level": self._settings.isolation_level,
            "rack_id": self._settings.client_rack,
            "topics": [{"topic": topic, "partitions": rows} for topic, rows in topics.items()],
            **NO_SESSION,
        }

    def _deal(self, partition: TopicPartition, offset: int, row: Any) -> None:
        """With one partition's answer, if it is still wanted."""
        state = self._subscriptions.partitions.get(partition)
        if state is None or state.position != offset:
            return
        error = Errors(row.error_code)
        if error is Errors.NONE:
            fetch = completed_fetch(partition, offset, row, self._settings)
            if fetch.records or fetch.error:
                self._completed[partition] = fetch
            state.position = fetch.position
        elif error in STALE:
            self._metadata.needs_update = True
            self._retry_later([partition])
        elif error is Errors.OFFSET_OUT_OF_RANGE and self._settings.auto_offset_reset is not OffsetReset.NONE:
            state.begin_reset(self._settings.auto_offset_reset)
        else:
            is_range = error is Errors.OFFSET_OUT_OF_RANGE
            self._failure = OffsetOutOfRange(partition, offset) if is_range else ApiError(error, f"{partition}")
            self._retry_later([partition])

    def _retry_later(self, partitions: Iterable[TopicPartition]) -> None:
        at_s = asyncio.get_running_loop().time() + self._settings.retry_backoff_s
        for one in partitions:
            state = self._subscriptions.partitions.get(one)
            if state is not None:
                state.retry_at_s = at_s
