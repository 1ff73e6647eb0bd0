"""Operators change topics, offsets and rights while records are held."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, Message
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from sidecar.kafka.client_settings import consumer_settings
from sidecar.kafka.consumer import KafkaIntake
from sidecar.model.record import TopicPartition
from tests.integration.conftest import NewSite
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site, headers_of
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: changes
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out", allow: ["~*"]}
"""
SOON_S = 60.0


def with_topics(site: Site) -> Site:
    site.policies(POLICIES)
    site.topic("in")
    site.target("out")
    return site


@pytest.fixture
def site(new_site: NewSite, guarantee: str) -> Site:
    return with_topics(new_site())


@pytest.fixture
def sidecar(site: Site, guarantee: str) -> Sidecar:
    return site.sidecar("one", GUARANTEE=guarantee).start()


def send(site: Site, count: int, word: str, *headers: tuple[str, bytes]) -> list[Message]:
    records = [(b"key", f"{word} {number}".encode(), list(headers), 0, 0) for number in range(count)]
    return site.kafka.produce(site.name("in"), records)


def values(messages: list[Message]) -> list[bytes]:
    return [message.value() or b"" for message in messages]


def test_a_target_deleted_while_records_wait_for_it(site: Site, sidecar: Sidecar) -> None:
    target = site.target("gone")
    asked = [("tickover-target", target.encode()), ("tickover-delay", b"1h")]
    records = [(b"key", b"late %d" % n, [*asked, ("tickover-id", b"%d" % n)], 0, 0) for n in range(5)]
    site.kafka.produce(site.name("in"), records)
    source = site.name("in")
    wait_until(lambda: sidecar.stats()["topics"][source]["held"]["overflow"] == 5, SOON_S, sidecar.last_words)
    site.kafka.admin.delete_topics([target])[target].result(SOON_S)
    wait_until(lambda: target not in site.kafka.admin.list_topics(timeout=SOON_S).topics, SOON_S)
    for number in range(5):
        site.send(source, [("tickover-id", b"%d" % number), ("tickover-action", b"fire")])
    send(site, 5, "other")
    assert len(site.kafka.read(site.name("out"), 5)) == 5
    refused = site.kafka.read(site.quarantine, 5)
    assert {dict(headers_of(message))["tickover-reason"] for message in refused} == {b"unknown_target"}
    assert sorted(values(refused)) == [b"late %d" % number for number in range(5)]
    assert sidecar.stop() == 0


def test_partitions_added_to_a_target_are_used(site: Site, sidecar: Sidecar) -> None:
    target = site.target("wider")
    asked = (("tickover-target", target.encode()), ("tickover-target-partition", b"2"))
    send(site, 1, "before", ("tickover-target", target.encode()))
    site.kafka.read(target, 1)
    site.kafka.admin.create_partitions([NewPartitions(target, 3)])[target].result(SOON_S)

    def arrives() -> bool:
        send(site, 1, "after", *asked)
        return any(message.partition() == 2 for message in site.kafka.read_all(target))

    wait_until(arrives, SOON_S, lambda: "the new partition is never used")
    assert sidecar.stop() == 0


@pytest.mark.parametrize("instance_id", ["", "static"], ids=["dynamic", "static"])
def test_a_source_begun_at_its_end_loses_nothing_of_partitions_that_are_added_later(
    site: Site, guarantee: str, instance_id: str
) -> None:
    source = site.name("in")
    send(site, 3, "old")
    remembered = {"INSTANCE_ID": instance_id, "KAFKA__CLIENT__SESSION_TIMEOUT_MS": "45000"}  # however slow the machine
    sidecar = site.sidecar("late", GUARANTEE=guarantee, START="latest", **remembered).start()
    send(site, 1, "new")
    assert values(site.kafka.read(site.name("out"), 1)) == [b"new 0"]
    assert sidecar.stop() == 0
    site.kafka.admin.create_partitions([NewPartitions(source, 3)])[source].result(SOON_S)
    wait_until(lambda: len(site.kafka.admin.list_topics(source, timeout=SOON_S).topics[source].partitions) == 3, SOON_S)
    site.kafka.produce(source, [(b"key", b"added", [], 0, 2)])
    sidecar.start()
    assert sorted(values(site.kafka.read(site.name("out"), 2))) == [b"added", b"new 0"]
    assert sidecar.stop() == 0


def test_offsets_reset_by_an_operator_repeat_nothing(site: Site, sidecar: Sidecar, guarantee: str) -> None:
    send(site, 50, "first")
    send(site, 5, "far", ("tickover-delay", b"4s"))
    site.kafka.read(site.name("out"), 50)
    assert sidecar.stop() == 0
    back = ConsumerGroupTopicPartitions(site.group, [ClientPartition(site.name("in"), 0, 0)])

    def is_reset() -> bool:
        """Refused while the session of the member that was stopped lasts: it is a static one."""
        [place] = site.kafka.admin.alter_consumer_group_offsets([back])[site.group].result(SOON_S).topic_partitions
        return place.error is None

    wait_until(is_reset, SOON_S, lambda: "the offsets can't be reset")
    again = site.sidecar("one", GUARANTEE=guarantee).start()
    send(site, 5, "then")
    site.kafka.read(site.name("out"), 60)
    assert again.stop() == 0
    assert len(site.kafka.read_all(site.name("out"))) == 60, "the ledger knows what was emitted"


def test_retention_that_overtakes_open_records_is_reported(site: Site, sidecar: Sidecar, guarantee: str) -> None:
    send(site, 10, "first")
    site.kafka.read(site.name("out"), 10)
    assert sidecar.stop() == 0
    reports = send(site, 20, "then")
    cut = (reports[10].offset() or 0) - 1
    source = site.name("in")
    site.kafka.admin.delete_records([ClientPartition(source, 0, cut + 1)])
    wait_until(lambda: log_start(site) == cut + 1, SOON_S, lambda: "the log start does not move")
    again = site.sidecar("one", GUARANTEE=guarantee).start()
    arrived = values(site.kafka.read(site.name("out"), 20))
    assert arrived[10:] == [b"then %d" % number for number in range(10, 20)]
    [error] = [words for words in again.messages("error") if "retention took" in words["message"]]
    assert error["count"] == 10
    assert again.stop() == 0
    site.kafka.admin.delete_records([ClientPartition(source, 0, cut + 11)])
    wait_until(lambda: log_start(site) == cut + 11, SOON_S, lambda: "the log start does not move")
    with_nothing = site.sidecar("one", GUARANTEE=guarantee).start()
    send(site, 1, "last")
    assert values(site.kafka.read(site.name("out"), 21))[20:] == [b"last 0"], "what was read last is gone"
    assert with_nothing.messages("error") == [error], "nothing that was open is gone"
    assert with_nothing.stop() == 0


def test_a_source_that_becomes_compacted_is_named_and_read_on_until_it_is_set_back(new_site: NewSite) -> None:
    site = with_topics(new_site())
    source, sidecar = site.name("in"), site.sidecar("one").start()
    set_policy(site, source, "compact")

    def warnings() -> str:
        return " ".join(sidecar.call("GET", "/readyz").json()["warnings"])

    wait_until(lambda: source in warnings(), SOON_S, sidecar.last_words)
    assert "cleanup.policy=delete" in warnings()
    assert [words["topic"] for words in sidecar.messages("error")] == [source]
    send(site, 3, "read on")
    assert len(site.kafka.read(site.name("out"), 3)) == 3
    set_policy(site, source, "delete")
    wait_until(lambda: not warnings(), SOON_S, sidecar.last_words)
    assert sidecar.stop() == 0


def set_policy(site: Site, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    site.kafka.admin.incremental_alter_configs([change])[change].result(SOON_S)


def log_start(site: Site) -> int:
    with site.kafka._reader(site.name("in"), "read_committed") as consumer:
        return int(consumer.get_watermark_offsets(ClientPartition(site.name("in"), 0), SOON_S)[0])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Kafka]:
    """A broker that heeds access control lists; without one everything is allowed."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with own_broker(MavenServer(tmp_path / "guarded", properties)) as server:
        yield Kafka(server)


@pytest.mark.apart
def test_a_target_without_rights_quarantines_its_records_and_no_others(
    guarded: Kafka, redis_url: str, tmp_path: Path, guarantee: str
) -> None:
    site = with_topics(Site(guarded, redis_url, tmp_path))
    secret = site.target("secret")
    denied = AclBinding(
        ResourceType.TOPIC, secret, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.WRITE,
        AclPermissionType.DENY,
    )  # fmt: skip
    for future in guarded.admin.create_acls([denied]).values():
        future.result(SOON_S)
    sidecar = site.sidecar("one", GUARANTEE=guarantee).start()
    try:
        send(site, 3, "denied", ("tickover-target", secret.encode()))
        send(site, 5, "allowed")
        assert len(guarded.read(site.name("out"), 5)) == 5
        refused = guarded.read(site.quarantine, 3)
        headers = [dict(headers_of(message)) for message in refused]
        assert {header["tickover-reason"] for header in headers} == {b"unknown_target"}
        assert sorted(values(refused)) == [b"denied %d" % number for number in range(3)]
        assert sidecar.stop() == 0
    finally:
        site.close()


class SlowToPause:
    """The client's consumer, which has always fetched before a pause takes effect."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def pause(self, partitions: list[ClientPartition]) -> None:
        for partition in partitions:
            wait_until(lambda one=partition: self._has_fetched(one))  # type: ignore[misc]
        self._consumer.pause(partitions)

    def _has_fetched(self, partition: ClientPartition) -> bool:
        """The answer to a fetch is where the client has the partition's end from; a refusal gives it as -1."""
        _, end = confluent_kafka.Consumer.get_watermark_offsets(self._consumer, partition, cached=True)
        return bool(end != OFFSET_INVALID)


class Events:
    """Notes what the group says, as far as it matters here."""

    def __init__(self) -> None:
        self.lanes: list[TopicPartition] = []
        self.commits: list[Mapping[TopicPartition, tuple[int, str]]] = []

    def assigned(self, lanes: Sequence[TopicPartition]) -> None:
        self.lanes += lanes

    def revoked(self, lanes: Sequence[TopicPartition]) -> None:
        self.lanes = [lane for lane in self.lanes if lane not in lanes]

    lost = revoked

    def refused(self, words: str) -> None:
        raise AssertionError(words)

    def unreadable(self, topic: str, words: str) -> None:
        raise AssertionError(words)

    def out_of_range(self, lane: TopicPartition) -> None:
        raise AssertionError(f"{lane} is read where nothing is")

    def committed(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> None:
        self.commits.append(commits)


def test_a_log_that_does_not_begin_at_zero_is_read_from_where_recovery_says(kafka: Kafka) -> None:
    """Assigned partitions may be fetched once from the log's very start, which is gone, before they are paused."""
    topic = kafka.topic("late-start")
    kafka.produce(topic, [(b"key", b"%d" % number) for number in range(20)])
    [deleted] = kafka.admin.delete_records([ClientPartition(topic, 0, 10)]).values()
    deleted.result(SOON_S)
    problems: list[str] = []
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0", "session.timeout.ms": "120000"}
    intake = KafkaIntake(consumer_settings(client, topic, ""), problems.append)
    intake._consumer = SlowToPause(intake._consumer)  # type: ignore[assignment]
    intake.events = events = Events()
    intake.subscribe([topic])
    found: list[bytes | None] = []

    def turn_until(true: Callable[[], bool]) -> None:
        def turned() -> bool:
            found.extend(message.value() for message in intake.take(100))
            return true()

        wait_until(turned, SOON_S, lambda: f"found {found}, {problems}")

    try:
        turn_until(lambda: bool(events.lanes))
        assert found == []
        intake.begin({TopicPartition(topic, 0): 12})
        for _ in range(20):
            assert intake.take(100) == [], "paused until it is resumed"
        intake.resume([TopicPartition(topic, 0)])
        turn_until(lambda: len(found) >= 8)
        assert found == [b"%d" % number for number in range(12, 20)]
        commits = [{TopicPartition(topic, 0): (place, f"W {place}")} for place in (15, 20)]
        intake.commit(commits[0], wait=False)
        assert events.commits == []
        turn_until(lambda: bool(events.commits))
        intake.commit(commits[1], wait=True)
        assert events.commits == commits
    finally:
        intake.close()
