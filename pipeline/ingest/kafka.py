"""Topics as streams of rows, by Spark's own connector where its jars are, else by confluent-kafka.

Both give the same columns and remember their place in the same form, `{"topic": {"partition": offset}}`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pyspark.sql import DataFrame, SparkSession

from pipeline.ingest.kafka_source import KafkaSource

CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

Connector = Literal["auto", "spark", "python"]


@dataclass(frozen=True, slots=True)
class KafkaPlace:
    """A cluster, and how it is read. `options`: any setting of the client, as both clients name it."""

    bootstrap: str
    options: Mapping[str, str] = field(default_factory=dict)
    connector: Connector = "auto"

    @property
    def client(self) -> dict[str, str]:
        """Settings for confluent-kafka."""
        return {"bootstrap.servers": self.bootstrap, **self.options}

    def stream(self, spark: SparkSession, topic: str) -> DataFrame:
        """The topic from its start as an unbounded frame of `RECORDS`. What was aborted doesn't show."""
        if not self._by_spark(spark):
            spark.dataSource.register(KafkaSource)
            options = {"topic": topic, "client": json.dumps(self.client)}
            return spark.readStream.format("tickover-kafka").options(**options).load()
        frame = (
            spark.readStream.format("kafka")
            .options(**{f"kafka.{name}": value for name, value in self.client.items()})
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            # What retention has deleted is found and reported by `lost_ranges`; the rest must still be read.
            .option("failOnDataLoss", "false")
            .load()
        )
        place = ("topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
        return frame.selectExpr(*place, "key", "value", "headers")

    def _by_spark(self, spark: SparkSession) -> bool:
        if self.connector != "auto":
            return self.connector == "spark"
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return loader.getResource(CONNECTOR_CLASS.replace(".", "/") + ".class") is not None
