"""Three brokers in one process: replication, in-sync replicas, fail-over, moves, as clients see them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.cluster.cluster_metadata import BrokerRegistration
from broker.cluster.replica_assignment import assign_replicas_to_brokers
from broker.cluster.settings import RACK_AWARE
from broker.protocol.api_keys import ApiKey
from broker.records.record_batch import whole_batches
from broker.records.records import read_records
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.waiting import wait_until
from tests.unit.log_world import batch

pytestmark = pytest.mark.slow

WAIT_S = 60.0
LAG_MS = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    """With Kafka's lag time: nobody leaves an ISR because this machine is busy."""
    cluster = ReferenceBroker(tmp_path_factory.mktemp("cluster"), 3).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[ReferenceBroker]:
    cluster = ReferenceBroker(tmp_path, 3, replica_lag_time_max_ms=LAG_MS).start()
    yield cluster
    cluster.stop()


def client_of(cluster: ReferenceBroker, broker_id: int) -> RawClient:
    port = cluster.inspect(lambda one: one.metadata.brokers[broker_id].port)  # another one in each life
    return RawClient(f"127.0.0.1:{port}")


def pause(cluster: ReferenceBroker, broker_id: int) -> None:
    """Have a broker follow nobody any more, as if it hung."""
    cluster.inspect(lambda one: one.brokers[broker_id].fetcher.pause())


def resume(cluster: ReferenceBroker, broker_id: int) -> None:
    cluster.inspect(lambda one: one.brokers[broker_id].fetcher.resume())


class World:
    """A topic of one partition on brokers 1, 2 and 3, whose leader is asked."""

    def __init__(self, cluster: ReferenceBroker, topic: str, **config: str) -> None:
        self.cluster, self.topic, self.key = cluster, topic, TopicPartition(topic, 0)
        with RawClient(cluster.bootstrap) as client:
            row = {"partition_index": 0, "broker_ids": [1, 2, 3]}
            configs = [{"name": name.replace("_", "."), "value": value} for name, value in config.items()]
            body = {"num_partitions": -1, "replication_factor": -1, "assignments": [row], "configs": configs}
            [answer] = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[{"name": topic, **body}], timeout=60_000).topics
        assert answer.error_code == Errors.NONE, answer
        self.acknowledged: list[bytes] = []

    @property
    def state(self) -> Any:
        return self.cluster.inspect(lambda cluster: cluster.metadata.partition(self.key))

    def client(self, broker_id: int) -> RawClient:
        return client_of(self.cluster, broker_id)

    def produce(self, value: bytes, acks: int = -1, timeout_ms: int = 60_000) -> Any:
        with self.client(self.state.leader) as client:
            answer = client.produce(self.topic, batch(value), acks=acks, timeout_ms=timeout_ms, version=9)
        if answer.error_code == Errors.NONE and acks == -1:
            self.acknowledged.append(value)
        return answer

    def values(self, broker_id: int) -> list[bytes | None]:
        """Values that consumers see at a broker, which may be a follower."""
        found: list[bytes | None] = []
        offset = 0
        with self.client(broker_id) as client:
            while True:
                answer = client.fetch(self.topic, offset)
                assert answer.error_code == Errors.NONE
                if not answer.records:
                    return found
                for header, position in whole_batches(answer.records):
                    found += [one.value for one in read_records(header, answer.records, position)]
                    offset = header.last_offset + 1

    def wait_for_isr(self, *isr: int) -> None:
        wait_until(lambda: set(self.state.isr) == set(isr), WAIT_S, lambda: f"{self.state}, not {isr}")

    def wait_for_values(self, broker_id: int, values: list[bytes]) -> None:
        wait_until(lambda: self.values(broker_id) == values, WAIT_S, lambda: f"{self.values(broker_id)}")

    def elect(self) -> Any:
        with RawClient(self.cluster.bootstrap) as client:
            wanted = [{"topic": self.topic, "partitions": [0]}]
            body = {"election_type": 0, "topic_partitions": wanted, "timeout": 60_000}
            [topic] = client.ask(ApiKey.ELECT_LEADERS, 2, **body).replica_election_results
            return topic.partition_result[0].error_code


@pytest.fixture
def world(cluster: ReferenceBroker, request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(cluster, request.node.name[:100].replace("[", "-").replace("]", ""), min_insync_replicas="2")
    for broker_id in (1, 2, 3):
        if broker_id not in cluster.inspect(lambda one: list(one.brokers)):
            cluster.run(cluster.cluster.start_broker(broker_id))
        resume(cluster, broker_id)


def test_what_is_acknowledged_by_all_is_on_every_broker(world: World) -> None:
    for number in range(5):
        assert world.produce(b"%d" % number).error_code == Errors.NONE
    for broker_id in (1, 2, 3):
        world.wait_for_values(broker_id, world.acknowledged)
    world.wait_for_isr(1, 2, 3)
    assert world.state.leader == 1


def test_a_follower_that_hangs_leaves_the_isr_and_comes_back(impatient: ReferenceBroker) -> None:
    world = World(impatient, "lags", min_insync_replicas="2")
    world.wait_for_isr(1, 2, 3)
    world.produce(b"before")
    pause(world.cluster, 3)
    late = world.produce(b"waits for the shrink")
    assert late.error_code == Errors.NONE
    world.wait_for_isr(1, 2)
    pause(world.cluster, 2)
    assert world.produce(b"in one log only", timeout_ms=100).error_code == Errors.REQUEST_TIMED_OUT
    world.wait_for_isr(1)
    assert world.produce(b"refused").error_code == Errors.NOT_ENOUGH_REPLICAS
    assert world.produce(b"taken", acks=1).error_code == Errors.NONE
    for broker_id in (2, 3):
        resume(world.cluster, broker_id)
    world.wait_for_isr(1, 2, 3)
    assert world.produce(b"after").error_code == Errors.NONE
    assert world.values(1) == [b"before", b"waits for the shrink", b"in one log only", b"taken", b"after"]


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(world: World) -> None:
    for number in range(3):
        world.produce(b"%d" % number)
    world.cluster.run(world.cluster.cluster.kill_broker(1))
    assert (world.state.leader, set(world.state.isr)) == (2, {2, 3})
    assert world.produce(b"by the new leader").error_code == Errors.NONE
    world.cluster.run(world.cluster.cluster.start_broker(1))
    world.wait_for_isr(1, 2, 3)
    world.wait_for_values(1, world.acknowledged)
    assert (world.elect(), world.state.leader) == (Errors.NONE, 1)
    assert world.produce(b"by the first again").error_code == Errors.NONE
    assert world.values(1) == world.acknowledged


@contextmanager
def waiting_for_the_leader(world: World, max_wait_ms: int = 600_000) -> Iterator[dict[str, RawClient]]:
    """Clients of broker 1 whose requests wait: fetches of several versions, a produce to all, and one more fetch."""
    fetches = {"v10": (10, {}), "epoch": (12, {"current_leader_epoch": 0}), "no epoch": (12, {})}
    leader = world.cluster.inspect(lambda cluster: cluster.brokers[1].replicas)
    with ExitStack() as stack:
        clients = {name: stack.enter_context(world.client(1)) for name in (*fetches, "produce")}
        for name, (version, more) in fetches.items():
            body = RawClient.fetch_body(world.topic, 1, version=version, max_wait_ms=max_wait_ms, **more)
            clients[name].send(ApiKey.FETCH, version, **body)
        wait_until(lambda: leader.fetch.num_delayed == len(fetches), WAIT_S, lambda: f"{leader.fetch.num_delayed}")
        records = [{"index": 0, "records": bytes(batch(b"parked"))}]
        body = {"transactional_id": None, "acks": -1, "timeout": max_wait_ms}
        clients["produce"].send(
            ApiKey.PRODUCE, 10, **body, topic_data=[{"name": world.topic, "partition_data": records}]
        )
        wait_until(lambda: leader.produce.num_delayed == 1, WAIT_S, lambda: "not appended")
        yield clients


def test_who_waits_for_a_leader_that_stops_is_told_that_it_leads_no_more(world: World) -> None:
    world.produce(b"before")
    for broker_id in (2, 3):
        pause(world.cluster, broker_id)
    with waiting_for_the_leader(world) as clients:
        world.cluster.run(world.cluster.cluster.stop_broker(1))
        codes = {}
        for name, version in (("v10", 10), ("epoch", 12)):
            [topic] = clients[name].receive(ApiKey.FETCH, version).responses
            codes[name] = topic.partitions[0].error_code
        [produced] = clients["produce"].receive(ApiKey.PRODUCE, 10).responses[0].partition_responses
        assert codes == {"v10": Errors.NOT_LEADER_OR_FOLLOWER, "epoch": Errors.FENCED_LEADER_EPOCH}
        assert (produced.error_code, produced.base_offset) == (Errors.NOT_LEADER_OR_FOLLOWER, 1)
        assert all(client.is_closed() for client in clients.values())
    assert (world.state.leader, world.state.leader_epoch, set(world.state.isr)) == (2, 1, {2, 3})


def test_who_waits_for_a_leader_that_is_killed_is_told_nothing(world: World) -> None:
    world.produce(b"before")
    for broker_id in (2, 3):
        pause(world.cluster, broker_id)
    with waiting_for_the_leader(world) as clients:
        world.cluster.run(world.cluster.cluster.kill_broker(1))
        assert all(client.is_closed() for client in clients.values())
    assert (world.state.leader, world.state.leader_epoch) == (2, 1)


def test_what_only_a_former_leader_had_is_cut_off(world: World) -> None:
    world.produce(b"everywhere")
    for broker_id in (2, 3):
        pause(world.cluster, broker_id)
    assert world.produce(b"lost", acks=1).error_code == Errors.NONE
    world.cluster.run(world.cluster.cluster.kill_broker(1))
    for broker_id in (2, 3):
        resume(world.cluster, broker_id)
    assert world.produce(b"instead").error_code == Errors.NONE
    world.cluster.run(world.cluster.cluster.start_broker(1))
    world.wait_for_isr(1, 2, 3)
    world.wait_for_values(1, [b"everywhere", b"instead"])


def test_without_an_in_sync_replica_nobody_leads_unless_it_may_be_unclean(cluster: ReferenceBroker) -> None:
    clean, unclean = World(cluster, "clean"), World(cluster, "unclean", unclean_leader_election_enable="true")
    for world in (clean, unclean):
        world.produce(b"old")
    for broker_id in (2, 3):
        cluster.run(cluster.cluster.kill_broker(broker_id))
    for world in (clean, unclean):
        assert world.produce(b"new").error_code == Errors.NONE
    cluster.run(cluster.cluster.kill_broker(1))
    cluster.run(cluster.cluster.start_broker(2))
    assert (clean.state.leader, clean.state.isr) == (-1, (1,))
    assert (unclean.state.leader, unclean.state.isr) == (2, (2,))
    with clean.client(2) as client:
        [topic] = client.ask(ApiKey.METADATA, 12, topics=[{"name": "clean"}]).topics
        assert topic.partitions[0].error_code == Errors.LEADER_NOT_AVAILABLE
        assert topic.partitions[0].isr_nodes == (), "who may lead again isn't in sync while it is gone"
    for broker_id in (1, 3):
        cluster.run(cluster.cluster.start_broker(broker_id))
    for world in (clean, unclean):
        world.wait_for_isr(1, 2, 3)
    assert clean.values(clean.state.leader) == [b"old", b"new"]
    assert unclean.values(2) == [b"old"]


def test_a_waiting_produce_learns_that_its_leader_has_changed(world: World) -> None:
    world.produce(b"before")
    for broker_id in (2, 3):
        pause(world.cluster, broker_id)
    with world.client(1) as client:
        body = {"transactional_id": None, "acks": -1, "timeout": 30_000}
        records = [{"index": 0, "records": bytes(batch(b"parked"))}]
        client.send(ApiKey.PRODUCE, 10, **body, topic_data=[{"name": world.topic, "partition_data": records}])
        end = TopicPartition(world.topic, 0)
        wait_until(
            lambda: world.cluster.inspect(
                lambda cluster: cluster.brokers[1].replicas.partitions[end].log.log_end_offset == 2
            ),
            WAIT_S,
            lambda: "not appended",
        )
        world.cluster.inspect(lambda cluster: cluster.controller.reassign(end, (2, 3)))
        for broker_id in (2, 3):
            resume(world.cluster, broker_id)
        answer = client.receive(ApiKey.PRODUCE, 10)
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code in (Errors.NOT_LEADER_OR_FOLLOWER, Errors.NONE)


def test_a_partition_moves_when_its_new_replicas_have_everything(cluster: ReferenceBroker) -> None:
    with client_of(cluster, 1) as client:
        row = {"partition_index": 0, "broker_ids": [1]}
        body = {"name": "moves", "num_partitions": -1, "replication_factor": -1, "assignments": [row], "configs": []}
        client.ask(ApiKey.CREATE_TOPICS, 7, topics=[body], timeout=60_000)
        for number in range(3):
            assert client.produce("moves", batch(b"%d" % number)).error_code == Errors.NONE
        wanted = [{"name": "moves", "partitions": [{"partition_index": 0, "replicas": [3, 2]}]}]
        [topic] = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=wanted, timeout=60_000).responses
        assert topic.partitions[0].error_code == Errors.NONE
    key = TopicPartition("moves", 0)

    def state() -> Any:
        return cluster.inspect(lambda one: one.metadata.partition(key))

    wait_until(lambda: state().replicas == (3, 2), WAIT_S, lambda: f"{state()}")
    assert (state().leader, set(state().isr), state().removing) == (3, {2, 3}, ())
    assert cluster.inspect(lambda one: key in one.brokers[1].replicas.partitions) is False
    with client_of(cluster, 3) as client:
        assert client.fetch("moves", 0).high_watermark == 3


@pytest.mark.parametrize("replicas", [(1,), (1, 2), (1, 2, 2), (1, 2, 9)])
def test_a_new_partition_has_as_many_replicas_as_the_others(world: World, replicas: tuple[int, ...]) -> None:
    def grow(cluster: Any, row: tuple[int, ...]) -> None:
        cluster.controller.create_partitions(world.topic, 2, [row], validate_only=True)

    world.cluster.inspect(lambda cluster: grow(cluster, (3, 2, 1)))
    with pytest.raises(ApiError, match="is no good"):
        world.cluster.inspect(lambda cluster: grow(cluster, replicas))


def test_consumers_of_a_follower_see_what_is_committed(world: World) -> None:
    world.produce(b"one")
    with world.client(2) as client:
        wait_until(lambda: client.fetch(world.topic, 0).high_watermark == 1, WAIT_S, lambda: "no high watermark")
        assert client.fetch(world.topic, 0, version=10).error_code == Errors.NOT_LEADER_OR_FOLLOWER
        assert client.produce(world.topic, batch(b"x"), version=9).error_code == Errors.NOT_LEADER_OR_FOLLOWER
        assert client.fetch(world.topic, 0, current_leader_epoch=9).error_code == Errors.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [12, 16])
def test_who_fetches_in_a_followers_name_is_taken_for_it(world: World, version: int) -> None:
    """Over the socket as within the process: it sees what isn't committed, and what it has asked beyond it has."""

    def named(replica_id: int) -> dict[str, Any]:
        return {"replica_id": replica_id} if version < 15 else {"replica_state": {"replica_id": replica_id}}

    for broker_id in (2, 3):
        pause(world.cluster, broker_id)
    topic_id = world.cluster.inspect(lambda cluster: cluster.metadata.topics[world.topic].topic_id)
    topic = world.topic if version < 13 else topic_id
    with world.client(1) as client:
        assert client.produce(world.topic, batch(b"value"), acks=1).error_code == Errors.NONE
        assert not client.fetch(topic, 0, version=version).records
        assert client.fetch(topic, 0, version=version, **named(3)).records
        for broker_id in (2, 3):
            assert client.fetch(topic, 1, version=version, **named(broker_id)).error_code == Errors.NONE
        assert client.fetch(topic, 0, version=version).high_watermark == 1
        assert client.fetch(topic, 0, version=version, **named(9)).error_code == Errors.NOT_LEADER_OR_FOLLOWER


def test_consumers_are_sent_to_their_rack_where_that_is_set(tmp_path: Path) -> None:
    racks = ("one", "two", "three")
    cluster = ReferenceBroker(tmp_path, 3, racks, replica_selector_class=RACK_AWARE).start()
    try:
        world = World(cluster, "racks")
        world.produce(b"value")
        with world.client(1) as client:
            rows = [client.fetch("racks", 0, rack_id=rack) for rack in (*racks, "elsewhere", "")]
        assert [row.preferred_read_replica for row in rows] == [-1, 2, 3, -1, -1]
        assert [bool(row.records) for row in rows] == [True, False, False, True, True]
    finally:
        cluster.stop()
    with pytest.raises(ValueError, match=r"replica\.selector\.class"):
        ReferenceBroker(tmp_path, 1, replica_selector_class="Nearest")


def test_a_produce_wakes_the_followers_that_wait(tmp_path: Path) -> None:
    cluster = ReferenceBroker(tmp_path, 3, replica_fetch_wait_max_ms=600_000).start()
    try:
        world = World(cluster, "woken")
        for number in range(3):
            assert world.produce(b"%d" % number, timeout_ms=30_000).error_code == Errors.NONE
    finally:
        cluster.stop()


def test_a_restart_of_all_keeps_everything(tmp_path: Path) -> None:
    cluster = ReferenceBroker(tmp_path, 3).start()
    world = World(cluster, "kept")
    world.produce(b"kept")
    cluster.stop()
    cluster.start()
    assert (world.state.leader, world.state.leader_epoch) == (1, 1)
    assert world.values(1) == [b"kept"]
    assert world.produce(b"more").error_code == Errors.NONE
    cluster.stop()


def registrations(*racks: str | None) -> list[BrokerRegistration]:
    return [BrokerRegistration(number, "host", 1, rack) for number, rack in enumerate(racks)]


def test_replicas_are_spread_as_kafka_spreads_them() -> None:
    five = registrations(*[None] * 5)
    # The examples that stand in Kafka's source.
    assert assign_replicas_to_brokers(five, range(10), 3, 0, 0) == [
        *((0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1)),
        *((0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2)),
    ]
    six = registrations("rack1", "rack3", "rack3", "rack2", "rack2", "rack1")
    assert assign_replicas_to_brokers(six, range(7), 3, 0, 0) == [
        *((0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)),
    ]


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5])
def test_every_rack_gets_one_before_any_gets_two(replicas: int) -> None:
    racks = ("a", "a", "b", "c", "c")
    for row in assign_replicas_to_brokers(registrations(*racks), range(30), replicas, 3, 1):
        assert len(set(row)) == replicas
        assert len({racks[one] for one in row}) == min(3, replicas)


def test_too_few_brokers() -> None:
    with pytest.raises(ApiError, match="Unable to replicate"):
        assign_replicas_to_brokers(registrations(None, None), range(1), 3, 0, 0)
