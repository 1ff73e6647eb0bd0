"""Reports: known answers for small histories."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MINUTE_MS = 60_000
START_MS = NOW_MS // MINUTE_MS * MINUTE_MS
Rows = list[dict[str, Any]]

DEFAULTS: dict[str, Any] = {
    "topic": "orders-retry",
    "topic_id": "i",
    "partition": 0,
    "policy": "orders-retry@1",
    "target": "orders",
    "outcome": "emitted",
    "attempt": 2,
    "tier": "wheel",
    "due_ms": START_MS,
    "settled_ms": START_MS,
}


def lifecycle_of(spark, *rows: dict[str, Any]):
    from pyspark.sql import types as T

    from pipeline.ingest.lifecycle import LIFECYCLE

    schema = T.StructType.fromDDL(LIFECYCLE)
    full = [DEFAULTS | {"offset": number} | row for number, row in enumerate(rows)]
    for row in full:
        if row["outcome"] == "emitted":
            row.setdefault("emitted_ms", row["settled_ms"])
            row.setdefault("lateness_ms", row["settled_ms"] - row["due_ms"])
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in full], schema)


def waiting_of(spark, *rows: tuple[int, str]):
    return spark.createDataFrame(list(rows), "due_ms bigint, target string")


def test_the_funnel_shows_which_attempt_rescues(spark) -> None:
    from pipeline.reports.reports import funnel

    # Ten messages fail first; two are dead at once, eight delivered again; three of these fail again, one for good.
    rows: Rows = [{"attempt": 2}] * 8 + [{"attempt": 1, "outcome": "dead"}] * 2
    rows += [{"attempt": 3}] * 2 + [{"attempt": 2, "outcome": "dead"}] + [{"attempt": 0}] * 5
    found = [row.asDict() for row in funnel(lifecycle_of(spark, *rows)).collect()]
    named = ("attempt", "delivered", "failed", "dead", "rescued", "share")
    assert [tuple(row[name] for name in named) for row in found] == [
        (1, 0, 10, 2, 0, 0.0),
        (2, 8, 3, 1, 5, 0.5),
        (3, 2, 0, 0, 2, 0.2),
    ]


def test_lateness_is_told_by_tier_and_minute(spark) -> None:
    from pipeline.reports.reports import lateness

    rows: Rows = [{"settled_ms": START_MS + late} for late in range(100)]
    rows += [{"tier": "overflow", "settled_ms": START_MS + MINUTE_MS, "due_ms": START_MS + MINUTE_MS - 7}]
    rows += [{"outcome": "dead"}]
    found = [tuple(row) for row in lateness(lifecycle_of(spark, *rows)).collect()]
    assert found == [
        ("wheel", START_MS, 100, 49, 89, 98, 99, 99),
        ("overflow", START_MS + MINUTE_MS, 1, 7, 7, 7, 7, 7),
    ]


def test_triage_puts_new_kinds_of_failure_first(spark) -> None:
    from pipeline.reports.reports import triage

    old: dict[str, Any] = {
        "outcome": "dead",
        "reason": "attempts_exhausted",
        "fingerprint": "aaaa",
        "error_class": "Old",
    }
    new = old | {"fingerprint": "bbbb", "error_class": "New", "settled_ms": START_MS + 5}
    rows: Rows = [old | {"settled_ms": START_MS - 9}, old | {"settled_ms": START_MS + 9}, old, new, {}]
    found = triage(lifecycle_of(spark, *rows), START_MS).collect()
    assert [(row.error_class, row.records, row.first_ms, row.last_ms, row.new, row.example) for row in found] == [
        ("New", 1, START_MS + 5, START_MS + 5, True, "orders-retry/0/3"),
        ("Old", 3, START_MS - 9, START_MS + 9, False, "orders-retry/0/1"),
    ]


def test_the_herd_calendar_counts_what_is_to_come(spark) -> None:
    from pipeline.reports.reports import herd

    waiting = waiting_of(spark, *[(START_MS + 5, "a")] * 3, (START_MS + MINUTE_MS, "a"), (START_MS - 1, "a"))
    found = [tuple(row) for row in herd(waiting, START_MS, 2).collect()]
    assert found == [("a", START_MS, 3, True), ("a", START_MS + MINUTE_MS, 1, False)]


def test_held_is_what_nothing_has_settled(spark) -> None:
    from pipeline.ingest.ledger import entries
    from pipeline.reports.reports import held
    from tests.pipeline.ledger_rows import block, ledger_frame
    from tests.pipeline.ledger_rows import entries as entry_columns

    values = [block(topic_id="i", partition=0, number=1, entries=entry_columns([(5, START_MS), (6, START_MS)]))]
    values.append(block(topic_id="i", partition=0, number=2, entries=entry_columns([(6, START_MS + 9)])))
    rows = held(entries(ledger_frame(spark, values)), lifecycle_of(spark, {"offset": 5})).collect()
    assert [(row.offset, row.due_ms, row.target) for row in rows] == [(6, START_MS + 9, "orders")]


def test_a_storm_is_far_above_the_hour_before(spark) -> None:
    from pipeline.reports.reports import storms

    usual: Rows = [{"settled_ms": START_MS + minute * MINUTE_MS} for minute in range(60) for _ in range(10)]
    storm: Rows = [{"settled_ms": START_MS + 60 * MINUTE_MS}] * 60 + [{"settled_ms": START_MS + 61 * MINUTE_MS}] * 12
    first: Rows = [{"target": "quiet", "settled_ms": START_MS}] * 19 + [{"attempt": 0}] * 500
    rows = storms(lifecycle_of(spark, *usual, *storm, *first)).collect()
    stormy = [(row.target, row.minute_ms, row.retries, row.usual) for row in rows if row.storm]
    assert stormy == [("orders", START_MS + 60 * MINUTE_MS, 60, 10.0)]
    assert {row.usual for row in rows if row.target == "quiet"} == {0.0}


def test_a_forecast_adds_what_is_likely_to_what_is_held(spark) -> None:
    from pipeline.reports.reports import forecast

    waiting = waiting_of(spark, (START_MS - 5, "a"), (START_MS + 5, "a"), (START_MS + 3 * MINUTE_MS, "a"))
    # In the last ten minutes 20 records came with a delay of two minutes, 10 without one, and one long ago.
    rows: Rows = [{"accepted_ms": START_MS - 5, "due_ms": START_MS + 2 * MINUTE_MS}] * 20
    rows += [{"accepted_ms": START_MS - 5, "due_ms": START_MS - 5}] * 10
    rows += [{"accepted_ms": START_MS - 11 * MINUTE_MS, "due_ms": START_MS}, {"accepted_ms": None}]
    # What was acted on, or acted itself, never fell due: one that was moved goes on, and counts when it is emitted.
    acted = ("applied", "cancelled", "replaced", "moved")
    rows += [{"accepted_ms": START_MS - 5, "due_ms": START_MS - 5, "outcome": outcome} for outcome in acted]
    found = forecast(waiting, lifecycle_of(spark, *rows), START_MS, 1, 10 * MINUTE_MS).collect()
    assert [tuple(row) for row in found[:4]] == [
        (START_MS, 2, 1.0, 3.0),
        (START_MS + MINUTE_MS, 0, 1.0, 1.0),
        (START_MS + 2 * MINUTE_MS, 0, 3.0, 3.0),
        (START_MS + 3 * MINUTE_MS, 1, 3.0, 4.0),
    ]
    assert len(found) == 60


def test_every_report_leaves_a_table_and_a_page(warehouse, spark, tmp_path: Path) -> None:
    from pipeline.ingest.ledger import blocks, entries
    from pipeline.reports.horizon import Horizon
    from pipeline.reports.reporting import REPORTS, report
    from tests.pipeline.ledger_rows import block, ledger_frame
    from tests.pipeline.ledger_rows import entries as entry_columns

    rows = lifecycle_of(spark, {}, {"outcome": "dead", "reason": "expired", "attempt": 1}, {"tier": "overflow"})
    warehouse.write_batch(rows, "silver/lifecycle", 0, "settled_ms")
    held = ledger_frame(spark, [block(number=1, entries=entry_columns([(50, START_MS + MINUTE_MS)]))])
    warehouse.write_batch(entries(held), "silver/entries", 0, "settled_ms")
    warehouse.write_batch(blocks(held), "silver/blocks", 0, "settled_ms")
    names = [one.name for one in REPORTS]
    came = report(warehouse, names, tmp_path / "pages", Horizon(START_MS, START_MS, 1, 0))
    assert {name: one["rows"] for name, one in came.items()} == {
        "funnel": 2,
        "lateness": 2,
        "triage": 1,
        "herd": 1,
        "storms": 1,
        "forecast": 60,
    }
    for one in REPORTS:
        assert "<svg" in Path(came[one.name]["page"]).read_text()
        assert warehouse.exists("gold", one.name, "_SUCCESS")
