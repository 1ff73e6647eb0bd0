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
from policies.headers import ACTION, ID, ORIGIN, POLICY, SOURCE

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
    given = F.coalesce("headers", _no_headers())
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
        "timestamp_ms",
        F.struct("topic", "partition", "offset").alias("place"),
    )


def _no_headers() -> Column:
    return F.array().cast(_HEADERS)


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
