"""`rebuild`: what the ledger says is held, made again of it and the sources: every held record with its payload.

What the ledger doesn't name yet is for `resend`.

Its rows are input of `schedule`, so an overflow that is gone with its cluster goes on somewhere else. What was decided
about a record goes with it, as columns that `schedule` reads: a delay topic then emits it as it would have been.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.records import header_bytes, place, with_headers
from policies.headers import COUNTED, ERROR_CLASS, ERROR_MESSAGE, FAILURE, ID, INSTRUCTIONS, ORIGIN, WRITTEN

READ: Final = INSTRUCTIONS | FAILURE | COUNTED | WRITTEN | {ID, ORIGIN}
"""Headers that tickover reads and writes. All others are the user's own."""


def overflow(waiting: DataFrame, records: DataFrame) -> DataFrame:
    """`waiting` (see `reports.held`) with payload: `topic` (the target), `due` (epoch ms), `key`, `value`, `id`, and
    `headers`, the user's own. `id` is the place where it came: `message_id`, its `tickover-id`, names one message for
    its source alone, and rows come from several. What was decided: `expires`, `target_partition`, `attempt`,
    `first_failure`, `error_class`, `error_message`, `origin`, `spread_ms` (0: it has been); null where there is none.

    Beside it `source`, `partition`, `offset`, `policy`, `dead_letter`, and `payload_known`: false where the source's
    record is not in bronze; such a row has no value, and must not be sent.
    """
    own = F.filter("headers", lambda one: ~one["key"].isin(*sorted(READ)))
    payload = with_headers(records, "message_id", "origin", "attempt", "first_failure_ms").select(
        F.col("topic").alias("source"),
        "partition",
        F.col("offset").alias("source_offset"),
        "key",
        "value",
        own.alias("headers"),
        "message_id",
        F.coalesce("origin", place("topic", "partition", "offset")).alias("origin"),
        F.col("attempt").alias("given_attempt"),
        F.col("first_failure_ms").alias("given_first_failure"),
        header_bytes(ERROR_CLASS).alias("error_class"),
        header_bytes(ERROR_MESSAGE).alias("error_message"),
        F.lit(True).alias("payload_known"),
    )
    held = waiting.withColumnRenamed("topic", "source").drop("message_id")
    joined = held.join(payload, ["source", "partition", "source_offset"], "left")
    # A delay policy doesn't count: what it was given passes through.
    counted = F.col("attempt") > 0
    return joined.select(
        F.col("target").alias("topic"),
        F.col("due_ms").alias("due"),
        "key",
        "value",
        "headers",
        place("source", "partition", "source_offset").alias("id"),
        "message_id",
        F.when(F.col("expires_ms") >= 0, F.col("expires_ms")).alias("expires"),
        F.when(F.col("target_partition") >= 0, F.col("target_partition")).alias("target_partition"),
        F.when(counted, F.col("attempt")).otherwise(F.col("given_attempt")).alias("attempt"),
        F.when(counted, F.col("first_failure_ms")).otherwise(F.col("given_first_failure")).alias("first_failure"),
        "error_class",
        "error_message",
        "origin",
        F.lit(0).alias("spread_ms"),
        "source",
        "partition",
        "offset",
        "policy",
        "dead_letter",
        F.coalesce("payload_known", F.lit(False)).alias("payload_known"),
    )
