"""Reports over the lifecycle and what is held: each DataFrame -> DataFrame, in the order a reader asks.

    funnel        per policy and attempt: delivered, and how many of them came back
    lateness      per tier and minute: load, and percentiles of lateness
    triage        per kind of failure: how many, since when, is it new
    herd          per minute to come: how many records fall due, against what the targets can take
    storms        per target and minute: retries far above what was usual before
    forecast      per minute to come: what is held, and what is likely to arrive and fall due

Times are epoch ms; `now_ms` is an argument.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.ingest.lifecycle import ITS_OWN
from pipeline.reports.reconcile import last_marks

MINUTE_MS: Final = 60_000
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
STORM_WINDOW: Final = 60  # minutes that say what is usual
STORM_FACTOR: Final = 5.0
DECIDED: Final = (
    "due_ms", "target", "target_partition", "policy", "attempt", "first_failure_ms", "expires_ms", "dead_letter",
    "source_offset", "message_id",
)  # fmt: skip
STORM_LEAST: Final = 20  # fewer retries a minute are no storm, however few there were before


def minute(time_ms: str) -> Column:
    """The minute in which a time lies, as epoch ms."""
    return (F.floor(F.col(time_ms) / MINUTE_MS) * MINUTE_MS).cast("bigint")


def funnel(rows: DataFrame) -> DataFrame:
    """Per policy and attempt: `delivered`, `failed` (came back after it), `rescued` (did not), `dead`, `share`.

    `share` is the part of all messages of the policy that this attempt has rescued. What was delivered lately and may
    still come back counts as rescued.
    """
    retried = rows.where("attempt > 0 AND outcome IN ('emitted', 'dead')")
    one, none = F.lit(1), F.lit(0)
    emitted = F.col("outcome") == "emitted"
    # A row is the decision after one attempt has failed: emitted as the next attempt, or dead.
    after = retried.select(
        "policy",
        F.when(emitted, F.col("attempt") - 1).otherwise(F.col("attempt")).alias("attempt"),
        none.alias("delivered"),
        one.alias("failed"),
        F.when(emitted, 0).otherwise(1).alias("dead"),
    )
    next_one = retried.where(emitted).select(
        "policy", "attempt", one.alias("delivered"), none.alias("failed"), none.alias("dead")
    )
    counted = after.unionByName(next_one).groupBy("policy", "attempt")
    sums = counted.agg(*(F.sum(name).alias(name) for name in ("delivered", "failed", "dead")))
    messages = F.max(F.when(F.col("attempt") == 1, F.col("failed"))).over(Window.partitionBy("policy"))
    rescued = F.greatest(F.col("delivered") - F.col("failed"), F.lit(0))
    return (
        sums.withColumn("rescued", rescued)
        .withColumn("share", F.col("rescued") / messages)
        .orderBy("policy", "attempt")
    )


def lateness(rows: DataFrame) -> DataFrame:
    """Per tier and minute: `emitted` (the load), `p50`, `p90`, `p99`, `p999` and `max` of lateness in ms."""
    emitted = rows.where("outcome = 'emitted'")
    each = F.percentile_approx("lateness_ms", list(PERCENTILES)).alias("each")
    counted = emitted.groupBy("tier", minute("emitted_ms").alias("minute_ms")).agg(
        F.count("*").alias("emitted"), each, F.max("lateness_ms").alias("max")
    )
    names = ("p50", "p90", "p99", "p999")
    columns = (F.col("each")[place].alias(name) for place, name in enumerate(names))
    return counted.select("tier", "minute_ms", "emitted", *columns, "max").orderBy("minute_ms", "tier")


def triage(rows: DataFrame, since_ms: int) -> DataFrame:
    """Per fingerprint and reason of the dead: `records`, `first_ms`, `last_ms`, `new` (first seen since then).

    `example` is the place of the latest; what is in it nobody copies here.
    """
    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    dead = rows.where("outcome IN ('dead', 'quarantined')")
    return (
        dead.groupBy("fingerprint", "error_class", "outcome", "reason")
        .agg(
            F.count("*").alias("records"),
            F.min("settled_ms").alias("first_ms"),
            F.max("settled_ms").alias("last_ms"),
            F.max_by(place, "settled_ms").alias("example"),
            F.count_distinct("policy").alias("policies"),
        )
        .withColumn("new", F.col("first_ms") >= since_ms)
        .orderBy(F.desc("new"), F.desc("records"))
    )


def current(entries: DataFrame, blocks: DataFrame) -> DataFrame:
    """Entries of topics as they are now. Of one that was made anew nothing is held that it had before, and its offsets
    are those of other records."""
    marks = last_marks(blocks).select("topic", "partition", "topic_id")
    return entries.join(F.broadcast(marks), ["topic", "partition", "topic_id"], "left_semi")


def held(entries: DataFrame, settled: DataFrame) -> DataFrame:
    """Entries that the overflow holds: those that nothing has settled, with `DECIDED`."""
    place = ["topic", "topic_id", "partition", "offset"]
    newest = entries.groupBy(*place).agg(F.max_by(F.struct(*DECIDED), "ledger_offset").alias("one"))
    return newest.join(settled.select(*place), place, "left_anti").select(*place, "one.*")


def herd(waiting: DataFrame, now_ms: int, capacity: int) -> DataFrame:
    """Per target and minute from now on: `due` records, and `over`: more than the capacity (records a minute)."""
    coming = waiting.where(F.col("due_ms") >= now_ms)
    due = coming.groupBy("target", minute("due_ms").alias("minute_ms")).agg(F.count("*").alias("due"))
    return due.withColumn("over", F.col("due") > capacity).orderBy("minute_ms", "target")


def storms(rows: DataFrame) -> DataFrame:
    """Per target and minute with retries: `retries`, `usual` (mean of the hour before), `storm`."""
    return with_storms(retries(rows)).orderBy("minute_ms", "target")


def retries(rows: DataFrame) -> DataFrame:
    """Per target and minute that has any: `retries`."""
    retried = rows.where("attempt > 1 AND outcome = 'emitted'")
    return retried.groupBy("target", minute("settled_ms").alias("minute_ms")).agg(F.count("*").alias("retries"))


def with_storms(counted: DataFrame) -> DataFrame:
    """Add `usual` and `storm` to the rows of `retries`."""
    hour = Window.partitionBy("target").orderBy("minute_ms").rangeBetween(-STORM_WINDOW * MINUTE_MS, -1)
    # Minutes without a retry have no row, and count all the same.
    usual = F.coalesce(F.sum("retries").over(hour), F.lit(0)) / STORM_WINDOW
    storm = (F.col("retries") >= STORM_LEAST) & (F.col("retries") > STORM_FACTOR * F.col("usual"))
    return counted.withColumn("usual", usual).withColumn("storm", storm)


def forecast(
    waiting: DataFrame, rows: DataFrame, now_ms: int, hours: int, recent_ms: int = 60 * MINUTE_MS
) -> DataFrame:
    """Per minute of the next hours: `held` (certain), `arriving` (expected), `due` (both).

    Expected: records go on to arrive as in the last `recent_ms`, with the delays that those had; control records, and
    what they ended, don't count. A record with a delay
    of d minutes falls due in every minute from d on, once per as many minutes as it was seen in.
    """
    minutes = hours * 60
    spark = waiting.sparkSession
    ahead = spark.range(minutes).select(F.col("id").alias("ahead"))
    certain = waiting.select(F.floor((F.col("due_ms") - now_ms) / MINUTE_MS).alias("ahead"))
    # What is overdue fires now.
    certain = (
        certain.select(F.greatest("ahead", F.lit(0)).alias("ahead")).groupBy("ahead").agg(F.count("*").alias("held"))
    )
    rows = rows.where(~F.col("outcome").isin(*ITS_OWN))  # they never fall due
    recent = rows.where((F.col("accepted_ms") >= now_ms - recent_ms) & (F.col("accepted_ms") < now_ms))
    delay = F.greatest(F.floor((F.col("due_ms") - F.col("accepted_ms")) / MINUTE_MS), F.lit(0))
    delays = recent.groupBy(delay.alias("delay")).agg((F.count("*") * MINUTE_MS / recent_ms).alias("rate"))
    arriving = (
        ahead.join(F.broadcast(delays.where(F.col("delay") < minutes)), F.col("delay") <= F.col("ahead"))
        .groupBy("ahead")
        .agg(F.sum("rate").alias("arriving"))
    )
    both = ahead.join(certain, "ahead", "left").join(arriving, "ahead", "left").fillna(0, ["held", "arriving"])
    start_ms = now_ms // MINUTE_MS * MINUTE_MS
    return both.select(
        (F.lit(start_ms) + F.col("ahead") * MINUTE_MS).alias("minute_ms"),
        "held",
        "arriving",
        (F.col("held") + F.col("arriving")).alias("due"),
    ).orderBy("minute_ms")
