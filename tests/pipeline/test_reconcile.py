"""`reconcile` accounts for every record, and names what is lost, repeated, early or missing."""

from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline import options
from pipeline.cli import app
from pipeline.errors import PipelineError
from sidecar.record import Outcome, Position
from tests.pipeline.ledger_rows import NOW_MS, block, entries, ledger_frame, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DUE_MS = NOW_MS - 5
LOW = 8
WATERMARK = Position(NOW_MS + 10, 0)
HELD, PASSED = (5, NOW_MS + 90_000), (6, NOW_MS + 1)


def emitted(*offsets: int, due_ms: int = DUE_MS):
    return settled([(offset, due_ms, Outcome.EMITTED, 2) for offset in offsets])


def last(**fields: Any) -> bytes:
    return block(low=LOW, watermark=WATERMARK, **fields)


def sources(spark, *offsets: int):
    from pipeline.topics import RECORDS

    return spark.createDataFrame(
        [("orders-retry", 3, offset, NOW_MS - 9, None, None, None) for offset in offsets], RECORDS
    )


def judged(spark, values: list[bytes], offsets=range(10)) -> tuple[Any, Any, Any]:
    """(positions, lifecycle, blocks) of these ledger values and source offsets."""
    from pipeline import ledger
    from pipeline.lifecycle import arrivals, lifecycle
    from pipeline.reconcile import positions

    frame, source = ledger_frame(spark, values), sources(spark, *offsets)
    rows = lifecycle(ledger.settlements(frame), arrivals(source))
    blocks = ledger.blocks(frame)
    return positions(source, rows, ledger.entries(frame), blocks), rows, blocks


def named(found) -> list[tuple[Any, ...]]:
    return sorted((row.kind, row.topic, row.partition, row.offset) for row in found.collect())


def test_every_record_has_a_state(spark) -> None:
    from pipeline.reconcile import wrong_positions

    values = [
        block(settled=emitted(0, 1, 2, 3), number=1, entries=entries([HELD, PASSED])),
        last(settled=emitted(3, 4)),
    ]
    states, rows, _ = judged(spark, values)
    assert {row.offset: row.state for row in states.collect()} == {
        **dict.fromkeys((0, 1, 2, 4), "settled"),
        3: "repeated",
        5: "held",
        6: "lost",  # in the overflow, and passed by W
        7: "lost",  # below L, and nowhere
        8: "open",
        9: "open",
    }
    found = {row.offset: row for row in wrong_positions(states, rows).collect()}
    assert {offset: row.kind for offset, row in found.items()} == {3: "repeated", 6: "lost", 7: "lost"}
    assert (found[3].detail, found[3].policy, found[3].due_ms) == ("settled 2 times", "orders-retry@2", DUE_MS)
    assert "overflow" in found[6].detail


def test_a_run_without_faults_has_none(spark) -> None:
    from pipeline.reconcile import early, wrong_blocks, wrong_positions

    values = [
        block(settled=emitted(0, 1, 2, 3), number=1, entries=entries([HELD, PASSED])),
        last(settled=emitted(4, 6, 7), number=2, entries=entries([(9, NOW_MS + 90_000)])),
    ]
    states, rows, blocks = judged(spark, values)
    assert {row.state for row in states.collect()} == {"settled", "held", "open"}
    assert named(wrong_positions(states, rows)) + named(early(rows)) + named(wrong_blocks(blocks)) == []


def test_a_topic_made_anew_starts_a_new_account(spark) -> None:
    values = [block(topic_id="old", settled=emitted(*range(8))), last(topic_id="new", settled=emitted(0, 1))]
    states, _, _ = judged(spark, values)
    found = {row.offset: row.state for row in states.collect()}
    assert (found[0], found[7], found[8]) == ("settled", "lost", "open")


def test_what_was_settled_before_it_was_due_is_early(spark) -> None:
    from pipeline.reconcile import early

    _, rows, _ = judged(spark, [block(settled=emitted(0)), block(settled=emitted(1, due_ms=NOW_MS + 1_001))])
    [row] = early(rows).collect()
    assert (row.kind, row.offset, row.detail) == ("early", 1, "1 ms before it was due")


def test_a_change_block_that_is_missing_shows(spark) -> None:
    from pipeline.reconcile import wrong_blocks

    put = entries([HELD])
    _, _, blocks = judged(spark, [block(number=4, entries=put), block(number=6, entries=put), b"junk"])
    assert named(wrong_blocks(blocks)) == [("missing_block", "orders-retry", 3, 1), ("undecodable", "ledger", 0, 2)]


def test_what_redis_should_hold_is_looked_for_in_its_export(spark) -> None:
    from pipeline.ledger import entries as entry_rows
    from pipeline.reconcile import acknowledged, missing_in_overflow, unknown_in_overflow

    values = [
        block(number=1, entries=entries([HELD, (6, NOW_MS + 91_000)])),
        block(number=2, entries=entries([(4, NOW_MS + 92_000)]), acknowledged=1),
        last(settled=emitted(0, 1, 2, 3, 7), acknowledged=2),
    ]
    states, _, blocks = judged(spark, values)
    put = entry_rows(ledger_frame(spark, values))
    columns = "topic string, partition int, offset bigint, due_ms bigint, policy string, target string"
    lines = [("orders-retry", 3, 6, None, None, None), ("orders-retry", 3, 0, 7, "p", "t")]
    export = spark.createDataFrame(lines, columns)

    def missing(ledger_end: int) -> list[tuple[Any, ...]]:
        began = spark.createDataFrame([(0, ledger_end)], "ledger_partition int, `end` bigint")
        found = missing_in_overflow(states, acknowledged(put, blocks, began), export).collect()
        return sorted((row.kind, row.offset, row.due_ms) for row in found)

    # What the ledger had when the export began says what Redis had by then.
    assert missing(1) == []
    assert missing(2) == [("missing_in_overflow", *HELD)]
    assert missing(3) == [("missing_in_overflow", 4, NOW_MS + 92_000), ("missing_in_overflow", *HELD)]
    assert named(unknown_in_overflow(put, export)) == [("unknown_in_overflow", "orders-retry", 3, 0)]


def test_targets_are_compared_with_the_ledger(spark) -> None:
    from pipeline.reconcile import wrong_emissions
    from pipeline.topics import RECORDS

    def arrived(offset: int, time_ms: int = NOW_MS) -> tuple[Any, ...]:
        own = {"origin": f"orders-retry/3/{offset}", "due": str(DUE_MS), "policy": "orders-retry@2"}
        headers = [(f"tickover-{name}", bytearray(text.encode())) for name, text in own.items()]
        return ("orders", 0, 100 + offset, time_ms, None, None, headers)

    _, rows, _ = judged(spark, [last(settled=emitted(0, 1, 2, 3))])
    there = [
        arrived(0),
        arrived(1),
        arrived(1),
        arrived(3, DUE_MS - 1),
        arrived(7),
        ("orders", 0, 1, 0, None, None, None),
    ]
    targets = spark.createDataFrame(there, RECORDS)
    assert named(wrong_emissions(rows, targets)) == [
        ("early", "orders-retry", 3, 3),
        ("not_in_target", "orders-retry", 3, 2),
        ("repeated", "orders-retry", 3, 1),
    ]


@pytest.mark.parametrize("job", ["reconcile", "report", "forecast", "rebuild"])
def test_where_no_ledger_was_ingested_there_is_nothing_to_judge(warehouse, monkeypatch, job: str) -> None:
    """A slip in the path must not end with "no findings"."""
    monkeypatch.setattr(options, "open_warehouse", lambda _root, _spark: warehouse)

    refused = CliRunner().invoke(app, [job, "--warehouse", warehouse.root])

    assert isinstance(refused.exception, PipelineError)
    assert f"run `tickover pipeline ingest --warehouse {warehouse.root}` first" in str(refused.exception)
    assert not warehouse.exists("gold")
