"""Values of tickover's headers, read from records as Kafka had them: columns over an array of headers."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from policies.headers import ATTEMPT, DUE, ERROR_CLASS, ERROR_MESSAGE, FIRST_FAILURE, ID, ORIGIN, POLICY, REASON, SOURCE

TEXTS: Final = {
    "origin": ORIGIN,
    "source": SOURCE,
    "reason": REASON,
    "policy": POLICY,
    "error_class": ERROR_CLASS,
    "error_message": ERROR_MESSAGE,
    "message_id": ID,
}
NUMBERS: Final = {"attempt": ATTEMPT, "due_ms": DUE, "first_failure_ms": FIRST_FAILURE}


def header(name: str) -> Column:
    """The last header of this name as text; what is not UTF-8 in it is replaced. Null: none, or its value is null."""
    found = F.filter("headers", lambda one: one["key"] == name)
    return F.make_valid_utf8(F.try_element_at(found, F.lit(-1))["value"].cast("string"))


def header_bytes(name: str) -> Column:
    """The last header of this name as it is."""
    return F.try_element_at(F.filter("headers", lambda one: one["key"] == name), F.lit(-1))["value"]


def place(topic: str, partition: str, offset: str) -> Column:
    """`topic/partition/offset` as the headers have it."""
    return F.concat_ws("/", F.col(topic), F.col(partition).cast("string"), F.col(offset).cast("string"))


def with_headers(records: DataFrame, *names: str) -> DataFrame:
    """The records with these of `TEXTS` and `NUMBERS` as columns; a number that isn't one is null."""
    texts = {name: header(TEXTS[name]) for name in names if name in TEXTS}
    numbers = {name: header(NUMBERS[name]).try_cast("bigint") for name in names if name in NUMBERS}
    return records.withColumns(texts | numbers)
