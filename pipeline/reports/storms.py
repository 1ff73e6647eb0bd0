"""`storms`: retry storms told while they happen, each once: a stream over the ledger.

    gold/storm_state/batch=<n>    per target and minute: retries so far, and whether that storm was told
    gold/storm_alerts/batch=<n>   storms that batch n has shown, where it has shown any

Batch n makes both of state n - 1 and its own blocks, alerts first. Once state n counts, the batch is done and older
states go; until then, whatever ends the job, the same batch is made again of the same state. So a storm has one row,
and a settlement counts once. A minute is judged as in the report, by the hour before it, as long as that hour is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.kafka import KafkaPlace
from pipeline.ingest.ledger import blocks, settlements
from pipeline.ingest.stream import follow, planned_ms
from pipeline.ingest.topics import LostRange
from pipeline.reports.reports import MINUTE_MS, STORM_WINDOW, retries, with_storms
from pipeline.warehouse.tables import Warehouse

STATE_TABLE: Final = "gold/storm_state"
STATE: Final = "target string, minute_ms bigint, retries bigint, told boolean"
ALERTS_TABLE: Final = "gold/storm_alerts"
ALERTS: Final = "target string, minute_ms bigint, retries bigint, usual double"
JUDGED_MS: Final = STORM_WINDOW * MINUTE_MS
KEPT_MS: Final = 2 * JUDGED_MS  # what is judged needs its hour before
TOLD_MAX: Final = 1_000  # of one batch; the table has all

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Records that a round could not judge: ledger records that are no blocks, `newer` of them by a later version of
    tickover, and ranges that retention took before they were read."""

    undecodable: int
    newer: int
    lost: list[LostRange]


def watch(warehouse: Warehouse, kafka: KafkaPlace, ledger: str, tell: Tell) -> Unseen:
    """Judge what the ledger has now, and tell of storms that were not told yet.

    The table has each storm once; `tell` hears of the first `TOLD_MAX` of a round, and again if the job ends just then.
    Raises PipelineError.
    """
    problems = []

    def judge(batch: DataFrame, number: int) -> None:
        batch.persist()  # read from Kafka once
        advance(warehouse, number, settlements(batch), planned_ms(warehouse, STATE_TABLE, number), tell)
        problems.extend(blocks(batch).agg(F.count("problem"), F.count_if("newer")).collect())
        batch.unpersist()

    lost = follow(warehouse, kafka, ledger, STATE_TABLE, judge, lambda _: None)
    return Unseen(sum(row[0] for row in problems), sum(row[1] for row in problems), lost)


def advance(warehouse: Warehouse, number: int, settled: DataFrame, now_ms: int, tell: Tell) -> None:
    """Alerts and state of one batch, nothing if its state is there already. `now_ms`: when the batch was planned."""
    if warehouse.has_batch(STATE_TABLE, number):
        return
    state = warehouse.read(STATE_TABLE, STATE, number - 1).select("target", "minute_ms", "retries", "told")
    before_ms = state.agg(F.max("minute_ms")).collect()[0][0]
    judged = judged_minutes(state, settled, before_ms, now_ms).cache()
    fresh = F.col("storm") & ~F.col("told")
    if before_ms is not None:
        fresh = fresh & (F.col("minute_ms") > before_ms - JUDGED_MS)
    alerts = judged.where(fresh).select("target", "minute_ms", "retries", "usual")
    told = alerts.orderBy("minute_ms", "target").limit(TOLD_MAX).collect()
    if told:
        warehouse.write_batch(alerts, ALERTS_TABLE, number, "minute_ms")
    for row in told:
        tell(row.asDict())
    last_ms = judged.agg(F.max("minute_ms")).collect()[0][0]
    kept = judged.where(F.col("minute_ms") > (last_ms or 0) - KEPT_MS).withColumn("told", F.col("told") | fresh)
    warehouse.write_batch(kept.select("target", "minute_ms", "retries", "told"), STATE_TABLE, number, "minute_ms")
    judged.unpersist()
    warehouse.remove_before(STATE_TABLE, number)


def judged_minutes(state: DataFrame, settled: DataFrame, before_ms: int | None, now_ms: int) -> DataFrame:
    """State and new settlements as one: `target`, `minute_ms`, `retries`, `told`, `usual`, `storm`.

    Times to come count as now: a clock that is wrong once must not make all that follows too old.
    """
    clocked = settled.withColumn("settled_ms", F.least("settled_ms", F.lit(now_ms)))
    counted = retries(clocked).withColumn("told", F.lit(False))
    if before_ms is not None:
        counted = counted.where(F.col("minute_ms") > before_ms - KEPT_MS)
    both = state.unionByName(counted).groupBy("target", "minute_ms")
    return with_storms(both.agg(F.sum("retries").alias("retries"), F.bool_or("told").alias("told")))
