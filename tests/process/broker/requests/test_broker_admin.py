"""Administration of the reference broker, by librdkafka's admin client and in raw frames."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.unit.log_world import batch

ANSWER_S = 60.0


@pytest.fixture(scope="module")
def admin(broker: ReferenceBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def client(broker: ReferenceBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def done(futures: dict[Any, Any]) -> Any:
    [future] = futures.values()
    return future.result(ANSWER_S)


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    done(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))


def code_of(client: RawClient, api_key: ApiKey, version: int, **body: Any) -> int:
    answer = client.ask(api_key, version, **body)
    rows = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
    return int(rows[0].error_code)


def test_topics_are_created_grow_and_go(admin: AdminClient) -> None:
    create(admin, "grows", 2)
    done(admin.create_partitions([NewPartitions("grows", 5)]))
    assert len(admin.list_topics("grows", ANSWER_S).topics["grows"].partitions) == 5
    with pytest.raises(KafkaException, match="would not be an increase"):
        done(admin.create_partitions([NewPartitions("grows", 5)]))
    done(admin.delete_topics(["grows"]))
    assert "grows" not in admin.list_topics(timeout=ANSWER_S).topics
    create(admin, "grows")
    with pytest.raises(KafkaException, match="already exists"):
        create(admin, "grows")


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ({"name": "no good"}, Errors.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, Errors.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, Errors.INVALID_PARTITIONS),
        ({"num_partitions": 1 << 30}, Errors.INVALID_PARTITIONS),
        ({"replication_factor": 0}, Errors.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, Errors.INVALID_REPLICATION_FACTOR),
        ({"configs": [{"name": "no.such", "value": "1"}]}, Errors.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": "-2"}]}, Errors.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, Errors.INVALID_CONFIG),
        ({"configs": [{"name": "segment.bytes", "value": "1000"}]}, Errors.INVALID_CONFIG),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, Errors.INVALID_REQUEST),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 1, "broker_ids": [1]}],
            },
            Errors.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [9]}],
            },
            Errors.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_topics_that_cannot_be(client: RawClient, topic: dict[str, Any], expected: Errors) -> None:
    body = {"name": "never", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **topic}
    assert code_of(client, ApiKey.CREATE_TOPICS, 7, topics=[body], timeout=60_000) == expected
    names = {topic.name for topic in client.ask(ApiKey.METADATA, 12, topics=None).topics}
    assert names.isdisjoint({"never", "no good", ".."})


def test_names_that_differ_by_dots_only_collide(client: RawClient) -> None:
    assert client.create_topic("col.lide").error_code == Errors.NONE
    assert client.create_topic("col_lide").error_code == Errors.INVALID_TOPIC_EXCEPTION


def test_deleting_by_id_and_what_is_not_there(client: RawClient) -> None:
    topic_id = str(client.create_topic("by-id").topic_id)
    assert code_of(client, ApiKey.DELETE_TOPICS, 6, topics=[{"topic_id": topic_id}], timeout=60_000) == Errors.NONE
    again = code_of(client, ApiKey.DELETE_TOPICS, 6, topics=[{"topic_id": topic_id}], timeout=60_000)
    assert again == Errors.UNKNOWN_TOPIC_ID
    by_name = code_of(client, ApiKey.DELETE_TOPICS, 4, topic_names=["by-id"], timeout=60_000)
    assert by_name == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_waiting_fetch_learns_that_its_topic_is_gone(broker: ReferenceBroker, client: RawClient) -> None:
    client.create_topic("goes")
    client.send(ApiKey.FETCH, 12, **client.fetch_body("goes", 0, max_wait_ms=30_000))
    with RawClient(broker.bootstrap) as other:
        other.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["goes"], timeout=60_000)
    [answer] = client.receive(ApiKey.FETCH, 12).responses
    assert answer.partitions[0].error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_of_topics(admin: AdminClient, client: RawClient) -> None:
    create(admin, "set", retention_ms="60000")
    resource = ConfigResource(ResourceType.TOPIC, "set")

    def told(name: str) -> tuple[Any, Any]:
        entry = done(admin.describe_configs([resource]))[name]
        return entry.value, entry.source

    assert told("retention.ms") == ("60000", 1)
    assert told("cleanup.policy") == ("delete", 5)
    names = {name: list(entry.synonyms) for name, entry in done(admin.describe_configs([resource])).items()}
    assert names["max.message.bytes"] == ["message.max.bytes"]
    assert names["retention.ms"] == ["retention.ms", "log.retention.ms"]
    assert names["min.insync.replicas"] == ["min.insync.replicas"]
    change = [ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)]
    done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "set", incremental_configs=change)]))
    assert (told("max.message.bytes"), told("retention.ms")) == (("500", 1), ("60000", 1))
    assert client.produce("set", batch(bytes(600))).error_code == Errors.MESSAGE_TOO_LARGE
    body = {"resource_type": 2, "resource_name": "set"}
    entry = {"name": "cleanup.policy", "config_operation": 2, "value": "compact"}
    answer = client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**body, "configs": [entry]}], validate_only=False
    )
    assert answer.responses[0].error_code == Errors.NONE
    assert told("cleanup.policy")[0] == "delete,compact"
    assert client.produce("set", batch(b"x", key=None)).error_code == Errors.INVALID_RECORD
    client.ask(ApiKey.ALTER_CONFIGS, 2, resources=[{**body, "configs": []}], validate_only=False)
    assert (told("max.message.bytes")[1], told("cleanup.policy")) == (5, ("delete", 5))


def test_settings_that_cannot_be(client: RawClient) -> None:
    client.create_topic("kept-settings")

    def refusal(name: str = "kept-settings", kind: int = 2, **entry: Any) -> int:
        change = {"name": "retention.ms", "config_operation": 0, "value": "1", **entry}
        resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
        return code_of(client, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)

    assert refusal(name="nowhere") == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(kind=4) == Errors.INVALID_REQUEST
    assert refusal(value="x") == Errors.INVALID_CONFIG
    assert refusal(value=None) == Errors.INVALID_REQUEST
    assert refusal(config_operation=2) == Errors.INVALID_CONFIG


def test_settings_of_the_broker(admin: AdminClient) -> None:
    entries = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert entries["auto.create.topics.enable"].value == "false"


def test_a_brokers_settings_stay_and_taking_back_what_was_never_set_is_no_change(admin: AdminClient) -> None:
    def change(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("num.io.threads", value, incremental_operation=operation)
        done(admin.incremental_alter_configs([ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]))

    change(AlterConfigOpType.DELETE, None)
    with pytest.raises(KafkaException, match="Only settings of topics"):
        change(AlterConfigOpType.SET, "10")


def test_the_cluster_is_described(admin: AdminClient, client: RawClient) -> None:
    cluster = admin.describe_cluster().result(ANSWER_S)
    assert [(node.id, node.host) for node in cluster.nodes] == [(1, "127.0.0.1")]
    assert cluster.controller.id == 1
    assert cluster.cluster_id == client.ask(ApiKey.METADATA, 12, topics=[]).cluster_id


def first_offset(admin: AdminClient, wanted: OffsetSpec) -> int:
    offset: int = done(admin.list_offsets({TopicPartition("cut", 0): wanted})).offset
    return offset


def test_records_are_deleted(admin: AdminClient, client: RawClient) -> None:
    create(admin, "cut")
    for _ in range(3):
        client.produce("cut", batch(b"a", b"b"))
    deleted = admin.delete_records([TopicPartition("cut", 0, 3)])
    assert done(deleted).low_watermark == 3
    assert client.fetch("cut", 2).error_code == Errors.OFFSET_OUT_OF_RANGE
    assert client.fetch("cut", 3).log_start_offset == 3
    with pytest.raises(KafkaException):
        done(admin.delete_records([TopicPartition("cut", 0, 7)]))
    assert first_offset(admin, OffsetSpec.earliest()) == first_offset(admin, OffsetSpec.for_timestamp(0)) == 3
    assert done(admin.delete_records([TopicPartition("cut", 0, OFFSET_END)])).low_watermark == 6
    assert (first_offset(admin, OffsetSpec.earliest()), first_offset(admin, OffsetSpec.for_timestamp(0))) == (6, -1)


def test_records_of_a_compacted_topic_are_not_deleted(client: RawClient) -> None:
    client.create_topic("compacted", cleanup_policy="compact")
    topic = {"name": "compacted", "partitions": [{"partition_index": 0, "offset": 0}]}
    [answer] = client.ask(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout=60_000).topics
    assert answer.partitions[0].error_code == Errors.POLICY_VIOLATION


def test_where_an_epoch_ends_producers_and_sizes(client: RawClient) -> None:
    client.create_topic("facts")
    client.produce("facts", batch(b"a"))
    wanted = {"topic": "facts", "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
    [answer] = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[wanted]).topics
    assert (answer.partitions[0].leader_epoch, answer.partitions[0].end_offset) == (0, 1)
    [answer] = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "facts", "partition_indexes": [0, 1]}]).topics
    codes = [one.error_code for one in answer.partitions]
    assert codes == [Errors.NONE, Errors.UNKNOWN_TOPIC_OR_PARTITION]
    [directory] = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": "facts", "partitions": [0]}]).results
    assert directory.topics[0].partitions[0].partition_size == len(batch(b"a"))


def test_elections_on_one_broker_are_not_needed(client: RawClient) -> None:
    client.create_topic("led")
    wanted = [{"topic": "led", "partitions": [0, 9]}]
    answer = client.ask(ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=wanted, timeout=60_000)
    [topic] = answer.replica_election_results
    codes = [one.error_code for one in topic.partition_result]
    assert codes == [Errors.ELECTION_NOT_NEEDED, Errors.UNKNOWN_TOPIC_OR_PARTITION]
    everything = client.ask(ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout=60_000)
    assert everything.replica_election_results == ()


class Session:
    """A client's side of a fetch session of version 12 or 13 on."""

    def __init__(self, client: RawClient, version: int = 12) -> None:
        self.client, self.version = client, version
        self.session_id = self.epoch = 0

    def fetch(self, wanted: dict[tuple[str, int], int], forgotten: Any = (), **more: Any) -> Any:
        name = "topic_id" if self.version >= 13 else "topic"
        topics = [
            {name: topic, "partitions": [{"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]}
            for (topic, number), offset in wanted.items()
        ]
        left = [{name: topic, "partitions": [number]} for topic, number in forgotten]
        body = {"max_wait": 0, "min_bytes": 1, "topics": topics, "forgotten_topics_data": left, **more}
        body |= {"session_id": self.session_id, "session_epoch": self.epoch}
        answer = self.client.ask(ApiKey.FETCH, self.version, **body)
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        assert answer.error_code == Errors.NONE
        return {
            (str(getattr(topic, name)), row.partition_index): row
            for topic in answer.responses
            for row in topic.partitions
        }


def test_a_session_tells_only_what_is_new(client: RawClient) -> None:
    client.create_topic("session", 3)
    session = Session(client)
    first = session.fetch({("session", number): 0 for number in range(3)})
    assert (len(first), session.session_id > 0) == (3, True)
    assert session.fetch({}) == {}
    client.produce("session", batch(b"new"), partition=1)
    [(key, row)] = session.fetch({}).items()
    assert (key, row.high_watermark) == (("session", 1), 1)
    assert set(session.fetch({("session", 1): 1})) == set()
    client.produce("session", batch(b"new"), partition=2)
    assert session.fetch({}, forgotten=[("session", 2)]) == {}


def test_a_session_that_is_not_known_or_out_of_turn(client: RawClient) -> None:
    client.create_topic("turns")
    session = Session(client)
    session.fetch({("turns", 0): 0})
    body = {"max_wait": 0, "min_bytes": 1, "topics": [], "forgotten_topics_data": []}

    def code(session_id: int, epoch: int) -> int:
        return int(client.ask(ApiKey.FETCH, 12, **body, session_id=session_id, session_epoch=epoch).error_code)

    assert code(session.session_id, 5) == Errors.INVALID_FETCH_SESSION_EPOCH
    assert code(session.session_id + 1, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND
    assert code(session.session_id, -1) == Errors.NONE
    assert code(session.session_id, 1) == Errors.FETCH_SESSION_ID_NOT_FOUND


def test_a_deleted_topic_in_a_session_is_unknown_by_name_and_outside_by_id(client: RawClient) -> None:
    topic_id = str(client.create_topic("leaves").topic_id)
    session = Session(client, 13)
    session.fetch({(topic_id, 0): 0})
    client.ask(ApiKey.DELETE_TOPICS, 4, topic_names=["leaves"], timeout=60_000)
    for _ in range(2):
        [row] = session.fetch({}).values()
        assert row.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    outside = Session(client, 13)
    outside.epoch = -1
    [row] = outside.fetch({(topic_id, 0): 0}).values()
    assert row.error_code == Errors.UNKNOWN_TOPIC_ID
