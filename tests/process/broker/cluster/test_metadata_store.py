"""The cluster's metadata in files: what was written down is there again, whatever was going on."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import BrokerRegistration, ClusterMetadata, MetadataChanges
from broker.cluster.controller import Controller, NewTopic
from broker.cluster.metadata_store import FILE, MetadataStore
from broker.log.checked_file import write_json
from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import AlterPartition
from tests.services.reference_broker import ReferenceBroker

KEY = TopicPartition("topic-0", 1)


class Listener:
    """A broker that only listens."""

    def partition_changed(self, *_: object) -> None: ...

    def topic_deleted(self, _: object) -> None: ...

    def config_changed(self, _: object) -> None: ...


class World:
    """A controller that writes down what it decides, with two brokers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = MetadataStore(directory)
        self.metadata = ClusterMetadata("cluster")
        ids = iter(range(1_000_000))
        draw = random.Random(1).randrange
        self.controller = Controller(self.metadata, lambda: f"id-{next(ids)}", draw, self.save, self.sync)
        self.register()

    def register(self) -> None:
        self.controller.register(*((BrokerRegistration(number, "host", 9092), Listener()) for number in (1, 2)))

    def save(self, changes: MetadataChanges) -> None:
        self.metadata.quorum.append(1, (1, 2), 0)
        self.store.append(self.metadata, changes)

    def sync(self) -> None:
        self.store.sync()

    def create(self, *numbers: int) -> None:
        for number in numbers:
            self.controller.create_topic(NewTopic(f"topic-{number}", 3, 2))

    def shrink(self, key: TopicPartition) -> None:
        known = self.metadata.partition(key)
        assert known is not None
        isr = ((known.leader, -1),)
        self.controller.alter_partition(
            key, AlterPartition(known.leader, known.leader_epoch, known.partition_epoch, isr)
        )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def content(metadata: ClusterMetadata | None) -> object:
    """All but who is there and who leads, which nobody does after a start."""
    assert metadata is not None
    topics = {
        topic.name: (
            topic.topic_id,
            topic.config,
            [(one.replicas, one.isr, one.leader_epoch, one.partition_epoch) for one in topic.partitions],
        )
        for topic in metadata.topics.values()
    }
    return (
        metadata.cluster_id,
        metadata.next_producer_id,
        metadata.quorum.end_offset,
        topics,
        dict(metadata.topic_names),
    )


def journal(world: World) -> Path:
    [path] = world.directory.glob("*.journal")
    return path


def change_all(world: World) -> None:
    world.register()
    world.create(0, 1, 2)
    world.controller.delete_topic("topic-1")
    world.controller.change_config("topic-2", {"retention.ms": "5"})
    world.controller.create_partitions("topic-0", 4)
    world.shrink(KEY)
    world.controller.allocate_producer_ids(1_000)
    world.controller.delete_topic("topic-2")
    world.create(2)
    world.controller.shut_down(1)
    world.controller.fence(1)


def test_every_change_is_there_again(world: World) -> None:
    change_all(world)
    found = MetadataStore(world.directory).load()
    assert content(found) == content(world.metadata)
    assert found is not None
    assert not found.alive
    assert {one.leader for topic in found.topics.values() for one in topic.partitions} == {-1}
    assert [one.isr for one in found.topics["topic-0"].partitions] == [(2,)] * 4


def test_a_change_costs_what_it_changes(world: World) -> None:
    world.create(*range(100))
    before = journal(world).stat().st_size
    world.shrink(KEY)
    assert journal(world).stat().st_size - before < 1_000
    assert world.directory.joinpath(FILE).stat().st_size < 1_000, "it was written before there was any topic"


def test_a_journal_that_has_become_long_is_begun_anew(world: World) -> None:
    world.store.close()
    world.store = MetadataStore(world.directory, journal_bytes_max=5_000)
    for _ in range(20):
        change_all(world)
        for name in list(world.metadata.topics):
            world.controller.delete_topic(name)
    world.register()
    world.create(7)
    assert journal(world).stat().st_size < 10_000
    assert content(MetadataStore(world.directory).load()) == content(world.metadata)


@pytest.mark.parametrize("lost", [1, 5, 50])
def test_a_change_that_was_being_written_when_the_power_failed_never_happened(world: World, lost: int) -> None:
    world.create(0)
    before = content(world.metadata)
    world.create(1)
    os.truncate(journal(world), journal(world).stat().st_size - lost)
    store = MetadataStore(world.directory)
    metadata = store.load()
    assert content(metadata) == before
    assert metadata is not None
    store.append(metadata, MetadataChanges())  # what comes next isn't written behind the torn one
    store.close()
    assert content(MetadataStore(world.directory).load()) == before


def test_what_could_not_be_written_is_refused_and_the_next_change_is_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create(0)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            world.create(1)
    world.create(2)
    assert content(MetadataStore(world.directory).load()) == content(world.metadata)


def test_what_an_older_version_wrote_is_read(world: World) -> None:
    named = {
        "cluster_id": "old",
        "next_producer_id": 7,
        "quorum": {"epoch": 1, "end_offset": 2},
        "brokers": [],
        "topics": [
            {
                "name": "topic",
                "topic_id": "id",
                "config": {},
                "partitions": [
                    {
                        "replicas": [1, 2],
                        "isr": [2],
                        "leader": 2,
                        "leader_epoch": 3,
                        "partition_epoch": 4,
                        "adding": [],
                        "removing": [],
                    }
                ],
            }
        ],
    }
    write_json(world.directory / FILE, named)
    found = MetadataStore(world.directory).load()
    assert found is not None
    [partition] = found.topics["topic"].partitions
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == ((1, 2), (2,), -1, 3)


def test_thousands_of_partitions_without_records_cost_no_file_and_little_of_a_stop(tmp_path: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def make(broker: Broker) -> int:
        before = opened()
        for number in range(20):
            broker.controller.create_topic(NewTopic(f"topic-{number}", 50))
        return opened() - before

    cluster = ReferenceBroker(tmp_path).start()
    assert cluster.inspect(lambda one: make(one.brokers[1])) == 0
    cluster.stop()
    assert not list(tmp_path.glob("broker-1/*")), "nothing was written of a partition that has nothing"
    before = opened()
    cluster.start()
    assert cluster.inspect(lambda one: len(one.brokers[1].replicas.partitions)) == 1_000
    assert opened() - before < 20
    cluster.stop()
