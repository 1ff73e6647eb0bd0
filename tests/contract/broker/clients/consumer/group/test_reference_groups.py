"""The reference consumer in groups, the same on the reference broker and on real Kafka."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as OtherConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import NewPartitions

from broker.clients import (
    ASSIGNORS,
    Consumer,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetReset,
    Subscription,
    TopicPartition,
)
from broker.clients.consumer.group.member_protocol import encode_subscription
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.raw_client import RawClient
from tests.services.reference_clients import READ_S, Told, consuming, poll_until, read

pytestmark = pytest.mark.slow

PARTITIONS = 4
SOON = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 50, "metadata_max_age_ms": 200}
COOPERATIVE = {"partition_assignment_strategy": ("cooperative-sticky",)}

Member = Callable[..., AbstractAsyncContextManager[Consumer]]


@pytest.fixture
def member(cluster: Kafka) -> Member:
    """Members of one new group."""
    return partial(consuming, cluster.bootstrap, group_id=f"reference-{uuid4().hex[:8]}", **SOON)


@pytest.fixture
def topic(cluster: Kafka) -> str:
    return cluster.topic("reference-group", partitions=PARTITIONS)


def has(consumer: Consumer, count: int) -> bool:
    return len(consumer.assignment()) == count


def share(*consumers: Consumer) -> bool:
    """Whether all have the same number of the topic's partitions, each its own."""
    together = [partition for one in consumers for partition in one.assignment()]
    sizes = {len(one.assignment()) for one in consumers}
    return len(together) == len(set(together)) == PARTITIONS and len(sizes) == 1


@pytest.mark.parametrize("name", ASSIGNORS)
def test_members_have_what_the_assignor_says(
    cluster: Kafka, member: Member, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {cluster.topic("reference-assignor", partitions=count): count for count in (3, 2)}
    answers: list[Any] = []

    def assign(partitions: Any, subscriptions: Any) -> Any:
        answers.append((subscriptions, ASSIGNORS[name](partitions, subscriptions)))
        return answers[-1][1]

    def is_settled(*consumers: Consumer) -> bool:
        """Everybody has what the last answer says, and all is given out."""
        told = answers[-1][1] if answers else {}
        ids = {one.generation().member_id: one for one in consumers}
        return (
            told.keys() == ids.keys()
            and all(set(told[key]) == one.assignment() for key, one in ids.items())
            and sum(len(one.assignment()) for one in consumers) == 5
        )

    async def main() -> None:
        strategy = {"partition_assignment_strategy": (name,)}
        async with member(**strategy) as first, member(**strategy) as second, member(**strategy) as third:
            consumers: list[Consumer] = []
            for one in (first, second, third):
                before = {each: each.assignment() for each in consumers}
                one.subscribe(topics)
                consumers.append(one)
                await poll_until(lambda: is_settled(*consumers), *consumers)
                if "sticky" in name:
                    assert all(each.assignment() <= had for each, had in before.items())
            subscriptions = {one.generation().member_id: Subscription(list(topics)) for one in consumers}
            racks = {topic: [frozenset[str]()] * count for topic, count in topics.items()}
            if "sticky" not in name:  # nothing but who is there counts
                own = ASSIGNORS[name](racks, subscriptions)
                assert {key: set(of) for key, of in own.items()} == {
                    one.generation().member_id: one.assignment() for one in consumers
                }

    monkeypatch.setattr("broker.clients.consumer.group.consumer_coordinator.ASSIGNORS", {name: assign})
    asyncio.run(main())


@pytest.mark.parametrize("says_so", [True, False], ids=["leaves", "session time-out"])
def test_what_a_member_had_goes_to_others_when_it_is_gone(member: Member, topic: str, *, says_so: bool) -> None:
    async def main() -> None:
        told = Told()
        async with member(session_timeout_ms=1500) as first, member(session_timeout_ms=1500) as second:
            for one in (first, second):
                one.subscribe([topic], told)
            await poll_until(lambda: share(first, second), first, second)
            gone = sorted(one.partition for one in second.assignment())
            await second.close(leave_group=says_so)
            assert told.events[-1] == ("revoked", gone)
            start_s = asyncio.get_running_loop().time()
            await poll_until(lambda: has(first, PARTITIONS), first)
            assert (asyncio.get_running_loop().time() - start_s > 1) is not says_so
            await first.unsubscribe()
            assert not first.assignment()

    asyncio.run(main())


def grow(cluster: Kafka, topic: str, partitions: int) -> None:
    for grown in cluster.admin.create_partitions([NewPartitions(topic, partitions)]).values():
        grown.result(ANSWER_TIMEOUT_S)


@pytest.mark.parametrize("strategy", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_new_partitions_are_given_out(cluster: Kafka, member: Member, topic: str, strategy: Any) -> None:
    async def main() -> None:
        async with member(**strategy) as first, member(**strategy) as second:
            for one in (first, second):
                one.subscribe([topic])
            await poll_until(lambda: share(first, second), first, second)
            await asyncio.to_thread(grow, cluster, topic, PARTITIONS + 2)
            await poll_until(lambda: has(first, 3) and has(second, 3), first, second)
            assert not first.assignment() & second.assignment()

    asyncio.run(main())


@pytest.mark.parametrize("restarted", ["leader", "follower"])
def test_a_static_member_that_comes_back_has_what_it_had(
    cluster: Kafka, member: Member, topic: str, restarted: str
) -> None:
    async def main() -> None:
        told = Told()
        async with member(group_instance_id="leader") as leader, member(group_instance_id="follower") as follower:
            members = {"leader": leader, "follower": follower}
            leader.subscribe([topic])
            await poll_until(lambda: has(leader, PARTITIONS), leader)  # whoever is first leads
            follower.subscribe([topic])
            await poll_until(lambda: share(leader, follower), leader, follower)
            going, staying = members[restarted], members[{"leader": "follower", "follower": "leader"}[restarted]]
            had, generation = going.assignment(), going.generation()
            kept = staying.generation()
            await going.close()
            async with member(group_instance_id=restarted) as back:
                back.subscribe([topic], told)
                await poll_until(back.assignment, staying, back)
                await poll_until(lambda: told.events, staying, back)
                await asyncio.gather(staying.poll(200), back.poll(200))  # several heartbeats
                assert back.assignment() == had
                assert back.generation().generation_id == generation.generation_id
                assert back.generation().member_id != generation.member_id
                assert staying.generation() == kept
                await asyncio.to_thread(grow, cluster, topic, PARTITIONS + 2)  # and somebody sees it
                await poll_until(lambda: has(back, 3) and has(staying, 3), back, staying)
                await back.close(leave_group=True)
                await poll_until(lambda: has(staying, PARTITIONS + 2), staying)

    asyncio.run(main())


def test_a_static_member_whose_name_is_taken_is_fenced(member: Member, topic: str) -> None:
    async def main() -> None:
        async with member(group_instance_id="one") as former, member(group_instance_id="one") as latter:
            former.subscribe([topic])
            await poll_until(lambda: has(former, PARTITIONS), former)
            latter.subscribe([topic])
            await poll_until(lambda: has(latter, PARTITIONS), latter)
            with pytest.raises(ApiError) as caught:
                await poll_until(lambda: False, former)
            assert caught.value.error is Errors.FENCED_INSTANCE_ID

    asyncio.run(main())


async def commit_until_it_fails(consumer: Consumer) -> None:
    """As soon as it joins again, and others do not."""
    async with asyncio.timeout(READ_S):
        while True:
            await consumer.poll(20)
            await consumer.commit_sync({one: OffsetAndMetadata(0) for one in consumer.assignment()})


def test_a_cooperative_member_keeps_what_it_has_while_others_are_waited_for(
    cluster: Kafka, member: Member, topic: str
) -> None:
    async def main() -> None:
        told = Told()
        async with member(**COOPERATIVE) as first, member(**COOPERATIVE) as second, member(**COOPERATIVE) as third:
            first.subscribe([topic], told)
            await poll_until(lambda: has(first, PARTITIONS), first)
            second.subscribe([topic])
            await poll_until(lambda: share(first, second), first, second)
            had = first.assignment()
            [given_back] = told.of("revoked")
            assert len(given_back) == PARTITIONS // 2
            third.subscribe([topic])
            joining = asyncio.create_task(poll_until(lambda: has(third, 1), third))
            with pytest.raises(ApiError) as caught:
                await commit_until_it_fails(first)
            assert caught.value.error is Errors.REBALANCE_IN_PROGRESS
            cluster.produce(topic, [(None, b"value", (), 0, one.partition) for one in had])
            assert {(one.topic, one.partition) for one in await read(first, len(had))} == had
            assert first.assignment() == had
            await poll_until(lambda: has(third, 1), first, second)
            await joining
            await poll_until(lambda: len(told.of("revoked")) + len(first.assignment()) == 3, first, second, third)
            assert told.of("lost") == []

    asyncio.run(main())


def test_committed_offsets_are_there_for_who_comes_next(cluster: Kafka, member: Member, topic: str) -> None:
    cluster.produce(topic, [(None, b"%d" % n, (), 0, 0) for n in range(10)])
    place = TopicPartition(topic, 0)

    async def main() -> None:
        async with member(enable_auto_commit=False, max_poll_records=4) as consumer:
            consumer.subscribe([topic])
            await read(consumer, 4)
            await consumer.commit_sync()
            assert (await consumer.committed(place))[place] == OffsetAndMetadata(4)
            await consumer.commit_sync({place: OffsetAndMetadata(3, "words")})
            await read(consumer, 4)
        async with member(max_poll_records=3) as consumer:  # commits when it is closed
            consumer.subscribe([topic])
            assert [one.offset for one in await read(consumer, 3)] == [3, 4, 5]
            assert (await consumer.committed(place, TopicPartition(topic, 9 - 8)))[place].metadata == "words"
        async with member(auto_offset_reset=OffsetReset.NONE) as consumer:
            consumer.assign([place])
            assert await consumer.position(place) == 6
            consumer.assign([place, TopicPartition(topic, 1)])
            await consumer.commit_sync({TopicPartition(topic, 1): OffsetAndMetadata(0)})
            consumer.assign([TopicPartition(cluster.topic("reference-none"), 0)])
            with pytest.raises(NoOffsetForPartition):
                await consumer.poll(1000)
            with pytest.raises(ApiError) as caught:
                await consumer.commit_sync({place: OffsetAndMetadata(1, "x" * 5000)})
            assert caught.value.error is Errors.OFFSET_METADATA_TOO_LARGE

    asyncio.run(main())


def test_offsets_of_an_open_transaction_are_waited_for(cluster: Kafka, topic: str) -> None:
    group = f"reference-{uuid4().hex[:8]}"
    other = OtherConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": group})
    producer.init_transactions(ANSWER_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.send_offsets_to_transaction([Place(topic, 0, 7)], other.consumer_group_metadata(), ANSWER_TIMEOUT_S)
    place = TopicPartition(topic, 0)

    async def main() -> None:
        async with consuming(cluster.bootstrap, group_id=group) as consumer:
            assert await consumer.committed(TopicPartition(topic, 1)) == {}  # the coordinator is found and answers
            asking = asyncio.create_task(consumer.committed(place))
            answered, _ = await asyncio.wait([asking], timeout=1)
            assert not answered
            await asyncio.to_thread(producer.commit_transaction, ANSWER_TIMEOUT_S)
            assert await asking == {place: OffsetAndMetadata(7)}

    asyncio.run(main())
    other.close()


def kick(cluster: Kafka, group: str, consumer: Consumer) -> None:
    """Another one says that it leaves."""
    with RawClient(cluster.bootstrap) as client:
        who = {"member_id": consumer.generation().member_id, "group_instance_id": None}
        told = client.ask(ApiKey.LEAVE_GROUP, 4, group_id=group, members=[who])
        assert told.members[0].error_code == Errors.NONE


def join_as(cluster: Kafka, group: str, consumer: Consumer) -> None:
    """Another one joins in its name: the group has a new generation."""
    with RawClient(cluster.bootstrap) as client:
        member_id = consumer.generation().member_id
        about = {"member_id": member_id, "protocol_type": "consumer", "group_id": group}
        protocols = [{"name": "range", "metadata": encode_subscription(Subscription(["another"]))}]
        times = {"session_timeout": 6000, "rebalance_timeout": 6000}
        told = client.ask(ApiKey.JOIN_GROUP, 7, protocols=protocols, **about, **times)
        assert told.error_code == Errors.NONE
        parts = [{"member_id": member_id, "assignment": b""}]
        about |= {"generation_id": told.generation_id, "protocol_name": "range"}
        assert client.ask(ApiKey.SYNC_GROUP, 5, assignments=parts, **about).error_code == Errors.NONE


@pytest.mark.parametrize(
    ("what", "error"), [(kick, Errors.UNKNOWN_MEMBER_ID), (join_as, Errors.ILLEGAL_GENERATION)], ids=["kick", "join as"]
)
def test_who_is_no_member_any_more_cannot_commit_and_loses_all(
    cluster: Kafka, topic: str, what: Callable[[Kafka, str, Consumer], None], error: Errors
) -> None:
    group = f"reference-{uuid4().hex[:8]}"

    async def main() -> None:
        told = Told()
        quiet = {"heartbeat_interval_ms": 40_000, "session_timeout_ms": 45_000}
        async with consuming(
            cluster.bootstrap, group_id=group, **{**SOON, **quiet, "partition_assignment_strategy": ("range",)}
        ) as consumer:
            consumer.subscribe([topic], told)
            await poll_until(lambda: has(consumer, PARTITIONS), consumer)
            what(cluster, group, consumer)
            with pytest.raises(ApiError) as caught:
                await consumer.commit_sync({TopicPartition(topic, 0): OffsetAndMetadata(1)})
            assert caught.value.error is error
            await poll_until(lambda: len(told.of("assigned")) == 2, consumer)
            assert [event for event, _ in told.events] == ["assigned", "lost", "assigned"]
            assert told.of("lost") == [[0, 1, 2, 3]]
            await consumer.commit_sync({TopicPartition(topic, 0): OffsetAndMetadata(1)})

    asyncio.run(main())


def test_who_does_not_poll_for_too_long_loses_its_partitions(member: Member, topic: str) -> None:
    async def main() -> None:
        told = Told()
        async with member(max_poll_interval_ms=1000) as away, member() as other:
            away.subscribe([topic], told)
            other.subscribe([topic])
            await poll_until(lambda: share(away, other), away, other)
            had = sorted(one.partition for one in away.assignment())
            await poll_until(lambda: has(other, PARTITIONS), other)
            assert told.of("lost") == []  # nobody can tell who doesn't poll
            await poll_until(lambda: told.of("lost"), away)
            assert told.of("lost") == [had]
            await poll_until(lambda: share(away, other), away, other)

    asyncio.run(main())
