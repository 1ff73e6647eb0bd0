"""Java's producer and consumer on the reference broker: the programs that Kafka is measured and verified with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.services.clients import consumer
from tests.services.java_tools import JavaTools
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

ANSWER_S = 60.0
RECORDS = 20_000
RECORD_BYTES = 200


def log_ends(kafka: Kafka, topic: str, partitions: int) -> list[int]:
    """Where each partition ends, control records counted."""
    reader = consumer(kafka.bootstrap, "log-ends")
    try:
        return [
            reader.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)[1] for number in range(partitions)
        ]
    finally:
        reader.close()


def committed(kafka: Kafka, group: str, topic: str, partitions: int) -> int:
    """The sum of a group's offsets."""
    reader = consumer(kafka.bootstrap, group)
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return sum(max(place.offset, 0) for place in reader.committed(places, ANSWER_S))
    finally:
        reader.close()


def test_producer_and_consumer_performance(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = clients_kafka.topic("performance", partitions=2)
    size = ("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES), "--throughput", "-1")
    said = java_tools.run(
        "ProducerPerformance", "--topic", topic, *size, "--producer-props", "acks=all", "compression.type=lz4"
    )
    assert f"{RECORDS} records sent" in said.splitlines()[-1]
    assert sum(log_ends(clients_kafka, topic, 2)) == RECORDS

    group = f"group-of-{topic}"
    said = java_tools.run(
        "ConsumerPerformance", "--topic", topic, "--group", group, "--num-records", str(RECORDS), "--timeout", "60000"
    )
    names, numbers = (line.split(", ") for line in said.splitlines()[-2:])
    measured = dict(zip(names, numbers, strict=True))
    assert int(measured["data.consumed.in.nMsg"]) == RECORDS
    assert float(measured["data.consumed.in.MB"]) == pytest.approx(RECORDS * RECORD_BYTES / (1 << 20), abs=1e-3)
    # Its consumer commits when it is closed.
    assert committed(clients_kafka, group, topic, 2) == RECORDS


def test_producer_performance_in_transactions(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = clients_kafka.topic("transactions", partitions=2)
    size = ("--num-records", "2000", "--record-size", str(RECORD_BYTES), "--throughput", "4000")
    ids = ("--transactional-id", topic, "--transaction-duration-ms", "2")
    said = java_tools.run("ProducerPerformance", "--topic", topic, *size, *ids)
    assert "2000 records sent" in said.splitlines()[-1]
    assert len(clients_kafka.read_all(topic)) == 2_000
    # Each transaction ends with a marker in each of its partitions.
    assert sum(log_ends(clients_kafka, topic, 2)) >= 2_000 + 10


def test_verifiable_producer_and_consumers_that_come_and_go(
    java_tools: JavaTools, clients_kafka: Kafka, tmp_path: Path
) -> None:
    topic = clients_kafka.topic("verifiable", partitions=2)
    # With keys both partitions get their part.
    producer = ("VerifiableProducer", "--topic", topic, "--acks", "-1", "--repeating-keys", "100")
    produced = events(java_tools.run(*producer, "--max-messages", "1000", "--value-prefix", "7"))
    sends = named(produced, "producer_send_success")
    assert sorted(int(event["value"].removeprefix("7.")) for event in sends) == list(range(1_000))
    assert named(produced, "tool_data")[0]["acked"] == 1_000
    for number, end in enumerate(log_ends(clients_kafka, topic, 2)):
        assert [event["offset"] for event in sends if event["partition"] == number] == list(range(end))

    group = f"group-of-{topic}"
    quick = tmp_path / "consumer.properties"
    quick.write_text("heartbeat.interval.ms=200\n")  # whoever comes and goes is noticed with a heartbeat
    options = ("--topic", topic, "--group-id", group, "--command-config", str(quick))
    with java_tools.started("VerifiableConsumer", *options) as first:
        assert places(first.wait_for("partitions_assigned")) == {0, 1}
        while consumed(first.events) < 1_000:
            first.wait_for("records_consumed")
        with java_tools.started("VerifiableConsumer", *options) as second:
            shares = [places(second.wait_for("partitions_assigned")), places(first.wait_for("partitions_assigned"))]
            assert sorted(map(sorted, shares)) == [[0], [1]]
            java_tools.run(*producer, "--max-messages", "500")
            second.wait_for("records_consumed")
            told = first.terminate()  # it commits and leaves
            assert all(event["success"] for event in named(told, "offsets_committed"))
            assert named(told, "shutdown_complete")
            assert places(second.wait_for("partitions_assigned")) == {0, 1}
            while consumed(told) + consumed(second.events) < 1_500:
                second.wait_for("records_consumed")
            assert consumed(told) + consumed(second.terminate()) == 1_500  # each record once
    assert committed(clients_kafka, group, topic, 2) == 1_500


def consumed(found: list[dict[str, Any]]) -> int:
    return sum(event["count"] for event in named(found, "records_consumed"))


def events(printed: str) -> list[dict[str, Any]]:
    lines = printed.replace("}{", "}\n{").splitlines()  # one formatter ends no lines
    return [json.loads(line) for line in lines if line.startswith("{")]


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["name"] == name]


def places(event: dict[str, Any]) -> set[int]:
    return {one["partition"] for one in event["partitions"]}


def test_console_producer_and_consumer(java_tools: JavaTools, clients_kafka: Kafka) -> None:
    topic = clients_kafka.topic("console", partitions=1)
    lines = [f"name:value {number},other:ü\tkey {number % 3}\tvalue {number}" for number in range(50)]
    reader = ("parse.key=true", "parse.headers=true")
    java_tools.run(
        "ConsoleProducer",
        *("--topic", topic),
        *(part for one in reader for part in ("--reader-property", one)),
        stdin="\n".join(lines) + "\n",
    )
    formatter = ("print.key=true", "print.headers=true", "print.offset=true", "print.timestamp=true")
    group = f"group-of-{topic}"
    said = java_tools.run(
        "ConsoleConsumer",
        *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(len(lines))),
        *(part for one in formatter for part in ("--formatter-property", one)),
    )
    shown = [line.split("\t", 2) for line in said.splitlines()]
    assert [rest for _, _, rest in shown] == lines
    assert [offset for _, offset, _ in shown] == [f"Offset:{number}" for number in range(len(lines))]
    assert all(re.fullmatch(r"CreateTime:\d{13}", time) for time, _, _ in shown)

    # What the broker has written of the group, read by Kafka's own reader of these records.
    [end] = log_ends(clients_kafka, "__consumer_offsets", 1)
    said = java_tools.run(
        "ConsoleConsumer",
        *("--topic", "__consumer_offsets", "--from-beginning", "--max-messages", str(end), "--timeout-ms", "60000"),
        *("--formatter", "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"),
    )
    offsets = [one for one in events(said) if one["key"]["data"]["group"] == group]
    assert [(one["key"]["data"]["topic"], one["value"]["data"]["offset"]) for one in offsets][-1] == (topic, len(lines))
