import logging
from collections.abc import Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from prometheus_client import generate_latest

from policies.model import Policy
from policies.table import EMPTY_TABLE, PolicyTable
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.stats import Left, Stats, TargetFlow, TopicCounts
from sidecar.service.metrics import Recorder
from sidecar.service.sources import (
    COMPACTED_LEDGER,
    COMPACTION_LOOKS,
    GONE_LOOKS,
    LEFT_LOOKS,
    REFUSED,
    Sources,
)
from sidecar.settings.settings import Settings
from tests.unit.policy_world import DAY_MS, DELAY, RETRY, retry_with, table


class Cluster:
    """An admin client and an engine that say yes; topics by name with their settings."""

    def __init__(self, *topics: str) -> None:
        self.settings: dict[str, dict[str, str]] = {topic: {} for topic in topics}
        self.sizes: dict[str, int] = {}  # of topics that have more or fewer partitions than one
        self.subscribed: list[list[str]] = []
        self.away = False
        self.refusal: int | None = None  # of changes
        self.unreadable: dict[str, int] = {}  # topics of which the settings are asked for in vain, and why
        self.policies = EMPTY_TABLE
        self.publisher = SimpleNamespace(kafka_problem="", held_for_ms={}, warnings=())
        self.intake = SimpleNamespace(subscribe=self.subscribed.append)
        self.hidden: set[str] = set()  # topics that are there, and not shown to us
        self.doubted: list[tuple[str, str]] = []
        self.refused: list[frozenset[str]] = []
        self.retired: list[frozenset[str]] = []
        self.forgotten: list[frozenset[str]] = []
        self.engine = SimpleNamespace(
            submit=self.submit,
            refuse=self.refused.append,
            doubt_source=lambda topic, words: self.doubted.append((topic, words)),
            retire=self.retired.append,
            forget_topics=self.forgotten.append,
            stats=Stats(),
        )
        self.leftovers = MemoryLeftovers(self.settings)
        self.asked: list[list[str] | None] = []  # for the sizes of which topics; None: of all
        self.gate = SimpleNamespace(sources={})

    def submit(self, command: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(command(self.engine))
        return future

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        if topic is None:
            self.asked.append(None)
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(partitions=dict.fromkeys(range(self.sizes.get(name, 1))))
                for name in self.settings
                if name not in self.hidden
            },
            controller_id=1,
            brokers={1: None},
        )

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        names = list(topics.topic_names)
        self.asked.append(sorted(names))
        answers = {name: Future[Any]() for name in names}
        for name, answer in answers.items():
            if name in self.hidden:
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            elif name in self.settings:
                answer.set_result(SimpleNamespace(partitions=[None] * self.sizes.get(name, 1)))
            else:
                answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return answers

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        answers = {}
        for resource in resources:
            defaults = {"cleanup.policy": "delete", "retention.ms": "-1"} | self.settings.get(resource.name, {})
            answers[resource] = Future[Any]()
            if resource.name in self.unreadable:
                answers[resource].set_exception(KafkaException(KafkaError(self.unreadable[resource.name])))
                continue
            answers[resource].set_result({name: SimpleNamespace(value=value) for name, value in defaults.items()})
        return answers

    def incremental_alter_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        [resource] = resources
        answer = Future[Any]()
        if self.refusal is None:
            self.settings[resource.name] |= {entry.name: entry.value for entry in resource.incremental_configs}
            answer.set_result(None)
        else:
            answer.set_exception(KafkaException(KafkaError(self.refusal)))
        return {resource: answer}


class MemoryLeftovers:
    """Counts of the records that the group has of each topic."""

    def __init__(self, existing: Collection[str]) -> None:
        self.has: dict[str, Left] = {}
        self.asked_anew = 0  # librdkafka may end the process over that question
        self._existing = existing
        self._topics: frozenset[str] = frozenset()

    def of(self, topics: Collection[str]) -> dict[str, Left]:
        return {topic: left for topic, left in self.has.items() if topic in topics and left.records}

    def beside(self, known: Collection[str], anew: bool) -> dict[str, Left]:
        if anew:
            self._topics, self.asked_anew = frozenset(self.has), self.asked_anew + 1
        return self.of([topic for topic in self._topics if topic not in known and topic in self._existing])


def sources(cluster: Cluster, policies: PolicyTable = EMPTY_TABLE, **settings: Any) -> Sources:
    machinery: Any = cluster
    admin: Any = cluster
    cluster.policies = policies
    leftovers: Any = cluster.leftovers
    return Sources(Settings(**settings), admin, machinery, lambda: cluster.policies, leftovers)


def test_what_the_policies_match_is_consumed_as_far_as_it_exists() -> None:
    cluster = Cluster("reminders", "push", "tickover.policies")
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    looking.look()
    assert cluster.subscribed == [["reminders"]], "subscribed once"
    cluster.settings["orders-retry"] = {}
    looking.look()
    assert cluster.subscribed[-1] == ["orders-retry", "reminders"]
    del cluster.settings["reminders"]
    looking.look()
    assert cluster.subscribed[-1] == ["orders-retry"]


def test_a_topic_counts_once_the_brokers_know_its_partitions_and_as_they_last_knew_them() -> None:
    cluster = Cluster("reminders", "orders-retry")
    cluster.sizes = {"reminders": 4, "orders-retry": 0}
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    assert (cluster.subscribed, looking.partitions) == ([["reminders"]], {"reminders": 4})
    cluster.sizes = {"reminders": 0, "orders-retry": 2}
    looking.look()
    assert (cluster.subscribed[-1], looking.partitions) == (
        ["orders-retry", "reminders"],
        {"orders-retry": 2, "reminders": 4},
    )
    assert cluster.gate.sources == looking.partitions


def test_settings_win_over_what_the_policies_match() -> None:
    cluster = Cluster("reminders", "a-1", "a-2")
    sources(cluster, table(DELAY), sources=("a-*",)).look()
    assert cluster.subscribed == [["a-1", "a-2"]]


def test_a_compacted_topic_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("reminders", "orders-retry")
    cluster.settings["reminders"]["cleanup.policy"] = "compact,delete"
    looking = sources(cluster, table(DELAY, RETRY))
    with caplog.at_level(logging.ERROR, "sidecar.service.sources"):
        looking.look()
        looking.look()
    assert cluster.subscribed == [["orders-retry"]]
    assert [record.__dict__["topic"] for record in caplog.records] == ["reminders"], "said once"
    cluster.settings["reminders"]["cleanup.policy"] = "delete"
    looking.look()
    assert cluster.subscribed[-1] == ["orders-retry", "reminders"], "the advice was followed"


def test_a_topic_created_again_is_asked_anew_whether_it_is_compacted() -> None:
    cluster = Cluster("reminders")
    looking = sources(cluster, table(DELAY))
    looking.look()
    gone = cluster.settings.pop("reminders")
    looking.look()
    cluster.settings["reminders"] = gone | {"cleanup.policy": "compact"}
    looking.look()
    assert cluster.subscribed == [["reminders"], []]


def test_brokers_that_are_away_are_a_problem_that_passes() -> None:
    cluster = Cluster("reminders")
    looking = sources(cluster, table(DELAY))
    cluster.away = True
    with pytest.raises(KafkaException):
        looking.look()
    assert "no answer" in cluster.publisher.kafka_problem
    cluster.away = False
    looking.look()
    assert cluster.publisher.kafka_problem == ""


HOUR_MS = 3_600_000
LEDGER = "tickover.tickover.ledger"


@pytest.mark.parametrize(
    ("before_ms", "setting", "after_ms"),
    [
        (7 * DAY_MS, "", 407 * DAY_MS),
        (407 * DAY_MS, "", 407 * DAY_MS),
        (500 * DAY_MS, "", 500 * DAY_MS),
        (-1, "", -1),
        (7 * DAY_MS, "3d", 7 * DAY_MS),
    ],
)
def test_the_ledger_is_kept_for_as_long_as_policies_ask_for_later(before_ms: int, setting: str, after_ms: int) -> None:
    cluster = Cluster("reminders", LEDGER)
    cluster.settings[LEDGER]["retention.ms"] = str(before_ms)
    looking = sources(cluster, ledger={"retention": setting} if setting else {})
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(before_ms)
    cluster.policies = table(DELAY)
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(after_ms)


PATIENT = retry_with(timeout=None, backoff={"kind": "list", "delays": ["1m", "60d"]})


def test_the_ledger_is_kept_for_as_long_as_a_back_off_without_a_timeout_asks_for() -> None:
    cluster = Cluster("orders-retry", LEDGER)
    cluster.settings[LEDGER]["retention.ms"] = str(7 * DAY_MS)
    looking = sources(cluster, table(RETRY))
    looking.look()
    cluster.policies = table(PATIENT)
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(67 * DAY_MS)


@pytest.mark.parametrize("asked_in_vain", ["what it is", "to change it"])
def test_brokers_that_do_not_answer_about_the_ledger_are_asked_again(asked_in_vain: str) -> None:
    cluster = Cluster("orders-retry", LEDGER)
    cluster.settings[LEDGER]["retention.ms"] = str(7 * DAY_MS)
    if asked_in_vain == "what it is":
        cluster.unreadable[LEDGER] = KafkaError.REQUEST_TIMED_OUT
    else:
        cluster.refusal = KafkaError.NOT_CONTROLLER
    looking = sources(cluster, table(PATIENT))
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(7 * DAY_MS)
    cluster.unreadable, cluster.refusal = {}, None
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(67 * DAY_MS)


def test_a_ledger_that_may_not_be_changed_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("reminders", LEDGER)
    cluster.settings[LEDGER]["retention.ms"] = "604800000"
    cluster.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    looking = sources(cluster, table(DELAY))
    with caplog.at_level(logging.WARNING, "sidecar.service.sources"):
        looking.look()
        looking.look()
    assert [record.__dict__["retention_ms"] for record in caplog.records] == [407 * DAY_MS]
    assert cluster.subscribed == [["reminders"]]


@pytest.mark.parametrize(
    ("topic", "setting", "value", "said"),
    [
        ("reminders", "retention.ms", "-1", False),
        ("reminders", "retention.ms", "3600000", True),
        ("reminders", "retention.ms", str(500 * 86_400_000), False),
        ("reminders", "retention.bytes", "1000000", True),
        ("tickover.tickover.ledger", "retention.ms", "3600000", True),
        ("tickover.tickover.ledger", "retention.bytes", "1000000", True),
    ],
)
def test_a_topic_that_may_forget_what_is_held_is_named_in_log_and_metric(
    caplog: pytest.LogCaptureFixture, topic: str, setting: str, value: str, said: bool
) -> None:
    cluster = Cluster("reminders", "tickover.tickover.ledger")
    cluster.settings[topic][setting] = value
    cluster.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    looking = sources(cluster, table(DELAY))
    looking.look()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sidecar.service.sources"):
        short = looking.check_retention()
    assert [(one.topic, one.setting) for one in short] == ([(topic, setting)] if said else [])
    told = [(record.__dict__["topic"], record.__dict__["configured"]) for record in caplog.records
            if "setting" in record.__dict__]  # fmt: skip
    assert told == [(one.topic, one.value) for one in short]
    looking.look()
    assert len(cluster.publisher.warnings) == (said and topic == LEDGER)
    recorder = Recorder()
    recorder.set_short_retentions(short)
    text = generate_latest(recorder.registry).decode()
    assert (f'tickover_retention_short{{setting="{setting}",topic="{topic}"}} 1.0' in text) == said
    recorder.set_short_retentions([])
    assert "tickover_retention_short{" not in generate_latest(recorder.registry).decode()


def test_a_ledger_whose_retention_was_put_back_is_raised_again() -> None:
    cluster = Cluster("reminders", LEDGER)
    looking = sources(cluster, table(DELAY))
    looking.look()
    cluster.settings[LEDGER]["retention.ms"] = str(7 * DAY_MS)  # by an operator of topics, say
    assert looking.check_retention() == []
    assert cluster.settings[LEDGER]["retention.ms"] == str(407 * DAY_MS)
    cluster.settings[LEDGER]["retention.ms"] = str(7 * DAY_MS)
    cluster.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert [one[:3] for one in looking.check_retention()] == [(LEDGER, "retention.ms", 7 * DAY_MS)]
    looking.look()
    assert cluster.publisher.warnings == (
        f"{LEDGER}: retention.ms is 604800000, and its records are to be kept for 407d",
    )
    cluster.refusal = None
    looking.check_retention()
    looking.look()
    assert cluster.publisher.warnings == ()


def test_each_source_is_judged_by_the_policies_that_match_it_and_the_ledger_by_all() -> None:
    cluster = Cluster("reminders", "orders-retry", LEDGER)
    for topic in cluster.settings:
        cluster.settings[topic]["retention.ms"] = str(60 * DAY_MS)
    cluster.refusal = KafkaError.TOPIC_AUTHORIZATION_FAILED
    looking = sources(cluster, table(DELAY, PATIENT))
    looking.look()
    assert [(one.topic, one.wanted_ms) for one in looking.check_retention()] == [
        ("reminders", 400 * DAY_MS),
        (LEDGER, 407 * DAY_MS),
    ]
    cluster.policies = table(PATIENT)
    assert [(one.topic, one.wanted_ms) for one in looking.check_retention()] == [(LEDGER, 67 * DAY_MS)]
    cluster.settings[LEDGER]["retention.ms"] = str(67 * DAY_MS)
    assert looking.check_retention() == []
    cluster.settings["orders-retry"]["retention.ms"] = str(59 * DAY_MS)
    assert [(one.topic, one.wanted_ms) for one in looking.check_retention()] == [("orders-retry", 60 * DAY_MS)]


def test_what_is_held_for_longer_than_any_policy_says_is_told_of_while_it_is_held() -> None:
    cluster = Cluster("orders-retry", LEDGER)
    for topic in cluster.settings:
        cluster.settings[topic]["retention.ms"] = str(7 * DAY_MS)
    looking = sources(cluster, table(RETRY))
    looking.look()
    assert looking.check_retention() == []
    cluster.publisher.held_for_ms = {"orders-retry": 30 * DAY_MS}
    assert [(one.topic, one.wanted_ms) for one in looking.check_retention()] == [
        ("orders-retry", 30 * DAY_MS),
        (LEDGER, 30 * DAY_MS),
    ]
    looking.look()
    assert cluster.settings[LEDGER]["retention.ms"] == str(7 * DAY_MS + HOUR_MS), (
        "one message doesn't make the ledger grow"
    )


def look_anew(looking: Sources) -> None:
    """Until all are asked again whether they are compacted."""
    for _ in range(COMPACTION_LOOKS):
        looking.look()


def test_a_source_that_becomes_compacted_is_read_on_where_it_was_begun_and_said_until_it_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster("reminders", "orders-retry", LEDGER)
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    cluster.settings["reminders"]["cleanup.policy"] = "compact,delete"
    with caplog.at_level(logging.ERROR, "sidecar.service.sources"):
        look_anew(looking)
        look_anew(looking)
    assert cluster.subscribed == [["orders-retry", "reminders"]], "what isn't read is left to compaction"
    assert cluster.refused == [frozenset({"reminders"})], "no further partition of it begins"
    [said] = caplog.records
    assert said.__dict__["topic"] == "reminders"
    [warning] = cluster.publisher.warnings
    assert warning.startswith("reminders: ")
    assert "use cleanup.policy=delete" in warning
    assert [one[:3] for one in looking.check_retention()] == [("reminders", "cleanup.policy", "compact,delete")]
    cluster.settings["reminders"]["cleanup.policy"] = "delete"
    looking.look()
    assert (cluster.refused[-1], cluster.publisher.warnings) == (frozenset(), ())
    assert looking.check_retention() == []


def test_a_source_that_was_compacted_from_the_start_is_named_as_long_as_it_is() -> None:
    cluster = Cluster("reminders", LEDGER)
    cluster.settings["reminders"]["cleanup.policy"] = "compact"
    looking = sources(cluster, table(DELAY))
    looking.look()
    looking.look()
    assert cluster.publisher.warnings == (f"reminders: {REFUSED}",)
    assert ("reminders", "cleanup.policy") in [one[:2] for one in looking.check_retention()]


def test_a_ledger_that_is_compacted_is_named(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("reminders", LEDGER)
    looking = sources(cluster, table(DELAY))
    looking.look()
    cluster.settings[LEDGER]["cleanup.policy"] = "compact"
    with caplog.at_level(logging.ERROR, "sidecar.service.sources"):
        look_anew(looking)
    assert [record.__dict__["topic"] for record in caplog.records] == [LEDGER]
    assert cluster.publisher.warnings == (f"{LEDGER}: {COMPACTED_LEDGER}",)
    assert (LEDGER, "cleanup.policy") in [one[:2] for one in looking.check_retention()]
    assert cluster.subscribed == [["reminders"]]


def test_a_source_waits_until_somebody_says_whether_it_is_compacted() -> None:
    cluster = Cluster("reminders", "orders-retry")
    cluster.unreadable["reminders"] = KafkaError.REQUEST_TIMED_OUT
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    assert cluster.subscribed == [["orders-retry"]]
    assert "reminders" in cluster.publisher.kafka_problem
    cluster.unreadable = {"orders-retry": KafkaError.REQUEST_TIMED_OUT}
    look_anew(looking)
    assert cluster.subscribed[-1] == ["orders-retry", "reminders"], "what is consumed goes on"
    assert cluster.publisher.kafka_problem == ""


def test_a_source_whose_settings_may_not_be_seen_is_consumed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("reminders")
    cluster.unreadable["reminders"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    looking = sources(cluster, table(DELAY))
    with caplog.at_level(logging.WARNING, "sidecar.service.sources"):
        look_anew(looking)
        look_anew(looking)
    assert cluster.subscribed == [["reminders"]]
    assert [record.__dict__["topic"] for record in caplog.records] == ["reminders"], "said once"


def test_a_topic_without_a_policy_is_consumed_until_the_group_has_nothing_of_it() -> None:
    cluster = Cluster("reminders", "orders-retry", "tickover.policies")
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    cluster.leftovers.has = {"reminders": Left(3, 2), "orders-retry": Left(1, 0), "tickover.policies": Left(0, 9)}
    cluster.policies = table(RETRY)
    looking.look()
    assert cluster.subscribed[-1] == ["orders-retry", "reminders"]
    assert cluster.retired == [frozenset({"reminders"})]
    assert looking.topics == {"orders-retry"}
    [said] = cluster.publisher.warnings
    assert said.startswith("reminders: no policy")
    assert "5 records" in said
    cluster.leftovers.has["reminders"] = Left(0, 0)
    for _ in range(LEFT_LOOKS):
        looking.look()
    assert cluster.subscribed[-1] == ["orders-retry"]
    assert cluster.retired[-1] == frozenset()
    looking.look()
    assert cluster.publisher.warnings == ()


def test_what_was_a_source_before_its_name_was_reserved_is_read_to_its_end() -> None:
    cluster = Cluster("tickover.payments.changes", "orders-retry")
    cluster.leftovers.has = {"tickover.payments.changes": Left(3, 2)}
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    assert cluster.subscribed == [["orders-retry", "tickover.payments.changes"]]
    assert cluster.retired == [frozenset({"tickover.payments.changes"})]
    assert looking.topics == {"orders-retry"}


def test_what_the_setting_leaves_out_has_a_policy_and_is_another_replicas() -> None:
    cluster = Cluster("reminders", "orders-retry")
    cluster.leftovers.has = {"reminders": Left(3, 2)}
    looking = sources(cluster, table(DELAY, RETRY), sources=("orders-retry",))
    looking.look()
    assert cluster.subscribed == [["orders-retry"]]
    assert cluster.retired == []
    assert looking.partitions == {"orders-retry": 1}
    assert looking.group_partitions == {"orders-retry": 1, "reminders": 1}, "a look-up must hear of it, too"
    cluster.leftovers.has = {}
    for _ in range(LEFT_LOOKS):
        looking.look()
    assert looking.group_partitions == {"orders-retry": 1}


def test_what_would_be_left_is_what_only_the_policies_of_now_consume() -> None:
    cluster = Cluster("reminders", "orders-retry")
    looking = sources(cluster, table(DELAY, RETRY))
    looking.look()
    cluster.leftovers.has = {"reminders": Left(3, 0)}
    assert looking.would_leave([Policy.model_validate(RETRY)]) == {"reminders": Left(3, 0)}
    assert looking.would_leave([Policy.model_validate(DELAY)]) == {}
    assert looking.is_source("reminders")
    assert not looking.is_source("elsewhere")
    cluster.away = True
    with pytest.raises(LookUpUnavailable):
        looking.would_leave([Policy.model_validate(RETRY)])
    with pytest.raises(LookUpUnavailable):
        looking.is_source("reminders")


def test_what_may_be_written_to_follows_the_policies_at_once() -> None:
    """Also while what was held is still read: what is new there would be quarantined."""
    cluster = Cluster("reminders", "orders-retry", "tickover.policies")
    looking = sources(cluster, table({**DELAY, "match": {"topics": ["reminders", "tickover.*"]}}, RETRY))
    looking.look()
    assert looking.topics == {"reminders", "orders-retry"}
    cluster.leftovers.has = {"reminders": Left(3, 2)}
    cluster.policies = table(RETRY)
    assert looking.topics == {"orders-retry"}, "before anybody has looked"
    assert looking.open_partitions == {"orders-retry": 1}
    looking.look()
    assert looking.partitions == {"reminders": 1, "orders-retry": 1}
    assert looking.open_partitions == {"orders-retry": 1}
    assert not looking.is_source("reminders")
    cluster.policies = table(DELAY, RETRY)
    assert not looking.is_source("reminders"), "the engine takes what comes for what is left, until the next look"
    assert looking.topics == {"orders-retry"}
    looking.look()
    assert looking.topics == {"reminders", "orders-retry"}


def test_a_topic_that_nobody_has_looked_at_is_no_source_if_it_is_compacted() -> None:
    cluster = Cluster("reminders", "orders-retry")
    looking = sources(cluster, table(RETRY))
    looking.look()
    cluster.policies = table(DELAY, RETRY)
    assert looking.is_source("reminders")
    cluster.settings["reminders"] = {"cleanup.policy": "compact"}
    assert not looking.is_source("reminders")
    cluster.unreadable = {"reminders": KafkaError.REQUEST_TIMED_OUT}
    with pytest.raises(LookUpUnavailable):
        looking.is_source("reminders")


def test_a_topic_that_a_policy_names_for_dead_letters_is_no_source_any_more_and_is_emptied() -> None:
    cluster = Cluster("orders-eu", "orders-retry")
    glob = {**RETRY, "match": {"topics": ["orders-*"]}}
    looking = sources(cluster, table(glob))
    looking.look()
    assert cluster.subscribed == [["orders-eu", "orders-retry"]]
    cluster.leftovers.has = {"orders-eu": Left(1, 0)}
    cluster.policies = table(glob, {**DELAY, "dead_letter": {"topic": "orders-eu"}})
    looking.look()
    assert cluster.subscribed[-1] == ["orders-eu", "orders-retry"]
    assert cluster.retired == [frozenset({"orders-eu"})], "letters that come now are not delivered"


def test_what_is_published_of_a_topic_ends_a_minute_after_it_was_deleted() -> None:
    cluster = Cluster("reminders", "mail")
    topics = {topic: TopicCounts() for topic in ("reminders", "deleted-source")}
    lost, targets = {("deleted-lost", "source"): 1}, {"mail": TargetFlow(), "deleted-target": TargetFlow()}
    cluster.engine.stats = Stats(topics=topics, targets=targets, rebuilt={"deleted-rebuilt": 1}, lost=lost)
    looking = sources(cluster, table(DELAY))
    deleted = {"deleted-source", "deleted-target", "deleted-rebuilt", "deleted-lost"}
    for _ in range(GONE_LOOKS - 1):
        looking.look()
    assert cluster.forgotten == [], "scrapes come less often than looks"
    cluster.settings["deleted-target"] = {}  # brokers had lost sight of it
    looking.look()
    assert cluster.forgotten == [deleted - {"deleted-target"}]


def test_of_a_cluster_only_the_topics_that_policies_name_are_asked_for() -> None:
    cluster = Cluster(
        "reminders", "orders-retry", "push", "left", "tickover.ledger", *(f"other-{n}" for n in range(100))
    )
    looking = sources(cluster, table(DELAY))
    cluster.leftovers.has = {"left": Left(1, 0)}
    for _ in range(LEFT_LOOKS):
        looking.look()
    assert cluster.subscribed[-1] == ["left", "reminders"]
    named = {"reminders", looking._settings.ledger_topic}
    assert cluster.asked[:2] == [sorted(named), ["left"]]
    assert cluster.asked[2:] == [sorted(named | {"left"})] * (LEFT_LOOKS - 1)
    assert looking.is_source("reminders")
    assert cluster.asked[-1] == ["reminders"]
    assert looking.would_leave([]) == {}
    assert cluster.asked[-1] == ["reminders"]
    cluster.policies = table({**DELAY, "match": {"topics": ["remind*"]}})
    looking.look()
    assert cluster.asked[-1] is None, "any topic may match"
