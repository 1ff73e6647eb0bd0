"""`schedule`: rows of a file as delayed messages, each once, with a report row for row.

topic      where it is to arrive            due        epoch ms, a timestamp, or RFC 3339 with a zone
key, value text or bytes, may be null       headers    a map of text, may be left out
id         may be left out: then it is a hash of the row, so the same row is the same message in any order of rows

Times are rounded up to whole milliseconds. What can't be read is refused: a row that is sent says all that it said.
"""

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline import delta
from pipeline.errors import PipelineError
from policies.duration import TIME_MAX_MS
from sidecar.record import CONTROL_PREFIX, DELIVER_AT, ID, TARGET

TOPIC_PATTERN: Final = "^[A-Za-z0-9._-]{1,249}$"
ZONED: Final = r"(Z|[+-]\d\d:?\d\d)$"
FRACTION: Final = r"^([^.]*)\.(\d+)([^.]*)$"
NUMBER_MAX: Final = 1e17  # beyond all times; a larger float would become the largest whole number
ID_BYTES_MAX: Final = 1_024
MARK: Final = ID
"""The header by which a message that was sent is known again."""
_DATA: Final = ("text or bytes", (T.StringType, T.BinaryType, T.NullType))
_KINDS: Final = {
    "key": _DATA,
    "value": _DATA,
    "due": ("epoch ms, a timestamp with a zone, or text", (T.NumericType, T.TimestampType, T.StringType, T.NullType)),
    "headers": ("a map of text, or JSON of one", (T.MapType, T.ArrayType, T.StringType, T.NullType)),
}
_HEADER_NAMES: Final = ["key", "value"]
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def read_rows(spark: SparkSession, form: str, path: str) -> DataFrame:
    """The input, as it is now. Raises PipelineError where there is none, or none of this form."""
    if form == "delta":
        delta.check_available(spark, path)
    try:
        if form != "delta" and delta.is_table(spark, path):  # Spark would read each file, those of older versions too
            raise PipelineError(f"{path} is a Delta table, older versions and all: read it by --format delta")
        reader = spark.read.format(form)
        return (reader.option("header", "true") if form == "csv" else reader).load(path)
    except PySparkException as error:
        raise PipelineError(f"no input: {str(error).splitlines()[0]}") from error
    except Py4JJavaError as error:  # of a format, or a kind of file system, that Spark doesn't have
        raise PipelineError(f"no input: {error.java_exception.getMessage()}") from error


def messages(rows: DataFrame, source: str, job: str, spread_ms: int) -> DataFrame:
    """Rows to `send` to the delay topic `source`, with their `due_ms`; `refused` says why one can't be.

    Due times are spread evenly over `spread_ms` from each, by a hash of the id: the same at every run. Raises
    PipelineError when a column is missing, or of a type that it can't be of.
    """
    absent = [name for name in ("topic", "due") if name not in rows.columns]
    if absent:
        raise PipelineError(f"the input has no column {', '.join(absent)}")
    _check_types(rows.schema)
    named = rows.select(
        F.col("topic").cast("string").alias("target"),
        *(_bytes(rows, name).alias(name) for name in ("key", "value")),
        _headers(rows).alias("own"),
        _due(rows).alias("asked_ms"),
        F.col("id").cast("string").alias("given")
        if "id" in rows.columns
        else F.lit(None).cast("string").alias("given"),
    )
    content = F.sha2(F.to_json(F.struct("target", F.hex("key"), F.hex("value"), "own", "asked_ms")), 256)
    # Rows that are wholly alike are as many messages. One with an id is known by that, and isn't among them.
    twin = F.row_number().over(Window.partitionBy("content", F.col("given").isNull()).orderBy(F.lit(1)))
    made = F.concat(F.lit(f"{job}:"), F.substring("content", 1, 32), F.lit("-"), F.col("twin").cast("string"))
    told = named.withColumn("content", content).withColumn("twin", twin).withColumn("id", F.coalesce("given", made))
    spread = F.pmod(F.xxhash64("id"), F.lit(spread_ms + 1)) if spread_ms else F.lit(0)
    due = told.withColumn("due_ms", F.col("asked_ms") + spread)
    repeated = F.count("*").over(Window.partitionBy("id")) > 1
    refused = (
        F.when(F.col("target").isNull() | ~F.col("target").rlike(TOPIC_PATTERN), "topic: not a topic name")
        .when(F.col("asked_ms").isNull(), "due: not a time (epoch ms, timestamp, or RFC 3339 with a zone)")
        .when(~F.col("due_ms").between(0, TIME_MAX_MS), "due: before 1970 or after 9999")
        .when((F.octet_length("id") > ID_BYTES_MAX) | (F.length("id") == 0), "id: empty or over 1,024 bytes")
        .when(repeated, "id: given to several rows")
        .otherwise(_wrong_headers("own"))
    )
    asked = {DELIVER_AT: F.col("due_ms").cast("string"), TARGET: F.col("target"), ID: F.col("id")}
    own = [F.struct(F.lit(name).alias("key"), F.encode(text, "UTF-8").alias("value")) for name, text in asked.items()]
    return due.select(
        "id",
        F.lit(source).alias("topic"),
        "key",
        "value",
        F.concat("own", F.array(*own)).alias("headers"),
        refused.alias("refused"),
        "due_ms",
    )


def _check_types(schema: T.StructType) -> None:
    """A number as a key, say, would be eight raw bytes: nobody means that."""
    for name in _KINDS.keys() & set(schema.names):
        wanted, kinds = _KINDS[name]
        given = schema[name].dataType
        element = given.elementType if isinstance(given, T.ArrayType) else None
        odd = element is not None and not (isinstance(element, T.StructType) and element.names == _HEADER_NAMES)
        if odd or not isinstance(given, kinds):
            raise PipelineError(f"the input's column {name} is {given.simpleString()}, not {wanted}")


def _bytes(rows: DataFrame, name: str) -> Column:
    return F.col(name).cast("binary") if name in rows.columns else F.lit(None).cast("binary")


def _headers(rows: DataFrame) -> Column:
    """Null: they can't be read."""
    none = F.array().cast(_HEADERS)
    if "headers" not in rows.columns:
        return none
    given = rows.schema["headers"].dataType
    if isinstance(given, T.ArrayType):
        return F.coalesce(F.col("headers").cast(_HEADERS), none)
    if isinstance(given, T.StringType):
        return F.when(F.coalesce(F.trim("headers"), F.lit("")) == "", none).otherwise(_map_entries("headers"))
    pairs = F.map_entries(F.col("headers").cast("map<string, string>")).cast(_HEADERS)
    return F.coalesce(pairs, none)


def _map_entries(text: str) -> Column:
    """Of JSON text that is one object, null for any other. Spark by itself passes over what follows the object."""
    listed = F.from_json(F.concat(F.lit("["), F.col(text), F.lit("]")), "array<map<string, string>>")
    return F.when(F.size(listed) == 1, F.map_entries(F.try_element_at(listed, F.lit(1))).cast(_HEADERS))


def _wrong_headers(own: str) -> Column:
    """Why a row can't be sent with these; null: it can."""
    reserved = F.filter(own, lambda one: one["key"].startswith(CONTROL_PREFIX))
    named = F.try_element_at(reserved, F.lit(1))["key"]
    unreadable = F.exists(own, lambda one: one["key"].isNull() | ~F.is_valid_utf8(one["key"]))
    return (
        F.when(F.col(own).isNull(), "headers: not JSON of a map of text")
        .when(unreadable, "headers: a name that is no text")
        .when(
            named.isNotNull(),
            F.concat(F.lit("headers: "), named, F.lit(f": a name must not begin with {CONTROL_PREFIX}")),
        )
    )


def _due(rows: DataFrame) -> Column:
    """Epoch ms, rounded up: never early. Null: no time."""
    given, due = rows.schema["due"].dataType, F.col("due")
    if isinstance(given, T.TimestampType):
        return F.unix_millis(due) + F.when(F.pmod(F.unix_micros(due), F.lit(1_000)) > 0, 1).otherwise(0)
    if isinstance(given, T.FractionalType) and not isinstance(given, T.DecimalType):
        return F.when(F.abs(due) < NUMBER_MAX, F.ceil(due))  # not a number is larger than any
    if not isinstance(given, T.StringType):
        return F.ceil(due).try_cast("bigint") if isinstance(given, T.DecimalType) else due.try_cast("bigint")
    text = F.trim("due")
    # Spark reads six digits of a fraction.
    digits = F.regexp_extract(text, FRACTION, 2)
    whole_s = F.regexp_replace(text, FRACTION, "$1$3").try_cast("timestamp")
    part_ms = F.rpad(F.substring(digits, 1, 3), 3, "0").cast("bigint")
    more = F.when(digits.rlike("^...0*[1-9]"), 1).otherwise(0)
    zoned = F.when(text.rlike(ZONED), F.unix_millis(whole_s) + part_ms + more)
    return F.coalesce(text.try_cast("bigint"), zoned)
