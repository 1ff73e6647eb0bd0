"""Groups of reference consumers and of librdkafka's: whoever leads, everybody understands what is assigned."""

import asyncio
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as OtherConsumer

from broker.clients import ASSIGNORS, Consumer, Subscription, TopicPartition
from tests.services.kafka import Kafka
from tests.services.reference_clients import READ_S, consuming

pytestmark = pytest.mark.slow

PARTITIONS = 5
SHARES = {"range": (3, 2), "roundrobin": (3, 2), "cooperative-sticky": (3, 2)}  # librdkafka has no eager sticky one


def assigned(other: OtherConsumer) -> frozenset[TopicPartition]:
    """Let librdkafka's consumer take part; returns the partitions that it has."""
    other.poll(0)
    return frozenset(TopicPartition(one.topic, one.partition) for one in other.assignment())


@pytest.mark.parametrize("leader", ["ours", "librdkafka's"])
@pytest.mark.parametrize("name", SHARES)
def test_both_share_a_topic(cluster: Kafka, name: str, leader: str) -> None:
    topic, group = cluster.topic("reference-mixed", partitions=PARTITIONS), f"reference-{uuid4().hex[:8]}"
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "partition.assignment.strategy": name}
    other = OtherConsumer({**settings, "heartbeat.interval.ms": 50, "session.timeout.ms": 6000})

    async def settle(ours: Consumer, *counts: tuple[int, int]) -> None:
        """Both poll until they have so many."""
        async with asyncio.timeout(READ_S):
            while (len(ours.assignment()), len(assigned(other))) not in counts:
                await ours.poll(20)

    async def main() -> None:
        about = {"partition_assignment_strategy": (name,), "heartbeat_interval_ms": 50, "session_timeout_ms": 6000}
        async with consuming(cluster.bootstrap, group_id=group, **about) as ours:
            if leader == "ours":
                ours.subscribe([topic])
                await settle(ours, (PARTITIONS, 0))
                other.subscribe([topic])
            else:
                other.subscribe([topic])
                await settle(ours, (0, PARTITIONS))
                ours.subscribe([topic])
            await settle(ours, SHARES[name], SHARES[name][::-1])
            assert ours.assignment() | assigned(other) == {TopicPartition(topic, one) for one in range(PARTITIONS)}
            if name != "cooperative-sticky":  # nothing but who is there counts
                members = {one: Subscription([topic]) for one in (ours.generation().member_id, other.memberid())}
                own = ASSIGNORS[name]({topic: [frozenset()] * PARTITIONS}, members)
                assert set(own[other.memberid()]) == assigned(other)
            await asyncio.to_thread(other.close)
            async with asyncio.timeout(READ_S):
                while len(ours.assignment()) < PARTITIONS:
                    await ours.poll(20)

    try:
        asyncio.run(main())
    finally:
        other.close()
