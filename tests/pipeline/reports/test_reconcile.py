"""`reconcile` accounts for every record, and names what is lost, repeated, early or missing."""

from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline import options
from pipeline.cli import app
from pipeline.errors import PipelineError
from sidecar.model.record import Outcome, Position
from tests.pipeline.ledger_rows import NEWER, NOW_MS, block, entries, ledger_frame, settled

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
    from pipeline.ingest.topics import RECORDS

    return spark.createDataFrame(
        [("orders-retry", 3, offset, NOW_MS - 9, None, None, None) for offset in offsets], RECORDS
    )


def judged(spark, values: list[bytes], offsets=range(10)) -> tuple[Any, Any, Any]:
    """(positions, lifecycle, blocks) of these ledger values and source offsets."""
    return judged_of(spark, ledger_frame(spark, values), offsets, [])


def judged_of(spark, frame, offsets, lost: list[Any]) -> tuple[Any, Any, Any]:
    from pipeline.ingest import ledger
    from pipeline.ingest.lifecycle import arrivals, lifecycle
    from pipeline.reports.reconcile import holes, positions

    source = sources(spark, *offsets)
    rows = lifecycle(ledger.settlements(frame), arrivals(source))
    blocks = ledger.blocks(frame)
    return positions(source, rows, ledger.entries(frame), blocks, holes(blocks, lost)), rows, blocks


def named(found) -> list[tuple[Any, ...]]:
    return sorted((row.kind, row.topic, row.partition, row.offset) for row in found.collect())


def test_every_record_has_a_state(spark) -> None:
    from pipeline.reports.reconcile import wrong_positions

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
    from pipeline.reports.reconcile import early, wrong_blocks, wrong_positions

    values = [
        block(settled=emitted(0, 1, 2, 3), number=1, entries=entries([HELD, PASSED])),
        last(settled=emitted(4, 6, 7), number=2, entries=entries([(9, NOW_MS + 90_000)])),
    ]
    states, rows, blocks = judged(spark, values)
    assert {row.state for row in states.collect()} == {"settled", "held", "open"}
    assert named(wrong_positions(states, rows)) + named(early(rows)) + named(wrong_blocks(blocks)) == []


def test_a_topic_made_anew_starts_a_new_account(spark) -> None:
    anew = last(topic_id="new", settled=emitted(0, 1), runs=((0, 1), (9, 0)))
    values = [block(topic_id="old", settled=emitted(*range(8))), anew]
    states, _, _ = judged(spark, values)
    found = {row.offset: row.state for row in states.collect()}
    assert (found[0], found[7], found[8]) == ("settled", "lost", "open")


def states_of(judged_rows) -> dict[int, str]:
    return {row.offset: row.state for row in judged_rows.collect()}


def reasons_of(judged_rows, blocks, lost: list[Any]) -> list[tuple[Any, ...]]:
    from pipeline.reports.reconcile import holes, unknown

    return [tuple(row) for row in unknown(judged_rows, blocks, holes(blocks, lost)).collect()]


def test_what_may_have_been_settled_before_the_ledger_begins_is_unknown(spark) -> None:
    """A warehouse that was begun late, or a ledger that keeps its blocks for less long than the source its records."""
    from pipeline.reports.reconcile import wrong_positions

    first_left = last(settled=emitted(7), runs=((0, 1), (9, 0)))  # blocks that settled others are gone
    later = block(low=12, settled=emitted(8, 9, 10), runs=((0, 1), (12, 0)))
    states, rows, blocks = judged_of(spark, ledger_frame(spark, [first_left, later], 1_000), range(12), [])
    assert states_of(states) == {
        **dict.fromkeys(range(7), "unknown"),
        **dict.fromkeys((7, 8, 9, 10), "settled"),
        11: "lost",  # it was read since then
    }
    assert named(wrong_positions(states, rows)) == [("lost", "orders-retry", 3, 11)]
    assert reasons_of(states, blocks, []) == [
        ("orders-retry", 3, 7, 0, 6, "partition 0 of the ledger begins at 1000 here")
    ]


def test_what_may_have_been_settled_in_a_hole_of_the_ledger_is_unknown(spark) -> None:
    from pipeline.ingest.ledger import entries as entry_rows
    from pipeline.ingest.topics import LostRange
    from pipeline.reports.reconcile import acknowledged, holes, missing_in_overflow, unknown_in_overflow

    put = entries([(4, NOW_MS + 90_000), (5, NOW_MS + 1)])
    before = [block(low=3, settled=emitted(0, 2), runs=((0, 1), (7, 0)), number=1, entries=put)]
    after = [
        block(low=6, settled=emitted(6), runs=((0, 1), (9, 0)), acknowledged=1),
        block(low=12, watermark=WATERMARK, settled=emitted(9, 10), runs=((0, 1), (12, 0)), acknowledged=1),
    ]
    frame = ledger_frame(spark, before).unionByName(ledger_frame(spark, after, 4))
    lost = [LostRange("ledger", 0, 1, 4)]
    states, _, blocks = judged_of(spark, frame, range(12), lost)
    assert states_of(states) == {
        **dict.fromkeys((0, 2, 6, 9, 10), "settled"),
        1: "lost",  # L had passed it before
        3: "unknown",
        4: "held",
        5: "unknown",  # in the overflow, and W passed it some time
        **dict.fromkeys((7, 8), "unknown"),  # read when the ledger goes on
        11: "lost",
    }
    assert reasons_of(states, blocks, lost) == [
        ("orders-retry", 3, 4, 3, 8, "retention took 1 to 4 of partition 0 of the ledger")
    ]
    # It may have been cancelled in the hole, so nobody can say that Redis lacks it.
    began = spark.createDataFrame([(0, 9)], "ledger_partition int, `end` bigint")
    nothing = spark.createDataFrame([], "topic string, partition int, offset bigint")

    put_rows = entry_rows(frame)
    assert named(missing_in_overflow(states, acknowledged(put_rows, blocks, began), nothing)) == []
    # Nor what was put there in the hole; but since then nothing has put there what it has read.
    columns = "topic string, partition int, offset bigint, due_ms bigint, policy string, target string"
    export = spark.createDataFrame([("orders-retry", 3, offset, 7, "p", "t") for offset in (3, 8, 10, 13)], columns)
    found = unknown_in_overflow(put_rows, export, blocks, holes(blocks, lost))
    assert named(found) == [("unknown_in_overflow", "orders-retry", 3, offset) for offset in (10, 13)]


def test_blocks_of_a_later_version_are_a_hole(spark) -> None:
    values = [block(low=2, settled=emitted(0, 1), runs=((0, 1), (4, 0))), NEWER, last(runs=((0, 1), (8, 0)))]
    states, _, blocks = judged(spark, values, range(8))
    assert states_of(states) == {0: "settled", 1: "settled", **dict.fromkeys(range(2, 8), "unknown")}
    [(*_, reason)] = reasons_of(states, blocks, [])
    assert reason == "partition 0 of the ledger has blocks that can't be read here: 1, from 1 to 1"


def test_what_may_have_been_settled_in_a_block_that_cannot_be_read_is_unknown(spark) -> None:
    """Replicas of two versions write alternately while a group is upgraded; a junk record cuts the ledger no less."""
    from pipeline.reports.reconcile import holes, missing_in_overflow, unknown_in_overflow

    put = entries([(1, NOW_MS + 90_000)])
    between = block(low=4, settled=emitted(2), number=1, entries=put, runs=((0, 1), (6, 0)), acknowledged=1)
    values = [block(low=1, settled=emitted(0), runs=((0, 1), (4, 0))), NEWER, between, b"junk"]
    states, _, blocks = judged(spark, values, range(6))
    assert states_of(states) == {0: "settled", 1: "held", 2: "settled", 3: "unknown", 4: "open", 5: "open"}
    [(*_, reason)] = reasons_of(states, blocks, [])
    assert reason == "partition 0 of the ledger has blocks that can't be read here: 2, from 1 to 3"
    # The last of them may have settled what is held, and put more.
    columns = "topic string, partition int, offset bigint, due_ms bigint, policy string, target string"
    export = spark.createDataFrame([("orders-retry", 3, offset, 7, "p", "t") for offset in (4, 5)], columns)
    put_there = spark.createDataFrame([("orders-retry", 3, 1)], "topic string, partition int, offset bigint")
    assert named(missing_in_overflow(states, put_there, export)) == []
    assert named(unknown_in_overflow(put_there, export, blocks, holes(blocks, []))) == []


def test_the_last_segments_of_a_lane_are_those_that_count(spark, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.reports import reconcile

    monkeypatch.setattr(reconcile, "SEGMENTS_MAX", 1)
    before, after = block(low=2, settled=emitted(0), runs=((0, 1), (4, 0))), block(low=4, runs=((0, 1), (6, 0)))
    states, _, _ = judged(spark, [before, NEWER, after, last(settled=emitted(6), runs=((0, 1), (8, 0)))], range(8))
    assert states_of(states) == {0: "settled", **dict.fromkeys(range(1, 6), "unknown"), 6: "settled", 7: "lost"}


def test_what_a_lane_has_not_begun_with_is_unknown(spark) -> None:
    """By `start: latest`, or with a ledger that was made anew."""
    states, _, blocks = judged(spark, [last(settled=emitted(5, 6), runs=((5, 1), (8, 0)))], range(8))
    assert states_of(states) == {**dict.fromkeys(range(5), "unknown"), 5: "settled", 6: "settled", 7: "lost"}
    [(*_, reason)] = reasons_of(states, blocks, [])
    assert reason == "they are older than what the ledger says of the partition"


def test_what_a_lane_without_a_readable_block_has_is_open_only_where_its_ledger_is_whole(spark) -> None:
    """All of it may have been settled in what can't be read; else it was not read yet."""
    from pyspark.sql.functions import lit

    from pipeline.ingest import ledger
    from pipeline.reports.reconcile import Hole, holes, positions, unknown
    from sidecar.ledger.block import ledger_partition

    apart = {n: ledger_partition("orders-retry", n, 2) for n in range(9)}
    other = next(n for n in apart if apart[n] != apart[3])
    alike = next(n for n in apart if n != 3 and apart[n] == apart[3])
    source = sources(spark, 0, 1)
    for partition, offsets in ((other, (0, 1)), (alike, (0,))):
        source = source.unionByName(sources(spark, *offsets).withColumn("partition", lit(partition)))

    def states(values: list[bytes], found: list[Hole], partitions: int) -> tuple[dict[Any, str], list[Any]]:
        frame = ledger_frame(spark, values).selectExpr("* EXCEPT (partition)", f"{apart[3]} AS partition")
        frame = frame.select("topic", "partition", "offset", "timestamp_ms", "key", "value")
        blocks, rows = ledger.blocks(frame), ledger.settlements(frame)
        judged = positions(source, rows, ledger.entries(frame), blocks, found, partitions)
        said = {(row.partition, row.offset): row.state for row in judged.collect()}
        return said, [tuple(row) for row in unknown(judged, blocks, found).orderBy("partition").collect()]

    whole = block(low=2, settled=emitted(0, 1), runs=((0, 1), (2, 0)))
    mine, others = {(3, 0): "settled", (3, 1): "settled"}, {(other, 0): "open", (other, 1): "open"}
    assert states([whole], [], 2) == ({**mine, **others, (alike, 0): "open"}, [])
    said, named_there = states([whole, NEWER], [], 2)
    assert said == {**mine, **others, (alike, 0): "unknown"}
    reason = f"partition {apart[3]} of the ledger has blocks that can't be read here: 1, from 1 to 1"
    assert named_there == [("orders-retry", alike, 1, 0, 0, reason)]
    # Of the other partition of the ledger nothing is left, though something was there.
    found = holes(ledger.blocks(ledger_frame(spark, [whole])), [], {0: 1, 1: 7})
    assert found == [Hole(1, 7, "partition 1 of the ledger has nothing before 7 here")]
    said, _ = states([whole], [Hole(apart[other], 7, "nothing")], 2)
    assert said == {**mine, **dict.fromkeys(others, "unknown"), (alike, 0): "open"}
    said, named_there = states([whole, NEWER], [], 0)
    assert said == {**mine, **dict.fromkeys(others, "unknown"), (alike, 0): "unknown"}, "nobody knows which part it is"
    assert {row[-1] for row in named_there} == {"no block of the partition can be read, and the ledger has holes"}


def test_what_was_settled_before_it_was_due_is_early(spark) -> None:
    from pipeline.reports.reconcile import early

    _, rows, _ = judged(spark, [block(settled=emitted(0)), block(settled=emitted(1, due_ms=NOW_MS + 1_001))])
    [row] = early(rows).collect()
    assert (row.kind, row.offset, row.detail) == ("early", 1, "1 ms before it was due")


def test_a_change_block_that_is_missing_shows(spark) -> None:
    from pipeline.reports.reconcile import wrong_blocks

    put = entries([HELD])
    _, _, blocks = judged(spark, [block(number=4, entries=put), block(number=6, entries=put), b"junk"])
    assert named(wrong_blocks(blocks)) == [("missing_block", "orders-retry", 3, 1), ("undecodable", "ledger", 0, 2)]


def test_what_redis_should_hold_is_looked_for_in_its_export(spark) -> None:
    from pipeline.ingest.ledger import entries as entry_rows
    from pipeline.reports.reconcile import acknowledged, missing_in_overflow, unknown_in_overflow

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
    assert named(unknown_in_overflow(put, export, blocks)) == [("unknown_in_overflow", "orders-retry", 3, 0)]


def test_targets_are_compared_with_the_ledger(spark) -> None:
    from pipeline.ingest.topics import RECORDS
    from pipeline.reports.reconcile import wrong_emissions

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
