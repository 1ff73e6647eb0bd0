"""Judgements of the doctor on facts: each a row, nothing asked of any server."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.model import Policy
from policies.topic.kafka_tools import KafkaTools
from sidecar.cli.app import app
from sidecar.doctor import doctor
from sidecar.doctor import redis as doctor_redis
from sidecar.doctor.facts import Cluster, Finding, Severity, TopicFacts
from sidecar.doctor.redis import inspect_redis
from sidecar.doctor.topics import PARTITIONS_WANTED, check_topics
from sidecar.settings.settings import Settings

DAY_MS = 86_400_000
TOOLS = KafkaTools("k:9092")
REMINDERS = Policy.model_validate(
    {
        "name": "reminders",
        "match": {"topics": ["reminders"]},
        "delay": {"max": "10d"},
        "target": {"allow": ["push", "mail-*"]},
        "dead_letter": {"topic": "reminders-dlq"},
    }
)
RETRY = Policy.model_validate(
    {
        "name": "orders-retry",
        "match": {"topics": ["*-retry"]},
        "retry": {"attempts": 3, "backoff": {"kind": "list", "delays": ["1s", "2h"]}},
        "target": {"topic": "orders"},
    }
)
LEDGER = {"cleanup.policy": "delete", "retention.ms": str(17 * DAY_MS), "message.timestamp.type": "LogAppendTime"}
FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
HEALTHY = {
    "tickover.tickover.ledger": TopicFacts(8, 3, LEDGER),
    "tickover.policies": TopicFacts(1, 3, FOREVER),
    "tickover.quarantine": TopicFacts(1, 3, {"cleanup.policy": "delete"}),
    "tickover.tickover.audit": TopicFacts(1, 3, {"cleanup.policy": "delete"}),
    "tickover.tickover.redrives": TopicFacts(1, 3, {"cleanup.policy": "compact,delete"}),
    "tickover.tickover.redriven": TopicFacts(1, 3, {"cleanup.policy": "compact"}),
    "tickover.tickover.changes": TopicFacts(2, 3, {"cleanup.policy": "compact,delete"}),
    "tickover.tickover.schedules": TopicFacts(
        1, 3, {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    ),
    "tickover.tickover.pauses": TopicFacts(1, 3, {"cleanup.policy": "compact"}),
    "reminders": TopicFacts(12, 3, {**FOREVER, "max.message.bytes": "1048588"}),
    "orders-retry": TopicFacts(6, 3, {"retention.ms": "604800000", "max.message.bytes": "1048588"}),
    "orders": TopicFacts(6, 3, {"max.message.bytes": "1048588"}),
    "push": TopicFacts(3, 3, {"max.message.bytes": "1048588"}),
    "mail-out": TopicFacts(3, 3, {"max.message.bytes": "1048588"}),
    "reminders-dlq": TopicFacts(3, 3),
    "unrelated": TopicFacts(1, 1, {"cleanup.policy": "compact"}),
    "__consumer_offsets": TopicFacts(50, 3, {"cleanup.policy": "compact"}),
}


def judge(
    changed: dict[str, TopicFacts | None], settings: Settings | None = None, producer_bytes_max: int = 1_000_000
) -> list[Finding]:
    """Findings that are not all well, of the healthy cluster with some topics changed or (None) gone."""
    topics = {name: facts for name, facts in {**HEALTHY, **changed}.items() if facts is not None}
    cluster = Cluster(TOOLS, 3, topics, producer_bytes_max)
    findings = check_topics(cluster, settings or Settings(), [REMINDERS, RETRY])
    return [finding for finding in findings if finding.severity is not Severity.OK]


def test_a_back_off_without_a_timeout_is_counted_for_source_and_ledger() -> None:
    patient = {"attempts": 3, "backoff": {"kind": "fixed", "delay": "60d"}, "spread": "1d"}
    policy = Policy.model_validate({**RETRY.model_dump(), "retry": patient})
    findings = check_topics(Cluster(TOOLS, 3, HEALTHY, 1_000_000), Settings(), [REMINDERS, policy])
    ledger, source = [finding.what for finding in findings if finding.severity is Severity.WARNING]
    assert ledger == "retention.ms is 17d, wanted is 68d (the longest hold of a policy + 7d)"
    assert source.startswith("retention.ms is 7d, below retry.backoff and spread 61d of policy orders-retry")


@pytest.mark.parametrize(
    ("gone", "partitions"),
    [
        (["reminders"], 3),  # as its target has
        (["push", "mail-out"], 12),  # as their source has
        (["reminders", "push", "mail-out"], PARTITIONS_WANTED),
    ],
)
def test_a_missing_topic_is_to_be_as_wide_as_those_that_it_belongs_to(gone: list[str], partitions: int) -> None:
    fixes = [finding.fix for finding in judge(dict.fromkeys(gone)) if finding.severity is Severity.ERROR]
    assert fixes
    assert all(f"--partitions {partitions}" in fix for fix in fixes)


def facts(name: str, **config: str) -> dict[str, TopicFacts | None]:
    before = HEALTHY[name]
    changed = {key.replace("_", "."): value for key, value in config.items()}
    return {name: TopicFacts(before.partitions, before.replicas, {**before.config, **changed})}


def test_a_healthy_cluster_has_no_findings() -> None:
    assert judge({}) == []
    every = list(check_topics(Cluster(TOOLS, 3, HEALTHY, 1_000_000), Settings(), [REMINDERS, RETRY]))
    assert {"source reminders", "source orders-retry", "targets", "message size"} <= {f.part for f in every}


@pytest.mark.parametrize(
    ("name", "stamps", "fix"),
    [
        ("orders-retry", "CreateTime", "--entity-name orders-retry --add-config message.timestamp.type=LogAppendTime"),
        ("orders-retry", "LogAppendTime", ""),
        ("reminders", "CreateTime", ""),
    ],
)
def test_brokers_are_recommended_to_stamp_what_is_retried(name: str, stamps: str, fix: str) -> None:
    topics = {**HEALTHY, **facts(name, message_timestamp_type=stamps)}
    cluster = Cluster(TOOLS, 3, {name: one for name, one in topics.items() if one is not None}, 1_000_000)
    [said] = [one for one in check_topics(cluster, Settings(), [REMINDERS, RETRY]) if one.part == f"source {name}"]
    assert said.severity is Severity.OK
    assert said.fix.endswith(fix)
    assert ("recommended is LogAppendTime" in said.what) == bool(fix)


def test_topics_that_may_not_be_seen_are_not_called_missing() -> None:
    absent = frozenset({"tickover.tickover.ledger", "tickover.policies", "tickover.quarantine", "push", "orders"})
    there = {name: facts for name, facts in HEALTHY.items() if name not in absent}
    for hidden, missing in ((frozenset[str](), 5), (absent, 0)):
        cluster = Cluster(TOOLS, 3, there, 1_000_000, hidden=hidden)
        found = list(check_topics(cluster, Settings(), [REMINDERS, RETRY]))
        assert sum("does not exist" in finding.what for finding in found) == missing


def test_topics_to_be_made_get_the_replicas_of_the_ledger() -> None:
    own: dict[str, TopicFacts | None] = {
        name: None
        for name in HEALTHY
        if name.startswith("tickover.tickover.") or name in ("tickover.policies", "tickover.quarantine")
    }
    fixes = [finding.fix for finding in judge(own, Settings(ledger={"replication_factor": 2}))]
    assert len(fixes) == len(own) == 9
    assert all("--replication-factor 2" in fix for fix in fixes)


@pytest.mark.parametrize(
    ("changed", "severity", "says", "fix"),
    [
        (
            {"tickover.tickover.ledger": None},
            Severity.WARNING,
            "ledger tickover.tickover.ledger: does not exist",
            (
                "kafka-topics.sh --bootstrap-server k:9092 --create --topic tickover.tickover.ledger --partitions 8"
                " --config cleanup.policy=delete --config message.timestamp.type=LogAppendTime"
                f" --config retention.ms={17 * DAY_MS} --config max.message.bytes=10485760"
            ),
        ),
        (
            facts("tickover.tickover.ledger", retention_ms="604800000"),
            Severity.WARNING,
            "retention.ms is 7d, wanted is 17d (the longest hold of a policy + 7d)",
            f"--add-config retention.ms={17 * DAY_MS}",
        ),
        (
            facts("tickover.tickover.ledger", retention_bytes="1000000"),
            Severity.WARNING,
            "retention.bytes is 1000000: entries of held records could go, and then Redis is not expendable",
            "--add-config retention.bytes=-1",
        ),
        (
            facts("tickover.tickover.ledger", cleanup_policy="compact"),
            Severity.ERROR,
            "is compacted",
            "cleanup.policy=delete",
        ),
        (
            facts("tickover.tickover.ledger", message_timestamp_type="CreateTime"),
            Severity.WARNING,
            "not LogAppendTime",
            "message.timestamp.type=LogAppendTime",
        ),
        (
            {"tickover.tickover.ledger": TopicFacts(8, 1, LEDGER)},
            Severity.WARNING,
            "one replica on a cluster of 3",
            "kafka-reassign-partitions.sh",
        ),
        (
            {"tickover.policies": None},
            Severity.WARNING,
            "policy topic tickover.policies: does not exist",
            (
                "--create --topic tickover.policies --partitions 1 --config cleanup.policy=delete"
                " --config retention.ms=-1 --config retention.bytes=-1"
            ),
        ),
        (facts("tickover.policies", retention_ms="1000"), Severity.ERROR, "retention.ms is 1000", "retention.ms=-1"),
        (
            facts("tickover.policies", retention_bytes="9"),
            Severity.ERROR,
            "retention.bytes is 9",
            "retention.bytes=-1",
        ),
        (
            facts("tickover.tickover.ledger", max_message_bytes="1000000"),
            Severity.WARNING,
            "max.message.bytes is 1000000, wanted is 1048588: a large record would be refused",
            "--add-config max.message.bytes=1048588",
        ),
        *(
            (
                facts(name, max_message_bytes="500000"),
                Severity.WARNING,
                "max.message.bytes is 500000, wanted is 1048588",
                f"--entity-name {name} --add-config max.message.bytes=1048588",
            )
            for name in ("tickover.policies", "tickover.quarantine", "tickover.tickover.changes")
        ),
        ({"tickover.policies": TopicFacts(3, 3, FOREVER)}, Severity.WARNING, "3 partitions", "policies.topic"),
        (
            {"tickover.quarantine": None},
            Severity.WARNING,
            "does not exist",
            "--topic tickover.quarantine --partitions 1 --config cleanup.policy=delete --config retention.ms=-1",
        ),
        (
            {"tickover.tickover.audit": None},
            Severity.WARNING,
            "does not exist",
            "--create --topic tickover.tickover.audit --partitions 1 --config cleanup.policy=delete --config ret",
        ),
        (
            facts("tickover.quarantine", retention_ms=str(7 * DAY_MS)),
            Severity.WARNING,
            "retention.ms is 7d: its records are meant to be kept for ever",
            "--entity-name tickover.quarantine --add-config retention.ms=-1",
        ),
        (
            facts("tickover.tickover.audit", retention_ms="3600000"),
            Severity.WARNING,
            "retention.ms is 1h: its records are meant to be kept for",
            "--entity-name tickover.tickover.audit --add-config retention.ms=",
        ),
        (facts("tickover.quarantine", cleanup_policy="compact,delete"), Severity.ERROR, "compacted", "delete"),
        ({"reminders": None}, Severity.ERROR, "source reminders: does not exist", "--topic reminders --partitions 3"),
        ({"orders-retry": None}, Severity.WARNING, "source *-retry: no topic matches it", "correct the glob"),
        (facts("tickover.tickover.schedules", cleanup_policy="delete"), Severity.ERROR, "not compacted", "=compact"),
        (
            facts("tickover.tickover.schedules", message_timestamp_type="CreateTime"),
            Severity.WARNING,
            "by the clock of whoever wrote it",
            "message.timestamp.type=LogAppendTime",
        ),
        (facts("reminders", cleanup_policy="compact"), Severity.ERROR, "source reminders: is compacted", "delete"),
        (
            facts("reminders", retention_ms="604800000"),
            Severity.WARNING,
            "retention.ms is 7d, below delay.max 10d of policy reminders",
            f"--entity-name reminders --add-config retention.ms={11 * DAY_MS}",
        ),
        (
            facts("orders-retry", retention_ms="3600000"),
            Severity.WARNING,
            "retention.ms is 1h, below retry.backoff 2h of policy orders-retry",
            "--entity-name orders-retry",
        ),
        (facts("reminders", retention_bytes="1000"), Severity.WARNING, "retention.bytes is 1000", "=-1"),
        (
            {"orders": None},
            Severity.ERROR,
            "target.topic: topic orders does not exist",
            "--topic orders --partitions 6",
        ),
        ({"push": None}, Severity.ERROR, "target.allow: topic push does not exist", "--topic push --partitions 12"),
        ({"mail-out": None}, Severity.WARNING, "no topic matches mail-*", "correct the glob"),
        ({"reminders-dlq": None}, Severity.ERROR, "dead_letter.topic: topic reminders-dlq", "--topic reminders-dlq"),
        (
            facts("push", max_message_bytes="1000"),
            Severity.WARNING,
            "takes records of 1048588 bytes, its target push only 1000",
            "--entity-name push --add-config max.message.bytes=1048588",
        ),
        (
            {"push": TopicFacts(3, 3, {}, "Topic authorization failed.")},
            Severity.WARNING,
            "cannot be read: Topic authorization failed.",
            "--operation DescribeConfigs --topic push",
        ),
    ],
)
def test_each_fault_is_found_alone_and_has_a_fix(
    changed: dict[str, TopicFacts | None], severity: Severity, says: str, fix: str
) -> None:
    [finding] = judge(changed)
    assert finding.severity is severity
    assert says in f"{finding.part}: {finding.what}"
    assert fix in finding.fix


def test_larger_records_than_the_producer_sends() -> None:
    [finding] = judge({}, producer_bytes_max=500_000)[:1]
    assert "larger ones are quarantined by reference" in finding.what
    assert finding.fix == "TICKOVER_KAFKA__CLIENT__MESSAGE_MAX_BYTES=1048588"


def test_a_ledger_that_takes_a_block_and_not_a_batch_of_them() -> None:
    ledger = facts("tickover.tickover.ledger", max_message_bytes="1048588")
    assert judge(ledger) == []
    large = Settings.model_validate({"kafka": {"client": {"batch.size": "5000000", "message.max.bytes": "5000000"}}})
    [finding] = judge(ledger, large, producer_bytes_max=5_000_000)
    assert "max.message.bytes is 1048588, wanted is 5000000" in finding.what


def test_sources_without_a_policy_and_internal_topics() -> None:
    [finding] = judge({}, Settings.model_validate({"sources": ["reminders", "*-retry", "unrela*", "tickover.*"]}))[:1]
    assert finding.part == "source tickover.*"
    found = judge({}, Settings.model_validate({"sources": ["unrelated"]}))
    assert [(f.severity, f.part) for f in found] == [(Severity.ERROR, "source unrelated")] * 2
    assert "no policy matches it" in found[1].what


INFO = {
    "redis_version": "7.2.4",
    "redis_mode": "standalone",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "maxmemory": 1 << 30,
    "aof_enabled": 1,
}


class Server:
    """Stands for a Redis that answers so."""

    def __init__(self, info: dict[str, Any], now_ms: int) -> None:
        self._info, self._now_ms = info, now_ms

    def close(self) -> None:
        """Nothing is open."""

    def time(self) -> tuple[int, int]:
        return self._now_ms // 1_000, self._now_ms % 1_000 * 1_000

    def info(self) -> dict[str, Any]:
        return self._info

    def config_get(self, name: str) -> dict[str, Any]:
        return {name: ""}


@pytest.mark.parametrize(
    ("info", "skew_ms", "severity", "says"),
    [
        ({}, 0, None, ""),
        ({}, 900, None, ""),
        ({"role": "slave"}, 0, Severity.ERROR, "replica"),
        ({"redis_mode": "cluster"}, 0, Severity.ERROR, "this is a Cluster"),
        ({"maxmemory_policy": "allkeys-lru"}, 0, Severity.ERROR, "maxmemory-policy is allkeys-lru"),
        ({"aof_enabled": 0}, 0, Severity.WARNING, "append-only"),
        ({}, 5_000, Severity.WARNING, "5000 ms behind Redis's"),
        ({}, -5_000, Severity.WARNING, "5000 ms ahead of Redis's"),
    ],
)
def test_each_fault_of_redis_is_found_alone(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], skew_ms: int, severity: Severity | None, says: str
) -> None:
    server = Server({**INFO, **info}, 1_800_000_000_000 + skew_ms)
    monkeypatch.setattr(doctor_redis, "connect", lambda url, options: server)
    settings = Settings.model_validate({"redis": {"url": "redis://r:6379"}})
    findings = [f for f in inspect_redis(settings, lambda: 1_800_000_000_000) if f.severity is not Severity.OK]
    assert [f.severity for f in findings] == ([] if severity is None else [severity])
    assert all(says in f.what and f.fix for f in findings)


def inspections(monkeypatch: pytest.MonkeyPatch, **replaced: Callable[..., Iterator[Finding]]) -> None:
    monkeypatch.setattr(doctor, "INSPECTIONS", replaced)


def healthy(_settings: Settings, _now: Callable[[], int]) -> Iterator[Finding]:
    yield Finding(Severity.OK, "redis", "well")


def test_a_part_that_hangs_or_breaks_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    never, hangs = threading.Event(), threading.Event()

    class Started(threading.Thread):
        """A thread that has ended when its start returns, unless it hangs: the deadline is short."""

        def start(self) -> None:
            super().start()
            while self.is_alive() and not hangs.is_set():
                self.join(0.01)
            hangs.clear()

    def hanging(_settings: Settings, _now: Callable[[], int]) -> Iterator[Finding]:
        yield Finding(Severity.OK, "brokers", "one is there")
        hangs.set()
        never.wait(60)

    def breaking(_settings: Settings, _now: Callable[[], int]) -> Iterator[Finding]:
        yield Finding(Severity.WARNING, "third", "odd")
        raise ZeroDivisionError

    inspections(monkeypatch, brokers=hanging, third=breaking, redis=healthy)
    monkeypatch.setattr(doctor, "DEADLINE_S", 0.2)
    monkeypatch.setattr(threading, "Thread", Started)
    findings = doctor.examine(Settings())
    never.set()
    assert [(f.part, f.severity.value) for f in findings] == [
        ("brokers", "ok"),
        ("brokers", "error"),
        ("third", "warning"),
        ("third", "error"),
        ("redis", "ok"),
    ]


def test_everything_embedded_is_well() -> None:
    assert {(f.part, f.severity) for f in doctor.examine(Settings())} == {
        ("brokers", Severity.OK),
        ("redis", Severity.OK),
    }


def test_what_is_down_is_told_with_its_cause_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TICKOVER_CONFIG", raising=False)
    nowhere = ["--set", "kafka.bootstrap_servers=127.0.0.1:1", "--set", "redis.url=redis://127.0.0.1:1"]
    monkeypatch.setattr("sidecar.doctor.kafka.CONNECT_TIMEOUT_S", 1.0)
    result = CliRunner().invoke(app, ["doctor", *nowhere])
    assert result.exit_code == 1
    assert result.stdout.count("Connection refused") == 2
    assert "2 errors" in result.stderr
    assert "Traceback" not in result.output


def test_a_client_setting_that_librdkafka_does_not_know() -> None:
    settings = Settings.model_validate(
        {"kafka": {"bootstrap_servers": "127.0.0.1:1", "client": {"security.protcol": "SSL"}}}
    )
    [finding] = [f for f in doctor.examine(settings) if f.part == "brokers"]
    assert finding.severity is Severity.ERROR
    assert "security.protcol" in finding.what


@pytest.mark.parametrize(("severity", "status"), [(Severity.ERROR, 1), (Severity.WARNING, 0), (Severity.OK, 0)])
def test_the_status_follows_the_worst_finding(monkeypatch: pytest.MonkeyPatch, severity: Severity, status: int) -> None:
    def one(_settings: Settings, _now: Callable[[], int]) -> Iterator[Finding]:
        yield Finding(severity, "part", "what", "mend it so")

    inspections(monkeypatch, part=one)
    for form in ("table", "json", "yaml"):
        result = CliRunner().invoke(app, ["doctor", "-o", form])
        assert result.exit_code == status
        assert "mend it so" in result.stdout
