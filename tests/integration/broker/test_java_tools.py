"""Kafka's administrative tools on the reference broker: topics, settings, offsets, groups, records deleted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition

from sidecar.embedded.kafka import ReferenceKafka
from tests.services.clients import consumer
from tests.services.fixtures import own_tools
from tests.services.java_tools import JavaTools
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

MOVED_S = 200.0


def test_topics_are_created_described_grown_and_deleted(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = f"made-by-java-{uuid4().hex[:8]}"
    settings = ("--config", "retention.ms=60000", "--config", "cleanup.policy=compact,delete")
    said = java_tools.run("TopicCommand", "--create", "--topic", topic, "--partitions", "2", *settings)
    assert f"Created topic {topic}." in said
    java_tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    heading, *rows = java_tools.run("TopicCommand", "--describe", "--topic", topic).strip().splitlines()
    fields = dict(part.split(": ", 1) for part in heading.strip().split("\t"))
    assert (fields["Topic"], fields["PartitionCount"], fields["ReplicationFactor"]) == (topic, "3", "1")
    assert {"retention.ms=60000", "cleanup.policy=compact,delete"} <= set(re.split(r",(?=[a-z.]+=)", fields["Configs"]))
    assert re.fullmatch(r"[\w-]{22}", fields["TopicId"])
    described = [dict(part.split(": ", 1) for part in row.strip().split("\t") if ": " in part) for row in rows]
    assert [(row["Partition"], row["Leader"], row["Replicas"], row["Isr"]) for row in described] == [
        (str(number), "1", "1", "1") for number in range(3)
    ]
    said = java_tools.run("TopicCommand", "--create", "--topic", topic, status=1)
    assert f"Topic '{topic}' already exists" in said
    java_tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in java_tools.run("TopicCommand", "--list").splitlines()


def test_settings_are_changed_and_described(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = clients_kafka.topic("settings", retention_ms=60_000)
    name = ("--entity-type", "topics", "--entity-name", topic)
    said = java_tools.run(
        "ConfigCommand", "--alter", *name, "--add-config", "max.message.bytes=4711", "--delete-config", "retention.ms"
    )
    assert f"Completed updating config for topic {topic}." in said
    said = java_tools.run("ConfigCommand", "--describe", *name)
    assert "max.message.bytes=4711" in said
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=4711" in said
    assert "DEFAULT_CONFIG:message.max.bytes=1048588" in said
    assert "retention.ms=60000" not in said
    said = java_tools.run("ConfigCommand", "--alter", *name, "--add-config", "max.message.bytes=much", status=1)
    assert "Invalid value much for configuration max.message.bytes" in said


def test_records_are_deleted_and_offsets_told(java_tools: JavaTools, clients_kafka: Kafka, tmp_path: Path) -> None:
    topic = clients_kafka.topic("deleted", partitions=2)
    clients_kafka.produce(topic, [(None, b"x", (), 1_000 + number, 0) for number in range(10)])
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}))
    said = java_tools.run("DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 4" in said
    reader = consumer(clients_kafka.bootstrap, "none")
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_TIMEOUT_S) == (4, 10)
    reader.close()
    for time, offsets in (("earliest", (4, 0)), ("latest", (10, 0)), ("1007", (7, None)), ("max-timestamp", (9, None))):
        said = java_tools.run("GetOffsetShell", "--topic", topic, "--time", time)
        told = {line for line in said.splitlines() if line.startswith(topic)}
        assert told == {f"{topic}:{number}:{at}" for number, at in enumerate(offsets) if at is not None}, time


def test_groups_are_described_reset_and_deleted(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = clients_kafka.topic("described")
    group = f"group-of-{topic}"
    clients_kafka.produce(topic, [(None, b"x")] * 10)
    java_tools.run("ConsoleConsumer", "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "10")
    clients_kafka.produce(topic, [(None, b"x")] * 3)
    [row] = table(java_tools.run("ConsumerGroupCommand", "--describe", "--group", group))
    assert (row["TOPIC"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == (topic, "10", "13", "3")
    back = ("--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-4", "--execute")
    assert [row["NEW-OFFSET"] for row in table(java_tools.run("ConsumerGroupCommand", *back))] == ["6"]

    options = ("--topic", topic, "--group-id", group)
    with java_tools.started("VerifiableConsumer", *options) as member:
        member.wait_for("offsets_committed")
        [state] = table(java_tools.run("ConsumerGroupCommand", "--describe", "--group", group, "--state"))
        assert (state["STATE"], state["#MEMBERS"], state["ASSIGNMENT-STRATEGY"]) == ("Stable", "1", "range")
        assert "The group is not empty" in java_tools.run("ConsumerGroupCommand", "--delete", "--group", group)
        assert sum(event["count"] for event in member.events if event["name"] == "records_consumed") == 7
        member.terminate()
    assert "was successful" in java_tools.run("ConsumerGroupCommand", "--delete", "--group", group)
    assert group not in java_tools.run("ConsumerGroupCommand", "--list").splitlines()


def test_the_quorum_is_described(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    status = java_tools.run("MetadataQuorumCommand", "describe", "--status")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert (fields["LeaderId"].strip(), fields["MaxFollowerLag"].strip(), fields["CurrentObservers"].strip()) == (
        "1", "0", "[]",
    )  # fmt: skip
    [voter] = json.loads(fields["CurrentVoters"])
    assert voter["id"] == 1
    heading, row = java_tools.run("MetadataQuorumCommand", "describe", "--replication").strip().splitlines()
    replica = dict(zip(heading.split(), row.split(), strict=True))
    assert (replica["NodeId"], replica["Lag"], replica["Status"]) == ("1", "0", "Leader")


def table(printed: str) -> list[dict[str, str]]:
    """Rows of a tool's table by its heading; words before and after it are passed over."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[ReferenceKafka]:
    kafka = ReferenceKafka(tmp_path / "three", brokers=3)
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.kill()


def test_replicas_move_and_a_leader_is_elected(three_brokers: ReferenceKafka, tmp_path: Path) -> None:
    topic, tools = "moved", own_tools(three_brokers, tmp_path)
    tools.run("TopicCommand", "--create", "--topic", topic, "--replica-assignment", "1:2")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [3, 1]}]}))
    move = ("ReassignPartitionsCommand", "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignment" in tools.run(*move, "--execute")
    wait_until(lambda: "is completed." in tools.run(*move, "--verify"), MOVED_S, lambda: "the move does not end")
    elect = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Successfully completed leader election" in tools.run("LeaderElectionCommand", *elect)
    row = tools.run("TopicCommand", "--describe", "--topic", topic).strip().splitlines()[1]
    fields = dict(part.split(": ", 1) for part in row.strip().split("\t") if ": " in part)
    assert (fields["Leader"], fields["Replicas"], set(fields["Isr"].split(","))) == ("3", "3,1", {"1", "3"})
