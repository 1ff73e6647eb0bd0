"""`resend`: records that were accepted and of which the ledger says nothing yet, to their sources again, as they came.

Until a record is settled or put to the overflow, its source's offset alone holds it: it waits in memory, or was not
read yet. So it is decided anew where it goes, as it would be after a crash: a due time counts from its timestamp, which
goes with it.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.records import place
from pipeline.ingest.topics import UNREADABLE
from policies.headers import (
    ACTION,
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    FAILURE,
    FIRST_FAILURE,
    ID,
    ORIGIN,
    POLICY,
    SOURCE,
    SPREAD,
)

MARK: Final = SOURCE
"""The header by which a record that was sent is known again: tickover reads it of no record, and takes it off."""
NAMED: Final = frozenset({ORIGIN, ID, ACTION, POLICY})
"""With an origin beside one of these a record would replace no other, or count its attempts otherwise."""
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def unsettled(judged: DataFrame, entries: DataFrame, records: DataFrame) -> DataFrame:
    """Records (`RECORDS`) that are open by `judged` (see `reconcile.positions`), and not among `entries`.

    `control`: the record acts on another one.
    """
    at = ["topic", "partition", "offset"]
    alone = judged.where("state = 'open'").select(*at).join(entries.select(*at), at, "left_anti")
    acts = F.exists(F.coalesce("headers", _no_headers()), lambda one: one["key"] == ACTION)
    return records.join(alone, at, "left_semi").withColumn("control", acts)


def resent(rows: DataFrame) -> DataFrame:
    """Rows to `send` of `unsettled` ones: each to its source and partition, with its time.

    They have their `place`: a partition's records go in the order in which they came, so that what cancels, moves or
    replaces another one comes after it.
    A record that nothing else names gets its place as origin: who gets it twice, from here and there, can tell by that.
    One with an id is known by its id, and an origin would change what becomes of it (`NAMED`).
    """
    at = place("topic", "partition", "offset")
    given = _asked_anew()
    named = F.exists(given, lambda one: one["key"].isin(*sorted(NAMED)))
    origin = F.when(named, _no_headers()).otherwise(F.array(_header(ORIGIN, at)))
    unreadable = F.exists(given, lambda one: one["key"].contains(UNREADABLE))
    return rows.select(
        at.alias("id"),
        "topic",
        "key",
        "value",
        F.concat(given, origin, F.array(_header(MARK, at))).alias("headers"),
        F.when(unreadable, "headers: a name that is no text").alias("refused"),
        "partition",
        F.coalesce("moved.at_ms", "timestamp_ms").alias("timestamp_ms"),
        F.struct("topic", "partition", "offset").alias("place"),
    )


def _asked_anew() -> Column:
    """The headers; of what a control record has moved with the due time that it gave, as the last word. How far that
    may be counts from the control record's time, and a retry's first failure from the record's own."""
    given = F.coalesce("headers", _no_headers())
    kept = F.filter(given, lambda one: ~one["key"].isin(DELIVER_AT, DELAY, SPREAD))
    first = F.array(_header(FIRST_FAILURE, F.col("timestamp_ms").cast("string")))
    failed = F.exists(given, lambda one: one["key"].isin(ATTEMPT, *sorted(FAILURE)))
    counted = ~failed | F.exists(given, lambda one: one["key"] == FIRST_FAILURE)
    due = _header(DELIVER_AT, F.col("moved.due_ms").cast("string"))
    asked = F.array(due, _header(SPREAD, F.lit("0")))
    moved = F.concat(kept, F.when(counted, _no_headers()).otherwise(first), asked)
    return F.when(F.col("moved").isNull(), given).otherwise(moved)


def _no_headers() -> Column:
    return F.array().cast(_HEADERS)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
