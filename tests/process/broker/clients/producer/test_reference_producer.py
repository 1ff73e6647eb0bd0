"""The reference producer's parts, and the whole of it against a broker that fails."""

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from broker.clients import Producer, ProducerRecord, ProducerSettings, RoundRobinPartitioner, StickyPartitioner
from broker.clients.producer.partitioners import Partitions, UniformPartitioner
from broker.clients.producer.producer_records import serialize_string
from broker.clients.producer.record_accumulator import BufferExhausted, RecordAccumulator
from broker.clients.producer.sender import Sender
from broker.cluster.broker import Broker
from broker.protocol.api_keys import ApiKey
from broker.protocol.connection import CloseConnection
from broker.protocol.request import Request
from broker.records.record_batch import whole_batches
from broker.records.records import Record, read_records
from broker.requests.handlers import HANDLERS
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.reference_clients import producing
from tests.services.waiting import wait_until

PLACE = TopicPartition("topic", 0)
RECORD = Record(0, 1, b"key", b"x" * 100)


@pytest.fixture
def topic(broker: ReferenceBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.partition("[")[0]
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, 1)
    return name


def batches_of(broker: ReferenceBroker, topic: str) -> list[list[Record]]:
    with RawClient(broker.bootstrap) as client:
        data = client.fetch(topic, 0).records or b""
    return [list(read_records(header, data, position)) for header, position in whole_batches(data)]


def values_of(broker: ReferenceBroker, topic: str) -> list[int]:
    return [int(record.value or b"-1") for batch in batches_of(broker, topic) for record in batch]


async def send_all(producer: Producer, topic: str, count: int, start: int = 0) -> list[Any]:
    sent = [await producer.send(ProducerRecord(topic, b"%d" % number)) for number in range(start, start + count)]
    return await asyncio.gather(*sent, return_exceptions=True)


class FailingProduce:
    """Answers some produce requests with an error, before or after it has done what they ask, or not at all."""

    WAYS = ("before", "after", "silent before", "silent after")

    def __init__(
        self, seed: int, share: float = 0.5, ways: Sequence[str] = WAYS, error: Errors = Errors.REQUEST_TIMED_OUT
    ) -> None:
        self._chance = random.Random(seed)
        self._share = share
        self._ways = ways
        self._error = error
        self.failed = 0

    async def __call__(self, broker: Broker, request: Request) -> Mapping[str, Any] | None:
        how = self._chance.choice(self._ways) if self._chance.random() < self._share else "well"
        self.failed += how != "well"
        if how == "silent before":
            raise CloseConnection(how)
        if how == "before":
            return self.refused(request, Errors.NOT_LEADER_OR_FOLLOWER)
        answer = await PRODUCE(broker, request)
        if how == "silent after":
            raise CloseConnection(how)
        return self.refused(request, self._error) if how == "after" else answer

    @staticmethod
    def refused(request: Request, error: Errors) -> Mapping[str, Any]:
        rows = [
            {
                "name": one.name,
                "partition_responses": [{"index": part.partition, "error_code": error} for part in one.partitions],
            }
            for one in request.body.topics
        ]
        return {"responses": rows}


PRODUCE = HANDLERS[ApiKey.PRODUCE]


@pytest.mark.parametrize("seed", [1, 13, 22, 118])
def test_each_record_once_and_in_order_whatever_fails(broker: ReferenceBroker, topic: str, seed: int) -> None:
    async def main() -> list[Any]:
        settings = ProducerSettings(linger_ms=0, batch_size=120, retry_backoff_ms=1)
        async with producing(broker.bootstrap, settings) as producer:
            # A broker that knows nothing of a producer lets it begin with any sequence, so it shall know it.
            first = await send_all(producer, topic, 1)
            with patch.dict(HANDLERS, {ApiKey.PRODUCE: failing}):
                return first + await send_all(producer, topic, 60, 1)

    failing = FailingProduce(seed)
    before = len(values_of(broker, topic))  # of other seeds
    delivered = asyncio.run(main())
    assert failing.failed > 5
    assert values_of(broker, topic)[before:] == list(range(61))
    assert [one.offset - before for one in delivered] == list(range(61))


def test_a_batch_whose_follower_a_broker_takes_first_is_not_lost(broker: ReferenceBroker, topic: str) -> None:
    async def main() -> list[Any]:
        requests = itertools.count()

        async def knows_the_partition_late(broker: Broker, request: Request) -> Mapping[str, Any] | None:
            if next(requests):
                return await PRODUCE(broker, request)
            return FailingProduce.refused(request, Errors.UNKNOWN_TOPIC_OR_PARTITION)

        settings = ProducerSettings(linger_ms=0, batch_size=120, retry_backoff_ms=1)
        async with producing(broker.bootstrap, settings) as producer:
            with patch.dict(HANDLERS, {ApiKey.PRODUCE: knows_the_partition_late}):
                return await send_all(producer, topic, 20)

    def is_taken_first() -> bool:
        """On a busy machine a follower may be sent so late that it isn't: another story."""
        before = len(values_of(broker, topic))
        delivered = asyncio.run(main())
        values = values_of(broker, topic)
        assert sorted(values[before:]) == list(range(20))
        assert [values[one.offset] for one in delivered] == list(range(20))
        return values[before] != 0

    assert any(is_taken_first() for _ in range(20))


def test_one_request_at_a_time_keeps_order_without_sequences(broker: ReferenceBroker, topic: str) -> None:
    async def main() -> None:
        settings = ProducerSettings(
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
            linger_ms=0,
            batch_size=150,
            retry_backoff_ms=1,
        )
        async with producing(broker.bootstrap, settings) as producer:
            await send_all(producer, topic, 30)

    with patch.dict(HANDLERS, {ApiKey.PRODUCE: FailingProduce(1)}):
        asyncio.run(main())
    values = values_of(broker, topic)
    assert sorted(set(values)) == list(range(30))
    assert len(values) > 30  # repeated, where an answer was lost
    assert [value for place, value in enumerate(values) if value not in values[:place]] == list(range(30))


def test_what_is_given_up_leaves_no_gap_for_what_follows(broker: ReferenceBroker, topic: str) -> None:
    async def main() -> tuple[list[Any], list[Any]]:
        settings = ProducerSettings(linger_ms=0, retry_backoff_ms=1)
        async with producing(broker.bootstrap, settings) as producer:
            assert [one.offset for one in await send_all(producer, topic, 1)] == [0]
            with patch.dict(HANDLERS, {ApiKey.PRODUCE: failing}):
                lost = await send_all(producer, topic, 3, 1)
            return lost, await send_all(producer, topic, 3, 4)

    failing = FailingProduce(1, 1.0, ["after"], Errors.UNKNOWN_SERVER_ERROR)
    lost, after = asyncio.run(main())
    assert [one.error for one in lost] == [Errors.UNKNOWN_SERVER_ERROR] * 3
    values = values_of(broker, topic)
    assert values[-3:] == [4, 5, 6]
    assert [one.offset for one in after] == list(range(len(values) - 3, len(values)))


def test_records_linger_to_fill_a_batch(broker: ReferenceBroker, topic: str) -> None:
    async def main() -> None:
        async with producing(broker.bootstrap, ProducerSettings(linger_ms=60_000)) as producer:
            sent = [await producer.send(ProducerRecord(topic, b"x" * 1000)) for _ in range(20)]
            await asyncio.gather(*sent[:10])  # full, and sent without lingering
            assert not sent[-1].done()

    asyncio.run(main())
    assert [len(batch) for batch in batches_of(broker, topic)] == [15, 5]


def test_interceptors_see_records_and_their_ends(broker: ReferenceBroker, topic: str) -> None:
    class Spy:
        def __init__(self) -> None:
            self.ends: list[Any] = []

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord(record.topic, b"changed", partition=record.partition)

        def on_acknowledgement(self, metadata: Any, error: Exception | None) -> None:
            self.ends.append(metadata.offset if metadata else error)

    async def main(spy: Spy) -> None:
        async with producing(broker.bootstrap, interceptors=[spy]) as producer:
            await producer.send(ProducerRecord(topic, b"value"))
            await producer.send(ProducerRecord(topic, b"value", partition=9))
            await producer.flush()

    spy = Spy()
    with pytest.MonkeyPatch.context() as context:
        context.setattr("broker.clients.producer.sender.RETRIABLE", frozenset())
        context.setattr("broker.clients.network_client.Metadata.leader", lambda _self, _partition: 1)
        asyncio.run(main(spy))
    assert [record.value for batch in batches_of(broker, topic) for record in batch] == [b"changed"]
    offset, error = spy.ends
    assert offset == 0
    assert isinstance(error, ApiError)
    assert error.error is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("limit", "idempotent"), [(5, True), (2, False), (1, False)])
def test_as_many_requests_as_allowed_are_in_flight_and_no_more(
    broker: ReferenceBroker, topic: str, limit: int, idempotent: bool
) -> None:
    gate: asyncio.Event = broker.inspect(lambda _: asyncio.Event())

    async def held(on: Broker, request: Request) -> Mapping[str, Any] | None:
        await gate.wait()
        return await PRODUCE(on, request)

    settings = ProducerSettings(
        linger_ms=0,
        batch_size=120,
        max_in_flight_requests_per_connection=limit,
        enable_idempotence=idempotent,
    )
    records = 12
    before = len(values_of(broker, topic))

    async def main() -> list[Any]:
        async with producing(broker.bootstrap, settings) as producer:
            in_flight = producer._sender._in_flight
            seen: list[int] = []

            def start(work: Any) -> None:
                seen.append(in_flight.total())
                Sender._start(producer._sender, work)

            with patch.dict(HANDLERS, {ApiKey.PRODUCE: held}), patch.object(producer._sender, "_start", start):
                sent = []
                for number in range(records):  # a batch each
                    sent.append(await producer.send(ProducerRecord(topic, b"%d" % number, b"k" * 100)))
                await asyncio.to_thread(wait_until, lambda: in_flight.total() >= limit)
                assert not any(one.done() for one in sent)
                broker.inspect(lambda _: gate.set())
                done = await asyncio.gather(*sent)
            assert max(seen) == limit
            return done

    delivered = asyncio.run(main())
    assert values_of(broker, topic)[before:] == list(range(records))
    assert [one.offset - before for one in delivered] == list(range(records))


def test_serializers_and_a_partitioner_of_ones_own(broker: ReferenceBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        client.create_topic("own", 3)

    def serialize_number(topic: str, number: int | None) -> bytes | None:
        return None if number is None else f"{topic}:{number}".encode()

    def by_length(_topic: str, key: bytes | None, _size: int, partitions: Partitions) -> int:
        return len(key or b"") % partitions.count

    async def main() -> list[Any]:
        own: Any = {"serializers": (serialize_string, serialize_number), "partitioner": by_length}
        async with producing(broker.bootstrap, **own) as producer:
            keys = ("\u00fc", "abc", None, "given")
            places = (None, None, None, 2)
            sent = [
                await producer.send(ProducerRecord("own", None if key is None else 7, key, place))
                for key, place in zip(keys, places, strict=True)
            ]
            return await asyncio.gather(*sent)

    assert [one.partition for one in asyncio.run(main())] == [2, 0, 0, 2]
    with RawClient(broker.bootstrap) as client:
        found = []
        for partition in range(3):
            data = client.fetch("own", 0, partition=partition).records or b""
            found.append(
                [(one.key, one.value) for at in whole_batches(data) for one in read_records(at[0], data, at[1])]
            )
    assert found == [[(b"abc", b"own:7"), (None, None)], [], [("\u00fc".encode(), b"own:7"), (b"given", b"own:7")]]


def test_who_finds_no_memory_waits_for_it_and_gives_up_in_time() -> None:
    async def main() -> None:
        async def full(max_block_ms: int) -> RecordAccumulator:
            settings = ProducerSettings(batch_size=1000, buffer_memory=2000, max_block_ms=max_block_ms)
            accumulator = RecordAccumulator(settings)
            for _ in range(14):  # two batches of seven
                await accumulator.append(PLACE, RECORD, 130)
            return accumulator

        hasty = await full(50)
        with pytest.raises(BufferExhausted):
            await hasty.append(PLACE, RECORD, 130)
        accumulator = await full(60_000)
        accumulator.changed.clear()
        waiting = asyncio.create_task(accumulator.append(PLACE, RECORD, 130))
        await accumulator.changed.wait()  # who waits for memory wants batches to go
        accumulator.done(accumulator.drain(PLACE))
        await waiting
        assert len(accumulator.drain(PLACE).records) == 7
        assert len(accumulator.drain(PLACE).records) == 1
        with pytest.raises(BufferExhausted):
            await accumulator.append(PLACE, RECORD, 5000)

    asyncio.run(main())


def test_what_was_not_delivered_in_time_is_taken_out() -> None:
    async def main() -> None:
        accumulator = RecordAccumulator(ProducerSettings(delivery_timeout_ms=600_000))
        await accumulator.append(PLACE, RECORD, 130)
        now_s = asyncio.get_running_loop().time()
        assert accumulator.expire(now_s) == []
        [batch] = accumulator.expire(now_s + 600)
        assert len(batch.records) == 1
        assert list(accumulator.ready(now_s + 600)) == []

    asyncio.run(main())


@pytest.mark.parametrize("about", [{"acks": 1}, {"max_in_flight_requests_per_connection": 6}, {"acks": 2}])
def test_settings_that_contradict_each_other_arerefused(about: Any) -> None:
    with pytest.raises(ValueError, match="acks"):
        ProducerSettings(**about)


def test_partitioners() -> None:
    three = Partitions(3, (0, 2))
    round_robin = RoundRobinPartitioner()
    assert [round_robin("t", b"key", 1, three) for _ in range(3)] == [0, 2, 0]
    assert round_robin("t", None, 1, Partitions(2, ())) == 1
    drawn = iter((1, 0, 1))
    sticky = StickyPartitioner(100, lambda below: next(drawn) % below)
    assert [sticky("t", None, 60, three) for _ in range(5)] == [2, 2, 0, 0, 2]
    assert len({sticky("t", b"key", 60, three) for _ in range(5)}) == 1
    assert UniformPartitioner(lambda below: below - 1)("t", b"key", 1, three) == 2
