"""Kafka's Sender: takes batches that may go, one of each partition per request, and deals with the answers."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any, Final

from broker.clients.network_client import BOOTSTRAP, NetworkClient
from broker.clients.producer.idempotence import Idempotence
from broker.clients.producer.producer_records import ProducerSettings
from broker.clients.producer.record_accumulator import ProducerBatch, RecordAccumulator
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

RETRIABLE: Final = frozenset(
    {
        Errors.CORRUPT_MESSAGE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.LEADER_NOT_AVAILABLE,
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.REQUEST_TIMED_OUT,
        Errors.NETWORK_EXCEPTION,
        Errors.NOT_ENOUGH_REPLICAS,
        Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Errors.KAFKA_STORAGE_ERROR,
        Errors.FENCED_LEADER_EPOCH,
        Errors.UNKNOWN_LEADER_EPOCH,
    }
)
IDLE_S: Final = 3600.0


class Sender:
    """One task of its own, and one for each request."""

    def __init__(self, settings: ProducerSettings, network: NetworkClient, accumulator: RecordAccumulator) -> None:
        self._settings = settings
        self._network = network
        self._accumulator = accumulator
        self._idempotence = Idempotence() if settings.enable_idempotence else None
        self._in_flight: Counter[int] = Counter()
        self._partitions_in_flight: Counter[TopicPartition] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._needs_metadata = False

    async def run(self) -> None:
        """Until it is cancelled."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                self._accumulator.changed.clear()
                await self._prepare()
                for batch in self._accumulator.expire(now()):
                    self._give_up(batch, TimeoutError(f"not delivered in {self._settings.delivery_timeout_ms} ms"))
                wait_s = self._send_ready(now())
                try:
                    async with asyncio.timeout(max(0.0, wait_s)):
                        await self._accumulator.changed.wait()
                except TimeoutError:
                    pass  # now something may go
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _prepare(self) -> None:
        """Leaders and a producer id, as far as they can be had; else it is tried again after a while."""
        try:
            if self._needs_metadata:
                self._needs_metadata = False
                await self._network.refresh()
            if self._idempotence is not None and self._idempotence.needs_id and self._network.metadata.brokers:
                told = await self._network.ask(BOOTSTRAP, ApiKey.INIT_PRODUCER_ID, transactional_id=None)
                if told.error_code == Errors.NONE:
                    self._idempotence.begin(told.producer_id, told.producer_epoch)
        except OSError:
            self._needs_metadata = True

    def _send_ready(self, now_s: float) -> float:
        """Send what may go; seconds until more may."""
        backoff_s = self._settings.retry_backoff_ms / 1000
        wait_s = IDLE_S
        requests: dict[int, list[ProducerBatch]] = defaultdict(list)
        for partition, at_s in list(self._accumulator.ready(now_s)):
            wait_s = min(wait_s, backoff_s if at_s <= now_s else at_s - now_s)
            leader = self._network.metadata.leader(partition)
            if leader is None:
                self._needs_metadata = True
            elif at_s <= now_s and self._may_send(leader, self._accumulator.first(partition)):
                requests[leader].append(self._accumulator.drain(partition))
        for leader, batches in requests.items():
            for batch in batches:
                batch.attempts += 1
                self._partitions_in_flight[batch.partition] += 1
                if self._idempotence is not None:
                    self._idempotence.number(batch)
            self._in_flight[leader] += 1
            self._start(self._produce(leader, batches))
        return 0.0 if requests else wait_s

    def _may_send(self, leader: int, batch: ProducerBatch) -> bool:
        limit = self._settings.max_in_flight_requests_per_connection
        if self._in_flight[leader] >= limit:
            return False
        if self._idempotence is not None:
            return not self._idempotence.needs_id and self._idempotence.may_send(batch)
        return limit > 1 or not self._partitions_in_flight[batch.partition]

    async def _produce(self, leader: int, batches: list[ProducerBatch]) -> None:
        """One request, and what its answer means for each batch."""
        answers: dict[TopicPartition, Any] = {}
        error = Errors.NETWORK_EXCEPTION
        try:
            connection = await self._network.connection(leader)
            if self._settings.acks == 0:
                connection.send_silent(ApiKey.PRODUCE, self._body(batches))
                error = Errors.NONE
            else:
                told = await self._network.answer(connection, connection.send(ApiKey.PRODUCE, self._body(batches)))
                for topic in told.responses:
                    answers |= {TopicPartition(topic.name, row.index): row for row in topic.partition_responses}
        except OSError:
            self._needs_metadata = True
        finally:
            self._in_flight[leader] -= 1
            self._partitions_in_flight.subtract(batch.partition for batch in batches)
        for batch in batches:
            row = answers.get(batch.partition)
            if row is None:
                self._deal(batch, error, -1, -1)
            else:
                self._deal(batch, Errors(row.error_code), row.base_offset, row.log_append_time)
        self._accumulator.changed.set()

    def _body(self, batches: list[ProducerBatch]) -> dict[str, Any]:
        by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for batch in batches:
            row = {"index": batch.partition.partition, "records": batch.encode(self._settings)}
            by_topic[batch.partition.topic].append(row)
        return {
            "transactional_id": None,
            "acks": self._settings.acks,
            "timeout": self._settings.request_timeout_ms,
            "topic_data": [{"name": topic, "partition_data": rows} for topic, rows in by_topic.items()],
        }

    def _deal(self, batch: ProducerBatch, error: Errors, base_offset: int, append_time_ms: int) -> None:
        if error in (Errors.NONE, Errors.DUPLICATE_SEQUENCE_NUMBER):
            if self._idempotence is not None:
                self._idempotence.done(batch)
            self._accumulator.done(batch)
            batch.complete(base_offset, append_time_ms)
            return
        now_s = asyncio.get_running_loop().time()
        is_late = now_s - batch.created_s >= self._settings.delivery_timeout_ms / 1000
        if not is_late and self._is_retriable(batch, error):
            self._needs_metadata = True
            self._accumulator.retry(batch, now_s)
        else:
            self._give_up(batch, ApiError(error, f"{error.name} after {batch.attempts} attempts"))

    def _is_retriable(self, batch: ProducerBatch, error: Errors) -> bool:
        if error is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER and self._idempotence is not None:
            return self._idempotence.out_of_order(batch)
        return error in RETRIABLE

    def _give_up(self, batch: ProducerBatch, error: Exception) -> None:
        if self._idempotence is not None:
            self._idempotence.given_up(batch)
        self._accumulator.done(batch)
        batch.fail(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
