"""`rebuild`: what the overflow holds, made again of the ledger and the sources: every held record with its payload.

Its rows are input of `schedule`, so an overflow that is gone with its cluster goes on somewhere else.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.records import with_headers
from sidecar.record import CONTROL_PREFIX


def overflow(waiting: DataFrame, records: DataFrame) -> DataFrame:
    """`waiting` (see `reports.held`) with payload: `topic` (the target), `due` (epoch ms), `key`, `value`, `headers`,
    `id`. Headers of tickover's are left out.

    Beside it `source`, `partition`, `offset`, `policy`, and `payload_known`: false where the source's record is not in
    bronze; such a row has no value, and must not be sent.
    """
    payload = with_headers(records, "message_id").select(
        F.col("topic").alias("source"),
        "partition",
        F.col("offset").alias("source_offset"),
        "key",
        "value",
        F.filter("headers", lambda one: ~one["key"].startswith(CONTROL_PREFIX)).alias("headers"),
        F.col("message_id").alias("id"),
        F.lit(True).alias("payload_known"),
    )
    held = waiting.withColumnRenamed("topic", "source")
    joined = held.join(payload, ["source", "partition", "source_offset"], "left")
    return joined.select(
        F.col("target").alias("topic"),
        F.col("due_ms").alias("due"),
        "key",
        "value",
        "headers",
        # Without an id of the user's its place names it: the same record is the same message wherever it is sent.
        F.coalesce("id", F.concat_ws("/", "source", "partition", "source_offset")).alias("id"),
        "source",
        "partition",
        "offset",
        "policy",
        F.coalesce("payload_known", F.lit(False)).alias("payload_known"),
    )
