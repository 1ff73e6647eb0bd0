"""Experiments on three reference brokers and three real ones alike, in raw frames: who may be asked what, who leads
when one goes, where replicas are and move to. Each experiment gives what a client sees.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from tests.services.broker_experiments import now
from tests.services.kafka_servers import KafkaCluster
from tests.services.raw_client import RawClient
from tests.services.raw_transaction import Transaction, settled
from tests.services.waiting import wait_until

BROKERS: Final = (1, 2, 3)
SETTLED_S: Final = 120.0
SHORT_MS: Final = 1_000
METADATA: Final = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}


class Scene:
    """A cluster, and a topic of one partition that broker 1 leads, unless the experiment says otherwise."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.addresses = cluster.bootstrap.split(",")
        self.topic = self.create([1, 2, 3])

    def ask(self, broker_id: int, api_key: ApiKey, version: int, **body: Any) -> Any:
        """One request over a connection of its own: brokers come and go."""
        with RawClient(self.addresses[broker_id - 1]) as client:
            return client.ask(api_key, version, **body)

    def create(self, *replicas: Sequence[int], **config: object) -> str:
        """A topic with these replicas of its partitions, once its first leader knows of it."""
        name = f"cluster-{uuid.uuid4().hex[:8]}"
        answer = self.try_to_create(name, *replicas, **config)
        assert answer == Errors.NONE, answer
        wait_until(lambda: self.fetch(replicas[0][0], name)[0] == 0, SETTLED_S, lambda: f"nobody leads {name}")
        return name

    def try_to_create(self, name: str, *replicas: Sequence[int], **config: object) -> int:
        rows = [{"partition_index": number, "broker_ids": list(one)} for number, one in enumerate(replicas)]
        configs = [{"name": key.replace("_", "."), "value": str(value)} for key, value in config.items()]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows, "configs": configs}
        [answer] = self.ask(1, ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=60_000).topics
        return int(answer.error_code)

    def produce(self, broker_id: int, topic: str = "", **more: Any) -> tuple[int, int]:
        with RawClient(self.addresses[broker_id - 1]) as client:
            answer = client.produce(topic or self.topic, now(), **more)
        return int(answer.error_code), answer.base_offset

    def fetch(self, broker_id: int, topic: str = "", offset: int = 0, **more: Any) -> tuple[int, int, int]:
        with RawClient(self.addresses[broker_id - 1]) as client:
            answer = client.fetch(topic or self.topic, offset, **more)
        return int(answer.error_code), answer.high_watermark, len(answer.records or b"")

    def stable_end(self, broker_id: int, topic: str) -> tuple[int, int]:
        """The code, and how far a reader of committed records may read."""
        with RawClient(self.addresses[broker_id - 1]) as client:
            answer = client.fetch(topic, 0, isolation_level=1)
        return int(answer.error_code), answer.last_stable_offset

    def partition(self, asked: int = 1, topic: str = "") -> tuple[int, int, list[int], list[int], list[int]]:
        """Leader and its epoch, replicas, those in sync and those that are away, as a broker tells them."""
        [one] = self.partitions(asked, topic)
        replicas = [int(number) for number in one.replica_nodes]
        return one.leader_id, one.leader_epoch, replicas, sorted(one.isr_nodes), sorted(one.offline_replicas)

    def partitions(self, asked: int, topic: str = "") -> Sequence[Any]:
        """The topic's partitions as a broker tells them: none while it hasn't heard of the topic."""
        body = {"topics": [{"name": topic or self.topic}], "allow_auto_topic_creation": False}
        [found] = self.ask(asked, ApiKey.METADATA, 9, **body).topics
        return found.partitions  # type: ignore[no-any-return]

    def wait_for(self, broker_id: int, topic: str = "", **wanted: Any) -> None:
        """Until a broker tells this leader or this ISR: Kafka's metadata take their time."""

        def is_told() -> bool:
            if not self.partitions(broker_id, topic):
                return False
            leader, _, replicas, isr, _ = self.partition(broker_id, topic)
            told = {"leader": leader, "replicas": replicas, "isr": isr}
            return all(told[name] == value for name, value in wanted.items())

        wait_until(is_told, SETTLED_S, lambda: f"{self.partitions(broker_id, topic)}, not {wanted}")

    def end_of_epoch(self, broker_id: int, epoch: int) -> tuple[int, int, int]:
        row = {"topic": self.topic, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}]}
        [found] = self.ask(broker_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[row]).topics
        [one] = found.partitions
        return int(one.error_code), one.leader_epoch, one.end_offset

    def elect(self, topic: str = "", election_type: int = 0, asked: int = 1) -> int:
        body = {"election_type": election_type, "timeout": 60_000}
        wanted = [{"topic": topic or self.topic, "partitions": [0]}]
        answer = self.ask(asked, ApiKey.ELECT_LEADERS, 2, topic_partitions=wanted, **body)
        return int(answer.replica_election_results[0].partition_result[0].error_code)

    def move(self, replicas: Sequence[int] | None, topic: str = "") -> int:
        row = {"partition_index": 0, "replicas": None if replicas is None else list(replicas)}
        topics = [{"name": topic or self.topic, "partitions": [row]}]
        answer = self.ask(1, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=60_000)
        return int(answer.responses[0].partitions[0].error_code)


def who_may_be_asked(scene: Scene) -> Any:
    """The leader, a follower, and a broker that has no replica."""
    topic = scene.create([1, 2])
    assert scene.produce(1, topic) == (0, 0)
    wait_until(lambda: scene.fetch(2, topic)[:2] == (0, 1), SETTLED_S, lambda: str(scene.fetch(2, topic)))

    def list_offsets(broker_id: int) -> int:
        row = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        topics = [{"name": topic, "partitions": [row]}]
        answer = scene.ask(broker_id, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    compacted = scene.create([1, 2], cleanup_policy="compact")

    def delete(broker_id: int, topic: str) -> int:
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
        answer = scene.ask(broker_id, ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=60_000)
        return int(answer.topics[0].partitions[0].error_code)

    return {
        number: (
            scene.produce(number, topic)[0],
            scene.produce(number, topic, acks=1)[0],
            scene.fetch(number, topic)[0],
            scene.fetch(number, topic, version=9)[0],
            list_offsets(number),
            delete(number, topic),
            delete(number, compacted),  # only the leader looks at the policy
        )
        for number in BROKERS
    }


def replicas_that_cannot_be(scene: Scene) -> Any:
    name = f"{scene.topic}-no"
    rows: list[list[int]] = [[1, 1], [1, 9], [], [-1]]

    def factor(count: int) -> int:
        body = {"name": name, "num_partitions": 1, "replication_factor": count, "assignments": [], "configs": []}
        [answer] = scene.ask(1, ApiKey.CREATE_TOPICS, 7, topics=[body], timeout=60_000).topics
        return int(answer.error_code)

    def grow(*assignments: list[int]) -> int:
        wanted = [{"name": scene.topic, "count": 2, "assignments": [{"broker_ids": one} for one in assignments]}]
        answer = scene.ask(1, ApiKey.CREATE_PARTITIONS, 3, topics=wanted, timeout=60_000, validate_only=True)
        return int(answer.results[0].error_code)

    return (
        [scene.try_to_create(name, row) for row in rows],
        scene.try_to_create(name, [1, 2], [3]),
        [factor(count) for count in (4, 0, -2)],
        [grow([3, 2, 1]), grow([3]), grow([3, 3]), grow([1, 2, 3], [1, 2, 3]), grow([1, 2, 9])],
    )


def what_is_told(scene: Scene) -> Any:
    """By each broker the same, of the partition and of the cluster."""
    scene.wait_for(2, isr=[1, 2, 3])
    scene.wait_for(3, isr=[1, 2, 3])
    clusters = [scene.ask(number, ApiKey.DESCRIBE_CLUSTER, 1) for number in BROKERS]
    return (
        [scene.partition(number) for number in BROKERS],
        [sorted(one.broker_id for one in found.brokers) for found in clusters],
        [found.controller_id in BROKERS for found in clusters],
    )


def quorum_of_three(scene: Scene) -> Any:
    answers = [scene.ask(number, ApiKey.DESCRIBE_QUORUM, 2, topics=[METADATA]) for number in BROKERS]
    rows = [answer.topics[0].partitions[0] for answer in answers]
    seen = [
        [(v.replica_id, v.log_end_offset > 0, v.last_fetch_timestamp > 0) for v in row.current_voters] for row in rows
    ]
    return (
        [row.leader_id in BROKERS for row in rows],
        len({(row.leader_id, row.leader_epoch) for row in rows}),
        [sorted(one) for one in seen],
        [row.observers for row in rows],
        [sorted((node.node_id, len(node.listeners)) for node in answer.nodes) for answer in answers],
    )


def elections(scene: Scene) -> Any:
    asked = [scene.elect(), scene.elect(f"{scene.topic}-nowhere"), scene.elect(election_type=1)]
    asked.append(scene.move([2, 1, 3]))
    scene.wait_for(1, replicas=[2, 1, 3])
    before = scene.partition()
    asked.append(scene.elect())
    scene.wait_for(1, leader=2)
    wait_until(lambda: scene.produce(2)[0] == 0, SETTLED_S, lambda: str(scene.produce(2)))
    return asked, before, scene.partition(), scene.produce(1)[0], scene.elect()


def moves(scene: Scene) -> Any:
    topic = scene.create([1, 2])
    for _ in range(3):
        scene.produce(1, topic)
    refused = [scene.move(one, topic) for one in ([], [1, 1], [1, 9], [-1], None)]
    refused.append(scene.move([1], f"{topic}-nowhere"))
    moved = scene.move([3, 2], topic)
    scene.wait_for(1, topic, leader=3, replicas=[3, 2], isr=[2, 3])
    wait_until(lambda: scene.fetch(3, topic)[0] == 0, SETTLED_S, lambda: str(scene.fetch(3, topic)))
    listed = scene.ask(1, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=60_000)
    wait_until(lambda: scene.produce(1, topic)[0] != 0, SETTLED_S, lambda: "the former leader leads on")
    return refused, moved, scene.fetch(3, topic), scene.produce(1, topic)[0], len(listed.topics)


def one_goes_and_comes_back(scene: Scene) -> Any:
    """The leader goes, in order: another leads in another epoch; back, it follows until it is preferred again."""
    strict = scene.create([2, 3, 1], min_insync_replicas=3)
    lonely = scene.create([3])
    topic = scene.create([3, 1, 2])
    scene.topic = topic
    produced = [scene.produce(3), scene.produce(3), scene.produce(2, strict)]
    scene.cluster.nodes[2].stop()
    scene.wait_for(1, leader=1, isr=[1, 2])
    scene.wait_for(2, strict, isr=[1, 2])
    wait_until(lambda: scene.produce(1)[0] == 0, SETTLED_S, lambda: str(scene.produce(1)))
    gone = (
        scene.partition(),
        scene.partition(1, strict)[2:],
        scene.partition(1, lonely)[2:],
        scene.produce(2, strict)[0],
        scene.produce(2, strict, acks=1)[0],
        [scene.fetch(1, current_leader_epoch=epoch)[0] for epoch in (0, 1, 2)],
        [scene.end_of_epoch(1, epoch) for epoch in (-1, 0, 1, 2)],
        [scene.elect(), scene.elect(lonely), scene.elect(lonely, 1)],
        sorted(one.broker_id for one in scene.ask(1, ApiKey.DESCRIBE_CLUSTER, 1).brokers),
        [scene.try_to_create(f"{topic}-no", [3]), scene.try_to_create(f"{topic}-some", [3, 1])],
    )
    scene.cluster.nodes[2].start()
    scene.wait_for(1, isr=[1, 2, 3])
    scene.wait_for(1, strict, isr=[1, 2, 3])
    scene.wait_for(1, lonely, leader=3)
    back = scene.partition()[0], scene.produce(2, strict)[0], scene.elect()
    scene.wait_for(3, leader=3)
    wait_until(lambda: scene.produce(3)[0] == 0, SETTLED_S, lambda: str(scene.produce(3)))
    return produced, gone, back, scene.partition(3), [scene.end_of_epoch(3, epoch) for epoch in (0, 1, 2)][:2]


def coordinators_move(scene: Scene) -> Any:
    """A group's offset and an open transaction, over the end of the broker that coordinates both or one of them."""
    name = scene.topic
    targets = [scene.create([2, 3, 1]), scene.create([3, 1, 2])]

    def find(asked: int, kind: int) -> tuple[int, int]:
        answer = scene.ask(asked, ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[name])
        return int(answer.coordinators[0].error_code), answer.coordinators[0].node_id

    def found(kind: int, *without: int) -> int:
        asked = [number for number in BROKERS if number not in without]

        def is_one() -> bool:
            told = {find(number, kind) for number in asked}
            return len(told) == 1 and all(code == 0 and node in asked for code, node in told)

        wait_until(is_one, SETTLED_S, lambda: str([find(number, kind) for number in asked]))
        return find(asked[0], kind)[1]

    def commit(broker_id: int) -> int:
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
        body = {"group_id": name, "generation_id_or_member_epoch": -1, "member_id": ""}
        topics = [{"name": scene.topic, "partitions": [partition]}]
        answer = scene.ask(broker_id, ApiKey.OFFSET_COMMIT, 8, **body, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    def committed(broker_id: int) -> tuple[int, int, int]:
        topics = [{"name": scene.topic, "partition_indexes": [0]}]
        answer = scene.ask(broker_id, ApiKey.OFFSET_FETCH, 7, group_id=name, topics=topics, require_stable=True)
        rows = [one for topic in answer.topics for one in topic.partitions]
        return int(answer.error_code), *next(((int(one.error_code), one.committed_offset) for one in rows), (0, 0))

    group, transactions = found(0), found(1)
    others = [number for number in BROKERS if number != group]
    codes = settled(lambda: commit(group)), [commit(number) for number in others]
    fetched = committed(group), [committed(number)[0] for number in others]
    producer = Transaction(scene, name)
    begun = producer.begin(transactions)
    stranger = next(number for number in BROKERS if number != transactions)
    asked = [producer.add(stranger, targets), producer.end(stranger)]
    asked += [producer.add(transactions, targets), producer.produce(2, targets[0]), producer.produce(3, targets[1])]
    open_ends = [scene.stable_end(leader, topic) for leader, topic in zip((2, 3), targets, strict=True)]
    scene.cluster.nodes[transactions - 1].stop()
    after, heir = found(0, transactions), found(1, transactions)
    wait_until(lambda: committed(after)[0] == 0, SETTLED_S, lambda: str(committed(after)))
    kept = committed(after)
    ended = settled(lambda: producer.end(heir))
    scene.cluster.nodes[transactions - 1].start()
    for leader, topic in zip((2, 3), targets, strict=True):
        scene.wait_for(1, topic, isr=[1, 2, 3])
        scene.elect(topic)
        scene.wait_for(leader, topic, leader=leader)
        wait_until(lambda leader=leader, topic=topic: scene.stable_end(leader, topic)[:2] == (0, 2), SETTLED_S)  # type: ignore[misc]
    return codes, fetched, begun, asked, open_ends, kept, ended


Experiment = Callable[[Scene], Any]
EXPERIMENTS: Final[dict[str, Experiment]] = {
    one.__name__: one
    for one in (
        who_may_be_asked,
        replicas_that_cannot_be,
        what_is_told,
        quorum_of_three,
        elections,
        moves,
        one_goes_and_comes_back,
        coordinators_move,
    )
}
LONG: Final = ("coordinators_move",)  # they wait for what brokers take their time for
