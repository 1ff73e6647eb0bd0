"""aiokafka on the reference broker: a third client of its own, all asyncio, with its own batches and group protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import ProducerFenced

from tests.services.reference_broker import ReferenceBroker

pytestmark = pytest.mark.slow

ANSWER_S = 120.0


@asynccontextmanager
async def producing(bootstrap: str, **settings: object) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, *topics: str, **settings: object) -> AsyncIterator[AIOKafkaConsumer]:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "session_timeout_ms": 60_000}
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**defaults, **settings})
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def create(bootstrap: str, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


async def take(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    """The values of the next records."""
    async with asyncio.timeout(ANSWER_S):
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_batches_headers_and_offsets_by_time(broker: ReferenceBroker, codec: str | None) -> None:
    topic = f"batches-{codec}"
    place = TopicPartition(topic, 0)
    sent = [f"value {number}".encode() for number in range(500)]

    async def scenario() -> None:
        await create(broker.bootstrap, topic)
        async with producing(broker.bootstrap, compression_type=codec, linger_ms=5, acks="all") as producer:
            headers = [("name", b"x"), ("name", b"")]
            futures = [
                await producer.send(topic, value, key=b"k", timestamp_ms=1_000 + number, headers=headers)
                for number, value in enumerate(sent)
            ]
            reports = [await asyncio.wait_for(future, ANSWER_S) for future in futures]
        assert [report.offset for report in reports] == list(range(len(sent)))
        async with consuming(broker.bootstrap) as consumer:
            consumer.assign([place])
            assert await consumer.end_offsets([place]) == {place: len(sent)}
            assert (await consumer.offsets_for_times({place: 1_123}))[place].offset == 123
            consumer.seek(place, 123)
            async with asyncio.timeout(ANSWER_S):
                first = await consumer.getone()
            assert (first.offset, first.key, first.value, first.timestamp) == (123, b"k", sent[123], 1_123)
            assert first.headers == (("name", b"x"), ("name", b""))
            assert await take(consumer, len(sent) - 124) == sent[124:]

    asyncio.run(scenario())


def test_a_group_goes_on_where_it_committed(broker: ReferenceBroker) -> None:
    topic, group = "grouped", "aiokafka-group"
    places = [TopicPartition(topic, number) for number in range(2)]

    async def scenario() -> None:
        await create(broker.bootstrap, topic, partitions=2)
        async with producing(broker.bootstrap) as producer:
            for number in range(20):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
        async with consuming(broker.bootstrap, topic, group_id=group) as first:
            taken = await take(first, 10)
            await first.commit()
            committed = {place: await first.committed(place) or 0 for place in places}
            assert sum(committed.values()) == 10
        async with consuming(broker.bootstrap, topic, group_id=group) as second:
            taken += await take(second, 10)
            assert second.assignment() == set(places)
            async with consuming(broker.bootstrap, topic, group_id=group) as third:
                shares = await _shared(second, third)
                assert sorted(map(len, shares)) == [1, 1]
                assert shares[0] | shares[1] == set(places)
        assert sorted(taken) == sorted(b"%d" % number for number in range(20))

    asyncio.run(scenario())


async def _shared(*members: AIOKafkaConsumer) -> list[set[TopicPartition]]:
    """Each member's partitions, once all of them have some; a member joins again while it reads."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            for member in members:
                await member.getmany(timeout_ms=10)
            shares = [set(member.assignment()) for member in members]
            if all(shares) and not set.intersection(*shares):
                return shares


def test_transactions_with_offsets_and_fencing(broker: ReferenceBroker) -> None:
    topic, group = "transactions", "aiokafka-transactions"
    place = TopicPartition(topic, 0)

    async def scenario() -> None:
        await create(broker.bootstrap, topic)
        async with producing(broker.bootstrap, transactional_id="aio") as producer:
            async with producer.transaction():
                await producer.send(topic, b"committed")
                await producer.send_offsets_to_transaction({place: 1}, group)
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send(topic, b"after")
            async with producing(broker.bootstrap, transactional_id="aio"):
                await producer.begin_transaction()
                with pytest.raises(ProducerFenced):
                    await producer.send_and_wait(topic, b"fenced")
        async with consuming(broker.bootstrap, group_id=group, isolation_level="read_committed") as consumer:
            consumer.assign([place])
            assert await consumer.committed(place) == 1
            consumer.seek(place, 0)
            assert await take(consumer, 2) == [b"committed", b"after"]
            # Two end markers and the aborted record's own have places too.
            assert await consumer.end_offsets([place]) == {place: 6}
        async with consuming(broker.bootstrap, isolation_level="read_uncommitted") as consumer:
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            assert await take(consumer, 3) == [b"committed", b"aborted", b"after"]

    asyncio.run(scenario())


def test_the_admin_client(broker: ReferenceBroker) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("admin", 3, 1, topic_configs={"retention.ms": "60000"})])
            [described] = await admin.describe_topics(["admin"])
            assert (described["topic"], len(described["partitions"])) == ("admin", 3)
            assert "admin" in await admin.list_topics()
            async with producing(broker.bootstrap) as producer:
                for _ in range(5):
                    await producer.send_and_wait("admin", b"x", partition=0)
            async with consuming(broker.bootstrap, "admin", group_id="admin-group") as consumer:
                await take(consumer, 5)
                await consumer.commit()
                assert ("admin-group", "consumer") in await admin.list_consumer_groups()
            offsets = await admin.list_consumer_group_offsets("admin-group")
            assert offsets[TopicPartition("admin", 0)].offset == 5
            await admin.delete_topics(["admin"])
            assert "admin" not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(scenario())
