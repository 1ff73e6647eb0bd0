"""The reference consumer reads the same of the reference broker and of real Kafka: places, isolation, resets."""

import asyncio
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place

from broker.clients import (
    ConsumerRecord,
    IsolationLevel,
    NoOffsetForPartition,
    OffsetOutOfRange,
    OffsetReset,
    TopicPartition,
)
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.reference_clients import consuming, read

pytestmark = pytest.mark.slow

RECORDS = 400


def producer_of_transactions(cluster: Kafka) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": uuid4().hex, "linger.ms": 0})
    producer.init_transactions(ANSWER_TIMEOUT_S)
    return producer


def send(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(ANSWER_TIMEOUT_S) == 0


def test_records_are_read_as_they_were_sent(cluster: Kafka) -> None:
    topic = cluster.topic("reference-consumer", partitions=2)
    headers = [("name", b"value"), ("none", None)]
    cluster.produce(topic, ((b"%d" % n, b"v%d" % n, headers, n + 1, n % 2) for n in range(RECORDS)))

    async def main() -> None:
        async with consuming(cluster.bootstrap, max_poll_records=7) as consumer:
            places = [TopicPartition(topic, number) for number in range(2)]
            consumer.assign(places)
            records: list[ConsumerRecord] = []
            while len(records) < RECORDS:
                some = await consumer.poll(1000)
                assert len(some) <= 7
                records += some
            for place in places:
                of_it = [one for one in records if one[:2] == place]
                assert [one.offset for one in of_it] == list(range(RECORDS // 2))
                assert await consumer.position(place) == RECORDS // 2
            for one in records:
                number = one.offset * 2 + one.partition
                assert (one.key, one.value, one.timestamp_ms) == (b"%d" % number, b"v%d" % number, number + 1)
                assert list(one.headers) == [(b"name", b"value"), (b"none", None)]
            assert await consumer.poll(0) == []

    asyncio.run(main())


def test_pause_seek_and_offsets(cluster: Kafka) -> None:
    topic = cluster.topic("reference-seek", partitions=2)
    cluster.produce(topic, ((None, b"%d" % n, (), n + 1, n % 2) for n in range(20)))
    first, second = (TopicPartition(topic, number) for number in range(2))

    async def main() -> None:
        async with consuming(cluster.bootstrap) as consumer:
            consumer.assign([first, second])
            consumer.pause(first)
            assert {one.partition for one in await read(consumer, 10)} == {1}
            assert await consumer.poll(100) == []
            consumer.resume(first)
            consumer.seek(first, 8)
            assert [one.offset for one in await read(consumer, 2)] == [8, 9]
            consumer.seek_to(OffsetReset.EARLIEST, second)
            consumer.seek_to(OffsetReset.LATEST, first)
            assert await consumer.position(first) == 10
            assert [one.offset for one in await read(consumer, 10)] == list(range(10))
            assert await consumer.offsets({first: OffsetReset.LATEST, second: 16}) == {first: 10, second: 7}
            assert await consumer.offsets({first: 21}) == {first: -1}
            consumer.assign([second])  # it keeps its place
            assert await consumer.position(second) == 10
            with pytest.raises(ValueError, match="not assigned"):
                consumer.seek(first, 0)
        async with consuming(cluster.bootstrap, max_poll_records=4) as consumer:
            consumer.assign([first])
            assert [one.offset for one in await read(consumer, 4)] == [0, 1, 2, 3]
            consumer.pause(first)  # what was fetched is kept
            assert await consumer.poll(100) == []
            consumer.resume(first)
            assert [one.offset for one in await read(consumer, 4)] == [4, 5, 6, 7]
            consumer.seek(first, 1)  # what was fetched is passed over
            assert [one.offset for one in await read(consumer, 4)] == [1, 2, 3, 4]

    asyncio.run(main())


@pytest.mark.parametrize("offset", [2, 11], ids=["deleted", "beyond"])
def test_an_offset_that_is_not_there_is_reset_as_settings_say(cluster: Kafka, offset: int) -> None:
    topic = cluster.topic("reference-range")
    cluster.produce(topic, ((None, b"%d" % n) for n in range(10)))
    for deleted in cluster.admin.delete_records([Place(topic, 0, 5)]).values():
        deleted.result(ANSWER_TIMEOUT_S)
    place = TopicPartition(topic, 0)

    async def main() -> None:
        async with consuming(cluster.bootstrap) as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            assert [one.offset for one in await read(consumer, 5)] == [5, 6, 7, 8, 9]
        async with consuming(cluster.bootstrap, auto_offset_reset=OffsetReset.LATEST) as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            assert await consumer.poll(1000) == []
            assert await consumer.position(place) == 10
        async with consuming(cluster.bootstrap, auto_offset_reset=OffsetReset.NONE) as consumer:
            consumer.assign([place])
            with pytest.raises(NoOffsetForPartition):
                await consumer.poll(1000)
            consumer.seek(place, offset)
            with pytest.raises(OffsetOutOfRange) as caught:
                await consumer.poll(10_000)
            assert (caught.value.partition, caught.value.offset) == (place, offset)
            consumer.seek(place, 9)
            assert [one.offset for one in await read(consumer, 1)] == [9]

    asyncio.run(main())


def test_readers_of_committed_records_see_neither_aborted_nor_open_ones(cluster: Kafka) -> None:
    topic = cluster.topic("reference-isolation")
    place = TopicPartition(topic, 0)
    aborting, committing, left_open = (producer_of_transactions(cluster) for _ in range(3))
    for producer in (aborting, committing):
        producer.begin_transaction()
    send(aborting, topic, b"aborted 1")
    send(committing, topic, b"one")
    send(aborting, topic, b"aborted 2")
    aborting.abort_transaction(ANSWER_TIMEOUT_S)
    send(committing, topic, b"two")
    aborting.begin_transaction()
    send(aborting, topic, b"three")  # of the same producer, and not aborted
    aborting.commit_transaction(ANSWER_TIMEOUT_S)
    committing.commit_transaction(ANSWER_TIMEOUT_S)
    cluster.produce(topic, [(None, b"plain")])
    left_open.begin_transaction()
    send(left_open, topic, b"open")
    cluster.produce(topic, [(None, b"behind it")])
    committed, rest = [b"one", b"two", b"three", b"plain"], [b"open", b"behind it"]

    async def main() -> None:
        async with consuming(cluster.bootstrap) as consumer:
            consumer.assign([place])
            everything = [one.value for one in await read(consumer, 8)]
            assert everything == [b"aborted 1", b"one", b"aborted 2", *committed[1:], *rest]
            assert await consumer.offsets({place: OffsetReset.LATEST}) == {place: 11}
        async with consuming(cluster.bootstrap, isolation_level=IsolationLevel.READ_COMMITTED) as consumer:
            consumer.assign([place])
            assert [one.value for one in await read(consumer, 4)] == committed
            assert await consumer.poll(200) == []
            assert await consumer.position(place) == 9  # the last stable offset
            assert await consumer.offsets({place: OffsetReset.LATEST}) == {place: 9}
            await asyncio.to_thread(left_open.commit_transaction, ANSWER_TIMEOUT_S)
            assert [one.value for one in await read(consumer, 2)] == rest
            assert await consumer.poll(200) == []
            assert await consumer.position(place) == 12  # behind the marker
            consumer.seek(place, 5)
            assert [one.value for one in await read(consumer, 4)] == [b"three", b"plain", *rest]

    asyncio.run(main())
