"""A cluster of three brokers that loses one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.integration.conftest import SOAK
from tests.services.fixtures import CHOICE, own_broker, own_cluster
from tests.services.kafka import Kafka
from tests.services.kafka_servers import KafkaCluster
from tests.services.reference_cluster import ReferenceClusterServer
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: replicated
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out", allow: ["~*"]}
"""
RECOVERY_S = 240.0  # a target that did not acknowledge is tried again after 5 s, then after twice that, to 60 s
ANSWER_S = 180.0


# The reference cluster by itself: `make integration-reference`.
CLUSTERS = [own_cluster, ReferenceClusterServer] if SOAK and CHOICE != "reference" else [own_cluster]


@pytest.fixture(params=CLUSTERS, ids=lambda kind: kind.__name__)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaCluster]:
    """Both kinds in turn, unless only ours is asked for."""
    with own_broker(request.param(tmp_path / "cluster")) as server:
        yield server


@pytest.mark.timeout(900)
def test_a_target_with_too_few_replicas_in_sync_holds_up_no_other(
    cluster: KafkaCluster, redis_url: str, tmp_path: Path
) -> None:
    site = Site(Kafka(cluster, replicas=3), redis_url, tmp_path)
    site.policies(POLICIES)
    source = site.topic("in")
    usual, strict = site.topic("out"), site.topic("strict", min_insync_replicas=3)
    partly = site.name("partly")
    replicas = NewTopic(partly, 3, replica_assignment=[[1, 2], [2, 3], [3, 1]], config={"min.insync.replicas": "2"})
    site.kafka.admin.create_topics([replicas])[partly].result(ANSWER_S)
    single = one_replica_each(site)
    sidecar = site.sidecar("one", KAFKA__CLIENT__CLIENT_RACK="rack-3").start()  # it reads from the broker that goes
    try:
        send = site.kafka.produce
        send(source, [(b"key", b"usual %d" % number, (), 0, 0) for number in range(20)])
        assert len(site.kafka.read(usual, 20, ANSWER_S)) == 20
        to_each = [[("tickover-target", partly.encode()), ("tickover-target-partition", b"%d" % n)] for n in range(3)]
        send(source, [(b"key", b"%d" % n, headers, 0, 0) for n, headers in enumerate(to_each)])
        assert len(site.kafka.read(partly, 3, ANSWER_S)) == 3
        cluster.nodes[2].stop()
        send(source, [(b"key", b"%d" % number, [("tickover-target", strict.encode())], 0, 0) for number in range(5)])
        send(source, [(b"key", b"then %d" % number, (), 0, 0) for number in range(20)])
        assert len(site.kafka.read(usual, 40, ANSWER_S)) == 40, "only one topic has too few replicas"
        send(source, [(b"key", b"%d" % n, to_each[n % 3], 0, 0) for n in range(30)])
        send(source, [(None, b"%d" % n, to_each[0][:1], 0, 0) for n in range(30, 40)])
        assert len(site.kafka.read(partly, 3 + 10, ANSWER_S)) == 3 + 10, "a partition of it has enough"
        to_single = [[("tickover-target", single.encode()), ("tickover-target-partition", b"%d" % n)] for n in range(2)]
        send(source, [(b"key", b"%d" % n, to_single[n % 2], 0, 0) for n in range(10)])
        assert len(site.kafka.read(single, 5, ANSWER_S)) == 5, "one that nobody had asked about, without a leader"
        cluster.nodes[2].start()
        # They were under way in different transactions, each of which is tried again by itself: in no promised order.
        arrived = sorted(message.value() or b"" for message in site.kafka.read(strict, 5, RECOVERY_S))
        assert arrived == [b"%d" % number for number in range(5)]
        assert len(site.kafka.read(partly, 43, RECOVERY_S)) == 43
        assert len(site.kafka.read(single, 10, RECOVERY_S)) == 10
        assert sidecar.stop() == 0
        assert len(site.kafka.read_all(partly)) == 43
        assert len(site.kafka.read_all(strict)) == 5
        assert site.kafka.read_all(site.quarantine) == []
    finally:
        site.close()


def one_replica_each(site: Site) -> str:
    """A topic whose second partition goes with the third broker."""
    name = site.name("single")
    replicas = NewTopic(name, 2, replica_assignment=[[1], [3]])
    site.kafka.admin.create_topics([replicas])[name].result(ANSWER_S)
    return name


@pytest.mark.timeout(900)
def test_at_least_once_repeats_of_others_only_what_was_sent_until_it_was_found(
    cluster: KafkaCluster, redis_url: str, tmp_path: Path
) -> None:
    site = Site(Kafka(cluster, replicas=3), redis_url, tmp_path)
    site.policies(POLICIES)
    source, usual, strict = site.topic("in"), site.topic("out"), site.topic("strict", min_insync_replicas=3)
    single = one_replica_each(site)
    sidecar = site.sidecar("one", GUARANTEE="at_least_once").start()

    def send(numbers: range) -> None:
        """The odd ones where the third broker is needed."""
        to_strict = [("tickover-target", strict.encode())]
        to_single = [("tickover-target", single.encode()), ("tickover-target-partition", b"1")]
        ways = ((), to_strict, (), to_single)
        site.kafka.produce(source, [(b"key", b"%d" % number, ways[number % 4], 0, 0) for number in numbers])

    def arrived() -> Counter[int]:
        topics = (usual, strict, single)
        return Counter(int(message.value() or b"") for topic in topics for message in site.kafka.read_all(topic))

    def settled() -> int:
        return int(sidecar.stats()["topics"][source]["emitted"])

    try:
        send(range(20))
        wait_until(lambda: settled() == 20, ANSWER_S)
        cluster.nodes[2].stop()
        found = 20
        while sidecar.stats()["suspended"] != sorted([single, strict]):
            send(range(found, found + 4))
            found += 4
        before = settled()
        send(range(found, found + 40))
        wait_until(lambda: settled() >= before + 20, ANSWER_S)
        sidecar.kill()
        cluster.nodes[2].start()
        sidecar.start()
        wait_until(lambda: arrived().keys() == set(range(found + 40)), RECOVERY_S)
        assert sidecar.stop() == 0
        assert {number for number, count in arrived().items() if count > 1} <= set(range(20, found))
    finally:
        site.close()
