"""`reconcile`: what was accepted is settled or held, each record once, none early; else each exception by name.

    what a source has      one row per offset, from bronze/records
    what was settled       silver/lifecycle           } grouped by topic, partition, offset: one shuffle,
    what went to Redis     silver/entries             } then judged against the lane's last marks
    where each lane is     silver/blocks: L and W

Below L every offset is settled, or in the overflow; in the overflow, what is due at or before W is settled. So a record
that is neither is lost, and the ledger itself says so. With targets and an export of the overflow the facts are
checked as well: what was emitted is there, and what is held is in Redis.

That holds where the ledger is whole. What it said in a hole (it begins later here, retention took a part, a block can't
be read, as a later version wrote it) nobody knows. So each lane's ledger is cut into segments without a hole, and a
record is lost only by the word of one of them: it was read there, and L passed it there; or it was put to the overflow
there, and W passed it. Any other that is neither settled nor held is unknown. So is all of a lane of which no block can
be read, if the part of the ledger where its blocks go has a hole: that may have been settled, all of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.ingest.records import with_headers

LANE: Final = ["topic", "partition"]
PLACE: Final = [*LANE, "offset"]
CURRENT: Final = [*LANE, "topic_id"]
"""A topic that was made anew has another id; what is known of the old one says nothing of these offsets."""
FINDING: Final = (*PLACE, "kind", "detail", "due_ms", "policy", "target")
# A line of `tickover overflow export`: a record, or at last what the file is.
EXPORT: Final = (
    "topic string, partition int, `offset` bigint, due_ms bigint, target string, policy string, "
    "export struct<ledger: string, began: map<string, bigint>, ended: map<string, bigint>, records: bigint>"
)
HOLES: Final = "ledger_partition int, `end` bigint, why string"
UNREAD_BLOCKS: Final = "partition %d of the ledger has blocks that can't be read here: %d, from %d to %d"
SEGMENTS_MAX: Final = 100
"""Of a lane, the last ones: a loss that only an earlier one proves is unknown. Two versions may write in turns."""
NOTHING_SAID: Final = "no block of the partition can be read, and the ledger has holes"
NOT_THERE: Final = "they are older than what the ledger says of the partition"


class Hole(NamedTuple):
    """Part of a partition of the ledger that these tables don't have, up to and without the offset `end`."""

    ledger_partition: int
    end: int
    why: str


def holes(blocks: DataFrame, lost_ranges: Sequence[Any], ends: Mapping[int, int] | None = None) -> list[Hole]:
    """Parts of the ledger that these tables don't have. `lost_ranges`: `LOST` rows of the ledger's own topic; `ends`:
    by ledger partition up to where it was read."""
    found = []
    nothing_of = {partition: end for partition, end in (ends or {}).items() if end}
    for row in blocks.groupBy("ledger_partition").agg(F.min("ledger_offset").alias("begin")).collect():
        nothing_of.pop(row.ledger_partition, None)
        if row.begin:
            why = f"partition {row.ledger_partition} of the ledger begins at {row.begin} here"
            found.append(Hole(row.ledger_partition, row.begin, why))
    for partition, end in nothing_of.items():
        found.append(Hole(partition, end, f"partition {partition} of the ledger has nothing before {end} here"))
    for lost in lost_ranges:
        why = f"retention took {lost.start} to {lost.end} of partition {lost.partition} of the ledger"
        found.append(Hole(lost.partition, lost.end, why))
    return found


def last_marks(blocks: DataFrame) -> DataFrame:
    """Per lane what its last block says: `topic_id`, `low`, `watermark`, and `ledger_partition`, which has them all."""
    marks = F.struct("topic_id", "low", _watermark().alias("watermark"), "ledger_partition")
    last = F.max_by(marks, "ledger_offset").alias("last")
    return blocks.where("problem IS NULL").groupBy(*LANE).agg(last).select(*LANE, "last.*")


def _watermark() -> Column:
    return F.struct(F.col("watermark_due_ms").alias("due_ms"), "watermark_offset")


def segments(blocks: DataFrame, found: Sequence[Hole]) -> DataFrame:
    """Per lane `known`, its last segments without a hole: `first_at` and `last_at` in the ledger, `low` and
    `watermark` at its end, `is_last`: no hole is behind it, and `since`: source offsets from there on were read in it,
    or later. `holes`: how many its partition of the ledger has; each block that can't be read is one.
    """
    spark = blocks.sparkSession
    told = spark.createDataFrame(list(found), HOLES).groupBy("ledger_partition")
    told = told.agg(F.collect_list("end").alias("ends"))
    ends = F.coalesce("ends", F.array().cast("array<bigint>"))
    passed = F.size(F.filter(ends, lambda end: end <= F.col("ledger_offset")))
    partition = Window.partitionBy("ledger_partition")
    before = partition.orderBy("ledger_offset").rowsBetween(Window.unboundedPreceding, 0)
    unreadable = F.col("problem").isNotNull().cast("bigint")
    counted = blocks.drop("value").join(F.broadcast(told), "ledger_partition", "left")
    counted = counted.withColumn("segment", passed + F.sum(unreadable).over(before))
    counted = counted.withColumn("holes", F.size(ends) + F.sum(unreadable).over(partition)).where("problem IS NULL")
    # In a lane's very first block its runs begin where it began. Behind a hole all that was read may have been settled.
    begun = F.when(F.col("segment") == 0, F.col("decided_from")).otherwise(F.col("read_until"))
    each = counted.groupBy(*CURRENT, "holes", "segment").agg(
        F.min("ledger_offset").alias("first_at"),
        F.max("ledger_offset").alias("last_at"),
        F.min_by(F.coalesce(begun, "low"), "ledger_offset").alias("since"),
        F.max_by("low", "ledger_offset").alias("low"),
        F.max_by(_watermark(), "ledger_offset").alias("watermark"),
    )
    is_last = (F.col("segment") == F.col("holes")).alias("is_last")
    known = F.collect_list(F.struct("first_at", "last_at", "since", "low", "watermark", is_last))
    newest = F.slice(F.sort_array(known, asc=False), 1, SEGMENTS_MAX)
    return each.groupBy(*CURRENT, "holes").agg(newest.alias("known"))


def positions(
    sources: DataFrame,
    settled: DataFrame,
    entries: DataFrame,
    blocks: DataFrame,
    found: Sequence[Hole] = (),
    ledger_partitions: int = 0,
) -> DataFrame:
    """One row per record that anything knows of, with its `state`: settled, repeated, held, open, lost or unknown.

    `open`: at or above L, so its source offset holds it; or of a lane without a block, where the ledger has no hole in
    which one can be. `held`: the overflow does; `sure`: it was put there since the last hole. `found`: see `holes`.
    `ledger_partitions`: how many the ledger has; 0: not known, then a hole in any of them counts.
    """
    marks = F.broadcast(_lanes(blocks, found))
    nothing = {"held_until_ms": F.lit(None).cast("bigint"), "put_at": F.lit(None).cast("bigint")}
    rows = sources.select(*PLACE, F.lit(0).alias("settled")).withColumns(nothing)
    known = settled.join(marks.select(*CURRENT), CURRENT, "left_semi")
    rows = rows.unionByName(known.select(*PLACE, F.lit(1).alias("settled")).withColumns(nothing))
    put = entries.where(~F.col("carried")).join(marks.select(*CURRENT), CURRENT, "left_semi")
    put_there = {"held_until_ms": F.col("due_ms"), "put_at": F.col("ledger_offset")}
    put = put.withColumn("settled", F.lit(0)).withColumns(put_there)
    rows = rows.unionByName(put.select(*PLACE, "settled", *nothing))
    each = rows.groupBy(*PLACE).agg(F.sum("settled").alias("settled"), *(F.max(name).alias(name) for name in nothing))
    judged = each.join(marks, LANE, "left").withColumn("ledger_partition", _ledger_partition(ledger_partitions))
    unread = blocks.where("problem IS NOT NULL").select("ledger_partition").distinct().collect()
    cut = {hole.ledger_partition for hole in found} | {row.ledger_partition for row in unread}
    is_whole = F.lit(not cut) if not ledger_partitions else ~F.col("ledger_partition").isin(cut)
    return judged.withColumns({"state": _state(is_whole), "sure": _sure()}).drop("known", "holes")


def _lanes(blocks: DataFrame, found: Sequence[Hole]) -> DataFrame:
    """`last_marks` with `segments`."""
    return last_marks(blocks).join(segments(blocks, found), CURRENT, "left")


def _ledger_partition(partitions: int) -> Column:
    """Where a lane's blocks are, also without one: as `sidecar.ledger.block.ledger_partition` has it."""
    if not partitions:
        return F.col("ledger_partition")
    key = F.concat_ws("/", "topic", F.col("partition").cast("string"))
    return F.coalesce("ledger_partition", (F.crc32(key.cast("binary")) % partitions).cast("int"))


def _state(is_whole: Column) -> Column:
    put = F.col("held_until_ms").isNotNull()
    there = F.struct(F.col("held_until_ms").alias("due_ms"), F.col("offset").alias("watermark_offset"))
    passed = there <= F.col("watermark")

    def is_lost(one: Column) -> Column:
        """By the word of this segment."""
        was_put = F.col("put_at").between(one["first_at"], one["last_at"]) & (there <= one["watermark"])
        return F.when(put, was_put).otherwise(_was_read(one) & (F.col("offset") < one["low"]))

    return (
        F.when(F.col("settled") > 1, "repeated")
        .when(F.col("settled") == 1, "settled")
        .when(F.coalesce(F.col("offset") >= F.col("low"), is_whole), "open")
        .when(put & ~passed, "held")
        .when(F.exists("known", is_lost), "lost")
        .otherwise("unknown")
    )


def _was_read(one: Column) -> Column:
    """In this segment or later, so that all that the ledger says of it is there or later."""
    return F.col("offset") >= one["since"]


def _sure() -> Column:
    """Nothing can have settled it in a hole."""
    return F.exists("known", lambda one: one["is_last"] & (F.col("put_at") >= one["first_at"]))


def unknown(judged: DataFrame, blocks: DataFrame, found: Sequence[Hole]) -> DataFrame:
    """Per lane that has unknown records: `records`, `first` and `last` of their offsets, and the `reason`."""
    at = F.col("ledger_offset")
    unread = blocks.where("problem IS NOT NULL").groupBy("ledger_partition")
    counted = unread.agg(F.count("*").alias("blocks"), F.min(at).alias("from"), F.max(at).alias("to"))
    words = F.format_string(UNREAD_BLOCKS, "ledger_partition", "blocks", "from", "to")
    told = judged.sparkSession.createDataFrame(list(found), HOLES).select("ledger_partition", "why")
    told = told.unionByName(counted.select("ledger_partition", words.alias("why"))).groupBy("ledger_partition")
    why = told.agg(F.array_join(F.sort_array(F.collect_set("why")), "; ").alias("why"))
    lanes = judged.where(F.col("state") == "unknown").groupBy(*LANE, "ledger_partition")
    each = lanes.agg(F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last"))
    joined = each.join(F.broadcast(why), "ledger_partition", "left")
    otherwise = F.when(F.col("ledger_partition").isNull(), NOTHING_SAID).otherwise(NOT_THERE)
    return joined.select(*LANE, "records", "first", "last", F.coalesce("why", otherwise).alias("reason"))


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
    held = judged.where((F.col("state") == "held") & F.col("sure")).join(due_there, PLACE, "left_semi")
    gone = held.join(export.select(*PLACE), PLACE, "left_anti")
    found = _bare(gone, "missing_in_overflow", F.lit("held, and not in the export"))
    return found.withColumn("due_ms", F.col("held_until_ms")).select(*FINDING)


def unknown_in_overflow(
    entries: DataFrame, export: DataFrame, blocks: DataFrame, found: Sequence[Hole] = ()
) -> DataFrame:
    """`FINDING` rows: in this export, and nothing in the ledger has put it there. It would be emitted all the same.

    What a hole of the ledger may have put there is left out.
    """
    there = export.join(entries.select(*PLACE), PLACE, "left_anti").dropDuplicates(PLACE)
    lanes = F.broadcast(_lanes(blocks, found).select(*LANE, "known", "holes"))

    def says_all(one: Column) -> Column:
        return _was_read(one) & (one["is_last"] | (F.col("offset") < one["low"]))

    surely = (F.col("holes") == 0) | F.exists("known", says_all)
    told = {"kind": F.lit("unknown_in_overflow"), "detail": F.lit("in the export, and not in the ledger")}
    known = there.join(lanes, LANE, "left").where(F.coalesce(surely, F.lit(True)))
    return known.withColumns(told).select(*FINDING)


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
