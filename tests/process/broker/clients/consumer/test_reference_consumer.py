"""The reference consumer's parts, and the whole of it against a broker that fails."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from broker.clients import ConsumerSettings, IsolationLevel, ProducerRecord, Subscription, TopicPartition
from broker.clients.consumer.fetched_records import CompletedFetch, completed_fetch
from broker.clients.consumer.group.heartbeat import Heartbeat
from broker.clients.consumer.group.member_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.cluster.broker import Broker
from broker.groups.consumer_protocol import subscribed_topics
from broker.protocol.api_keys import ApiKey
from broker.protocol.connection import CloseConnection
from broker.protocol.request import Request
from broker.records.compression import CompressionType
from broker.records.control_records import EndMarker, build_end_marker
from broker.records.record_batch import TRANSACTIONAL, assign
from broker.records.records import Producer, Record, build_batch
from broker.requests.handlers import HANDLERS
from purgatory.errors import Errors
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.reference_clients import Told, consuming, poll_until, producing, read

pytestmark = pytest.mark.slow

PLACE = TopicPartition("topic", 0)
SOON = {"heartbeat_interval_ms": 20, "session_timeout_ms": 6000, "auto_commit_interval_ms": 30}


@pytest.fixture
def topic(broker: ReferenceBroker) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, 1)
    return name


async def send(broker: ReferenceBroker, topic: str, count: int) -> None:
    async with producing(broker.bootstrap) as producer:
        for number in range(count):
            await producer.send(ProducerRecord(topic, b"%d" % number))


class Failing:
    """Some requests are not answered, before or after they are done, or with an error."""

    def __init__(self, seed: int, api_key: ApiKey) -> None:
        self._chance = random.Random(seed * 100 + api_key)
        self._handle = HANDLERS[api_key]
        self._is_grouped = api_key not in (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT)
        self.failed = 0

    async def __call__(self, broker: Broker, request: Request) -> Mapping[str, Any] | None:
        how = self._chance.choice(("before", "after", "error", *["well"] * 6))
        self.failed += how != "well"
        if how == "before":
            raise CloseConnection(how)
        if how == "error" and self._is_grouped:
            return {"error_code": self._chance.choice((Errors.NOT_COORDINATOR, Errors.COORDINATOR_LOAD_IN_PROGRESS))}
        answer = await self._handle(broker, request)
        if how == "after":
            raise CloseConnection(how)
        return answer


GROUP_KEYS = (
    *(ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT),
    *(ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA),
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_nothing_is_passed_over_whatever_fails(broker: ReferenceBroker, topic: str, seed: int, strategy: str) -> None:
    failing = {api_key: Failing(seed, api_key) for api_key in GROUP_KEYS}

    async def main() -> None:
        await send(broker, topic, 60)
        settings = {**SOON, "group_id": topic, "max_poll_records": 5, "max_partition_fetch_bytes": 1}
        strategies = {"partition_assignment_strategy": (strategy,)}
        next_offset = 0
        with patch.dict(HANDLERS, failing):
            async with consuming(broker.bootstrap, **settings, **strategies) as consumer:
                consumer.subscribe([topic])
                async with asyncio.timeout(30):
                    while next_offset < 60 or sum(one.failed for one in failing.values()) < 8:
                        for record in await consumer.poll(50):
                            assert record.offset <= next_offset  # earlier ones: a commit has failed
                            assert record.value == b"%d" % record.offset
                            next_offset = max(next_offset, record.offset + 1)

    asyncio.run(main())


def test_a_member_goes_on_when_its_broker_comes_back(tmp_path: Path) -> None:
    broker = ReferenceBroker(tmp_path).start()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("topic", 1)

    async def main() -> None:
        told = Told()
        async with consuming(broker.bootstrap, group_id="group", **SOON) as consumer:
            await send(broker, "topic", 3)
            consumer.subscribe(["topic"], told)
            await read(consumer, 3)
            generation = consumer.generation()
            await asyncio.to_thread(broker.stop)
            assert await consumer.poll(100) == []
            await asyncio.to_thread(broker.start)
            await send(broker, "topic", 3)
            assert [one.offset for one in await read(consumer, 3)] == [3, 4, 5]
            await consumer.commit_sync()
            assert (await consumer.committed(PLACE))[PLACE].offset == 6
            assert consumer.generation() == generation
            assert told.events == [("assigned", [0])]

    try:
        asyncio.run(main())
    finally:
        broker.stop()


def test_a_coordinator_is_not_the_broker_that_was_named(tmp_path: Path) -> None:
    broker = ReferenceBroker(tmp_path, brokers=2).start()
    addresses = broker.bootstrap.split(",")
    with RawClient(broker.bootstrap) as client:
        client.create_topic("topic", 1)

    async def main() -> None:
        for address in addresses:  # one of them is the coordinator's
            async with consuming(address, group_id="group", **SOON) as consumer:
                consumer.subscribe(["topic"])
                await poll_until(consumer.assignment, consumer)
                assert await consumer.position(PLACE) == 0

    try:
        asyncio.run(main())
    finally:
        broker.stop()


def test_positions_are_committed_while_polling_and_a_long_poll_takes_part(broker: ReferenceBroker, topic: str) -> None:
    async def main() -> None:
        told = Told()
        async with consuming(broker.bootstrap, group_id=topic, max_poll_interval_ms=200, **SOON) as consumer:
            await send(broker, topic, 3)
            consumer.subscribe([topic], told)
            await read(consumer, 3)
            assert await consumer.poll(1000) == []
            place = TopicPartition(topic, 0)
            assert (await consumer.committed(place))[place].offset == 3
            assert told.events == [("assigned", [0])]

    asyncio.run(main())


def test_what_is_not_there_yet_is_read_when_it_is(broker: ReferenceBroker) -> None:
    name = f"topic-{uuid4().hex[:8]}"

    async def main() -> None:
        settings = {**SOON, "group_id": name, "metadata_max_age_ms": 50}
        async with consuming(broker.bootstrap, **settings) as consumer, consuming(broker.bootstrap) as alone:
            consumer.subscribe([name])
            alone.assign([TopicPartition(name, 0)])
            assert await consumer.poll(200) == []
            assert await alone.poll(200) == []
            with RawClient(broker.bootstrap) as client:
                client.create_topic(name, 1)
            await send(broker, name, 2)
            assert [one.offset for one in await read(consumer, 2)] == [0, 1]
            assert [one.offset for one in await read(alone, 2)] == [0, 1]
            await poll_until(consumer.assignment, consumer)

    asyncio.run(main())


def test_what_contradicts_is_refused(broker: ReferenceBroker) -> None:
    async def main() -> None:
        async with consuming(broker.bootstrap) as consumer:
            with pytest.raises(ValueError, match=r"group\.id"):
                consumer.subscribe(["topic"])
            with pytest.raises(ValueError, match=r"group\.id"):
                await consumer.commit_sync()
        async with consuming(broker.bootstrap, group_id="group") as consumer:
            consumer.assign([PLACE])
            with pytest.raises(ValueError, match="by hand"):
                consumer.subscribe(["topic"])
            await consumer.unsubscribe()
            consumer.subscribe(["topic"])
            with pytest.raises(ValueError, match="subscribed"):
                consumer.assign([PLACE])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"partition_assignment_strategy": ("uniform",)}, "uniform"),
        ({"partition_assignment_strategy": ()}, "none"),
        ({"heartbeat_interval_ms": 45_000}, "heartbeat"),
        ({"group_instance_id": ""}, "instance"),
    ],
)
def test_settings_that_cannot_be_are_refused(about: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConsumerSettings(**about)


def test_heartbeats_have_three_clocks() -> None:
    settings = ConsumerSettings(
        heartbeat_interval_ms=3000, session_timeout_ms=10_000, max_poll_interval_ms=20_000, retry_backoff_ms=500
    )
    heartbeat = Heartbeat(settings, 100.0)
    assert heartbeat.wait_s(100.0) == 3.0
    heartbeat.sent(103.0)
    assert (heartbeat.next_s, heartbeat.answer_in_s(103.0)) == (106.0, 7.0)
    heartbeat.received(104.0)
    assert heartbeat.answer_in_s(104.0) == 10.0
    heartbeat.failed(105.0)
    assert (heartbeat.next_s, heartbeat.session_ends_s) == (105.5, 114.0)
    heartbeat.failed(114.0)
    assert heartbeat.session_ends_s == 124.0
    assert [heartbeat.is_poll_overdue(now_s) for now_s in (119.9, 120.0)] == [False, True]
    heartbeat.polled(119.0)
    assert not heartbeat.is_poll_overdue(120.0)
    assert heartbeat.answer_in_s(200.0) == 0.5


def test_members_speak_the_consumer_protocol() -> None:
    partitions = [TopicPartition("b", 2), TopicPartition("a", 1), TopicPartition("b", 0)]
    subscription = Subscription(["b", "a"], b"data", partitions, 7, "rack", "instance")
    data = encode_subscription(subscription)
    owned = pack(">ih1siih1siii", 2, 1, b"a", 1, 1, 1, b"b", 2, 0, 2)
    assert data == pack(">hih1sh1si4s", 3, 2, 1, b"a", 1, b"b", 4, b"data") + owned + pack(">ih4s", 7, 4, b"rack")
    told = decode_subscription(data, "instance")
    assert (list(told.topics), told.user_data, told.generation_id) == (["a", "b"], b"data", 7)
    assert (list(told.owned_partitions), told.rack_id) == (sorted(partitions), "rack")
    assert subscribed_topics(data) == {"a", "b"}
    assert decode_subscription(b"\0\x09" + data[2:] + b"more", None).generation_id == 7
    old = decode_subscription(pack(">hih1si", 0, 1, 1, b"a", -1), None)
    assert old == Subscription(("a",), None, [], -1)
    assert decode_assignment(encode_assignment(partitions)) == [partitions[0], partitions[2], partitions[1]]
    assert decode_assignment(b"") == []


def batches(*parts: tuple[int, bytes | None, int]) -> Iterator[bytes]:
    """Of (producer id or -1, two values' prefix or None for a marker, of an abort if 1): offsets go on."""
    offset = 0
    for producer_id, prefix, aborts in parts:
        if prefix is None:
            data = build_end_marker(producer_id, 0, EndMarker(aborts == 1, 0), 1)
        else:
            records = [Record(number, 1, None, prefix + b"%d" % number) for number in range(2)]
            who = None if producer_id < 0 else Producer(producer_id, 0, 0)
            data = build_batch(records, CompressionType.GZIP, who, TRANSACTIONAL if who else 0)
        assign(data, 0, offset, 5)
        offset += 2 if prefix is not None else 1
        yield bytes(data)


LOG = (
    *((1, b"aborted", 0), (2, b"kept", 0), (1, None, 1), (1, b"later", 0), (-1, b"plain", 0)),
    *((2, None, 0), (1, None, 0)),
)


def fetched(offset: int = 0, data: bytes | None = None, aborted: Any = ((1, 0),), level: int = 1) -> CompletedFetch:
    rows = [SimpleNamespace(producer_id=producer_id, first_offset=first) for producer_id, first in aborted]
    records = b"".join(batches(*LOG)) if data is None else data
    row = SimpleNamespace(records=records, aborted_transactions=rows)
    return completed_fetch(PLACE, offset, row, ConsumerSettings(isolation_level=IsolationLevel(level)))


def test_records_of_aborted_transactions_and_markers_are_passed_over() -> None:
    fetch = fetched()
    assert [one.value for one in fetch.records] == [b"kept0", b"kept1", b"later0", b"later1", b"plain0", b"plain1"]
    assert [one.offset for one in fetch.records] == [2, 3, 5, 6, 7, 8]
    assert {one.leader_epoch for one in fetch.records} == {5}
    assert [fetch.take().offset for _ in range(6)][-1] == 8
    assert fetch.position == 11  # behind the markers
    assert len(fetched(level=0).records) == 8
    assert [one.offset for one in fetched(offset=3).records] == [3, 5, 6, 7, 8]
    only_markers = fetched(data=b"".join(list(batches(*LOG))[5:]))
    assert (only_markers.position, len(only_markers.records)) == (11, 0)
    assert fetched(data=b"", offset=4).position == 4


def test_what_comes_before_a_damaged_batch_is_given_first() -> None:
    data = bytearray(b"".join(batches((-1, b"whole", 0), (-1, b"damaged", 0))))
    data[-1] ^= 1
    fetch = fetched(data=bytes(data))
    assert [fetch.take().value for _ in range(2)] == [b"whole0", b"whole1"]
    assert fetch.position == 2
    assert fetch.error is not None
    assert fetch.error.error is Errors.CORRUPT_MESSAGE
