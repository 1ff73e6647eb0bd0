"""A cluster that takes the place of another one, and what must come of all that the first one accepted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Message, TopicPartition

from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from tests.services.fixtures import own_broker
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.kafka_servers import ReferenceServer
from tests.services.site import Site, due_of, headers_of

POLICIES: Final = """
name: reminders
match: {topics: ["~reminders"]}
delay: {max: 1d}
target: {topic: "~mail", allow: ["~mail", "~orders"]}
---
name: orders-retry
match: {topics: ["~orders-retry"]}
retry: {attempts: 5, backoff: {kind: fixed, delay: 50s}}
target: {topic: "~orders"}
"""
SOURCES: Final = ("reminders", "orders-retry")
TARGETS: Final = ("mail", "orders")
MOVED_BY: Final = 3  # offsets of the second cluster are so many further


class Verdict(NamedTuple):
    """Faults in what the targets of all clusters have of the values that were sent."""

    lost: set[str]
    repeated: set[str]
    early: int


@contextmanager
def two_clusters(directory: Path) -> Iterator[tuple[Site, Site]]:
    """Two brokers with a Redis each, and the group's topics and policies on both; the second one's are empty."""
    with ExitStack() as stack:
        sites: list[Site] = []
        for name in ("first", "second"):
            (directory / name).mkdir()
            kafka = Kafka(stack.enter_context(own_broker(ReferenceServer(directory / name / "kafka"))))
            redis = EmbeddedValkey(directory / name / "valkey", free_port())
            redis.start()
            stack.callback(redis.kill)
            site = Site(kafka, redis.url, directory / name)
            if sites:
                site.group, site.quarantine = sites[0].group, sites[0].quarantine
            for role in SOURCES:
                site.topic(role, 2)
            for role in TARGETS:
                site.target(role)
            site.policies(POLICIES)
            stack.callback(site.close)
            sites.append(site)
        yield sites[0], sites[1]


def mirror(topic: str, source: Kafka, sink: Kafka) -> list[Message]:
    """Copy what there is, as a mirror does: committed records with key, value, headers and time, at other offsets."""
    for partition in sorted(source.admin.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic].partitions):
        sink.produce(topic, [(None, b"before", (), 0, partition)] * MOVED_BY)
        [gone] = sink.admin.delete_records([TopicPartition(topic, partition, MOVED_BY)]).values()
        gone.result(ANSWER_TIMEOUT_S)
    copied = source.read_all(topic)
    sink.produce(
        topic, [(one.key(), one.value(), headers_of(one), one.timestamp()[1], one.partition()) for one in copied]
    )
    return copied


def arrivals(site: Site) -> list[Message]:
    """All that the targets have."""
    return [message for role in TARGETS for message in site.kafka.read_all(site.name(role))]


def value_of(message: Message) -> str:
    return (message.value() or b"").decode()


def judge(sent: Iterable[str], *clusters: Sequence[Message]) -> Verdict:
    """Each value that was sent must have arrived once, at any of these, and not before it was due."""
    arrived = [message for cluster in clusters for message in cluster]
    counts = Counter(map(value_of, arrived))
    return Verdict(
        {value for value in sent if not counts[value]},
        {value for value, count in counts.items() if count > 1},
        sum(message.timestamp()[1] < due_of(message) for message in arrived),
    )
