"""`report` and `forecast`: gold tables of the reports, and a page of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.ledger import BLOCKS, ENTRIES
from pipeline.ingest.lifecycle import LIFECYCLE
from pipeline.ingest.stream import BLOCKS_TABLE, ENTRIES_TABLE, LIFECYCLE_TABLE
from pipeline.reports import html_report, reports
from pipeline.reports.horizon import Horizon
from pipeline.warehouse.tables import Warehouse

PAGE_ROWS_MAX: Final = 2_000
"""Rows of a report that leave Spark for its page, at most. The table in gold has all."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report's name, words and plot."""

    name: str
    title: str
    words: str
    draw: html_report.Draw


REPORTS: Final = (
    Report("funnel", "Retry funnel", "Which attempt rescues how much, per policy.", html_report.draw_funnel),
    Report(
        "lateness", "Lateness", "Append time in the ledger minus due, per minute and tier.", html_report.draw_lateness
    ),
    Report("triage", "Dead letters", "Kinds of failure, the new ones first.", html_report.draw_triage),
    Report("herd", "Herd calendar", "Held records by the minute in which they fall due.", html_report.draw_herd),
    Report("storms", "Retry storms", "Retries far above the mean of the hour before.", html_report.draw_storms),
    Report(
        "forecast", "Forecast", "Due per minute: held, and expected from recent arrivals.", html_report.draw_forecast
    ),
)


def report(warehouse: Warehouse, names: Sequence[str], directory: Path, horizon: Horizon) -> dict[str, Any]:
    """Compute these reports into gold, and write a page of each into the directory; returns rows and page by name."""
    directory.mkdir(parents=True, exist_ok=True)
    came = {}
    for one in REPORTS:
        if one.name not in names:
            continue
        table = f"gold/{one.name}"
        frame = _computed(warehouse, one.name, horizon)
        warehouse.replace(frame, table)
        kept = warehouse.read_report(table)
        rows = [row.asDict() for row in _ordered(kept).limit(PAGE_ROWS_MAX).collect()]
        place = directory / f"{one.name}.html"
        place.write_text(html_report.page(one.title, one.words, rows, one.draw), encoding="utf-8")
        came[one.name] = {"rows": kept.count(), "page": str(place)}
    return came


def _computed(warehouse: Warehouse, name: str, horizon: Horizon) -> DataFrame:
    rows = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    if name in ("herd", "forecast"):
        entries = reports.current(warehouse.read(ENTRIES_TABLE, ENTRIES), warehouse.read(BLOCKS_TABLE, BLOCKS))
        waiting = reports.held(entries, rows)
        if name == "herd":
            return reports.herd(waiting, horizon.now_ms, horizon.capacity)
        return reports.forecast(waiting, rows, horizon.now_ms, horizon.hours)
    if name == "triage":
        return reports.triage(rows, horizon.since_ms)
    return {"funnel": reports.funnel, "lateness": reports.lateness, "storms": reports.storms}[name](rows)


def _ordered(frame: DataFrame) -> DataFrame:
    """As a reader wants them; files have no order."""
    if "minute_ms" in frame.columns:
        return frame.orderBy("minute_ms", *(name for name in ("target", "tier") if name in frame.columns))
    if "records" in frame.columns:
        return frame.orderBy(F.desc("new"), F.desc("records"))
    return frame.orderBy("policy", "attempt")
