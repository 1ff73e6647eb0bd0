"""Spark for the tests of the jobs: settings of a small, quick one, its Kafka connector, and Delta."""

from pathlib import Path

from tests.services.maven_jars import fetch_test_jars

CONNECTOR = Path(__file__).with_name("spark-kafka.xml")
DELTA = Path(__file__).with_name("spark-delta.xml")
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.databricks.delta.snapshotPartitions": "1",  # 8 take half as much processor time again
    # Tests run many small queries once: compiling them well takes longer than running them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def connector_jars() -> Path:
    """The directory with the connector; raises LookupError when it can't be had."""
    return fetch_test_jars(CONNECTOR)


def spark_settings() -> dict[str, str]:
    """A session's settings, the connector and Delta among them."""
    places = (connector_jars(), fetch_test_jars(DELTA))
    jars = ",".join(str(jar) for place in places for jar in sorted(place.glob("*.jar")))
    return {**SETTINGS, "spark.jars": jars}
