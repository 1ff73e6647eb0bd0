"""`storms` tells of each storm once, as soon as it shows, whatever ends the job: the same storms as the report."""

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.model.record import Outcome
from tests.integration.conftest import SOAK
from tests.pipeline.ledger_rows import NEWER, NOW_MS, block, settled
from tests.services.fatal_files import Death, FatalFiles
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

MINUTE_MS = 60_000
START_MS = NOW_MS // MINUTE_MS * MINUTE_MS
STORM_MS = START_MS + 60 * MINUTE_MS
LATER_MS = STORM_MS + 10 * MINUTE_MS
USUAL = [(minute, 10) for minute in range(60)]
Alert = tuple[str, int, int]


def settlements_of(spark: Any, *counts: tuple[int, int], target: str = "orders") -> Any:
    """Settlements of retries: pairs of a minute from the start on, and how many there were in it."""
    rows = [(target, 2, "emitted", START_MS + at * MINUTE_MS + 7) for at, count in counts for _ in range(count)]
    return spark.createDataFrame(rows, "target string, attempt bigint, outcome string, settled_ms bigint")


def alerts(warehouse: Any) -> list[Alert]:
    from pipeline.reports.storms import ALERTS, ALERTS_TABLE

    rows = warehouse.read(ALERTS_TABLE, ALERTS).collect()
    return sorted((row.target, row.minute_ms, row.retries) for row in rows)


def advance(warehouse: Any, number: int, rows: Any, now_ms: int = LATER_MS) -> list[Alert]:
    from pipeline.reports import storms

    told: list[dict[str, Any]] = []
    storms.advance(warehouse, number, rows, now_ms, told.append)
    return [(one["target"], one["minute_ms"], one["retries"]) for one in told]


def test_a_storm_is_told_when_it_shows_and_never_again(warehouse: Any, spark: Any) -> None:
    batches = [
        settlements_of(spark, *USUAL),
        settlements_of(spark, (60, 30)),
        settlements_of(spark, (60, 21)),  # now it is more than five times the usual
        settlements_of(spark, (60, 40), (61, 19)),
        settlements_of(spark, (500, 20)),  # long after: what was before is forgotten
    ]
    said = [advance(warehouse, number, rows, 1 << 50) for number, rows in enumerate(batches)]
    storm, last = ("orders", STORM_MS, 51), ("orders", START_MS + 500 * MINUTE_MS, 20)
    assert said == [[], [], [storm], [], [last]]
    assert alerts(warehouse) == [storm, last]
    from pipeline.reports.reports import storms

    rows = storms(batches[0].union(batches[1]).union(batches[2]).union(batches[3]).union(batches[4]))
    assert [row.minute_ms for row in rows.where("storm").collect()] == [storm[1], last[1]]
    assert warehouse.batches("gold/storm_state") == [4]
    assert advance(warehouse, 4, batches[4], 1 << 50) == []  # the stream repeats what it hadn't noted as done


def test_a_batch_that_was_cut_off_is_judged_again_of_the_same_state(warehouse: Any, spark: Any) -> None:
    from pipeline.reports import storms

    def gone(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    assert advance(warehouse, 0, settlements_of(spark, *USUAL)) == []
    storm = settlements_of(spark, (60, 60))
    with pytest.raises(KeyboardInterrupt):  # the row is written, the state isn't
        storms.advance(warehouse, 1, storm, LATER_MS, gone)
    assert advance(warehouse, 1, storm) == [("orders", STORM_MS, 60)]
    assert advance(warehouse, 2, settlements_of(spark, (60, 60))) == []
    assert alerts(warehouse) == [("orders", STORM_MS, 60)]


def test_a_clock_that_is_wrong_once_silences_nothing(warehouse: Any, spark: Any) -> None:
    years = 5 * 365 * 24 * 60
    assert advance(warehouse, 0, settlements_of(spark, *USUAL, (years, 1), (-years, 1))) == []
    assert advance(warehouse, 1, settlements_of(spark, (60, 60))) == [("orders", STORM_MS, 60)]
    assert advance(warehouse, 2, settlements_of(spark, (-years, 50))) == []  # nothing of its hour is known


def test_what_a_kill_left_of_older_states_goes(warehouse: Any, spark: Any) -> None:
    advance(warehouse, 0, settlements_of(spark, *USUAL))
    advance(warehouse, 1, settlements_of(spark, (60, 1)))
    warehouse.write_text("", "gold/storm_state", "batch=0", "part")  # it was half deleted
    advance(warehouse, 2, settlements_of(spark, (60, 60)))
    assert [name for name in warehouse.names("gold/storm_state") if name.startswith("batch")] == ["batch=2"]
    assert alerts(warehouse) == [("orders", STORM_MS, 61)]


def test_an_empty_ledger_has_no_storms_and_what_is_no_block_is_counted(kafka: Kafka, warehouse: Any) -> None:
    from typer.testing import CliRunner

    from pipeline.cli import app
    from pipeline.errors import PipelineError

    ledger = kafka.topic("ledger", 2)
    command = ["storms", "--warehouse", warehouse.root, "--bootstrap-servers", kafka.bootstrap, "--ledger", ledger]

    def ended() -> Any:
        return CliRunner().invoke(app, command)

    assert (ended().exit_code, ended().stdout) == (0, "")
    kafka.produce(ledger, [(b"k", b"junk"), (b"k", retries_block(0, 30))])
    came = ended()
    assert (came.exit_code, came.stdout.count("\n"), "1 ledger records are no blocks" in came.stderr) == (0, 1, True)
    kafka.produce(ledger, [(b"k", NEWER)])
    assert str(ended().exception) == "1 blocks are of a later version, and were not judged: upgrade"
    with pytest.raises(PipelineError, match="topic no-such-ledger"):
        CliRunner().invoke(app, [*command[:-1], "no-such-ledger"], catch_exceptions=False)


def retries_block(first: int, count: int) -> bytes:
    return block(settled=settled([(first + n, NOW_MS, Outcome.EMITTED, 2) for n in range(count)]))


# Alerts half written; alerts that count, and a state that doesn't.
DEATHS = (r"rename \S+ \S+/gold/storm_alerts/batch=\d/date=", r"create \S+/gold/storm_state/batch=\d/_SUCCESS")


def test_killed_while_it_writes_it_has_told_each_storm_once(
    kafka: Kafka, fatal: FatalFiles, new_warehouse: Callable[..., Any]
) -> None:
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.ingest.stream import planned_ms
    from pipeline.reports.storms import STATE_TABLE, watch

    ledger = kafka.topic("ledger", 1, retention_ms=-1)  # its times are of last year
    killed, whole = new_warehouse("killed"), new_warehouse("whole")
    command = ["storms", "--warehouse", killed.root, "--bootstrap-servers", kafka.bootstrap, "--ledger", ledger]

    def round_of(warehouse: Any) -> None:
        watch(warehouse, KafkaPlace(kafka.bootstrap), ledger, lambda _: None)

    for number, death in enumerate(DEATHS[0 if SOAK else 1 :]):
        kafka.produce(ledger, [(b"k", retries_block(100 * number, 30 + number), (), START_MS + number * MINUTE_MS)])
        fatal.die(command, Death(death))
        planned = planned_ms(killed, STATE_TABLE, number)
        for warehouse in (killed, whole):
            round_of(warehouse)
        assert alerts(killed) == alerts(whole)
        assert planned_ms(killed, STATE_TABLE, number) == planned  # what is made again has the same now
        assert alerts(whole)[number:] == [("orders", START_MS + number * MINUTE_MS, 30 + number)]
