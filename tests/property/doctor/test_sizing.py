"""No load that is more of something needs less of anything, but for what the formula says so of."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sidecar.doctor.sizing import Load, Need, size
from sidecar.settings.settings import DAY_MS, Settings

SETTINGS = Settings(group="g")
ALMOST = 1 + 1e-9  # what rounding of floats may differ by
FACTORS = st.floats(1, 1_000)
MEMORY = ("memory of a process", "memory limit of a process")
REDIS = ("held records", "maxmemory", "memory of its host")
# What a load of more of this needs less of, in all or for each process.
LESS: dict[str, tuple[str, ...]] = {
    "rate": REDIS,  # where as many are held, they came in larger blocks, which make larger chunks
    "replicas": (*MEMORY, "CPU of a process"),
}


@st.composite
def loads(draw: st.DrawFn) -> Load:
    delay_ms = draw(st.integers(1, 400 * DAY_MS))
    return Load(
        rate=draw(st.floats(1 / 3_600, 100_000)),
        delay_ms=delay_ms,
        pending=draw(st.integers(0, 10**10)),
        value_bytes=draw(st.integers(0, 1_000_000)),
        id_share=draw(st.floats(0, 1)),
        packed=draw(st.floats(0, 1)),
        same_delay=draw(st.booleans()),
        partitions=draw(st.integers(1, 10_000)),
        replicas=draw(st.integers(1, 100)),
        replication_factor=draw(st.integers(1, 5)),
        retention_ms=draw(st.sampled_from([0, delay_ms, 3 * delay_ms])),
        target_retention_ms=draw(st.integers(0, 400 * DAY_MS)),
    )


def needs(load: Load) -> dict[str, float]:
    return {f"{need.part}: {need.what}": need.amount for need in size(load, SETTINGS)}


def grown(load: Load, name: str, factor: float) -> Any:
    """More of one thing; 1 at most of a share."""
    value = getattr(load, name)
    if name in ("id_share", "packed"):
        return value + (1 - value) * (1 - 1 / factor)
    return value * factor if isinstance(value, float) else int(value * factor)


@pytest.mark.parametrize(
    "name",
    [
        "rate", "delay_ms", "pending", "value_bytes", "id_share", "packed", "partitions", "replicas",
        "replication_factor", "retention_ms", "target_retention_ms",
    ],
)  # fmt: skip
@given(load=loads(), factor=FACTORS)
def test_more_needs_no_less(name: str, load: Load, factor: float) -> None:
    assume(name != "delay_ms" or not load.retention_ms)
    assume(name != "rate" or load.pending)
    before, after = needs(load), needs(replace(load, **{name: grown(load, name, factor)}))
    less = {
        what
        for what, amount in after.items()
        if amount * ALMOST < before[what] and what.partition(": ")[2] not in LESS.get(name, ())
    }
    assert less == set()


@given(load=loads(), factor=FACTORS)
def test_where_all_wait_for_the_delay_a_higher_rate_needs_no_less(load: Load, factor: float) -> None:
    load = replace(load, pending=0)
    before, after = needs(load), needs(replace(load, rate=load.rate * factor))
    assert {what for what, amount in after.items() if amount * ALMOST < before[what]} == set()


@given(load=loads())
def test_equal_delays_need_no_more(load: Load) -> None:
    apart, alike = (needs(replace(load, same_delay=alike)) for alike in (False, True))
    assert all(alike[what] <= amount * ALMOST for what, amount in apart.items())


@given(load=loads(), factor=st.integers(1, 5))
def test_brokers_need_as_many_times_as_much_as_there_are_replicas(load: Load, factor: int) -> None:
    one, many = (needs(replace(load, replication_factor=replicas)) for replicas in (1, factor))
    for what, amount in many.items():
        times = factor if what.startswith("kafka: ") else 1
        assert amount == pytest.approx(one[what] * times, rel=1e-9, abs=20)  # bytes are rounded up


@given(load=loads())
def test_every_amount_is_finite_and_has_its_unit(load: Load) -> None:
    found: list[Need] = size(load, SETTINGS)
    assert all(0 <= need.amount < float("inf") for need in found)
    assert {need.what: need.unit for need in found if need.unit != "B"} == {
        "CPU of a process": "cores",
        "replicas": "",
        "source partitions at least": "",
    }


@given(load=loads())
def test_with_one_of_the_advised_replicas_away_none_takes_more_than_is_planned(load: Load) -> None:
    advised = replace(load, replicas=0)
    found = {need.what: need.amount for need in size(advised, SETTINGS)}
    assert found["replicas"] >= 2
    assert found["CPU of a process"] <= 0.5 * ALMOST
