"""Needs of a load, beside what was measured apart from the formula's terms, and how numbers are read."""

import re

import pytest

from policies.errors import FormatError
from sidecar.doctor.sizing import (
    LEDGER_BLOCK,
    LEDGER_RECORD,
    SOURCE_RECORD,
    TARGET_RECORD,
    Load,
    parse_count,
    parse_rate,
    parse_share,
    shown,
    size,
)
from sidecar.settings.settings import DAY_MS, Settings
from tests.pages.sizing import terms
from tests.source import ROOT

SETTINGS = Settings(group="g")
MONTH = Load(rate=200, delay_ms=30 * DAY_MS, pending=1_000_000)


def amounts(load: Load, settings: Settings = SETTINGS) -> dict[str, float]:
    return {need.what: need.amount for need in size(load, settings)}


# Measured beside the terms, by `benchmarks.sizing`: Redis bytes a record of full chunks, of full chunks with ids, of
# chunks of 8 records and of one, and of bytes that can't be packed.
@pytest.mark.parametrize(
    ("load", "measured"),
    [
        (Load(1_000_000, DAY_MS, 1_000, 200, same_delay=True, partitions=1), 70),
        (Load(1_000_000, DAY_MS, 1_000, 1_000, same_delay=True, partitions=1), 233),
        (Load(1_000_000, DAY_MS, 1_000, 200, id_share=1, same_delay=True, partitions=1), 152),
        (Load(160, DAY_MS, 1_000, 200, same_delay=True, partitions=1), 141),
        (Load(1, DAY_MS, 1_000, 200), 592),
        (Load(1_000_000, DAY_MS, 1_000, 1_000, packed=1, same_delay=True, partitions=1), 1_035),
        (Load(1, DAY_MS, 1_000, 1_000, packed=1), 1_466),
    ],
)
def test_redis_takes_what_was_measured(load: Load, measured: int) -> None:
    found = amounts(load)
    assert (found["held records"] + found["index of ids"]) / 1_000 == pytest.approx(measured, rel=0.07)


def test_disk_is_for_all_records_of_the_retention() -> None:
    found, records = amounts(MONTH), 200 * 86_400 * 37
    assert found["source topics"] == pytest.approx(3 * records * (200 + SOURCE_RECORD.value))
    assert found["target topics"] == pytest.approx(3 * 200 * 86_400 * 7 * (200 + TARGET_RECORD.value))
    blocks = 12 * 20 * 86_400 * 37  # one each interval of 50 ms in each partition
    assert found["ledger"] >= 3 * blocks * 300
    assert found["all"] == pytest.approx(sum(found[what] for what in ("source topics", "ledger", "target topics")))


def test_a_rare_record_has_two_blocks_of_its_own_in_the_ledger() -> None:
    records = 24 * 8  # of the delay and the margin
    rare = amounts(Load(rate=1 / 3_600, delay_ms=DAY_MS, pending=0, replication_factor=1))
    assert rare["ledger"] == pytest.approx(records * (2 * LEDGER_BLOCK.value + LEDGER_RECORD.value), rel=0.01)


def test_what_is_pending_is_kept_whatever_the_rate_says() -> None:
    rare = amounts(Load(rate=1 / 3_600, delay_ms=DAY_MS, pending=1_000_000))
    assert rare["source topics"] >= 1_000_000 * 200 * 3


def test_without_a_number_pending_is_what_the_delay_gathers() -> None:
    assert Load(rate=0.5, delay_ms=DAY_MS, pending=0).held == 43_200


def test_limits_of_the_wheel_limit_its_memory() -> None:
    load = Load(rate=20_000, delay_ms=DAY_MS, pending=0, replicas=2)
    small = Settings.model_validate({"group": "g", "wheel": {"records_max": 1_000}})
    assert amounts(load, small)["memory of a process"] < amounts(load)["memory of a process"]
    assert amounts(load, small)["memory limit of a process"] < amounts(load)["memory limit of a process"]


def test_replicas_are_advised_so_that_one_may_be_away() -> None:
    assert amounts(MONTH)["replicas"] == 2
    assert amounts(Load(rate=50_000, delay_ms=DAY_MS, pending=0))["replicas"] > 3


def test_sources_that_keep_less_than_is_held_are_refused() -> None:
    with pytest.raises(FormatError, match="shorter than the delay"):
        Load(rate=1, delay_ms=DAY_MS, pending=0, retention_ms=DAY_MS - 1)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("250000", 250_000), ("250k", 250_000), ("1M", 10**6), ("1.5M", 1_500_000), ("2G", 2 * 10**9)],
)
def test_numbers_have_suffixes(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "1.5", "1m", "1e6", "-1", "1 M", "M", "0.0001k", "9999999G"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("200/s", 200), ("5k/s", 5_000), ("30/m", 0.5), ("1M/h", 1_000_000 / 3_600)]
)
def test_rates_have_units(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["200", "200/", "200/d", "/s", "0/s", "2G/s", "200/s/s"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_rate(text)


@pytest.mark.parametrize(("text", "share"), [("0", 0), ("25%", 0.25), ("0.25", 0.25), ("100%", 1), ("12.5%", 0.125)])
def test_shares_are_read(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "%", "101%", "1.01", "-1%", "a"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_share(text)


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (0, "B", "0 B"), (999.2, "B", "1,000 B"), (1_000, "B", "1 kB"), (1_234_567, "B", "1.24 MB"),
        (12_340_000_000, "B", "12.4 GB"), (123_400_000_000, "B", "124 GB"), (5e15, "B", "5,000 TB"),
        (0.07, "cores", "0.07 cores"), (0.071, "cores", "0.08 cores"), (1_200, "", "1,200"),
    ],
)  # fmt: skip
def test_amounts_are_rounded_up_to_three_digits(amount: float, unit: str, text: str) -> None:
    assert shown(amount, unit) == text


def test_the_benchmark_measures_every_term() -> None:
    text = (ROOT / "benchmarks" / "sizing.py").read_text(encoding="utf-8")
    assert len(terms()) > 10
    assert set(re.findall(r"Measured\(\s*\"([A-Z_]+)\"", text)) == terms().keys()
    assert {term.part for term in terms().values()} == {"redis", "kafka", "memory"}
