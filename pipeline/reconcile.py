"""`reconcile`: what was accepted is settled or held, each record once, none early; else each exception by name.

    what a source has      one row per offset, from bronze/records
    what was settled       silver/lifecycle           } grouped by topic, partition, offset: one shuffle,
    what went to Redis     silver/entries             } then judged against the lane's last marks
    where each lane is     silver/blocks: L and W

Below L every offset is settled, or in the overflow; in the overflow, what is due at or before W is settled. So a record
that is neither is lost, and the ledger itself says so. With targets and an export of the overflow the facts are
checked as well: what was emitted is there, and what is held is in Redis.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.records import with_headers

LANE: Final = ["topic", "partition"]
PLACE: Final = [*LANE, "offset"]
FINDING: Final = (*PLACE, "kind", "detail", "due_ms", "policy", "target")
# A line of `tickover overflow export`: a record, or at last what the file is.
EXPORT: Final = (
    "topic string, partition int, `offset` bigint, due_ms bigint, target string, policy string, "
    "export struct<ledger: string, began: map<string, bigint>, ended: map<string, bigint>, records: bigint>"
)


def last_marks(blocks: DataFrame) -> DataFrame:
    """Per lane what its last block says: `topic_id`, `low`, `watermark`. A lane's blocks are in one partition."""
    marks = F.struct(
        "topic_id", "low", F.struct(F.col("watermark_due_ms").alias("due_ms"), "watermark_offset").alias("watermark")
    )
    last = F.max_by(marks, "ledger_offset").alias("last")
    return blocks.where("problem IS NULL").groupBy(*LANE).agg(last).select(*LANE, "last.*")


def positions(sources: DataFrame, settled: DataFrame, entries: DataFrame, blocks: DataFrame) -> DataFrame:
    """One row per record that anything knows of, with its `state`: settled, repeated, held, open or lost.

    `open`: at or above L, so its source offset holds it. `held`: the overflow does.
    """
    marks = F.broadcast(last_marks(blocks))
    told = F.lit(None).cast("bigint")
    rows = sources.select(*PLACE, F.lit(0).alias("settled"), told.alias("held_until_ms"))
    # A topic that was made anew has another id; what is known of the old one says nothing of these offsets.
    current = [*LANE, "topic_id"]
    known = settled.join(marks.select(*current), current, "left_semi")
    rows = rows.unionByName(known.select(*PLACE, F.lit(1).alias("settled"), told.alias("held_until_ms")))
    put = entries.where(~F.col("carried")).join(marks.select(*current), current, "left_semi")
    rows = rows.unionByName(put.select(*PLACE, F.lit(0).alias("settled"), F.col("due_ms").alias("held_until_ms")))
    each = rows.groupBy(*PLACE).agg(F.sum("settled").alias("settled"), F.max("held_until_ms").alias("held_until_ms"))
    return each.join(marks, LANE, "left").withColumn("state", _state())


def _state() -> Column:
    put = F.col("held_until_ms").isNotNull()
    passed = F.struct(F.col("held_until_ms").alias("due_ms"), F.col("offset").alias("watermark_offset")) <= F.col(
        "watermark"
    )
    return (
        F.when(F.col("settled") > 1, "repeated")
        .when(F.col("settled") == 1, "settled")
        .when(F.coalesce(F.col("offset") >= F.col("low"), F.lit(True)), "open")
        .when(put & ~passed, "held")
        .otherwise("lost")
    )


def wrong_positions(judged: DataFrame, settled: DataFrame) -> DataFrame:
    """`FINDING` rows: what is lost or settled more than once."""
    times = F.concat(F.lit("settled "), F.col("settled").cast("string"), F.lit(" times"))
    detail = (
        F.when(F.col("state") == "repeated", times)
        .when(F.col("held_until_ms").isNotNull(), "in the overflow, due before W, and not settled")
        .otherwise("below L, neither settled nor in the overflow")
    )
    wrong = judged.where(F.col("state").isin("lost", "repeated")).withColumn("detail", detail)
    told = settled.select(*PLACE, "due_ms", "policy", "target").dropDuplicates(PLACE)
    return wrong.join(told, PLACE, "left").withColumn("kind", F.col("state")).select(*FINDING)


def early(settled: DataFrame) -> DataFrame:
    """`FINDING` rows: emitted, and in the ledger before they were due."""
    ahead = F.concat((F.col("due_ms") - F.col("settled_ms")).cast("string"), F.lit(" ms before it was due"))
    found = settled.where((F.col("outcome") == "emitted") & (F.col("settled_ms") < F.col("due_ms")))
    return found.withColumns({"kind": F.lit("early"), "detail": ahead}).select(*FINDING)


def acknowledged(entries: DataFrame, blocks: DataFrame, began: DataFrame) -> DataFrame:
    """Places that Redis surely had by `began` (ledger_partition, end): of blocks that it had acknowledged."""
    before = blocks.where("problem IS NULL").join(F.broadcast(began), "ledger_partition")
    marks = F.max_by(F.struct("topic_id", "acknowledged"), "ledger_offset").alias("last")
    lanes = before.where(F.col("ledger_offset") < F.col("end")).groupBy(*LANE).agg(marks).select(*LANE, "last.*")
    numbers = blocks.where("number > 0").select("ledger_partition", "ledger_offset", "number")
    put = entries.where(~F.col("carried")).join(numbers, ["ledger_partition", "ledger_offset"])
    known = put.join(F.broadcast(lanes), [*LANE, "topic_id"])
    return known.where(F.col("number") <= F.col("acknowledged")).select(*PLACE)


def missing_in_overflow(judged: DataFrame, due_there: DataFrame, export: DataFrame) -> DataFrame:
    """`FINDING` rows: held by the ledger's word, in Redis (see `acknowledged`), and not in this export of it."""
    held = judged.where(F.col("state") == "held").join(due_there, PLACE, "left_semi")
    gone = held.join(export.select(*PLACE), PLACE, "left_anti")
    found = _bare(gone, "missing_in_overflow", F.lit("held, and not in the export"))
    return found.withColumn("due_ms", F.col("held_until_ms")).select(*FINDING)


def unknown_in_overflow(entries: DataFrame, export: DataFrame) -> DataFrame:
    """`FINDING` rows: in this export, and nothing in the ledger has put it there. It would be emitted all the same."""
    found = export.join(entries.select(*PLACE), PLACE, "left_anti").dropDuplicates(PLACE)
    told = {"kind": F.lit("unknown_in_overflow"), "detail": F.lit("in the export, and not in the ledger")}
    return found.withColumns(told).select(*FINDING)


def wrong_emissions(settled: DataFrame, targets: DataFrame) -> DataFrame:
    """`FINDING` rows: emissions by the ledger against records in the target topics, which are `RECORDS` rows.

    A record is known by target, origin, due time and policy, as its headers say. Those of which the ledger says
    nothing are left out: they may be younger than the last ledger record taken in.
    """
    key = ["target", "origin", "due_ms", "policy"]
    there = with_headers(targets, "origin", "due_ms", "policy").withColumn("target", F.col("topic"))
    there = there.where("origin IS NOT NULL")
    arrived = there.groupBy(*key).agg(F.count("*").alias("arrived"), F.min("timestamp_ms").alias("first_ms"))
    known_targets = F.broadcast(targets.select(F.col("topic").alias("target")).distinct())
    said = settled.where("outcome = 'emitted' AND origin IS NOT NULL").join(known_targets, "target", "left_semi")
    emitted = said.groupBy(*key).agg(
        F.count("*").alias("emitted"), *(F.min_by(name, F.struct(*PLACE)).alias(name) for name in PLACE)
    )
    both = emitted.join(arrived, key, "left").fillna(0, ["arrived"])
    kind = (
        F.when(F.col("arrived") < F.col("emitted"), "not_in_target")
        .when(F.col("arrived") > F.col("emitted"), "repeated")
        .when(F.col("first_ms") < F.col("due_ms"), "early")
    )
    detail = F.format_string("emitted %d, in the target %d, first at %d", "emitted", "arrived", "first_ms")
    return both.withColumns({"kind": kind, "detail": detail}).where("kind IS NOT NULL").select(*FINDING)


def wrong_blocks(blocks: DataFrame) -> DataFrame:
    """`FINDING` rows: ledger records that can't be read, and numbers of change blocks that are missing."""
    bad = blocks.where("problem IS NOT NULL").withColumns(
        {"topic": F.lit("ledger"), "partition": F.col("ledger_partition"), "offset": F.col("ledger_offset")}
    )
    numbered = blocks.where("number > 0").groupBy(*LANE, "topic_id")
    counted = numbered.agg(
        F.count_distinct("number").alias("there"),
        (F.max("number") - F.min("number") + 1).alias("wanted"),
        F.max("ledger_offset").alias("offset"),
    ).where("there < wanted")
    gaps = F.format_string("%d of %d change blocks", "there", "wanted")
    return _bare(bad, "undecodable", F.col("problem")).unionByName(_bare(counted, "missing_block", gaps))


def unread(lost_ranges: DataFrame) -> DataFrame:
    """`FINDING` rows: what retention took before it was taken in."""
    until = F.format_string("deleted by retention up to %d, before it was read", "end")
    return _bare(lost_ranges.withColumn("offset", F.col("start")), "unread", until)


def _bare(rows: DataFrame, kind: str, detail: Column) -> DataFrame:
    nothing = {"due_ms": F.lit(None).cast("bigint"), "policy": F.lit(None).cast("string")}
    told = {"kind": F.lit(kind), "detail": detail, "target": F.lit(None).cast("string")}
    kept = [F.col(name) for name in ("held_until_ms",) if name in rows.columns]
    return rows.withColumns(nothing | told).select(*FINDING, *kept)
