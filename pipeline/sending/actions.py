"""Control records that name an offset, applied where rows are made: on another cluster messages have other offsets.

REST and changes of many messages name the offset under which a message is held (`tickover-if-offset`). Sent again they
would hit nothing, or another one. So all that a partition has of such an id, held or unsettled, meets by the engine's
rules (`sidecar/engine/intake/control_records.py`), in the order of its offsets: what is cancelled is left out, what is
rescheduled or fired gets its new due time, and none of these control records is sent.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.records import with_headers
from pipeline.reports.facts import facts_of
from policies.decide import act
from policies.decision import CANCEL, FIRE, Refusal
from policies.duration import TIME_MAX_MS
from policies.request import read_request

AT: Final = ["topic", "partition", "offset"]
NAMED: Final = ["topic", "partition", "id"]
CANCELLED: Final = "cancelled"
MOVED: Final = "moved"
APPLIED: Final = "applied"
MISSED: Final = "missed"
CAME: Final = "topic string, partition int, `offset` bigint, outcome string, due_ms bigint, at_ms bigint"
"""What came of a message (`CANCELLED`, or `MOVED` to `due_ms` by a control record of the time `at_ms`), or of a control
record (`APPLIED`, `MISSED`). A message without a row is as it was."""
ORDER: Final = (
    "topic string, partition int, `offset` bigint, id string, action string, if_offset bigint, due_ms bigint, "
    "at_ms bigint"
)
"""A control record as it is read; `due_ms`: when it makes a message due, -1: it cancels."""
_PLACE: Final = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
_TIMES: Final = [("due_ms", pa.int64()), ("at_ms", pa.int64())]
_CAME: Final = pa.schema([*_PLACE, ("outcome", pa.string()), *_TIMES])
_ORDER: Final = pa.schema([*_PLACE, ("id", pa.string()), ("action", pa.string()), ("if_offset", pa.int64()), *_TIMES])


class Met(NamedTuple):
    """A message, or a control record, of one id."""

    offset: int  # under which it is held, or came
    key: bytes | None = None
    replaces: bool = False  # a message: the one before it, of its key
    action: str = ""  # of a control record
    due_ms: int = -1  # of a control record: -1: it cancels
    if_offset: int = -1  # -1: it means the last one
    at_ms: int = -1


class Came(NamedTuple):
    """Outcome of the one with this offset: see `CAME`."""

    offset: int
    outcome: str
    due_ms: int | None = None
    at_ms: int | None = None


def played(met: Iterable[Met]) -> list[Came]:
    """Let all of one id of a partition meet. Messages to which nothing happens are not among the answers."""
    here: dict[int, Met] = {}  # by the offset under which it is held by now
    came: dict[int, Came] = {}
    for one in sorted(met, key=lambda one: one.offset):
        last = max(here, default=-1)
        if not one.action:
            if last >= 0 and one.replaces and here[last].key == one.key:
                del here[last]  # where both are sent, it is replaced there
            here[one.offset] = one
            continue
        at = last if one.if_offset < 0 else one.if_offset
        message = here.pop(at, None)
        came[one.offset] = Came(one.offset, MISSED if message is None else APPLIED)
        if message is None:
            continue
        if one.action == CANCEL:
            came[message.offset] = Came(message.offset, CANCELLED)
        else:
            came[message.offset] = Came(message.offset, MOVED, one.due_ms, one.at_ms)
            here[one.offset] = message
    return list(came.values())


def acted(held: DataFrame, waiting: DataFrame) -> DataFrame:
    """`CAME` rows of `held` (see `reports.held`) and `waiting` (see `resend.unsettled`): of all ids of a partition of
    which a control record names an offset. Those that can't be read are left as they are, and go to quarantine."""
    orders = waiting.where("control").mapInArrow(_orders, ORDER)
    ids = orders.where("if_offset >= 0").select(*NAMED).distinct()
    nothing = {"action": F.lit(""), "due_ms": F.lit(-1), "if_offset": F.lit(-1), "at_ms": F.lit(-1)}
    columns = [*NAMED, "offset", "key", "replaces", *nothing]
    unsettled = with_headers(waiting.where("NOT control"), "message_id", "origin")
    unsettled = unsettled.withColumns({"id": F.col("message_id"), "replaces": F.col("origin").isNull(), **nothing})
    there = held.withColumns({"id": F.col("message_id"), "key": F.lit(None).cast("binary"), **nothing})
    met = unsettled.select(*columns).unionByName(there.withColumn("replaces", F.lit(False)).select(*columns))
    acts = orders.withColumns({"key": F.lit(None).cast("binary"), "replaces": F.lit(False)})
    met = met.unionByName(acts.select(*columns)).join(F.broadcast(ids), NAMED, "left_semi")
    return met.groupBy(*NAMED).applyInArrow(_played, CAME)


def _orders(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [order for row in batch.to_pylist() if (order := _order(row)) is not None]
        yield pa.RecordBatch.from_pylist(rows, _ORDER)


def _order(row: dict[str, Any]) -> dict[str, Any] | None:
    """`ORDER` of a control record; None: it can't be read."""
    place, at_ms = {name: row[name] for name in AT}, row["timestamp_ms"]
    headers = [(one["key"], one["value"]) for one in row["headers"]]
    controls = facts_of((row["topic"], row["partition"], row["offset"]), at_ms, headers).controls
    if not 0 <= at_ms <= TIME_MAX_MS:
        return None
    try:
        asked = act(read_request(controls), controls, at_ms, "", TIME_MAX_MS)
    except Refusal:
        return None
    due_ms = at_ms if asked.action == FIRE else asked.due_ms
    told = {"id": asked.id, "action": asked.action, "due_ms": due_ms, "if_offset": asked.if_offset, "at_ms": at_ms}
    return place | told


def _played(group: pa.Table) -> pa.Table:
    rows = group.to_pylist()
    topic, partition = rows[0]["topic"], rows[0]["partition"]
    came = played(Met(*(row[name] for name in Met._fields)) for row in rows)
    return pa.Table.from_pylist([{"topic": topic, "partition": partition, **one._asdict()} for one in came], _CAME)


def held_after(rows: DataFrame, came: DataFrame) -> DataFrame:
    """Rows of `rebuild.overflow` after these `CAME`: what is cancelled is left out, what is moved has another `due`."""
    told = came.select(F.col("topic").alias("source"), "partition", "offset", "outcome", "due_ms")
    after = rows.join(told, ["source", "partition", "offset"], "left").where(f"outcome IS DISTINCT FROM '{CANCELLED}'")
    return after.withColumn("due", F.coalesce("due_ms", "due")).select(*rows.columns)


def waiting_after(rows: DataFrame, came: DataFrame) -> DataFrame:
    """`resend.unsettled` after these `CAME`: what is cancelled and the control records are left out. `moved`: what is
    moved has its new `due_ms`, and `at_ms`, the time of the control record; null: it wasn't."""
    after = rows.join(came, AT, "left").where(f"outcome IS NULL OR outcome = '{MOVED}'")
    moved = F.when(F.col("outcome") == MOVED, F.struct("due_ms", "at_ms"))
    return after.withColumn("moved", moved).select(*rows.columns, "moved")
