"""The Spark session of a job: made here, or the one that spark-submit has made."""

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from pipeline.errors import PipelineUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("pyspark", "pyarrow", "pandas")
INSTALL: Final = "make setup-pipeline in a checkout, or pip install 'WHEEL[pipeline]'"
SHUFFLE: Final = "spark.sql.shuffle.partitions"
DELTA_SNAPSHOTS: Final = "spark.databricks.delta.snapshotPartitions"
PARTITIONS_PER_CORE: Final = 4
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # A date the tables don't expect must not end a job that only counts.
    "spark.sql.ansi.enabled": "false",
}
EXTENSIONS: Final = "spark.sql.extensions"
DELTA_SETTINGS: Final = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def check_installed() -> None:
    """Raises PipelineUnavailable when Spark can't be started here, with what is missing and how to get it."""
    absent = [name for name in NEEDED if find_spec(name) is None]
    if absent:
        raise PipelineUnavailable(f"not installed: {', '.join(absent)}; {INSTALL}")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and shutil.which(f"{home}/bin/java")):
        raise PipelineUnavailable("no java: Spark needs Java 17 or newer on the path or in JAVA_HOME")


def spark_session(settings: Mapping[str, str]) -> "SparkSession":
    """A session with these Spark settings; under spark-submit, its own. Raises PipelineUnavailable."""
    check_installed()
    from pyspark.sql import SparkSession

    # The workers must find the packages that this Python has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("tickover-pipeline")
    # Whoever brings Delta's jars wants it; these two are read at the start only.
    jars = [value for name, value in settings.items() if name.startswith("spark.jars") and "delta-spark" in value]
    for name, value in {**SETTINGS, **(DELTA_SETTINGS if jars else {}), **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # The defaults, 200 and 50, are for clusters: on one machine most of the time would go into starting empty tasks.
    if spark.sparkContext.master.startswith("local"):
        for name in {SHUFFLE, DELTA_SNAPSHOTS} - settings.keys():
            spark.conf.set(name, str(PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism))
    return spark
