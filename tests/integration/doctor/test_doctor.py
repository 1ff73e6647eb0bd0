"""The doctor on a real broker: what it asks is answered as it expects, and it changes nothing."""

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from policies.model import Policy
from policies.topic.log import Change, encode_change
from sidecar.doctor import doctor
from sidecar.doctor.facts import Finding, Severity
from sidecar.settings.settings import Settings
from tests.services.kafka import Kafka
from tests.services.waiting import WAIT_S

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("patient_doctor")]


class Place:
    """Topic names of one test's own, and the settings that name them."""

    def __init__(self, kafka: Kafka) -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.kafka = kafka
        self.source, self.target = f"source-{self.mark}", f"target-{self.mark}"
        self.settings = Settings.model_validate(
            {
                "group": self.mark,
                "kafka": {"bootstrap_servers": kafka.bootstrap},
                "policies": {"topic": f"policies-{self.mark}"},
                "quarantine": {"topic": f"quarantine-{self.mark}"},
            }
        )

    def publish(self, delay_max: str) -> None:
        policy = Policy.model_validate(
            {
                "name": "doctored",
                "match": {"topics": [self.source]},
                "delay": {"max": delay_max},
                "target": {"allow": [self.target]},
            }
        )
        change = Change(write="w", name="doctored", expected=0, author="test", managed_by="api", policy=policy)
        self.kafka.produce(self.settings.policies.topic, [(b"doctored", encode_change(change))])

    def findings(self) -> dict[str, Finding]:
        """The worst finding of each part about Kafka."""
        worst: dict[str, Finding] = {}
        order = [Severity.OK, Severity.WARNING, Severity.ERROR]
        for finding in doctor.examine(self.settings):
            before = worst.get(finding.part)
            if before is None or order.index(finding.severity) > order.index(before.severity):
                worst[finding.part] = finding
        return worst


@pytest.fixture
def place(kafka: Kafka) -> Place:
    return Place(kafka)


def test_an_empty_cluster_gets_the_commands_that_create_what_is_missing(place: Place, kafka: Kafka) -> None:
    findings = place.findings()
    assert findings["brokers"].severity is Severity.OK
    for part, topic in (
        (f"ledger {place.settings.ledger_topic}", place.settings.ledger_topic),
        (f"policy topic {place.settings.policies.topic}", place.settings.policies.topic),
        (f"quarantine {place.settings.quarantine.topic}", place.settings.quarantine.topic),
        (f"audit {place.settings.audit_topic}", place.settings.audit_topic),
    ):
        assert findings[part].severity is Severity.WARNING
        assert f"--create --topic {topic} " in findings[part].fix
    assert "there are none" in findings["policies"].what
    topics = kafka.admin.list_topics(timeout=WAIT_S).topics
    assert not [name for name in topics if place.mark in name], "the doctor writes nothing"


def test_topics_as_they_should_be(place: Place, kafka: Kafka) -> None:
    kafka.create_topic(
        place.settings.ledger_topic,
        2,
        retention_ms=-1,
        message_timestamp_type="LogAppendTime",
        max_message_bytes=10 << 20,
    )
    kafka.create_topic(place.settings.policies.topic, 1, retention_ms=-1, retention_bytes=-1)
    kafka.create_topic(place.settings.quarantine.topic)
    kafka.create_topic(place.settings.audit_topic)
    kafka.create_topic(place.settings.redrive_topic, cleanup_policy="compact,delete")
    kafka.create_topic(place.settings.redriven_topic, cleanup_policy="compact")
    kafka.create_topic(place.settings.schedule_topic, cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    kafka.create_topic(place.settings.pause_topic, cleanup_policy="compact")
    kafka.create_topic(place.settings.changes_topic, 2, cleanup_policy="compact,delete")
    kafka.create_topic(place.source, 3, retention_ms=-1)
    kafka.create_topic(place.target, 3)
    place.publish("1d")
    findings = place.findings()
    assert {part: finding for part, finding in findings.items() if finding.severity is not Severity.OK} == {}
    assert "1 in force" in findings["policies"].what
    assert f"source {place.source}" in findings


def test_topics_as_they_should_not_be(place: Place, kafka: Kafka) -> None:
    kafka.create_topic(place.settings.policies.topic, 1, retention_ms=-1)
    kafka.create_topic(place.source, 1, cleanup_policy="compact,delete", retention_ms=3_600_000)
    place.publish("10d")
    sources = [f for f in doctor.examine(place.settings) if f.part == f"source {place.source}"]
    assert [finding.severity for finding in sources] == [Severity.ERROR, Severity.WARNING]
    assert "is compacted" in sources[0].what
    assert "1h, below delay.max 10d of policy doctored" in sources[1].what
    target = place.findings()["policy doctored, target.allow"]
    assert target.severity is Severity.ERROR
    assert f"--create --topic {place.target} --partitions 1" in target.fix


def test_a_broker_ahead_of_our_clock(place: Place, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.create_topic(place.settings.policies.topic, 1, retention_ms=-1, message_timestamp_type="LogAppendTime")
    place.publish("1d")
    assert "clock" not in place.findings()
    slow_ms = doctor.wall_ms() - 60_000
    monkeypatch.setattr(doctor, "wall_ms", lambda: slow_ms)
    assert "behind the broker's" in place.findings()["clock"].what


def test_a_transaction_that_stays_open_is_named_with_the_command_that_ends_it(place: Place, kafka: Kafka) -> None:
    kafka.create_topic(place.settings.policies.topic, 1, retention_ms=-1)
    kafka.create_topic(place.source, 1, retention_ms=-1)
    kafka.create_topic(place.target, 2)
    kafka.produce(place.target, [(b"k", b"before", (), 0, 1)])
    place.publish("1d")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": place.mark})
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": place.settings.group})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    try:
        producer.produce(place.target, b"open", b"k", 1)
        assert producer.flush(WAIT_S) == 0
        position = TopicPartition(place.source, 0, 0)
        producer.send_offsets_to_transaction([position], member.consumer_group_metadata(), WAIT_S)
        findings = place.findings()
        found = findings[f"transactions {place.target}"]
        assert found.severity is Severity.WARNING
        assert "partition 1: one has been open since offset 1," in found.what
        assert f"abort --topic {place.target} --partition 1 --start-offset 1" in found.fix
        assert place.settings.group in findings["transactions of the group"].what
    finally:
        producer.abort_transaction(WAIT_S)
        member.close()
    assert not [part for part in place.findings() if part.startswith("transactions")]
