"""Retention of sources and ledger: a running process, its metric and `doctor` say the same of it."""

import pytest
from confluent_kafka import KafkaError

from policies.retention import policies_of
from policies.topic.kafka_tools import KafkaTools
from sidecar.doctor import facts as doctor
from sidecar.doctor.facts import TopicFacts
from sidecar.doctor.topics import check_topics
from sidecar.settings.settings import Settings
from tests.unit.policy_world import DAY_MS, DELAY, table
from tests.unit.service.test_sources import LEDGER, Cluster, sources


@pytest.mark.parametrize("kept_ms", [None, 402 * DAY_MS])
@pytest.mark.parametrize("topic", ["reminders", LEDGER])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("retention.ms", str(days * DAY_MS)) for days in (-1, 0, 7, 399, 400, 401, 402, 406, 407, 500)),
        *(("retention.bytes", value) for value in ("-1", "1", "1000000")),
        ("cleanup.policy", "compact"),
    ],
)
def test_a_process_and_doctor_judge_retention_alike(topic: str, setting: str, value: str, kept_ms: int | None) -> None:
    cluster = Cluster("reminders", LEDGER)
    looking = sources(cluster, table(DELAY), ledger={"retention": kept_ms})
    looking.look()
    cluster.settings[topic][setting] = value
    cluster.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    said = {(one.topic, one.setting) for one in looking.check_retention()}
    facts = {name: TopicFacts(1, 3, {"retention.ms": "-1", **config}) for name, config in cluster.settings.items()}
    settings = Settings.model_validate({"ledger": {"retention": kept_ms}})
    findings = list(
        check_topics(doctor.Cluster(KafkaTools("k:9092"), 3, facts, 1_000_000), settings, policies_of(table(DELAY)))
    )
    about = {f"{role} {name}": name for role, name in (("source", "reminders"), ("ledger", LEDGER))}
    words = {
        "retention.ms": "retention.ms is",
        "retention.bytes": "retention.bytes is",
        "cleanup.policy": "is compacted",
    }
    found = {
        (about[finding.part], setting)
        for finding in findings
        for setting, beginning in words.items()
        if finding.part in about and finding.what.startswith(beginning)
    }
    assert found == said
