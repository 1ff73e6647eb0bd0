"""`backtest`: what other policies would have done with the failures that were recorded.

Each record of a retry topic is one failure. `decisions` asks the live `policies.decide.decide` about it, once per set
of policies; `replayed` then follows each message through its failures: a set that gives up ends it there, one that
waits longer or shorter moves what comes after. What nobody recorded (an attempt after the last one) stays unknown.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.ingest.records import place, with_headers
from pipeline.reports.facts import facts_of
from policies.decide import decide
from policies.decision import TOO_MANY_HEADERS, Act, Dead, Decision, Hold
from policies.file import parse_policies
from policies.headers import ACTION
from policies.model import Versioned
from policies.table import PolicyTable

MINUTE_MS: Final = 60_000
DECISIONS: Final = (
    "policies string, topic string, partition int, offset bigint, timestamp_ms bigint, decision string, "
    "due_ms bigint, target string, policy string, attempt bigint, reason string"
)
ENDS: Final = ("emitted", "dead", "quarantined")
DECIDED: Final = ("due_ms", "target", "policy", "attempt", "reason")
_ARROW: Final = pa.schema(
    [
        ("policies", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("decision", pa.string()),
        ("due_ms", pa.int64()),
        ("target", pa.string()),
        ("policy", pa.string()),
        ("attempt", pa.int64()),
        ("reason", pa.string()),
    ]
)


def policy_table(text: str, name: str) -> PolicyTable:
    """The table that a policies file makes, each policy as version 1. Raises PolicyFileError."""
    versions = {policy.name: Versioned(policy, 1, "backtest", 0, "file") for policy in parse_policies(text, name)}
    return PolicyTable(1, MappingProxyType(versions))


def decisions(records: DataFrame, files: Mapping[str, str]) -> DataFrame:
    """`DECISIONS` rows: for each record of `RECORDS` what each set of policies (name: YAML text) decides.

    Raises PolicyFileError for a file that is none.
    """
    for name, text in files.items():
        policy_table(text, name)
    texts = dict(files)

    def batches(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = {name: policy_table(text, name) for name, text in texts.items()}
        for part in parts:
            yield _decided(part, tables)

    wanted = records.select("topic", "partition", "offset", "timestamp_ms", "headers")
    return wanted.mapInArrow(batches, DECISIONS)


def _decided(part: pa.RecordBatch, tables: Mapping[str, PolicyTable]) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = []
    for topic, partition, offset, timestamp_ms, headers in zip(*(c.to_pylist() for c in part.columns), strict=True):
        pairs = [(one["key"], one["value"]) for one in headers or ()]
        facts = facts_of((topic, partition, offset), timestamp_ms, pairs)
        for name, table in tables.items():
            rows.append((name, topic, partition, offset, timestamp_ms, *told(decide(facts, table))))
    columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def told(decision: Decision) -> tuple[str, int | None, str | None, str | None, int | None, str | None]:
    """A decision as columns: decision, due_ms, target, policy, attempt, reason."""
    if isinstance(decision, Hold):
        return "hold", decision.due_ms, decision.target, decision.policy, decision.attempt, None
    if isinstance(decision, Dead):
        return "dead", decision.due_ms, decision.topic, decision.policy, decision.attempt, decision.reason
    if isinstance(decision, Act):
        return "act", None if decision.due_ms < 0 else decision.due_ms, None, decision.policy, None, None
    return "quarantine", None, None, None, None, decision.reason


def failures(records: DataFrame, settled: DataFrame) -> DataFrame:
    """The recorded failures, with what was done: key columns, `origin`, `failed`, `timestamp_ms`, `done`, `done_ms`.

    `failed` is the attempt that failed, 1 without the header; `done` the outcome in the ledger, `done_ms` its due.
    Control records are left out: no message has failed there.
    """
    key = ["topic", "partition", "offset"]
    acts = F.exists(F.coalesce("headers", F.array()), lambda one: one["key"] == ACTION)
    told = with_headers(records.where(~acts), "origin", "attempt")
    each = told.select(
        *key,
        "timestamp_ms",
        F.coalesce("origin", place(*key)).alias("origin"),
        F.coalesce("attempt", F.lit(1)).alias("failed"),
    )
    last = settled.groupBy(*key).agg(F.max("outcome").alias("done"), F.max("due_ms").alias("done_ms"))
    return each.join(last, key, "left")


def replayed(failed: DataFrame, decided: DataFrame) -> DataFrame:
    """Each failure under each set of policies, in the time that set would have made of it.

    Adds to `decided`: `origin`, `failed`, `reached` (no earlier failure was given up), `at_ms` (when this failure would
    have been) and `fires_ms` (when its retry would), `last` (the last failure that is recorded), `rescued` (it was
    delivered after it and did not come back).
    """
    key = ["topic", "partition", "offset"]
    rows = decided.drop("timestamp_ms").join(failed, key)
    ordered = Window.partitionBy("policies", "origin").orderBy("failed", "timestamp_ms", *key)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    wait = F.when(F.col("decision") == "hold", F.col("due_ms") - F.col("timestamp_ms"))
    rows = rows.withColumns({"wait_ms": F.greatest(wait, F.lit(0)), "following": F.lead("timestamp_ms").over(ordered)})
    # What a delivery took until it failed again is the consumer's, whatever the policy.
    handled = F.greatest(F.col("following") - F.coalesce("done_ms", "timestamp_ms"), F.lit(0))
    rows = rows.withColumn("handled_ms", handled)
    first = F.first("timestamp_ms").over(ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    passed = F.coalesce(
        F.sum(F.coalesce("wait_ms", F.lit(0)) + F.coalesce("handled_ms", F.lit(0))).over(before), F.lit(0)
    )
    given_up = F.coalesce(F.max(F.when(F.col("decision") != "hold", 1).otherwise(0)).over(before), F.lit(0))
    rows = rows.withColumns({"reached": given_up == 0, "at_ms": first + passed, "last": F.col("following").isNull()})
    return rows.withColumns(
        {
            "fires_ms": F.col("at_ms") + F.col("wait_ms"),
            "rescued": F.col("last") & (F.col("done") == "emitted"),
        }
    ).drop("following", "handled_ms")


def agreement(decided: DataFrame, settled: DataFrame) -> DataFrame:
    """Per set of policies: `recorded`, the records that the engine has settled by a decision, and `same`: those of them
    that this set decides alike, to the millisecond. Versions of policies may differ.

    Decisions are compared, not ends: a record that was held and then expired, or whose topic wasn't there, has left
    with the due time, policy and attempt that were decided. Left out is what was not decided: moved records, and those
    with more headers than the settings allow.
    """
    key = ["topic", "partition", "offset"]
    ours = F.coalesce("reason", F.lit("")) != TOO_MANY_HEADERS
    done = settled.where(F.col("outcome").isin(*ENDS) & F.col("related").isNull() & ours)
    mine, live = F.col("mine"), F.col("live")
    policy = _unversioned(mine["policy"]) == _unversioned(live["policy"])
    timed = policy & (mine["due_ms"] == live["due_ms"]) & (mine["attempt"] == live["attempt"])
    ended, reason = live["outcome"], mine["reason"].eqNullSafe(live["reason"])
    target = mine["target"].eqNullSafe(live["target"])
    same = (
        F.when(mine["decision"] == "quarantine", (ended == "quarantined") & reason)  # no policy was met, nothing is due
        .when(mine["decision"] == "dead", timed & ((ended == "quarantined") | ((ended == "dead") & target & reason)))
        .when(mine["decision"] == "hold", timed & ((ended != "emitted") | target))
        .otherwise(False)
    )
    both = decided.select("policies", *key, F.struct("decision", *DECIDED).alias("mine")).join(
        done.select(*key, F.struct("outcome", *DECIDED).alias("live")), key
    )
    return both.groupBy("policies").agg(F.count("*").alias("recorded"), F.count_if(same).alias("same"))


def _unversioned(policy: Column) -> Column:
    return F.substring_index(policy, "@", 1)


def comparison(rows: DataFrame) -> DataFrame:
    """Side by side, one row per set: messages, deliveries, how many ended how, and the time to success (ms)."""
    reached = rows.where("reached")
    held = F.col("decision") == "hold"
    success = held & F.col("last") & F.coalesce("rescued", F.lit(False))
    taken = F.when(success, F.col("fires_ms") - F.col("began_ms"))
    began = Window.partitionBy("policies", "origin")
    counted = reached.withColumn("began_ms", F.min("at_ms").over(began)).groupBy("policies")
    totals = counted.agg(
        F.count_distinct("origin").alias("messages"),
        F.count_if(held).alias("deliveries"),
        F.count_if(success).alias("rescued"),
        F.count_if(F.col("decision") == "dead").alias("dead"),
        F.count_if(F.col("decision") == "quarantine").alias("quarantined"),
        F.count_if(held & F.col("last") & ~F.coalesce("rescued", F.lit(False))).alias("unknown"),
        F.percentile_approx(taken, [0.5, 0.9, 0.99]).alias("to_success_ms"),
    )
    return totals.withColumn("rescue_share", F.col("rescued") / F.col("messages")).orderBy("policies")


def load(rows: DataFrame) -> DataFrame:
    """Deliveries per minute and set of policies: `policies`, `minute_ms`, `deliveries`."""
    minute = (F.floor(F.col("fires_ms") / MINUTE_MS) * MINUTE_MS).alias("minute_ms")
    fired = rows.where("reached AND decision = 'hold'")
    return fired.groupBy("policies", minute).agg(F.count("*").alias("deliveries"))
