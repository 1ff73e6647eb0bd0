"""The reference clients do the same on the reference broker and on real Kafka."""

import asyncio
import random

import pytest

from broker.clients import ProducerRecord, ProducerSettings
from broker.records.compression import CompressionType
from sidecar.model.partitioner import partition_of
from tests.services.kafka import Kafka
from tests.services.reference_clients import producing

PARTITIONS = 3
RECORDS = 300


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_what_is_sent_is_where_its_key_belongs(cluster: Kafka, codec: CompressionType) -> None:
    topic = cluster.topic("reference-producer", partitions=PARTITIONS)
    chance = random.Random(1)
    keys = [chance.randbytes(chance.randint(1, 20)) for _ in range(RECORDS)]

    async def main() -> None:
        settings = ProducerSettings(linger_ms=1, batch_size=2000, compression_type=codec)
        async with producing(cluster.bootstrap, settings) as producer:
            sent = []
            for number, key in enumerate(keys):
                headers = ((b"number", b"%d" % number), (b"none", None))
                sent.append(
                    await producer.send(
                        ProducerRecord(topic, b"%d" % number, key, timestamp_ms=number + 1, headers=headers)
                    )
                )
            for key, delivery in zip(keys, sent, strict=True):
                assert (await delivery).partition == partition_of(key, PARTITIONS)

    asyncio.run(main())
    messages = cluster.read_all(topic)
    assert sorted(int(message.value() or b"") for message in messages) == list(range(RECORDS))
    last = [-1] * PARTITIONS
    for message in messages:
        number, partition = int(message.value() or b""), message.partition() or 0
        assert message.key() == keys[number]
        assert message.headers() == [("number", b"%d" % number), ("none", None)]
        assert message.timestamp()[1] == number + 1
        assert partition == partition_of(keys[number], PARTITIONS)
        assert number > last[partition]
        last[partition] = number


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements(cluster: Kafka, acks: int) -> None:
    topic = cluster.topic("reference-acks")

    async def main() -> list[int]:
        async with producing(cluster.bootstrap, ProducerSettings(acks=acks, enable_idempotence=False)) as producer:
            sent = [await producer.send(ProducerRecord(topic, b"value")) for _ in range(3)]
            return [one.offset for one in await asyncio.gather(*sent)]

    assert asyncio.run(main()) == ([-1, -1, -1] if acks == 0 else [0, 1, 2])
    assert len(cluster.read(topic, 3)) == 3
