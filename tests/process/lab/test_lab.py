"""The latency laboratory: the parts of a record's way from what was measured, what is said of them, and a small run."""

import json
import struct
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner, Result

from broker.records.records import Record, build_batch
from sidecar.cli.app import app
from sidecar.lab import latency
from sidecar.lab.bare_connection import LabError, _end_of
from sidecar.lab.latency import PARTS, Case, Measured, cases, explain, percentile, rows
from tests.services.reference_broker import ReferenceBroker

TRIES = 5  # of a measurement of moments: a busy machine makes others of them


def measured(
    case: Case, acked: float, fetched: float, received: float, sent: float = 0.25, appended: float = 1.0
) -> Measured:
    """Of two records, 0.5 ms below and above these means."""
    return Measured(
        cluster="reference",
        case=case,
        acked=(acked - 0.5, acked + 0.5),
        received=(received - 0.5, received + 0.5),
        sent=sent,
        appended=appended,
        fetched=fetched,
        round_trip=0.125,
    )


LEADER_ALONE = measured(Case(1, 1, 0, 16_384), acked=1.5, fetched=1.25, received=1.5)
ALL_ALONE = measured(Case(-1, 1, 0, 16_384), acked=1.625, fetched=1.5, received=2.0)
LEADER_OF_THREE = measured(Case(1, 3, 0, 16_384), acked=1.75, fetched=3.25, received=4.0)
ALL_OF_THREE = measured(Case(-1, 3, 0, 16_384), acked=4.0, fetched=4.0, received=4.5, appended=1.5)


def test_parts_come_from_comparing_cases() -> None:
    found = rows([LEADER_ALONE, ALL_ALONE, LEADER_OF_THREE, ALL_OF_THREE])
    assert [row["append_ms"] for row in found] == [0.75, 0.75, 0.75, 1.25]
    assert [row["delayed_produce_ms"] for row in found] == [None, 0.125, None, 1.75]
    assert [row["replication_ms"] for row in found] == [0.0, 0.0, 2.0, 2.0]
    assert [row["delayed_fetch_ms"] for row in found] == [0.25, 0.5, 0.25, 0.5]
    assert [row["consumer_ms"] for row in found] == [0.25, 0.5, 0.75, 0.5]
    assert {(row["producer_queue_ms"], row["round_trip_ms"]) for row in found} == {(0.25, 0.125)}
    assert (found[3]["produce_p50_ms"], found[3]["produce_p99_ms"]) == (3.5, 4.5)
    assert (found[3]["consume_p50_ms"], found[3]["consume_p99_ms"]) == (4.0, 5.0)


@pytest.mark.parametrize("alone", [[], [LEADER_ALONE]])
def test_the_parts_of_a_consumers_wait_add_up_whatever_was_measured(alone: list[Measured]) -> None:
    row = rows([*alone, LEADER_OF_THREE])[-1]
    assert sum(row[name] or 0 for name in PARTS) == pytest.approx(fmean(LEADER_OF_THREE.received))


def test_what_was_not_measured_is_not_told() -> None:
    [row] = rows([ALL_OF_THREE])
    assert (row["delayed_produce_ms"], row["replication_ms"]) == (None, None)
    assert row["delayed_fetch_ms"] == 2.5
    other_linger = measured(Case(1, 3, 5, 16_384), acked=9.0, fetched=9.0, received=9.0)
    assert rows([other_linger, ALL_OF_THREE])[-1]["delayed_produce_ms"] is None


def test_sentences_name_what_costs_most() -> None:
    lingering = measured(Case(0, 3, 20, 16_384), acked=0.75, fetched=30.0, received=30.5, sent=20.0)
    said = explain(rows([LEADER_ALONE, ALL_ALONE, LEADER_OF_THREE, ALL_OF_THREE, lingering]))
    assert all(sentence.startswith("reference: ") for sentence in said)
    text = "\n".join(said)
    assert "acks=0 ends at 0.25 ms" in text
    assert "acks=-1 with 1 replica takes 0.12 ms more than acks=1: delayed produce, but there is nobody" in text
    assert "acks=-1 with 3 replicas takes 1.75 ms more than acks=1: delayed produce, until every in-sync" in text
    assert "with 3 replicas a consumer waits 2.00 ms for replication" in text
    assert "0.25 ms with linger.ms=0, 20.00 ms with linger.ms=20" in text
    assert said[-1].startswith("reference: of all that a consumer waits for, most is delayed fetch")


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)])
def test_percentiles_are_nearest_ranks(share: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], share) == value


def test_every_setting_is_measured_with_every_other() -> None:
    found = cases([0, 1], [1, 3], [0], [1, 2, 3])
    assert len(found) == len(set(found)) == 12


def fetched(topic: str, *batches: bytes, error: int = 0, aborted: int = -1) -> memoryview:
    """An answer to a fetch, version 4, behind its correlation id."""
    records = b"".join(batches)
    name = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">ii", 0, 1) + name + struct.pack(">iihqqi", 1, 0, error, 9, 9, aborted)
    return memoryview(head + bytes(16 * max(aborted, 0)) + struct.pack(">i", len(records)) + records)


def batch(base_offset: int, count: int) -> bytes:
    return bytes(build_batch([Record(base_offset + number, 1_000, None, b"value") for number in range(count)]))


def test_a_fetch_ends_behind_the_last_whole_batch() -> None:
    first, second = batch(0, 3), batch(3, 2)
    assert _end_of(fetched("t", first, second), "t", 0) == 5
    assert _end_of(fetched("t", first, second, aborted=2), "t", 0) == 5
    assert _end_of(fetched("t", first, second[:-1]), "t", 0) == 3
    assert _end_of(fetched("t", first, second[:20]), "t", 0) == 3
    assert _end_of(fetched("t", first), "t", 7) == 7  # the batch that was read in part comes again
    assert _end_of(fetched("t"), "t", 4) == 4
    with pytest.raises(LabError, match="error 3"):
        _end_of(fetched("t", error=3), "t", 0)


def lab(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["broker", "lab", "acks", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--acks", "2"), "--acks 2: each must be -1 to 1"),
        (("--replicas", "1,4"), "--replicas 1,4: each must be 1 to 3"),
        (("--linger", "0,,5"), "--linger 0,,5: must be numbers with commas between"),
        (("--batch-size", "16384,0"), "--batch-size: a size here is 1 to"),
        (("--batch-size", "16KiB,16K"), "--batch-size: a size needs its unit in full"),
        (("--record-size", "1MB"), "--record-size: a size here is 0 to 900000 bytes"),
    ],
)
def test_lists_that_make_no_sense_are_refused(arguments: tuple[str, ...], words: str) -> None:
    result = lab(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_plot_says_how_to_get_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(latency, "find_spec", lambda name: None)
    result = lab("--plot", str(tmp_path / "plot.svg"))
    assert result.exit_code == 1
    assert "make setup-pipeline" in result.stderr
    assert not (tmp_path / "plot.svg").exists()


def test_the_plot_has_a_bar_for_each_case() -> None:
    pytest.importorskip("matplotlib")
    svg = latency.draw(rows([LEADER_ALONE, ALL_OF_THREE]))
    assert svg.lstrip().startswith("<svg")
    for words in ("acks=1, 1 replicas", "acks=-1, 3 replicas", "replication", "delayed fetch"):
        assert words in svg


def has_lingered(row: dict[str, Any]) -> bool:
    """The first of a batch waits for all of linger.ms, the last for nothing."""
    return bool(row["producer_queue_ms"] > 25 and row["produce_p50_ms"] > 25)


@pytest.mark.slow
def test_a_small_run_on_both_clusters(broker: ReferenceBroker) -> None:
    few = ("--replicas", "1", "--linger", "100", "--rate", "200", "--seconds", "0.3")
    found: list[dict[str, Any]] = []
    for _ in range(TRIES):
        result = lab(*few, "--bootstrap-servers", broker.bootstrap, "-o", "json")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        if all(has_lingered(row) for row in found):
            break
    assert [(row["cluster"], row["acks"]) for row in found] == [
        (cluster, acks) for cluster in ("reference", "given") for acks in (0, 1, -1)
    ]
    for row in found:
        assert row["records"] > 20
        assert all(row[name] is not None for name in PARTS)
        assert (row["delayed_produce_ms"] is None) == (row["acks"] != -1)
        assert has_lingered(row), row
    assert "given: acks=0 ends at" in result.stderr
    known = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).topics
    assert not [name for name in known if name.startswith("tickover-lab")]


@pytest.mark.slow
def test_a_small_run_with_replicas() -> None:
    few = ("--acks", "1,-1", "--replicas", "1,3", "--linger", "0", "--rate", "200", "--seconds", "0.3")
    result = lab(*few, "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(row["replicas"], row["acks"]) for row in found] == [(1, 1), (1, -1), (3, 1), (3, -1)]
    assert all(row["replication_ms"] is not None for row in found)
    assert found[3]["delayed_produce_ms"] is not None
    assert "acks=-1 with 3 replicas takes" in result.stderr


@pytest.mark.slow
def test_too_many_cases_are_refused() -> None:
    result = lab("--replicas", "1", "--linger", ",".join(map(str, range(100))))
    assert result.exit_code == 2
    assert "300 cases to measure, at most 200" in result.stderr


@pytest.mark.slow
def test_more_replicas_than_brokers_are_refused(broker: ReferenceBroker) -> None:
    result = lab("--replicas", "1,2", "--bootstrap-servers", broker.bootstrap)
    assert result.exit_code == 2
    assert "given: 2 replicas, but brokers: 1" in result.stderr
