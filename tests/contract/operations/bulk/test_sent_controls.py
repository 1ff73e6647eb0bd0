"""Control records in a source and whose they are, as a change reads them again: reference broker and real Kafka."""

import pytest
from confluent_kafka import TopicPartition

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.bulk.control_sender import ControlRecordSender, SentControls, control_headers
from sidecar.operations.bulk.plan import ChangePlan, Item, Selection
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.raw_records import produce_raw

pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:1"


def plan(id: str) -> ChangePlan:
    return ChangePlan(
        id=id, author="a", created_ms=1, action="cancel", selection=Selection(), ends=(), rate=0, ttl_ms=1
    )


def send(cluster: Kafka, topic: str, id: str, partition: int) -> tuple[str, int, int]:
    """A control record of the plan with this id; where it lies."""
    item = Item(id="x", topic=topic, partition=partition, offset=7, due_ms=1, target="mail", policy="p@1")
    courier = ControlRecordSender({"bootstrap.servers": cluster.bootstrap})
    [offset] = courier.send([(item, control_headers(plan(id), item))], 1)
    courier.close()
    assert isinstance(offset, int)
    return topic, partition, offset


def test_a_control_record_says_which_change_sent_it(cluster: Kafka) -> None:
    topic = cluster.topic("controls", partitions=2)
    sent = SentControls({"bootstrap.servers": cluster.bootstrap}, "changes")
    of_a, of_b = ([send(cluster, topic, id, partition) for partition in (0, 1)] for id in ("a", "b"))
    by_hand = cluster.produce(topic, [(b"k", None, [("tickover-action", b"cancel")], 0, 0)])
    unreadable = produce_raw(cluster.bootstrap, topic, b"v", [(b"\xff", b"x")], key=b"k")
    others = [(topic, 0, offset) for offset in (by_hand[0].offset() or 0, unreadable)]
    assert sent.of_plan("a", [*of_a, *of_b, *others]) == frozenset(of_a)
    assert sent.of_plan("b", of_b[:1]) == frozenset(of_b[:1])
    assert sent.of_plan("b", of_a) == frozenset()
    cluster.admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0, 1)].result(ANSWER_TIMEOUT_S)
    assert sent.of_plan("a", of_a) == frozenset(of_a[1:]), "retention took the other: nobody knows whose it was"


def test_no_answer_is_no_stranger_s_record() -> None:
    sent = SentControls({"bootstrap.servers": NOBODY, "log_level": "0"}, "changes")
    with pytest.raises(LogUnavailable):
        sent.of_plan("a", [("t", 0, 1)])
