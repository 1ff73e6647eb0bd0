"""Blocks become rows, by the sidecar's own codec; what is no block is kept aside with a reason."""

from dataclasses import replace

import pytest

from sidecar.ledger.block import encode
from sidecar.model.record import Outcome, Position
from tests.pipeline.ledger_rows import EMPTY, NEWER, NOW_MS, block, emitted, entries, ledger_frame, settled
from tests.unit.ledger.test_block import settled_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_settled_records_become_rows(spark) -> None:
    from pipeline.ingest.ledger import settlements

    values = [
        block(settled=emitted(10, 1)),
        block(
            partition=4,
            settled=settled(
                [(7, NOW_MS + 5, Outcome.DEAD, 3), (9, -5, Outcome.QUARANTINED, 0)],
                ids={7: "order-7 ☃"},
                reasons={7: "expired", 9: "bad_header"},
            ),
        ),
    ]
    rows = [row.asDict() for row in settlements(ledger_frame(spark, values)).orderBy("offset").collect()]
    assert [(row["offset"], row["due_ms"], row["outcome"], row["attempt"]) for row in rows] == [
        (7, NOW_MS + 5, "dead", 3),
        (9, -5, "quarantined", 0),
        (10, NOW_MS, "emitted", 2),
    ]
    assert rows[0] | {"due_ms": 0, "offset": 0, "outcome": "", "attempt": 0} == {
        "ledger_partition": 0,
        "ledger_offset": 1,
        "settled_ms": NOW_MS + 1_000,
        "written_ms": NOW_MS,
        "group": "g",
        "topic": "orders-retry",
        "topic_id": "topic-id",
        "partition": 4,
        "offset": 0,
        "due_ms": 0,
        "outcome": "",
        "reason": "expired",
        "attempt": 0,
        "policy": "orders-retry@2",
        "target": "orders",
        "in_overflow": 0,
        "message_id": "order-7 ☃",
        "related": None,
    }
    assert [(row["reason"], row["message_id"]) for row in rows[1:]] == [("bad_header", None), (None, None)]


def test_many_blocks_of_many_sizes_lose_no_row(spark) -> None:
    from pyspark.sql import functions as F

    from pipeline.ingest.ledger import settlements

    blocks = [replace(EMPTY, partition=n, settled=settled_of(count)) for n, count in enumerate([1, 40_000, 2, 30_000])]
    rows = settlements(ledger_frame(spark, map(encode, blocks)))
    counted = rows.groupBy("partition").agg(F.count("*"), F.sum("offset"), F.sum("due_ms")).collect()
    assert sorted(map(tuple, counted)) == [
        (one.partition, len(one.settled.offsets), sum(one.settled.offsets), sum(one.settled.dues_ms)) for one in blocks
    ]


def test_what_went_to_the_overflow_becomes_rows(spark) -> None:
    from pipeline.ingest.ledger import entries as entry_rows

    values = [block(settled=emitted(1, 2)), block(number=1, entries=entries([(5, NOW_MS + 90_000), (6, NOW_MS)]))]
    rows = entry_rows(ledger_frame(spark, values)).orderBy("offset").collect()
    assert [(row.offset, row.due_ms, row.target, row.dead_letter, row.expires_ms) for row in rows] == [
        (5, NOW_MS + 90_000, "orders", "orders-dlq", -1),
        (6, NOW_MS, "orders", "orders-dlq", -1),
    ]


def test_records_that_were_moved_say_where_they_came_from(spark) -> None:
    from pipeline.ingest.ledger import entries as entry_rows
    from pipeline.ingest.ledger import settlements

    moved = settled([(5, NOW_MS, Outcome.MOVED, 2)])._replace(related={5: 8})
    carried = entries([(8, NOW_MS + 7)])._replace(sources={8: 5})
    frame = ledger_frame(spark, [block(settled=moved, carried=carried, number=1, entries=entries([(9, NOW_MS)]))])
    assert [(row.outcome, row.related) for row in settlements(frame).collect()] == [("moved", 8)]
    rows = entry_rows(frame).orderBy("offset").collect()
    assert [(row.offset, row.source_offset, row.carried) for row in rows] == [(8, 5, True), (9, 9, False)]


def test_what_is_no_block_is_kept_aside_with_its_reason(spark) -> None:
    from pipeline.ingest.ledger import blocks, entries, settlements

    good = block(low=8, watermark=Position(5, 6), runs=((0, 2), (9, 0)), settled=emitted(1, 2))
    values = [good, b"junk", None, b"", NEWER, good[:-3], b"\xff" * 100]
    frame = ledger_frame(spark, values)
    rows = blocks(frame).orderBy("ledger_offset").collect()
    assert [row.ledger_offset for row in rows] == list(range(len(values)))
    assert [row.newer for row in rows] == [False] * 4 + [True] + [False] * 2
    first = rows[0]
    assert (first.problem, first.value) == (None, None)
    assert (first.low, first.watermark_due_ms, first.watermark_offset, first.read_until, first.settled) == (
        8,
        5,
        6,
        9,
        2,
    )
    assert all(row.problem and row.topic is None for row in rows[1:])
    assert [row.value and bytes(row.value) for row in rows[1:]] == values[1:]
    assert settlements(frame).count() == 2
    assert entries(frame).count() == 0


def test_no_records_are_no_rows(spark) -> None:
    from pipeline.ingest.ledger import blocks, entries, settlements

    nothing = ledger_frame(spark, [b"x"]).where("offset > 0")
    assert [table(nothing).count() for table in (settlements, entries, blocks)] == [0, 0, 0]
