"""Schedules on three brokers of which one goes: the real firing, its real producers, and the topic of schedules."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic

from sidecar.kafka.background import in_background
from sidecar.kafka.topic_follower import TopicReader
from sidecar.operations.jobs.transactional_sender import (
    OutgoingRecord,
    ShipmentFailed,
    TakenOver,
    TransactionalSender,
    Unanswered,
    Unfinished,
)
from sidecar.operations.schedules.firing import Firing
from sidecar.operations.schedules.owing import Limits
from sidecar.operations.schedules.schedule import SchedulesUnavailable
from sidecar.operations.schedules.writing import FiringContext
from sidecar.service.operations.schedules import schedule_store_of
from sidecar.settings.settings import Settings
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.kafka_servers import KafkaCluster
from tests.services.reference_cluster import ReferenceClusterServer
from tests.services.sidecar_process import now_ms
from tests.services.site import headers_of
from tests.services.waiting import wait_until
from tests.unit.schedule_world import schedule

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LIMITS = Limits(ahead_ms=10_000, grace_ms=1_000, missed_max=5)
WAIT_S = 240.0
TOPIC = "tickover.g.schedules"
AWAY = 3  # the broker that goes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Of ours: in a real one a broker that goes takes its coordinators away for its session's timeout of 9 s and more,
    which the look-ahead of 10 s doesn't always cover.
    """
    with own_broker(ReferenceClusterServer(tmp_path / "cluster")) as server:
        yield server


@pytest.fixture
def kafka(cluster: KafkaCluster) -> Kafka:
    """Sources of one partition each: one with copies on all brokers, and one that is on the broker that goes."""
    kafka = Kafka(cluster, replicas=3)
    kafka.create_topic(TOPIC, message_timestamp_type="LogAppendTime", cleanup_policy="compact")
    kafka.create_topic("healthy", message_timestamp_type="LogAppendTime")
    kafka.admin.create_topics([NewTopic("struck", replica_assignment=[[AWAY]], num_partitions=1)])["struck"].result(60)
    wait_until(lambda: leader(kafka) == AWAY, WAIT_S)
    return kafka


def leader(kafka: Kafka) -> int:
    topic = kafka.admin.list_topics(timeout=10).topics.get("struck")  # None: the broker hasn't heard of it yet
    partition = topic.partitions.get(0) if topic is not None else None
    return -1 if partition is None else partition.leader


def due_ms(message: Message) -> int:
    return int(dict(headers_of(message))["tickover-deliver-at"] or b"")


def test_a_broker_that_is_away_holds_up_no_schedule_but_those_that_need_it(cluster: KafkaCluster, kafka: Kafka) -> None:
    """Each occurrence of the others is written before it is due; what waited is written when the broker is back."""
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    settings = Settings.model_validate({"group": f"g-{uuid4().hex[:8]}", "schedules": {"topic": TOPIC}})
    store = schedule_store_of(settings, TopicReader(client))
    store.start()
    here = FiringContext(
        store, LIMITS, lambda id: TransactionalSender(client, f"firing.{id}", TOPIC), lambda: True,
        lambda: {"healthy": 1, "struck": 1}, now_ms, lambda *_: None, in_background, lambda _: None,
        lambda _: False,
    )  # fmt: skip
    firing = Firing(here)
    begun_ms = store.put(schedule(name="healthy", cron="* * * * * *"), "healthy", 0, "me").since_ms
    store.put(schedule(name="struck", cron="*/5 * * * * *"), "struck", 0, "me")

    def step_until(true: Callable[[], bool]) -> None:
        def stepped() -> bool:
            with suppress(ShipmentFailed, SchedulesUnavailable):
                firing.step()
            return true()

        wait_until(stepped, WAIT_S, lambda: f"{store.alive()}")

    def problem() -> str:
        return store.get("struck").progress.problem

    try:
        step_until(lambda: store.get("healthy").progress.last_ms > 0)
        cluster.nodes[AWAY - 1].kill()
        step_until(lambda: bool(problem()))
        fails_ms = now_ms()
        step_until(lambda: now_ms() > fails_ms + 15_000)
        assert "partition without a leader" in problem()
        assert store.get("healthy").progress.problem == ""
        cluster.nodes[AWAY - 1].start()
        step_until(lambda: not problem() and store.get("struck").progress.waiting_ms == 0)
        ends_ms = now_ms()
        step_until(lambda: store.get("healthy").progress.last_ms > ends_ms)
        firing.stop()
        written = kafka.read_all("healthy")
        due = [due_ms(message) for message in written]
        assert due == list(range(due[0], due[-1] + 1, 1_000))
        assert begun_ms < due[0] <= begun_ms + 2_000
        late = [message for message in written if message.timestamp()[1] > max(due_ms(message), begun_ms + 5_000)]
        assert [(due_ms(message), message.timestamp()[1]) for message in late] == []
        due = [due_ms(message) for message in kafka.read_all("struck")]
        assert due == list(range(due[0], due[-1] + 1, 5_000)), "each once, in order, and none missed"
        assert due[0] <= begun_ms + 6_000
        assert due[-1] > fails_ms
    finally:
        firing.stop()
        store.stop()


def test_who_was_at_fault_and_what_can_be_used_meanwhile(cluster: KafkaCluster, kafka: Kafka) -> None:
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    fact = [OutgoingRecord(TOPIC, b"tick/progress", b"{}", partition=0)]
    parcels = [OutgoingRecord(target, b"k", b"v", partition=0) for target in ("healthy", "struck", "healthy")]
    cluster.nodes[AWAY - 1].kill()
    wait_until(lambda: leader(kafka) == -1, WAIT_S)
    pen = TransactionalSender(client, "one", TOPIC)
    pen.init()
    with pytest.raises(Unanswered) as caught:
        pen.write(parcels, fact, None, 5.0)
    assert caught.value.indexes == {1}
    pen.close()
    same, other = (TransactionalSender(client, id, TOPIC) for id in ("one", "two"))
    with pytest.raises(Unfinished):
        same.init(2.0)
    other.init()
    other.write(parcels[:1], fact)
    assert len(kafka.read_all("healthy")) == 1
    cluster.nodes[AWAY - 1].start()
    wait_until(lambda: leader(kafka) == AWAY, WAIT_S)
    again = TransactionalSender(client, "one", TOPIC)
    again.init(60.0)
    again.write(parcels, fact)
    assert len(kafka.read_all("healthy")) == 3
    for one in (same, other, again):
        one.close()


def test_what_is_not_confirmed_when_all_is_acknowledged_is_not_written(kafka: Kafka) -> None:
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    acknowledged: list[int] = []

    def refuse() -> None:
        acknowledged.append(len(kafka.read_all("healthy", "read_uncommitted")))
        raise TakenOver

    pen = TransactionalSender(client, "one", TOPIC)
    pen.init()
    with pytest.raises(TakenOver):
        pen.write([OutgoingRecord("healthy", b"k", b"v", partition=0)], [], refuse)
    assert acknowledged == [1]
    assert kafka.read_all("healthy") == [], "and readers need not wait for its end"
    pen.close()
