"""Messages of a cut-off run are found, no others are taken for them, and nobody sends for that run any more."""

import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from pipeline.errors import PipelineError, Unanswered
from tests.pipeline.sending.test_schedule import DUE, ids, run
from tests.services.kafka import Kafka
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ONE = ("mail", "a", "one", DUE, "order-1")
TWO = ("mail", "a", "two", DUE, "order-2")
MANY = [("mail", f"key-{number}", "v", DUE, f"order-{number}") for number in range(20)]
SENT_AGAIN = "sent again, or never"


class Killed(Exception):
    """In place of a kill."""


def cut_off(warehouse: Any, kafka: Kafka, topic: str, rows: Any) -> Any:
    """A run that is killed when its first slice has begun; returns that slice."""
    from pipeline.sending import dispatch

    def killed(*_: Any) -> Any:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dispatch, "send", killed)
        with pytest.raises(Killed):
            run(warehouse, kafka, topic, rows)
    return begun(warehouse)


def begun(warehouse: Any) -> Any:
    """The first slice as it was noted."""
    from pipeline.sending.sending import Slice

    note = json.loads(warehouse.text("gold/schedule/job", "_slices", "0"))
    return Slice(note["mark"], note["producers"], note["tasks"])


def shipment(kafka: Kafka, part: Any) -> Any:
    """The first of the slice's tasks."""
    from pipeline.sending.sending import Shipment

    return Shipment({"bootstrap.servers": kafka.bootstrap}, part.producer_id(0), part.mark, 0.0)


def rows_of(topic: str, rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """As `messages` makes them."""
    return [
        {
            "id": id, "topic": topic, "key": key.encode(), "value": value.encode(), "refused": None,
            "headers": [{"key": "tickover-id", "value": id.encode()}],
        }
        for _, key, value, _, id in rows
    ]  # fmt: skip


def opened(kafka: Kafka, transactional_id: str, timeout_ms: int) -> Producer:
    """A producer with an open transaction."""
    settings: dict[str, Any] = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": timeout_ms, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def test_only_what_the_slice_itself_has_sent_counts_as_sent(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 1)
    cut_off(warehouse, kafka, topic, [ONE, TWO])  # before it had sent anything
    # Meanwhile a service moves its own message of this id, and another job sends one.
    move = [("tickover-id", b"order-2"), ("tickover-action", b"reschedule"), ("tickover-delay", b"1h")]
    others = [("tickover-id", b"order-1"), ("tickover-job", b"job/other/0")]
    kafka.produce(topic, [(b"a", None, move), (b"a", b"theirs", others)])
    assert run(warehouse, kafka, topic, [ONE, TWO])["rows"] == {"sent": 2}
    values = [message.value() for message in kafka.read_all(topic)]
    assert sorted(values, key=str) == [None, b"one", b"theirs", b"two"]


def test_what_went_to_a_partition_that_was_added_meanwhile_is_found(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 1)
    part = cut_off(warehouse, kafka, topic, MANY)
    kafka.admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    wait_until(lambda: len(kafka.admin.list_topics(topic, 30).topics[topic].partitions) == 4)
    former = shipment(kafka, part)
    former.ship(rows_of(topic, MANY))
    former.close()
    assert len({message.partition() for message in kafka.read_all(topic)}) > 1
    assert run(warehouse, kafka, topic, MANY)["rows"] == {"sent": len(MANY)}
    assert set(ids(kafka, topic).values()) == {1}, SENT_AGAIN


def test_what_went_to_a_topic_that_was_made_anew_is_found(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 1)
    kafka.produce(topic, [(b"k", b"before", [("tickover-id", b"x")])] * 30)
    part = cut_off(warehouse, kafka, topic, MANY)
    kafka.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=30).topics)
    kafka.create_topic(topic, 1)
    former = shipment(kafka, part)
    former.ship(rows_of(topic, MANY))
    former.close()
    assert run(warehouse, kafka, topic, MANY)["rows"] == {"sent": len(MANY)}
    assert set(ids(kafka, topic).values()) == {1}, SENT_AGAIN


def test_a_worker_of_a_killed_run_sends_nothing_more(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 2)
    part = cut_off(warehouse, kafka, topic, MANY)
    former = shipment(kafka, part)
    former.ship(rows_of(topic, MANY[:5]))
    former._producer.begin_transaction()  # and it stands still with some on their way
    for one in rows_of(topic, MANY[5:8]):
        headers = [("tickover-id", one["id"]), ("tickover-job", part.mark)]
        former._producer.produce(topic, one["value"], one["key"], headers=headers)
    assert former._producer.flush(30) == 0
    assert run(warehouse, kafka, topic, MANY)["rows"] == {"sent": len(MANY)}
    with pytest.raises(Exception, match="fenced"):
        former._producer.commit_transaction(30)
    assert set(ids(kafka, topic).values()) == {1}, SENT_AGAIN
    assert len(ids(kafka, topic)) == len(MANY)


def test_what_stands_behind_somebody_elses_open_transaction_is_found(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 1)
    part = cut_off(warehouse, kafka, topic, [ONE, TWO])
    theirs = opened(kafka, f"theirs-{topic}", 5_000)
    theirs.produce(topic, b"theirs", b"a", headers=[("tickover-id", b"theirs")])
    assert theirs.flush(30) == 0
    former = shipment(kafka, part)
    former.ship(rows_of(topic, [ONE, TWO]))
    former.close()
    assert kafka.read_all(topic) == []  # to readers of what is committed the topic is empty
    assert run(warehouse, kafka, topic, [ONE, TWO])["rows"] == {"sent": 2}  # when the brokers have ended it
    assert ids(kafka, topic) == {b"order-1": 1, b"order-2": 1}, SENT_AGAIN


def test_a_run_that_another_one_shuts_out_ends_in_words_and_each_row_is_sent_once(kafka: Kafka, warehouse: Any) -> None:
    from pipeline.sending.sending import fence

    topic = kafka.topic("reminders", 2)
    came: list[PipelineError] = []

    def first_run() -> None:
        try:
            run(warehouse, kafka, topic, MANY, rate=0.2)  # a row every ten seconds from each task
        except PipelineError as error:
            came.append(error)

    first = threading.Thread(target=first_run)
    first.start()
    wait_until(lambda: bool(kafka.read_all(topic)))
    fence({"bootstrap.servers": kafka.bootstrap}, begun(warehouse))
    first.join(120)
    [error] = came
    assert isinstance(error, Unanswered)
    assert str(error).startswith("slice 0 was cut off: ")
    assert "fenced" in str(error)
    assert str(error).endswith("run it again, it reads in the topics what was sent")
    assert 0 < len(ids(kafka, topic)) < len(MANY)
    assert run(warehouse, kafka, topic, MANY)["rows"] == {"sent": len(MANY)}
    assert set(ids(kafka, topic).values()) == {1}, SENT_AGAIN


def test_every_topic_is_noted_or_the_job_does_not_begin(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.sending import dispatch

    rows = spark.range(1_500).selectExpr("concat('t', id) AS topic", "CAST(NULL AS string) AS refused")
    assert len(dispatch._topics(rows)) == 1_500
    monkeypatch.setattr(dispatch, "TOPICS_MAX", 1_499)
    with pytest.raises(PipelineError, match="more than 1499 topics: send them in several jobs"):
        dispatch._topics(rows)


def test_a_slice_that_an_older_version_has_begun_is_not_taken_up(kafka: Kafka, warehouse: Any) -> None:
    topic = kafka.topic("reminders", 1)
    warehouse.write_text(json.dumps({topic: {"0": 0}}), "gold/schedule/job", "_slices", "0")
    with pytest.raises(PipelineError, match="slice 0 was begun by an older version"):
        run(warehouse, kafka, topic, [ONE])
    assert kafka.read_all(topic) == []


def test_a_cluster_that_would_repeat_a_stage_is_refused() -> None:
    from types import SimpleNamespace

    from pipeline.sending.dispatch import check_repeats

    def spark(master: str, **settings: str) -> Any:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: named))

    check_repeats(spark("local[2]"))
    check_repeats(spark("yarn", spark_stage_maxConsecutiveAttempts="1"))
    with pytest.raises(PipelineError, match=r"--conf spark\.stage\.maxConsecutiveAttempts=1"):
        check_repeats(spark("yarn"))
