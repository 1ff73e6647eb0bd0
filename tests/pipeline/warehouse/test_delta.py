"""Silver and gold in Delta: the same rows as in Parquet, each batch taken once, whatever ends the job."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS, block, emitted, entries, ledger_frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLE = "silver/some"
SCHEMA = "time_ms bigint, word string"


@pytest.fixture
def delta(spark: Any, new_warehouse: Callable[..., Any]) -> Any:
    """An empty warehouse that was begun in Delta."""
    from pipeline.warehouse.tables import Warehouse

    return Warehouse.open(spark, new_warehouse("delta").root, "delta")


def write(warehouse: Any, batch: int, *words: str) -> None:
    rows = [(NOW_MS + batch, word) for word in words]
    warehouse.write_batch(warehouse.spark.createDataFrame(rows, SCHEMA), TABLE, batch, "time_ms")


def words(warehouse: Any, batch: int | None = None) -> list[str]:
    return sorted(row.word for row in warehouse.read(TABLE, SCHEMA, batch).collect())


def append(warehouse: Any, batch: int) -> None:
    """A bronze batch: a block with three settlements and an entry, and one that is none; the last one is empty."""
    from pipeline.ingest.stream import LEDGER_TABLE

    value = block(settled=emitted(3 * batch, 3), number=batch + 1, entries=entries([(90 + batch, NOW_MS)]))
    values = [] if batch == 2 else [value, b"junk"]
    warehouse.write_batch(ledger_frame(warehouse.spark, values), LEDGER_TABLE, batch, "timestamp_ms")


def silver(warehouse: Any) -> dict[str, Counter[tuple[Any, ...]]]:
    from pipeline.ingest.ingest import SILVER

    return {name: Counter(map(tuple, warehouse.read(name, schema).collect())) for name, schema in SILVER.items()}


def commits(warehouse: Any, table: str) -> int:
    return int(warehouse.spark.sql(f"DESCRIBE HISTORY delta.`{warehouse.path(table)}`").count())


def test_a_batch_is_taken_once_an_empty_one_too(delta: Any) -> None:
    from pipeline.warehouse import delta as tables
    from pipeline.warehouse.tables import date_of

    assert (delta.batches(TABLE), words(delta)) == ([], [])
    write(delta, 0, "a", "b")
    write(delta, 1)
    assert (delta.batches(TABLE), delta.has_batch(TABLE, 1), delta.has_batch(TABLE, 2)) == ([0, 1], True, False)
    write(delta, 1, "too late")
    write(delta, 2, "c")
    again = delta.spark.createDataFrame([(NOW_MS, "a second writer")], SCHEMA).withColumn("date", date_of("time_ms"))
    tables.append(again, delta.path(TABLE), 2)  # it had looked before the first one wrote
    assert (words(delta), words(delta, 0), words(delta, 1)) == (["a", "b", "c"], ["a", "b"], [])
    assert commits(delta, TABLE) == 3


def test_what_a_table_has_is_asked_of_its_newest_commits(delta: Any) -> None:
    write(delta, 0, "a")
    log = Path(delta.path(TABLE, "_delta_log"))
    compaction = {"commitInfo": {"timestamp": NOW_MS, "operation": "OPTIMIZE", "operationParameters": {}}}
    for number in range(1, 20):
        (log / f"{number:020}.json").write_text(json.dumps(compaction))
    assert delta.batches(TABLE) == [0]  # behind more commits than are looked at first
    write(delta, 1, "b")
    assert list(log.glob(f"{20:020}.checkpoint*.parquet"))  # Delta itself doesn't read the older ones any more
    (log / f"{1:020}.json").write_text("nor do we")
    assert delta.batches(TABLE) == [0, 1]


def test_a_table_of_an_older_version_lacks_columns(delta: Any) -> None:
    write(delta, 0, "old")
    frame = delta.spark.createDataFrame([(NOW_MS, "new", 7)], SCHEMA + ", more int")
    [old] = delta.read(TABLE, SCHEMA + ", more int").collect()
    assert (old.word, old.more) == ("old", None)
    delta.write_batch(frame, TABLE, 1, "time_ms")
    rows = delta.read(TABLE, SCHEMA + ", more int").orderBy("batch").collect()
    assert [(row.word, row.more) for row in rows] == [("old", None), ("new", 7)]


def test_silver_is_the_same_in_both_and_made_once_whatever_ends_it(
    delta: Any, warehouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.ingest.ingest import refine
    from pipeline.warehouse.tables import Warehouse

    for place in (delta, warehouse):
        for batch in range(3):
            append(place, batch)
    assert refine(warehouse) == [0, 1, 2]
    written, calls = Warehouse.write_batch, []

    def killed(self: Any, frame: Any, table: str, *more: Any) -> None:
        calls.append(table)
        if len(calls) == 5:  # the second batch has its blocks, and nothing else
            raise KeyboardInterrupt
        written(self, frame, table, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "write_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            refine(delta)
    assert refine(delta) == [1, 2]
    assert refine(delta) == []
    assert silver(delta) == silver(warehouse)
    assert commits(delta, "silver/blocks") == 3


def test_jobs_read_it_write_gold_in_it_and_compact_it(delta: Any) -> None:
    from pipeline import jobs
    from pipeline.ingest.ingest import refine

    for batch in range(2):
        append(delta, batch)
    refine(delta)
    before = silver(delta)
    done = jobs.compact(delta, 0, 0)
    assert done["silver/blocks"]["merged"] >= 2  # each batch is of one file or more
    assert silver(delta) == before
    assert refine(delta) == []  # the newest commit is no batch
    for _ in range(2):  # the second one replaces the first
        came = jobs.reconcile(delta, "")
        assert came["faults"]["undecodable"] == 2
        assert delta.read_report("gold/reconcile").count() == sum(came["faults"].values())
    assert commits(delta, "gold/reconcile") == 2


def test_a_warehouse_keeps_the_format_that_it_was_begun_with(
    delta: Any, warehouse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.errors import PipelineError
    from pipeline.warehouse.tables import Warehouse

    write(delta, 0, "a")
    found = Warehouse.open(delta.spark, delta.root)
    assert (found.table_format, words(found)) == ("delta", ["a"])
    with pytest.raises(PipelineError, match="has its tables in delta: delete silver and gold"):
        Warehouse.open(delta.spark, delta.root, "parquet")
    write(warehouse, 0, "a")
    assert Warehouse.open(warehouse.spark, warehouse.root).table_format == "parquet"
    with pytest.raises(PipelineError, match="has its tables in parquet"):
        Warehouse.open(warehouse.spark, warehouse.root, "delta")
    monkeypatch.setattr("pipeline.warehouse.delta.DELTA_SETTINGS", {"spark.sql.extensions": "of another Delta"})
    with pytest.raises(PipelineError, match=r"add --spark spark\.jars\.packages=io\.delta:delta-spark"):
        Warehouse.open(delta.spark, delta.root)
