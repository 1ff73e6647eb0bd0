"""`schedule`: rows of a file as delayed messages, each once, with a report row for row.

topic      where it is to arrive            due        epoch ms, a timestamp, or RFC 3339 with a zone
key, value text or bytes, may be null       headers    a map of text, may be left out
id         may be left out: then it is a hash of the row, so the same row is the same message in any order of rows
more       what `rebuild` knows of a record beside it: `MORE`, and `payload_known`; may be left out

Times are rounded up to whole milliseconds. What can't be read is refused: a row that is sent says all that it said.
"""

from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pipeline.errors import PipelineError
from pipeline.sending.rebuild import READ
from pipeline.warehouse import delta
from policies.duration import SECONDS_BELOW, TIME_MAX_MS
from policies.headers import (
    ATTEMPT,
    CONTROL_PREFIX,
    DELIVER_AT,
    ERROR_CLASS,
    ERROR_MESSAGE,
    EXPIRES_AT,
    FIRST_FAILURE,
    ID,
    OCCURRENCE_IDS,
    ORIGIN,
    SOURCE,
    SPREAD,
    TARGET,
    TARGET_PARTITION,
)
from policies.request import INT32_MAX
from sidecar.model.reserved_topics import BY_NAME, RESERVED, ReservedTopics

TOPIC_PATTERN: Final = "^[A-Za-z0-9._-]{1,249}$"
ZONED: Final = r"(Z|[+-]\d\d:?\d\d)$"
# What Spark doesn't read of the times that are taken elsewhere, and how it is written for it.
SPELLED_OUT: Final = (
    (r"(:\d\d),(\d)", "$1.$2"),
    (r"([Tt ]\d\d:\d\d)([Zz+-])", "$1:00$2"),
    (r"(:\d\d(?:\.\d+)?[+-]\d\d)$", "$1:00"),
    (r"(:\d\d(?:\.\d+)?[+-]\d\d)(\d\d)$", "$1:$2"),
)
FRACTION: Final = r"^([^.]*)\.(\d+)([^.]*)$"
NUMBER_MAX: Final = 1e17  # beyond all times; a larger float would become the largest whole number
IN_SECONDS: Final = "looks like epoch seconds: a time as a number is in milliseconds"
NO_TIME: Final = "not a time (epoch ms, timestamp, or RFC 3339 with a zone)"
ID_BYTES_MAX: Final = 1_024
MARK: Final = ID
"""The header by which a message that was sent is known again, see `mark_of`."""
MORE: Final = {
    "expires": EXPIRES_AT,
    "target_partition": TARGET_PARTITION,
    "attempt": ATTEMPT,
    "first_failure": FIRST_FAILURE,
    "spread_ms": SPREAD,
    "error_class": ERROR_CLASS,
    "error_message": ERROR_MESSAGE,
    "origin": ORIGIN,
}
"""Further columns, each a header of the message where it isn't null."""
PAYLOAD_KNOWN: Final = "payload_known"
MESSAGE_ID: Final = "message_id"
_NUMBERS: Final = {
    "target_partition": (0, INT32_MAX),
    "attempt": (1, INT32_MAX - 1),
    "first_failure": (0, TIME_MAX_MS),
    "spread_ms": (0, TIME_MAX_MS),
}
_DATA: Final = ("text or bytes", (T.StringType, T.BinaryType, T.NullType))
_NUMBER: Final = ("a whole number", (T.NumericType, T.StringType, T.NullType))
_TIME: Final = (
    "epoch ms, a timestamp with a zone, or text",
    (T.NumericType, T.TimestampType, T.StringType, T.NullType),
)
_KINDS: Final = {
    **dict.fromkeys(("key", "value", "error_class", "error_message", "origin"), _DATA),
    **dict.fromkeys(("due", "expires"), _TIME),
    **dict.fromkeys(_NUMBERS, _NUMBER),
    PAYLOAD_KNOWN: ("true or false", (T.BooleanType, T.NullType)),
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


def mark_of(rows: DataFrame) -> str:
    """The header by which messages of these rows are known again. Rows of `rebuild` are known by the place where they
    came, in a header that tickover takes off: a `tickover-id` names one message of one source, and they are of many.
    """
    return SOURCE if {PAYLOAD_KNOWN, MESSAGE_ID} <= set(rows.columns) else MARK


def messages(rows: DataFrame, source: str, job: str, spread_ms: int) -> DataFrame:
    """Rows to `send` to the delay topic `source`, with their `due_ms`; `refused` says why one can't be.

    Each has its `id` in the header `mark_of`; of rows of `rebuild` `message_id` is the `tickover-id`, if there is one.

    Due times are spread evenly over `spread_ms` from each, by a hash of the id: the same at every run. Raises
    PipelineError when a column is missing, or of a type that it can't be of, or the source is reserved.
    """
    if source in ReservedTopics():
        raise PipelineError(f"no messages for {source}: it {RESERVED}")
    absent = [name for name in ("topic", "due") if name not in rows.columns]
    if absent:
        raise PipelineError(f"the input has no column {', '.join(absent)}")
    _check_types(rows.schema)
    named = rows.select(
        F.col("topic").cast("string").alias("target"),
        *(_bytes(rows, name).alias(name) for name in ("key", "value")),
        _headers(rows).alias("own"),
        _time(rows, "due").alias("asked_ms"),
        _is_in_seconds(rows, "due").alias("in_seconds"),
        _given(rows, "id").cast("string").alias("given"),
        *(_more(rows, name).alias(name) for name in MORE),
        _given(rows, MESSAGE_ID).cast("string").alias(MESSAGE_ID),
        _wrong_more(rows).alias("wrong"),
    )
    # What is null isn't in the text, so a column that comes to be known changes no id of a row without it.
    said = F.struct("target", F.hex("key"), F.hex("value"), "own", "asked_ms", *MORE)
    content = F.sha2(F.to_json(said), 256)
    # Rows that are wholly alike are as many messages. One with an id is known by that, and isn't among them.
    twin = F.row_number().over(Window.partitionBy("content", F.col("given").isNull()).orderBy(F.lit(1)))
    made = F.concat(F.lit(f"{job}:"), F.substring("content", 1, 32), F.lit("-"), F.col("twin").cast("string"))
    told = named.withColumn("content", content).withColumn("twin", twin).withColumn("id", F.coalesce("given", made))
    spread = F.pmod(F.xxhash64("id"), F.lit(spread_ms + 1)) if spread_ms else F.lit(0)
    due = told.withColumn("due_ms", F.col("asked_ms") + spread)
    repeated = F.count("*").over(Window.partitionBy("id")) > 1
    rebuilt = PAYLOAD_KNOWN in rows.columns
    reserved = F.lit(not rebuilt) & F.col("id").startswith(OCCURRENCE_IDS)
    refused = (
        F.when(F.col("target").isNull() | ~F.col("target").rlike(TOPIC_PATTERN), "topic: not a topic name")
        .when(F.col("target").rlike(f"^(?:{BY_NAME})$"), f"topic: it {RESERVED}")
        .when(F.col("asked_ms").isNull(), f"due: {NO_TIME}")
        .when(F.col("in_seconds"), f"due: {IN_SECONDS}")
        .when(F.col("due_ms").between(1, SECONDS_BELOW - 1), "due: before 1973")  # as a number it looked like seconds
        .when(~F.col("due_ms").between(0, TIME_MAX_MS), "due: before 1970 or after 9999")
        .when((F.octet_length("id") > ID_BYTES_MAX) | (F.length("id") == 0), "id: empty or over 1,024 bytes")
        .when(reserved, f"id: those that begin with {OCCURRENCE_IDS} are of schedules' occurrences")
        .when(repeated, "id: given to several rows")
        .when(F.col("wrong").isNotNull(), F.col("wrong"))
        .otherwise(_wrong_headers("own", rebuilt))
    )
    asked = {DELIVER_AT: F.col("due_ms").cast("string"), TARGET: F.col("target")}
    asked |= {name: F.col(column) for column, name in MORE.items()}
    names = {ID: F.col("id")}
    if mark_of(rows) == SOURCE:
        names = {SOURCE: F.col("id"), ID: F.col(MESSAGE_ID)}
    return due.select(
        "id",
        F.lit(source).alias("topic"),
        "key",
        "value",
        F.concat("own", _asked({**asked, **names})).alias("headers"),
        refused.alias("refused"),
        "due_ms",
        names[ID].alias(MESSAGE_ID),
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


def _given(rows: DataFrame, name: str) -> Column:
    return F.col(name) if name in rows.columns else F.lit(None)


def _bytes(rows: DataFrame, name: str) -> Column:
    return _given(rows, name).cast("binary")


def _asked(headers: Mapping[str, Column]) -> Column:
    """Headers of those that aren't null."""
    pairs = [
        F.when(value.isNotNull(), F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")))
        for name, value in headers.items()
    ]
    return F.filter(F.array(*pairs), lambda one: one.isNotNull())


def _more(rows: DataFrame, name: str) -> Column:
    """One of `MORE` as it stands in its header; null where it isn't given or isn't one."""
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        number = _whole(rows, name)
        return F.when(number.between(least, most), number).cast("string")
    if name == "expires":
        time = _time(rows, name)
        return F.when(time.between(0, TIME_MAX_MS), time).cast("string")
    return _bytes(rows, name)


def _wrong_more(rows: DataFrame) -> Column:
    """Why a row can't be sent for what it has in `MORE`; null: it can."""
    known = F.coalesce(_given(rows, PAYLOAD_KNOWN).cast("boolean"), F.lit(True))
    why = F.when(~known, "payload: it was not ingested, and a null value would be a deletion")
    lost = {name: _given(rows, name).isNotNull() & _more(rows, name).isNull() for name in MORE}
    why = why.when(lost["expires"], f"expires: {NO_TIME}")
    why = why.when(_is_in_seconds(rows, "expires"), f"expires: {IN_SECONDS}")
    for name, (least, most) in _NUMBERS.items():
        why = why.when(lost[name], f"{name}: not a whole number from {least} to {most}")
    return why


def _whole(rows: DataFrame, name: str) -> Column:
    given, number = _given(rows, name), _given(rows, name).try_cast("bigint")
    kind = rows.schema[name].dataType if name in rows.columns else T.NullType()
    return F.when(number == given, number) if isinstance(kind, T.FractionalType) else number


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


def _wrong_headers(own: str, rebuilt: bool) -> Column:
    """Why a row can't be sent with these; null: it can. `rebuild` leaves those that travel along, as of a redrive."""
    reserved = F.filter(own, lambda one: one["key"].isin(*READ) if rebuilt else one["key"].startswith(CONTROL_PREFIX))
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


def _is_in_seconds(rows: DataFrame, name: str) -> Column:
    """Whether a number looks like epoch seconds. A text with a date, and a timestamp, are never taken for them."""
    if name not in rows.columns or isinstance(rows.schema[name].dataType, T.TimestampType):
        return F.lit(False)
    number = F.trim(F.col(name).cast("string")).try_cast("decimal(38, 9)")
    return F.coalesce(number.between(1, SECONDS_BELOW - 1), F.lit(False))


def _time(rows: DataFrame, name: str) -> Column:
    """Epoch ms, rounded up: never early. Null: no time."""
    if name not in rows.columns:
        return F.lit(None).cast("bigint")
    given, due = rows.schema[name].dataType, F.col(name)
    if isinstance(given, T.TimestampType):
        return F.unix_millis(due) + F.when(F.pmod(F.unix_micros(due), F.lit(1_000)) > 0, 1).otherwise(0)
    if isinstance(given, T.FractionalType) and not isinstance(given, T.DecimalType):
        return F.when(F.abs(due) < NUMBER_MAX, F.ceil(due))  # not a number is larger than any
    if not isinstance(given, T.StringType):
        return F.ceil(due).try_cast("bigint") if isinstance(given, T.DecimalType) else due.try_cast("bigint")
    text = F.trim(due)
    for form, full in SPELLED_OUT:
        text = F.regexp_replace(text, form, full)
    # Spark reads six digits of a fraction.
    digits = F.regexp_extract(text, FRACTION, 2)
    whole_s = F.regexp_replace(text, FRACTION, "$1$3").try_cast("timestamp")
    part_ms = F.rpad(F.substring(digits, 1, 3), 3, "0").cast("bigint")
    more = F.when(digits.rlike("^...0*[1-9]"), 1).otherwise(0)
    zoned = F.when(text.rlike(ZONED), F.unix_millis(whole_s) + part_ms + more)
    return F.coalesce(text.try_cast("bigint"), zoned)
