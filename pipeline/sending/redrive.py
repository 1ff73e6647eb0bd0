"""`redrive`: dead letters by filter, sent again at scale, each once.

What a letter's headers become is as in the sidecar's own redrives
(`sidecar/operations/dead_letters/redrive_routing.py`; a test holds the two equal):
a new delivery, with the lineage on it. `tickover-redrive-source`, the letter's place, is its id.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.lifecycle import fingerprint_of
from pipeline.ingest.records import header, place, with_headers
from pipeline.ingest.topics import UNREADABLE
from pipeline.sending.marking import MARKED, Marked
from pipeline.sending.plans import TAKEN, Taken
from policies.decision import DEAD_REASONS, LOOP, TARGET_NOT_ALLOWED, TOO_LARGE
from policies.glob import compile_globs
from policies.headers import (
    BY_REFERENCE,
    DETAIL,
    GONE_ANEW,
    GONE_UNDECIDED,
    REDRIVE_COUNT,
    REDRIVE_PLAN,
    REDRIVE_SOURCE,
)
from policies.table import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from sidecar.model.redrive_marks import BLOCK_LETTERS
from sidecar.model.reserved_topics import BY_NAME

MARK: Final = REDRIVE_SOURCE
PLANNED: Final = "planned"
REDRIVEN: Final = "redriven"


@dataclass(frozen=True, slots=True)
class Choice:
    """Letters that fit everything given; times are epoch ms of the letter, `until_ms` excluded; 0: not given."""

    reason: str = ""
    fingerprint: str = ""
    error_class: str = ""  # a glob
    policy: str = ""  # the name, without version
    since_ms: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """How letters go. Without a target quarantined ones go to their source, and those that name no policy where the
    names of topics say.
    """

    target: str
    job: str
    loops_max: int


def letters(records: DataFrame, choice: Choice) -> DataFrame:
    """The chosen of these `RECORDS`, with what their headers say."""
    told = with_headers(records, "reason", "source", "policy", "error_class", "error_message")
    words = F.coalesce("error_message", header(DETAIL))
    told = told.withColumn("error_message", words).withColumn("name", F.split_part("policy", F.lit("@"), F.lit(1)))
    if choice.since_ms:
        told = told.where(F.col("timestamp_ms") >= choice.since_ms)
    if choice.until_ms:
        told = told.where(F.col("timestamp_ms") < choice.until_ms)
    for column, word in (("reason", choice.reason), ("name", choice.policy)):
        told = told.where(F.col(column) == word) if word else told
    if choice.error_class:
        told = told.where(_fits(choice.error_class, "error_class"))
    kinds = told.withColumn("fingerprint", fingerprint_of("error_class", "error_message"))
    return kinds.where(F.col("fingerprint") == choice.fingerprint) if choice.fingerprint else kinds


def _fits(glob: str, column: str) -> Column:
    matcher = compile_globs((glob,))

    def fits(text: str) -> bool:
        return matcher is not None and matcher.matches(text)

    return F.udf(fits, "boolean", useArrow=True)(F.coalesce(column, F.lit("")))


def with_marks(chosen: DataFrame, marked: Sequence[Marked]) -> DataFrame:
    """The letters with `redriven`: whether a redrive or a job has sent them."""
    names = {"topic": "of", "partition": "in"}
    blocks = chosen.sparkSession.createDataFrame(list(marked), MARKED).withColumnsRenamed(names)
    number = F.expr(f"`offset` DIV {BLOCK_LETTERS}")
    within = (F.col("of") == F.col("topic")) & (F.col("in") == F.col("partition")) & (F.col("block") == number)
    word = F.get("words", F.expr(f"CAST(`offset` % {BLOCK_LETTERS} DIV 64 AS INT)"))
    bit = F.getbit(word, F.expr("CAST(`offset` % 64 AS INT)"))
    joined = chosen.join(F.broadcast(blocks), within, "left")
    return joined.withColumn("redriven", F.coalesce(bit == 1, F.lit(False))).drop("of", "in", "block", "words")


def with_plans(chosen: DataFrame, taken: Sequence[Taken]) -> DataFrame:
    """The letters with `taken`: the sidecar's plan that they are in, null for those in none."""
    spans = chosen.sparkSession.createDataFrame(list(taken), TAKEN).withColumnRenamed("topic", "of")
    within = (
        (F.col("of") == F.col("topic"))
        & (F.col("in") == F.col("partition"))
        & F.col("offset").between(F.col("start"), F.col("end") - 1)
    )
    joined = chosen.join(F.broadcast(spans.withColumnRenamed("partition", "in")), within, "left")
    # Plans may overlap: then any of them has it.
    return joined.dropDuplicates(["topic", "partition", "offset"]).withColumnRenamed("plan", "taken")


def parcels(chosen: DataFrame, terms: Terms) -> DataFrame:
    """Rows to `send`, of letters `with_marks` and `with_plans`.

    `letter`: its place. `refused`: `redriven`, `planned` (and the plan of the sidecar's, see `with_plans`),
    `unreadable` (headers), `loop`, `target_not_allowed` (reserved: whoever writes letters writes their headers),
    `redriven_too_often`, `no_value` (quarantined by reference), `no_target`.
    `partition`: that of its source for what goes back there without a key, as only there are the records of its id;
    else null.
    """
    source = F.split_part("source", F.lit("/"), F.lit(1))
    goes_to = F.lit(terms.target) if terms.target else _destination(source)
    count = F.coalesce(header(REDRIVE_COUNT).try_cast("int"), F.lit(0))
    # Only what goes back undecided keeps the words that say what was asked for.
    returns = _is_quarantined() & (goes_to == source)
    gone = F.when(returns, _names(GONE_UNDECIDED)).otherwise(_names(GONE_ANEW))
    lineage = {
        REDRIVE_PLAN: F.lit(f"{terms.job}/1"),
        REDRIVE_COUNT: (F.col("redrives") + 1).cast("string"),
        REDRIVE_SOURCE: F.col("id"),
    }
    added = [
        F.struct(F.lit(name).alias("key"), F.encode(text, "UTF-8").alias("value")) for name, text in lineage.items()
    ]
    own = F.coalesce("headers", F.array().cast("array<struct<key: string, value: binary>>"))
    stays = F.when(returns & F.col("key").isNull(), F.split_part("source", F.lit("/"), F.lit(2)).try_cast("int"))
    left_behind = (F.col("reason") == TOO_LARGE) | F.coalesce(header(DETAIL).startswith(BY_REFERENCE), F.lit(False))
    refused = (
        F.when(F.col("redriven"), REDRIVEN)
        .when(F.col("taken").isNotNull(), F.concat(F.lit(f"{PLANNED} "), F.col("taken")))
        .when(F.exists(own, lambda one: one["key"].contains(UNREADABLE)), "unreadable")
        .when(F.col("to").isNull(), "no_target")
        .when(F.col("to") == F.col("topic"), LOOP)
        .when(F.col("to").rlike(f"^(?:{BY_NAME})$"), TARGET_NOT_ALLOWED)
        .when(F.col("redrives") >= terms.loops_max, "redriven_too_often")
        .when(F.col("value").isNull() & left_behind, "no_value")
    )
    kept = F.filter(own, lambda one: ~F.array_contains(F.col("gone"), one["key"]))
    told = chosen.withColumns(
        {
            "to": goes_to,
            "redrives": count,
            "id": place("topic", "partition", "offset"),
            "gone": gone,
            "stays": stays,
            "refused": F.lit(""),
        }
    )
    return told.withColumn("refused", refused).select(
        "id",
        F.coalesce("to", F.lit("")).alias("topic"),
        "key",
        "value",
        F.concat(kept, F.array(*added)).alias("headers"),
        "refused",
        F.col("stays").alias("partition"),
        F.struct("topic", "partition", "offset").alias("letter"),
        "reason",
        "error_class",
        "fingerprint",
    )


def _names(headers: Iterable[str]) -> Column:
    return F.array(*map(F.lit, sorted(headers)))


def _is_quarantined() -> Column:
    return F.coalesce(~F.col("reason").isin(*sorted(DEAD_REASONS)), F.lit(False))


def _destination(source: Column) -> Column:
    """Where a letter goes by itself; null: that needs to be said. Policies aren't known here."""
    letters = F.col("topic")
    is_of_its_source = letters == F.concat(F.coalesce(source, F.lit("")), F.lit(DEAD_LETTER_SUFFIX))  # a delay topic's
    by_letters = F.when(letters.endswith(DEAD_LETTER_SUFFIX) & ~is_of_its_source, _before(DEAD_LETTER_SUFFIX, letters))
    by_names = F.when(source.endswith(RETRY_SUFFIX), _before(RETRY_SUFFIX, source)).otherwise(by_letters)
    return F.when(_is_quarantined(), source).when(F.col("policy").isNull(), by_names)


def _before(suffix: str, name: Column) -> Column:
    return F.nullif(F.regexp_extract(name, f"^(.*){suffix}$", 1), F.lit(""))


def plan(rows: DataFrame) -> DataFrame:
    """Plan of a redrive: per kind of failure and target how many letters, and why some are passed over."""
    kinds = rows.groupBy("reason", "error_class", "fingerprint", "topic", "refused").agg(F.count("*").alias("letters"))
    return kinds.orderBy(F.desc("letters"))
