"""Remembered retries change nothing: a run of retries is decided as each of them would be alone."""

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.headers import (
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    DUE,
    ERROR_CLASS,
    ERROR_MESSAGE,
    FIRST_FAILURE,
    ID,
    ORIGIN,
    POLICY,
    TARGET,
    TARGET_PARTITION,
)
from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.intake import retry_cache
from sidecar.engine.intake.decide import Decider, HeaderLimits
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Headers, Position, TopicPartition
from tests.examples import examples
from tests.property.engine.intake.test_decision_cache import STAMP_MS, Record

LIMITS = HeaderLimits(headers_max=9, header_bytes_max=3_000, quarantine="quarantine", timestamp_age_max_ms=3_600_000)
PARTITIONS = {"orders": 3, "other": 1}

VALUES: dict[str, list[bytes | None]] = {
    "a": [b"1", b"", None, b"x" * 2_950],
    ORIGIN: [b"orders-retry/1/7", b"elsewhere/0/1", b""],
    DUE: [b"1700000000000"],
    POLICY: [b"orders-retry@1", b"orders-retry@2", b"another@1"],
    ATTEMPT: [b"1", b"2", b"5", b"6", b"two", None],
    FIRST_FAILURE: [b"1699999999000", b"1699999990000", b"17", b"soon"],
    ERROR_CLASS: [b"shop.Timeout", b"shop.ValidationError", b"\xff"],
    ERROR_MESSAGE: [b"no answer", b"none at all", b"m" * 1_500, None],
    TARGET: [b"orders", b"other", b"nowhere"],
    TARGET_PARTITION: [b"0", b"2"],
    DELAY: [b"5s", b"500d"],
    DELIVER_AT: [b"1700000009000"],
    ID: [b"one"],
}
HEADER = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name])))
LIKELY = st.tuples(
    *(st.tuples(st.just(name), st.sampled_from(VALUES[name])) for name in (POLICY, ATTEMPT, FIRST_FAILURE, ERROR_CLASS))
).map(list)
RETRIES = st.tuples(LIKELY, st.lists(HEADER, max_size=4)).map(lambda parts: parts[0] + parts[1])
STAMPS = st.sampled_from([(1, STAMP_MS), (1, STAMP_MS + 77), (0, 0), (1, -1), (1, STAMP_MS - 7_200_000), (2, 1 << 60)])
FORWARDED: Headers = [("a", b"1"), (POLICY, b"orders-retry@1"), (ATTEMPT, b"2"), (ERROR_CLASS, b"shop.Timeout")]


def table(**more: Any) -> PolicyTable:
    retry = {
        "attempts": 5,
        "backoff": {"kind": "exponential", "initial": "1s", "factor": 2, "max": "10m", "jitter": "full"},
        "give_up_on": ["*.ValidationError"],
    }
    policy = {
        "name": "orders-retry",
        "match": {"topics": ["orders-retry"], "headers": more.pop("headers", {})},
        "target": {"topic": "orders", "allow": ["*"]},
    }
    if "order" in more:
        policy["order"] = more.pop("order")
    policy["retry"] = retry | more
    return PolicyTable(
        1, MappingProxyType({"orders-retry": Versioned(Policy.model_validate(policy), 1, "me", 0, "api")})
    )


TABLES = [table(), table(timeout="15s"), table(spread="2s"), table(headers={"a": "1*"}), table(order="key")]


def lane() -> SourcePartition:
    return SourcePartition(TopicPartition("orders-retry", 1), Wheel(STAMP_MS), PromotionWindows(Position(0, 0)))


def decider(failures: list[tuple[str, int]]) -> Decider:
    return Decider(LIMITS, PARTITIONS, lambda version: TABLES[0], (), lambda *failed: failures.append(failed))


@settings(max_examples=examples(400))
@given(
    st.lists(RETRIES, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), STAMPS), min_size=2, max_size=12),
    st.sampled_from(TABLES),
)
@example([FORWARDED], [(0, (1, STAMP_MS)), (0, (1, STAMP_MS + 77))], TABLES[0])
@example([[*FORWARDED, (DELAY, b"5s")]], [(0, (1, STAMP_MS - 7_200_000)), (0, (1, STAMP_MS))], TABLES[0])
@example(
    [[*FORWARDED, (DELAY, b"5s"), (FIRST_FAILURE, b"1699999999000")]],
    [(0, (1, STAMP_MS - 7_200_000)), (0, (1, STAMP_MS))],
    TABLES[0],
)
@example([[*FORWARDED, (ERROR_CLASS, b"shop.ValidationError")]], [(0, (1, STAMP_MS)), (0, (1, STAMP_MS))], TABLES[0])
@example(
    [
        [(POLICY, b"another@1"), (ATTEMPT, b"2"), (ORIGIN, b"orders-retry/1/7")],
        [(POLICY, b"another@1"), (ATTEMPT, b"2"), (ORIGIN, b"elsewhere/0/1")],
    ],
    [(0, (1, STAMP_MS)), (1, (1, STAMP_MS))],
    TABLES[0],
)
def test_a_run_of_retries_is_decided_as_each_alone(
    kinds: list[Headers], picks: list[tuple[int, tuple[int, int]]], now: PolicyTable
) -> None:
    together: list[tuple[str, int]] = []
    apart: list[tuple[str, int]] = []
    records: Any = [Record(kinds[kind % len(kinds)], stamp) for kind, stamp in picks]
    remembering, offsets = decider(together), range(len(records))
    held, others, named = remembering.decide_run(lane(), records, offsets, now, STAMP_MS)
    alone = [decider(apart).decide_run(lane(), [r], [o], now, STAMP_MS) for r, o in zip(records, offsets, strict=True)]
    assert held == [parcel for parcels, _, _ in alone for parcel in parcels]
    assert others == [parcel for _, parcels, _ in alone for parcel in parcels]
    assert named == [parcel for _, _, parcels in alone for parcel in parcels]
    assert together == apart


def counted(remembering: Decider, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the records that are decided one by one from now on."""
    decided: list[int] = []
    decide = remembering._decide

    def counting(one: SourcePartition, record: Any, offset: int, now: PolicyTable, headers: Headers) -> Any:
        decided.append(offset)
        return decide(one, record, offset, now, headers)

    monkeypatch.setattr(remembering, "_decide", counting)
    return decided


def test_the_second_that_failed_alike_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remembering = decider([])
    decided = counted(remembering, monkeypatch)
    asked = [*FORWARDED, (FIRST_FAILURE, b"1699999999000"), (ORIGIN, b"orders-retry/1/7"), (ERROR_MESSAGE, b"none")]
    other = [*FORWARDED, (FIRST_FAILURE, b"1699999990000"), (ORIGIN, b"orders-retry/1/9"), (ERROR_MESSAGE, b"")]
    records: Any = [Record(asked, (1, STAMP_MS)), Record(other, (1, STAMP_MS + 5))]
    held, _, _ = remembering.decide_run(lane(), records, [0, 1], TABLES[0], STAMP_MS)
    assert decided == [0]
    assert [(one.attempt, one.first_failure_ms, one.origin) for one in held] == [
        (3, 1_699_999_999_000, b"orders-retry/1/7"),
        (3, 1_699_999_990_000, b"orders-retry/1/9"),
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_cache, "ANSWERS_MAX", 4)
    remembering = decider([])
    for number in range(20):
        asked = [*FORWARDED[:-1], (ERROR_CLASS, b"shop.%d" % number)]
        remembering.decide_run(lane(), [Record(asked, (1, STAMP_MS))], [number], TABLES[0], STAMP_MS)  # type: ignore[list-item]
        shapes = remembering._recall.of("orders-retry", TABLES[0]).retries._shapes
        assert sum(len(shape.answers) for shape in shapes.values()) <= 4
