"""Records that nobody should write, and offsets that are not there any more: kept, counted and named by `ingest`."""

from pathlib import Path
from typing import Any

import pytest

from sidecar.model.record import Outcome
from tests.pipeline.ledger_rows import NEWER, NOW_MS, block, emitted, settled
from tests.services.kafka import Kafka
from tests.services.raw_records import produce_raw

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CONNECTORS = ("spark", "python")
YEAR_11476_MS = 300_000_000_000_000
YEAR_10000_MS = 253_402_300_800_000


def take_in(warehouse: Any, kafka: Kafka, ledger: str, *topics: str, connector: Any = "spark") -> Any:
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    return ingest(warehouse, KafkaPlace(kafka.bootstrap, connector=connector), ledger, topics)


def lifecycle(warehouse: Any) -> list[Any]:
    from pipeline.ingest.lifecycle import LIFECYCLE

    rows: list[Any] = warehouse.read("silver/lifecycle", LIFECYCLE).orderBy("offset").collect()
    return rows


@pytest.mark.parametrize("connector", CONNECTORS)
def test_any_bytes_and_times_that_no_calendar_has_are_kept_and_counted(
    kafka: Kafka, warehouse: Any, connector: str
) -> None:
    ledger = kafka.topic("ledger", 1, message_timestamp_after_max_ms=(1 << 63) - 1, retention_ms=-1)
    source = kafka.topic("orders-retry", 1)
    headers = [(b"\xff", b"\xfe"), (b"tickover-error-class", b"a\xff")]
    produce_raw(kafka.bootstrap, source, None, headers, timestamp_ms=-1, key=b"\xff")
    odd = settled([(0, -5, Outcome.EMITTED, 2), (1, YEAR_10000_MS, Outcome.DEAD, 2)])
    values = [(block(topic=source, partition=0, settled=odd), YEAR_11476_MS), (block(settled=emitted(2, 1)), NOW_MS)]
    kafka.produce(ledger, [(b"k", value, (), at_ms) for value, at_ms in values])
    came = take_in(warehouse, kafka, ledger, source, connector=connector)
    assert (came.settled, came.undated, came.document()["undated"]) == ({"emitted": 2, "dead": 1}, 1, 1)
    # The Python client gives none of a record's headers when the name of one is no text; that shows in bronze alone.
    error_class = {"spark": "a\ufffd", "python": None}[connector]
    rows = lifecycle(warehouse)
    assert [(row.accepted_ms, row.error_class, row.due_ms, row.settled_ms, row.date is None) for row in rows] == [
        (-1, error_class, -5, YEAR_11476_MS, True),
        (None, None, YEAR_10000_MS, YEAR_11476_MS, True),
        (None, None, NOW_MS, NOW_MS, False),
    ]
    from pipeline.ingest.stream import read_records

    [raw] = read_records(warehouse, source).collect()
    assert (bytes(raw.key), raw.value) == (b"\xff", None)


def test_a_block_of_a_later_version_ends_the_job_in_words(kafka: Kafka, warehouse: Any) -> None:
    from typer.testing import CliRunner

    from pipeline.cli import app
    from pipeline.errors import PipelineError

    ledger = kafka.topic("ledger")
    kafka.produce(ledger, [(b"k", NEWER), (b"k", block(settled=emitted(0, 1)))])
    command = ["ingest", "--warehouse", warehouse.root, "--bootstrap-servers", kafka.bootstrap, "--ledger", ledger]
    ended = CliRunner().invoke(app, command)
    assert isinstance(ended.exception, PipelineError)
    assert "1 blocks are of a later version: upgrade" in str(ended.exception)
    assert '"newer": 1' in ended.stdout
    assert len(lifecycle(warehouse)) == 1


def test_source_offsets_that_retention_took_are_named_once_though_the_job_is_killed(
    kafka: Kafka, warehouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import TopicPartition

    from pipeline import jobs
    from pipeline.ingest import ingest as module
    from pipeline.ingest.kafka import KafkaPlace

    ledger, source = kafka.topic("ledger"), kafka.topic("orders-retry")
    kafka.produce(source, [(b"k", b"0")])
    take_in(warehouse, kafka, ledger, source)
    # A batch that counts, and the stream doesn't know: what is in it is not lost.
    commit = Path(warehouse.path("_checkpoints", f"bronze.records.topic={source}", "commits/0"))
    commit.unlink()
    commit.with_name(".0.crc").unlink(missing_ok=True)
    kafka.produce(source, [(b"k", b"value") for _ in range(5)])
    [deleted] = kafka.admin.delete_records([TopicPartition(source, 0, 4)]).values()
    deleted.result(30)
    kafka.produce(ledger, [(b"k", block(topic=source, partition=0, settled=emitted(0, 6), low=6))])
    stream = KafkaPlace.stream

    def killed(*_: object) -> Any:
        raise KeyboardInterrupt

    def killed_at_source(self: KafkaPlace, spark: Any, topic: str) -> Any:
        return killed() if topic == source else stream(self, spark, topic)

    # Before the source is read: it is told of again. After it: nobody else would ever tell.
    for owner, name, end in ((KafkaPlace, "stream", killed_at_source), (module, "refine", killed)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, end)
            with pytest.raises(KeyboardInterrupt):
                take_in(warehouse, kafka, ledger, source)
    assert take_in(warehouse, kafka, ledger, source).lost == []
    findings = jobs.reconcile(warehouse, "")["findings"]
    assert [(row["kind"], row["topic"], row["offset"]) for row in findings if row["kind"] == "unread"] == [
        ("unread", source, 1)
    ]
    assert [row.source_known for row in lifecycle(warehouse)] == [True, False, False, False, True, True]
