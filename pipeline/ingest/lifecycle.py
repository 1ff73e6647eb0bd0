"""The lifecycle table: one row per message and attempt, from acceptance to the way it left.

settlement (ledger)      due, settled, outcome, reason, attempt, policy@version, target, positions
+ its source record      accepted, origin, error class and fingerprint: null where sources are not ingested
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.ledger import SETTLEMENTS
from pipeline.ingest.records import place, with_headers
from sidecar.model.fingerprint import fingerprint

EMITTED: Final = "emitted"
# Of these outcomes `related` names another record than the one that holds the payload.
ITS_OWN: Final = ("applied", "moved", "cancelled", "replaced")
LIFECYCLE: Final = SETTLEMENTS + (
    ", accepted_ms bigint, emitted_ms bigint, lateness_ms bigint, tier string, "
    "origin string, error_class string, fingerprint string, source_known boolean"
)


def arrivals(records: DataFrame) -> DataFrame:
    """Columns that a settlement lacks, from source records. A record first met here is its own origin."""
    told = with_headers(records, "origin", "error_class", "error_message")
    own = place("topic", "partition", "offset")
    return told.select(
        "topic",
        "partition",
        "offset",
        F.col("timestamp_ms").alias("accepted_ms"),
        F.coalesce("origin", own).alias("origin"),
        "error_class",
        fingerprint_of("error_class", "error_message").alias("fingerprint"),
    )


def fingerprint_of(error_class: str, error_message: str) -> Column:
    """Fingerprint that failures of one kind share, as the dead letters' own; null without class and message."""
    known = F.col(error_class).isNotNull() | F.col(error_message).isNotNull()
    both = (F.coalesce(name, F.lit("")) for name in (error_class, error_message))
    return F.when(known, F.udf(fingerprint, "string", useArrow=True)(*both))


def lifecycle(settled: DataFrame, arrived: DataFrame | None) -> DataFrame:
    """`LIFECYCLE` rows of these settlements. `arrived`: see `arrivals`; None: the ledger alone.

    Emitted is the ledger's append time: the broker's clock, at most a settle interval after the emission itself.
    """
    key = ["topic", "partition", "offset"]
    if arrived is None:
        joined = settled.withColumns(
            {name: F.lit(None).cast(kind) for name, kind in (("accepted_ms", "bigint"), ("origin", "string"))}
        ).withColumns({name: F.lit(None).cast("string") for name in ("error_class", "fingerprint")})
        joined = joined.withColumn("source_known", F.lit(False))
    else:
        known = arrived.dropDuplicates(key).withColumns({"source_known": F.lit(True), "source_offset": F.col("offset")})
        # A record that was moved goes by the offset of its control record; what it is stands where it came.
        came = F.when(F.col("outcome").isin(*ITS_OWN), F.col("offset")).otherwise(F.coalesce("related", "offset"))
        joined = settled.withColumn("source_offset", came).join(
            known.drop("offset"), ["topic", "partition", "source_offset"], "left"
        )
    emitted = F.when(F.col("outcome") == EMITTED, F.col("settled_ms"))
    columns = LIFECYCLE.replace("`", "").split(", ")
    return joined.withColumns(
        {
            "emitted_ms": emitted,
            "lateness_ms": emitted - F.col("due_ms"),
            "tier": F.when(F.col("in_overflow") != 0, "overflow").otherwise("wheel"),
            "source_known": F.coalesce("source_known", F.lit(False)),
        }
    ).select(*(column.split(" ")[0] for column in columns))
