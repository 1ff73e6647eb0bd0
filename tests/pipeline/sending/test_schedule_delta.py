"""`schedule` from a Delta table, on a real Kafka: its rows as they are when the run begins, each once."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sidecar.cli.app import app
from tests.services.kafka import Kafka
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Where a table may be."""
    return str(tmp_path / "newsletter")


def write(spark: Any, table: str, *rows: tuple[str, str], mode: str = "append") -> None:
    """A new version, with these rows (id, value)."""
    whole = [("mail", value, id) for id, value in rows]
    frame = spark.createDataFrame(whole, "topic string, value string, id string")
    dated = frame.selectExpr("topic", "TIMESTAMP '2030-01-02 03:04:05Z' AS due", "value", "id")
    dated.write.format("delta").mode(mode).save(table)


def write_elsewhere(spark: Any, table: str, *rows: tuple[str, str]) -> None:
    """Replace all rows as another program does: what this Spark has read of the table isn't read again for it."""
    copy = f"{table}-copy"
    shutil.copytree(table, copy)
    write(spark, copy, *rows, mode="overwrite")
    shutil.copytree(copy, table, dirs_exist_ok=True)


def run(warehouse: Any, kafka: Kafka, topic: str, table: str, *more: str) -> tuple[int, str, str]:
    place = ["--warehouse", warehouse.root, "--job", "job", "--source", topic, "--input", table]
    ended = CliRunner().invoke(
        app, ["pipeline", "schedule", *place, "--bootstrap-servers", kafka.bootstrap, *more], prog_name="tickover"
    )
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def schedule(warehouse: Any, kafka: Kafka, topic: str, table: str, *more: str) -> dict[str, int]:
    """Counts by state, of a run that ends well."""
    status, shown, said = run(warehouse, kafka, topic, table, "--format", "delta", *more)
    assert status == 0, said
    rows: dict[str, int] = json.loads(shown)["rows"]
    return rows


def sent(kafka: Kafka, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """(id, value) of each message there."""
    return Counter((dict(headers_of(message))["tickover-id"], message.value()) for message in kafka.read_all(topic))


def test_a_new_version_brings_what_is_new_in_it_and_nothing_again(kafka: Kafka, warehouse: Any, table: str) -> None:
    topic, spark = kafka.topic("reminders", 2), warehouse.spark
    write(spark, table, ("gone", "never sent"), ("a", "one"))
    write(spark, table, ("a", "one"), ("b", "two"), mode="overwrite")  # the first version's files are still there
    assert schedule(warehouse, kafka, topic, table) == {"sent": 2}
    assert sent(kafka, topic) == {(b"a", b"one"): 1, (b"b", b"two"): 1}
    [message, *_] = kafka.read_all(topic)
    assert dict(headers_of(message))["tickover-deliver-at"] == b"1893553445000"

    # One has gone, one is known by its id, one is new.
    write(spark, table, ("b", "changed"), ("c", "three"), mode="overwrite")
    assert schedule(warehouse, kafka, topic, table) == {"sent": 3}
    assert sent(kafka, topic) == {(b"a", b"one"): 1, (b"b", b"two"): 1, (b"c", b"three"): 1}


def test_a_version_that_comes_while_a_run_sends_is_the_next_one_s(
    kafka: Kafka, warehouse: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.sending import dispatch
    from pipeline.sending.sending import send as asked

    topic = kafka.topic("reminders")
    first = [(f"old-{number}", "x") for number in range(20)]
    write(warehouse.spark, table, *first)
    slices = []

    def send_beside_a_writer(*arguments: Any) -> Any:
        slices.append(1)
        if len(slices) == 1:
            write_elsewhere(warehouse.spark, table, *((f"new-{number}", "x") for number in range(20)))
        return asked(*arguments)

    monkeypatch.setattr(dispatch, "send", send_beside_a_writer)
    assert schedule(warehouse, kafka, topic, table, "--slice-rows", "7") == {"sent": 20}
    assert {id for id, _ in sent(kafka, topic)} == {name.encode() for name, _ in first}
    assert len(slices) == 3
    assert schedule(warehouse, kafka, topic, table) == {"sent": 40}
    assert set(sent(kafka, topic).values()) == {1}


def test_what_is_no_table_or_none_of_messages_is_said_in_a_line(kafka: Kafka, warehouse: Any, table: str) -> None:
    topic, spark = kafka.topic("reminders"), warehouse.spark

    def words(path: str, form: str = "delta") -> str:
        status, shown, said = run(warehouse, kafka, topic, path, "--format", form)
        assert (status, shown, said.count("\n")) == (1, "", 1), said
        return said

    assert "Path does not exist" in words(f"{table}-absent")
    assert "Path does not exist" in words(f"{table}-absent", "csv")
    assert "Failed to find the data source: dleta" in words(table, "dleta")
    spark.sql("SELECT 'mail' AS topic").write.parquet(f"{table}-parquet")
    assert "doesn't exist" in words(f"{table}-parquet")
    write(spark, table, ("a", "one"))
    assert "is a Delta table, older versions and all: read it by --format delta" in words(table, "parquet")
    spark.sql("SELECT 'mail' AS target, 1893456000000L AS due, 7L AS key").write.format("delta").save(
        f"{table}-letters"
    )
    assert "the input has no column topic" in words(f"{table}-letters")
    spark.sql("SELECT 'mail' AS topic, 1893456000000L AS due, 7L AS key").write.format("delta").save(f"{table}-numbers")
    assert "the input's column key is bigint, not text or bytes" in words(f"{table}-numbers")
    assert kafka.read_all(topic) == []


def test_without_delta_it_says_what_to_add(
    kafka: Kafka, warehouse: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.warehouse.delta.DELTA_SETTINGS", {"spark.sql.extensions": "of another Delta"})
    for form, said in (("delta", "add --spark spark.jars.packages=io.delta:"), ("parquet", "Path does not exist")):
        status, _, words = run(warehouse, kafka, "reminders", table, "--format", form)
        assert status == 1
        assert said in words
