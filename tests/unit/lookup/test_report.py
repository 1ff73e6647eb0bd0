"""Reports of replicas through Redis: ours is read, everything else is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.lookup.exchange import Refused, answer_bytes, question_bytes, read_answer, read_question
from sidecar.lookup.query import Answer, Query
from sidecar.lookup.report import LISTED_MAX, TEXT_MAX, read_report, row_of_report
from tests.unit.lookup.test_held_exchange import ANSWERS, LANE, TOPICS, asked, json_values
from tests.unit.report_world import busy_report, report

ASK: dict[str, Any] = {"ask": "overview", "query": list(Query()), "until": 5}
ROW = row_of_report(busy_report())
ANSWER = Answer([LANE], [ROW], None, {1: 2, -1: 3}, [7])


def other(**fields: Any) -> bytes:
    return answer_bytes(ANSWER._replace(rows=[{**ROW, **fields}]))


def test_a_question_and_an_answer_are_read_as_they_were_written() -> None:
    read = read_question(question_bytes(ASK, ANSWERS + "x", "me", 1_000), ANSWERS)
    assert read == {**ASK, "query": list(Query())[:8], "reply": ANSWERS + "x", "from": "me", "wait_ms": 1_000}
    answer = read_answer(answer_bytes(ANSWER), ASK, TOPICS)
    assert answer == ANSWER
    assert read_report(answer.rows[0]) == busy_report()
    assert read_answer(answer_bytes(Answer([], [], None, {}, [])), ASK, TOPICS).rows == []


def test_who_has_no_partition_is_told_of_too() -> None:
    answer = Answer([], [row_of_report(report("idle"))], None, {}, [])
    assert [row["replica"] for row in read_answer(answer_bytes(answer), ASK, TOPICS).rows] == ["idle"]


def test_what_a_newer_version_says_more_is_passed_over_and_what_an_older_one_leaves_out_has_a_default() -> None:
    old = {name: ROW[name] for name in ("replica", "run")}
    (row,) = read_answer(answer_bytes(ANSWER._replace(rows=[{**old, "payload": "secret"}])), ASK, TOPICS).rows
    assert read_report(row).wheel == 0
    assert "payload" not in row


@pytest.mark.parametrize(
    "data",
    [
        answer_bytes(ANSWER._replace(rows=[ROW, ROW])), answer_bytes(ANSWER._replace(rows=["row"])),  # type: ignore[list-item]
        answer_bytes(ANSWER._replace(rows=[{}])), other(replica=7), other(run=None),
        other(replica="x" * (TEXT_MAX + 1)),
        other(wheel=-1), other(wheel="7"), other(wheel=True), other(wheel=1.5), other(wheel=1 << 70),
        other(at_ms=1 << 60), other(suspended="push"), other(suspended=["a b"]),
        other(suspended=["push"] * (LISTED_MAX + 1)),
        other(targets=[{}]), other(targets=[{"topic": "t", "rate": float("nan")}]), other(last_minute={"late": [1]}),
        other(minutes=ROW["minutes"] * 61), other(waits=[{"kind": 1}]), other(warnings=[1]),
        other(rebuilding=[{"topic": "t", "partition": 0, "read_share": 2}]),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read_answer(data, ASK, TOPICS)


@pytest.mark.parametrize("data", [asked({**ASK, "until": 1 << 70}), asked({**ASK, "until": None})])
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read_question(data, ANSWERS)


@given(st.sampled_from(list(ROW)), json_values)
def test_anything_in_any_field_is_read_or_refused(name: str, value: Any) -> None:
    parts = json.loads(answer_bytes(ANSWER))
    parts[1][0][name] = value
    try:
        read_answer(json.dumps(parts).encode(), ASK, TOPICS)
    except Refused:
        return
