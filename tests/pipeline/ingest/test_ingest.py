"""`ingest` on a real Kafka: everything once, whatever ends it, and nothing dropped unseen."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.model.record import Outcome
from tests.pipeline.ledger_rows import NEWER, NOW_MS, block, emitted, entries, settled
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CONNECTORS = ("spark", "python")


def take_in(warehouse, kafka, ledger: str, *topics: str, connector: Any = "python"):
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    return ingest(warehouse, KafkaPlace(kafka.bootstrap, connector=connector), ledger, topics)


def table(warehouse, name: str) -> list[tuple[Any, ...]]:
    from pipeline.ingest.ingest import SILVER

    rows = warehouse.read(f"silver/{name}", SILVER[f"silver/{name}"]).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def send(kafka, topic: str, *values: bytes | None) -> None:
    kafka.produce(topic, [(b"orders-retry/3", value) for value in values])


@pytest.mark.parametrize("connector", CONNECTORS)
def test_each_run_takes_in_what_is_new(kafka, warehouse, connector: str) -> None:
    ledger = kafka.topic("ledger", 2, message_timestamp_type="LogAppendTime")
    send(kafka, ledger, block(settled=emitted(0, 3)), b"junk", None, NEWER)
    came = take_in(warehouse, kafka, ledger, connector=connector)
    assert (came.blocks, came.undecodable, came.newer, came.settled) == (4, 3, 1, {"emitted": 3})
    dead = settled([(8, NOW_MS, Outcome.DEAD, 2)], reasons={8: "expired"})
    send(kafka, ledger, block(settled=dead, number=1, entries=entries([(9, NOW_MS)])))
    came = take_in(warehouse, kafka, ledger, connector=connector)
    assert (came.blocks, came.undecodable, came.settled, came.entries) == (1, 0, {"dead": 1}, 1)
    assert take_in(warehouse, kafka, ledger, connector=connector).batches == []
    assert len(table(warehouse, "blocks")) == 5
    rows = [(row[8], row[10], row[11]) for row in table(warehouse, "lifecycle")]
    assert sorted(rows, key=str) == [
        (0, "emitted", None),
        (1, "emitted", None),
        (2, "emitted", None),
        (8, "dead", "expired"),
    ]
    assert {str(row[-1])[:2] for row in table(warehouse, "lifecycle")} == {"20"}  # partitioned by the broker's day


def test_sources_tell_what_the_ledger_cannot(kafka, warehouse) -> None:
    ledger, source = kafka.topic("ledger", 1), kafka.topic("orders-retry", 1)
    odd = [("tickover-error-class", b"shop.\xff"), ("x", None)]
    records = [
        (b"a", b"value", [("tickover-error-class", b"shop.Timeout")], NOW_MS - 500),
        (None, None, odd, NOW_MS - 400),
        (b"c", b"", [("tickover-origin", b"orders-retry/0/0"), ("tickover-error-class", None)], NOW_MS - 300),
    ]
    kafka.produce(source, records)
    send(kafka, ledger, block(topic=source, partition=0, settled=emitted(0, 1)))
    take_in(warehouse, kafka, ledger, source, connector="spark")
    send(kafka, ledger, block(topic=source, partition=0, settled=emitted(1, 3)))
    take_in(warehouse, kafka, ledger, connector="spark")  # what was taken in once is still known
    from pipeline.ingest.lifecycle import LIFECYCLE
    from pipeline.ingest.stream import read_records

    rows = warehouse.read("silver/lifecycle", LIFECYCLE).orderBy("offset").collect()
    told = [(row.accepted_ms, row.origin, row.error_class, row.source_known) for row in rows]
    assert told == [
        (NOW_MS - 500, f"{source}/0/0", "shop.Timeout", True),
        (NOW_MS - 400, f"{source}/0/1", "shop.\ufffd", True),
        (NOW_MS - 300, "orders-retry/0/0", None, True),
        (None, None, None, False),
    ]
    assert all(row.lateness_ms == row.settled_ms - row.due_ms for row in rows)
    raw = read_records(warehouse, source).orderBy("offset").collect()
    assert [(row.key and bytes(row.key), row.value and bytes(row.value)) for row in raw] == [
        (b"a", b"value"),
        (None, None),
        (b"c", bytearray(b"")),
    ]
    assert [(one["key"], one["value"] and bytes(one["value"])) for one in raw[1].headers] == odd


def test_empty_topics_give_empty_tables(kafka, warehouse) -> None:
    ledger, source = kafka.topic("ledger", 3), kafka.topic("source", 2)
    came = take_in(warehouse, kafka, ledger, source)
    assert (came.blocks, came.settled, came.lost) == (0, {}, [])
    assert table(warehouse, "lifecycle") == []


def test_a_topic_that_is_not_there_is_an_error_in_words(kafka, warehouse) -> None:
    from pipeline.errors import PipelineError

    with pytest.raises(PipelineError, match="topic no-such-ledger"):
        take_in(warehouse, kafka, "no-such-ledger")


def test_a_batch_that_was_written_halfway_is_written_again(kafka, warehouse, tmp_path: Path) -> None:
    ledger = kafka.topic("ledger", 2)
    send(kafka, ledger, block(settled=emitted(0, 5)), b"junk")
    take_in(warehouse, kafka, ledger)
    send(kafka, ledger, block(settled=emitted(5, 5), number=1, entries=entries([(20, NOW_MS)])))
    take_in(warehouse, kafka, ledger)
    whole = {name: table(warehouse, name) for name in ("blocks", "entries", "lifecycle")}
    root = Path(warehouse.root)
    [commit] = (root / "_checkpoints/bronze.ledger/commits").glob("1")
    commit.unlink()  # the job was killed between writing the batch and saying so
    commit.with_name(".1.crc").unlink(missing_ok=True)
    (root / "silver/lifecycle/batch=1/_SUCCESS").unlink()  # and while it wrote another
    part = next((root / "silver/lifecycle/batch=1").rglob("*.parquet"))
    shutil.copy(part, part.with_name("part-left-behind.parquet"))
    shutil.rmtree(root / "silver/blocks/batch=1")
    finished = files(root / "bronze/ledger/batch=1")
    assert take_in(warehouse, kafka, ledger).batches == [1]
    assert {name: table(warehouse, name) for name in whole} == whole
    assert files(root / "bronze/ledger/batch=1") == finished  # what counts is never written again


def files(directory: Path) -> dict[str, int]:
    """Parquet files with their inodes: another file has another inode, whatever its name."""
    return {path.name: path.stat().st_ino for path in directory.rglob("*.parquet")}


def test_a_warehouse_without_its_checkpoint_is_refused(kafka, warehouse) -> None:
    from pipeline.errors import WarehouseConflict

    ledger = kafka.topic("ledger")
    send(kafka, ledger, block(settled=emitted(0, 5)))
    take_in(warehouse, kafka, ledger)
    root = Path(warehouse.root)
    (root / "_checkpoints").rename(root / "aside")
    with pytest.raises(WarehouseConflict, match="taken in twice"):
        take_in(warehouse, kafka, ledger)
    (root / "aside").rename(root / "_checkpoints")
    shutil.rmtree(root / "bronze")
    with pytest.raises(WarehouseConflict, match="would be missing"):
        take_in(warehouse, kafka, ledger)


def test_what_retention_took_is_named(kafka, warehouse) -> None:
    from confluent_kafka import TopicPartition

    ledger = kafka.topic("ledger")
    send(kafka, ledger, block(settled=emitted(0, 1)))
    take_in(warehouse, kafka, ledger)
    send(kafka, ledger, *(block(settled=emitted(n, 1)) for n in range(1, 6)))
    [deleted] = kafka.admin.delete_records([TopicPartition(ledger, 0, 4)]).values()
    deleted.result(90)
    came = take_in(warehouse, kafka, ledger)
    assert [tuple(place) for place in came.lost] == [(ledger, 0, 1, 4)]
    assert [row[8] for row in table(warehouse, "lifecycle")] == [0, 4, 5]
    assert warehouse.spark.read.parquet(warehouse.path("silver/lost_ranges")).count() == 1


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_topic_that_was_made_anew_is_refused_however_long_it_has_grown(kafka, warehouse, connector: str) -> None:
    from pipeline.errors import WarehouseConflict
    from pipeline.ingest.stream import read_records

    ledger, source = kafka.topic("ledger"), kafka.topic("orders-retry")
    kafka.produce(source, [(b"k", b"old")] * 2)
    take_in(warehouse, kafka, ledger, source, connector=connector)
    kafka.admin.delete_topics([source])[source].result(90)
    wait_until(lambda: source not in kafka.admin.list_topics(timeout=90).topics)
    kafka.create_topic(source)
    kafka.produce(source, [(b"k", b"new")] * 3)
    for _ in range(2):  # it is no less true the second time
        with pytest.raises(WarehouseConflict, match="deleted and created again"):
            take_in(warehouse, kafka, ledger, source, connector=connector)
    assert {bytes(row.value) for row in read_records(warehouse, source).collect()} == {b"old"}
    root = Path(warehouse.root)
    for place in (f"bronze/records/topic={source}", f"_checkpoints/bronze.records.topic={source}"):
        shutil.rmtree(root / place)  # as it says
    take_in(warehouse, kafka, ledger, source, connector=connector)
    assert [bytes(row.value) for row in read_records(warehouse, source).collect()] == [b"new"] * 3


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_retention_took_of_a_partition_that_was_added_is_named(kafka, warehouse, connector: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import NewPartitions

    from pipeline.ingest.stream import read_records

    ledger, source = kafka.topic("ledger"), kafka.topic("orders-retry")
    kafka.produce(source, [(b"k", b"v")])
    take_in(warehouse, kafka, ledger, source, connector=connector)
    kafka.admin.create_partitions([NewPartitions(source, 2)])[source].result(90)
    wait_until(lambda: len(kafka.admin.list_topics(source, 90).topics[source].partitions) == 2)
    kafka.produce(source, [(b"k", b"v", [], 0, 1)] * 3)
    [deleted] = kafka.admin.delete_records([TopicPartition(source, 1, 2)]).values()
    deleted.result(90)
    lost = take_in(warehouse, kafka, ledger, source, connector=connector).lost
    assert [tuple(place) for place in lost] == [(source, 1, 0, 2)]
    assert read_records(warehouse, source).count() == 2


def test_aborted_blocks_do_not_count(kafka, warehouse) -> None:
    from confluent_kafka import Producer

    ledger = kafka.topic("ledger")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": ledger, "log_level": 0})
    producer.init_transactions(90)
    for first, end in ((0, producer.commit_transaction), (1, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(ledger, block(settled=emitted(first, 1)), b"k")
        producer.flush(90)
        end(90)
    assert take_in(warehouse, kafka, ledger).settled == {"emitted": 1}
    assert take_in(warehouse, kafka, ledger).settled == {}
