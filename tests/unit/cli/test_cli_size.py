"""`tickover size`: what it prints, and how it refuses."""

import json
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from sidecar.cli.app import app
from sidecar.doctor.sizing import Load, size
from sidecar.settings.settings import DAY_MS, Settings

USUAL = ("--delay", "30d", "--rate", "200/s")


def tickover_size(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["size", *arguments], env={"TICKOVER_GROUP": "not/a/group"})


def amounts(*arguments: str) -> dict[str, float]:
    result = tickover_size(*arguments, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return {item["what"]: item["amount"] for item in json.loads(result.stdout)}


def test_a_table_has_each_need_with_its_formula() -> None:
    result = tickover_size("--pending", "1M", *USUAL)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["PART", "WHAT", "NEED", "FORMULA"]
    assert len(lines) == 1 + len(size(Load(200, 30 * DAY_MS, 10**6), Settings()))
    (held,) = (line for line in lines if "held records" in line)
    assert " MB\t" in held
    assert "REDIS_RECORD" in held


def test_json_and_yaml_have_numbers() -> None:
    items: list[dict[str, Any]] = json.loads(tickover_size(*USUAL, "-o", "json").stdout)
    assert items == yaml.safe_load(tickover_size(*USUAL, "-o", "yaml").stdout)
    assert items[0].keys() == {"part", "what", "amount", "unit", "formula"}
    assert all(isinstance(item["amount"], int | float) for item in items)


@pytest.mark.parametrize(
    ("option", "text", "load"),
    [
        ("--value", "1000", {"value_bytes": 1_000}),
        ("--value", "2kB", {"value_bytes": 2_000}),
        ("--value", "2KiB", {"value_bytes": 2_048}),
        ("--with-id", "25%", {"id_share": 0.25}),
        ("--packed", "1", {"packed": 1.0}),
        ("--same-delay", None, {"same_delay": True}),
        ("--partitions", "100", {"partitions": 100}),
        ("--replicas", "5", {"replicas": 5}),
        ("--replication-factor", "2", {"replication_factor": 2}),
        ("--retention", "60d", {"retention_ms": 60 * DAY_MS}),
        ("--target-retention", "1d", {"target_retention_ms": DAY_MS}),
    ],
)
def test_each_option_is_heeded(option: str, text: str | None, load: dict[str, Any]) -> None:
    usual = ("--pending", "1M", "--delay", "30d", "--rate", "20k/s")
    given = amounts(*usual, option, *([text] if text else []))
    assert given == {need.what: need.amount for need in size(Load(20_000, 30 * DAY_MS, 10**6, **load), Settings())}
    assert given != amounts(*usual)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "200"), "--rate: not a rate (write 200/s"),
        (("--delay", "30"), "--delay: a duration needs its unit"),
        (("--delay", "30x"), "--delay: not a duration"),
        (("--pending", "many"), "--pending: not a number"),
        (("--value", "2k"), "--value: a size needs its unit in full: 2kB is 2,000 bytes, 2KiB is 2,048: '2k'"),
        (("--value", "1TB"), "--value: a size here is 0 to "),
        (("--with-id", "200%"), "--with-id: a share is at most 1"),
        (("--retention", "1d"), "the retention of sources can't be shorter than the delay"),
    ],
)
def test_what_can_not_be_read_is_usage(arguments: tuple[str, ...], words: str) -> None:
    result = tickover_size(*USUAL, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_more_pending_than_can_come_in_is_said() -> None:
    assert "more are pending" in tickover_size("--pending", "1M", "--delay", "1d", "--rate", "1/s").stderr
    assert tickover_size("--pending", "1k", "--delay", "1d", "--rate", "1/s").stderr == ""


def test_how_many_are_held_tells_the_rate() -> None:
    assert amounts("--pending", "720k", "--delay", "1h") == amounts(
        "--rate", "200/s", "--pending", "720k", "--delay", "1h"
    )
    refused = tickover_size("--delay", "1h")
    assert (refused.exit_code, "--rate" in refused.stderr) == (2, True)
