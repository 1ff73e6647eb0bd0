"""Tables in Delta: silver and the reports' gold, where `ingest --table-format delta` began a warehouse.

A batch is one commit, with the batch's number as Delta's transaction version: a batch that is done again is taken once.
Which batches a table has is in its history, as empty ones leave nothing else.
"""

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.errors import PipelineError
from pipeline.session import DELTA_SETTINGS, EXTENSIONS

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
_WRITER: Final = "tickover"
HISTORY: Final = 10
"""Commits that are looked at first."""


def check_available(spark: SparkSession, root: str) -> None:
    """Raises PipelineError where Spark wasn't started with Delta, with what to add."""
    if DELTA_SETTINGS[EXTENSIONS] not in spark.conf.get(EXTENSIONS, ""):
        confs = " ".join(f"--conf {name}={value}" for name, value in DELTA_SETTINGS.items())
        raise PipelineError(
            f"{root} is Delta's: add --spark spark.jars.packages={PACKAGE} "
            f"(under spark-submit: --packages {PACKAGE} {confs})"
        )


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether this directory is a table of Delta's, whatever Spark was started with."""
    jvm: Any = spark._jvm
    context: Any = spark._jsc
    log = jvm.org.apache.hadoop.fs.Path(path.rstrip("/") + "/_delta_log")
    return bool(log.getFileSystem(context.hadoopConfiguration()).exists(log))


def append(frame: DataFrame, path: str, batch: int) -> None:
    """Add one batch, by days of its column `date`; nothing when the table has had this one or a later one."""
    rows = frame.withColumn("batch", F.lit(batch))
    (
        rows.write.format("delta")
        .mode("append")
        .partitionBy("date")
        .option("mergeSchema", "true")  # columns that a later tickover has more
        .option("txnAppId", _WRITER)
        .option("txnVersion", batch)
        .option("userMetadata", str(batch))
        .save(path)
    )


def replace(frame: DataFrame, path: str) -> None:
    """Replace a whole table, for readers at one instant."""
    frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


def read(spark: SparkSession, path: str, schema: str) -> DataFrame:
    """A table's rows with these columns; null for those that it hasn't got yet."""
    rows = spark.read.format("delta").load(path)
    wanted = StructType.fromDDL(schema)
    absent = {field.name: F.lit(None).cast(field.dataType) for field in wanted if field.name not in rows.columns}
    return rows.withColumns(absent).select(*wanted.names) if absent else rows.select(*wanted.names)


def last_batch(spark: SparkSession, path: str) -> int:
    """The last batch that a table was given, -1 when it has none.

    That is the newest commit with a number: Delta takes none that is lower. To look at all of them would take longer
    with each; behind some compactions it is found by looking further.
    """
    asked = HISTORY
    while True:
        commits = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT {asked}")
        told = commits.select(F.col("userMetadata").try_cast("int").alias("batch")).collect()
        numbers = [row.batch for row in told if row.batch is not None]
        if numbers:
            return int(max(numbers))
        if len(told) < asked:
            break
        asked *= 10
    [found] = spark.read.format("delta").load(path).agg(F.max("batch")).collect()  # Delta keeps history for 30 days
    return -1 if found[0] is None else int(found[0])


def compact(spark: SparkSession, path: str) -> int:
    """Write small files together; returns how many. The old ones stay for readers and history, until a VACUUM."""
    [done] = spark.sql(f"OPTIMIZE delta.`{path}`").select("metrics.numFilesRemoved").collect()
    return int(done[0])
