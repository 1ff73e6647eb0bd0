"""`compact` writes batches together: the same rows for every reader, whenever it is killed."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS, block, emitted, entries, ledger_frame

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TABLE = "silver/some"
SCHEMA = "time_ms bigint, word string"
HOUR_MS = 3_600_000
LATER_MS = 1 << 50


def write(warehouse: Any, *batches: int) -> None:
    for batch in batches:
        rows = [(NOW_MS + batch, f"of {batch}"), (-5, "before 1970"), (NOW_MS + 30 * HOUR_MS, "another day")]
        warehouse.write_batch(warehouse.spark.createDataFrame(rows, SCHEMA), TABLE, batch, "time_ms")


def rows(warehouse: Any, batch: int | None = None) -> list[tuple[Any, ...]]:
    found = warehouse.read(TABLE, SCHEMA, batch).select("batch", "date", "time_ms", "word").collect()
    return sorted((tuple(row) for row in found), key=repr)


def run(warehouse: Any, now_ms: int = 0, grace_ms: int = 0) -> Any:
    from pipeline.warehouse.compact import compact

    return compact(warehouse, TABLE, SCHEMA, now_ms, grace_ms)


def names(warehouse: Any) -> set[str]:
    return {path.name for path in (Path(warehouse.root) / TABLE).iterdir() if not path.name.startswith((".", "_"))}


def test_what_is_written_together_reads_as_before(warehouse: Any) -> None:
    write(warehouse, *range(4))
    (Path(warehouse.root) / TABLE / "batch=4").mkdir()  # somebody is writing it
    whole, one = rows(warehouse), rows(warehouse, 2)
    reader = warehouse.read(TABLE, SCHEMA)
    came = run(warehouse)
    assert (came.merged, came.deleted) == (4, 0)
    assert came.span.startswith("span-0-3-")
    assert reader.count() == len(whole)  # one that had begun still finds its files
    assert (rows(warehouse), rows(warehouse, 2), warehouse.batches(TABLE)) == (whole, one, [0, 1, 2, 3])
    assert run(warehouse).merged == 0
    assert run(warehouse, LATER_MS).deleted == 4
    assert names(warehouse) == {came.span, "batch=4"}
    assert (rows(warehouse), rows(warehouse, 2)) == (whole, one)
    write(warehouse, *range(4, 12))  # as much again and more: the span goes into the next one
    whole = rows(warehouse)
    assert run(warehouse).merged == 9
    assert (rows(warehouse), warehouse.batches(TABLE)) == (whole, list(range(12)))
    write(warehouse, 3)  # a stream repeats a batch that it hadn't noted as done
    assert rows(warehouse) == whole


@pytest.mark.parametrize("ends_at", ["write_text", "remove"])
def test_a_kill_in_between_changes_nothing(warehouse: Any, monkeypatch: pytest.MonkeyPatch, ends_at: str) -> None:
    from pipeline.warehouse.tables import Warehouse

    write(warehouse, 0, 1, 2)
    whole = rows(warehouse)
    if ends_at == "remove":
        run(warehouse)
    asked, calls = getattr(Warehouse, ends_at), []

    def killed(self: Any, *parts: str) -> None:
        calls.append(parts)
        if len(calls) == (2 if ends_at == "remove" else 1):
            raise KeyboardInterrupt
        asked(self, *parts)

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, ends_at, killed)
        with pytest.raises(KeyboardInterrupt):
            run(warehouse, LATER_MS)
    assert rows(warehouse) == whole
    came = run(warehouse, LATER_MS)
    run(warehouse, LATER_MS)
    assert rows(warehouse) == whole
    assert came.deleted == (2 if ends_at == "remove" else 1)  # what was left of it
    assert len(names(warehouse)) == 1


def test_large_pieces_are_not_written_again_for_small_ones() -> None:
    from pipeline.warehouse.compact import worth
    from pipeline.warehouse.tables import Piece

    def taken(*sizes: int) -> int:
        pieces = [Piece(number, number, f"batch={number}") for number in range(len(sizes))]
        return len(worth(pieces, [size << 20 for size in sizes]))

    assert [taken(), taken(50), taken(90, 50), taken(50, 50)] == [0, 1, 1, 2]
    assert [taken(200, 50, 50, 50), taken(150, 50, 50, 50), taken(200, 15, 14, 16, 1)] == [3, 4, 4]
    gap = [Piece(0, 3, "span-0-3-a"), Piece(5, 5, "batch=5"), Piece(6, 6, "batch=6")]
    assert worth(gap, [1, 1, 1]) == gap[1:]


def test_the_job_takes_all_tables_and_ingest_goes_on(warehouse: Any) -> None:
    from pipeline import jobs
    from pipeline.ingest.ingest import SILVER, refine
    from pipeline.ingest.stream import LEDGER_TABLE

    def append(batch: int) -> None:
        value = block(settled=emitted(3 * batch, 3), number=batch + 1, entries=entries([(90 + batch, NOW_MS)]))
        warehouse.write_batch(ledger_frame(warehouse.spark, [value]), LEDGER_TABLE, batch, "timestamp_ms")

    def silver() -> dict[str, list[str]]:
        return {name: sorted(map(str, warehouse.read(name, schema).collect())) for name, schema in SILVER.items()}

    append(0)
    append(1)
    assert refine(warehouse) == [0, 1]
    before = silver()
    done = jobs.compact(warehouse, 0, 0)
    assert {table: came["merged"] for table, came in done.items()} == {LEDGER_TABLE: 2, **dict.fromkeys(SILVER, 2)}
    assert silver() == before
    append(2)
    assert refine(warehouse) == [2]
    whole = silver()
    assert len(whole["silver/lifecycle"]) == 9
    warehouse.remove("silver")
    assert refine(warehouse) == [0, 1, 2]  # bronze can still be read batch by batch
    assert silver() == whole
