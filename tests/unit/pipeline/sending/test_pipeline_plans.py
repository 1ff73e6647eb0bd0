"""Letters that the sidecar's own redrives have, by what its plans and their progress say."""

import json
from typing import Any

import pytest

from pipeline.errors import PipelineError
from sidecar.operations.dead_letters.redrive_plan import Governor, Plan, Progress, SearchedSelection, Span
from sidecar.operations.jobs.job import State

pytest.importorskip("pyarrow")  # the pipeline is an extra

GOVERNOR = Governor(rate=0, ramp_ms=0, stop_share=0.5, watch_ms=0)
SPANS = (Span(partition=0, start=5, end=20), Span(partition=1, start=0, end=9))


def planned(plan_id: str, state: State | None = None, positions: dict[int, int] | None = None) -> list[Any]:
    """The records of a plan as the sidecar writes them."""
    plan = Plan(
        id=plan_id, author="a", created_ms=1, topic="dlq", selection=SearchedSelection(), target=None, spans=SPANS,
        governor=GOVERNOR,
    )  # fmt: skip
    records = [(f"{plan_id}/plan".encode(), plan.model_dump_json().encode())]
    if state is not None:
        progress = Progress(state=state, positions=positions or {})
        records.append((f"{plan_id}/progress".encode(), progress.model_dump_json().encode()))
    return records


def ranges(records: list[Any]) -> list[tuple[Any, ...]]:
    from pipeline.sending.plans import taken

    return [tuple(one) for one in taken(records)]


WHOLE = [("p", "dlq", 0, 5, 20), ("p", "dlq", 1, 0, 9)]


@pytest.mark.parametrize("state", [None, *(state for state in State if state not in (State.DONE, State.ABORTED))])
def test_a_plan_that_may_run_has_all_its_letters(state: State | None) -> None:
    assert ranges(planned("p", state, {0: 7})) == WHOLE


@pytest.mark.parametrize("state", [State.DONE, State.ABORTED])
def test_a_plan_that_is_over_has_what_it_has_looked_at(state: State) -> None:
    assert ranges(planned("p", state, {0: 7})) == [("p", "dlq", 0, 5, 7)]
    assert ranges(planned("p", state, {0: 20, 1: 9})) == WHOLE


def test_an_abort_ends_a_plan_and_the_last_word_counts() -> None:
    abort = (b"p/abort", b'{"author": "a"}')
    assert ranges([*planned("p", State.STOPPED, {0: 7}), abort]) == [("p", "dlq", 0, 5, 7)]
    assert ranges([*planned("p", State.RUNNING, {0: 7}), *planned("p", State.DONE, {0: 9})[1:]]) == [
        ("p", "dlq", 0, 5, 9)
    ]
    assert ranges([*planned("p"), (b"p/plan", None)]) == []  # compacted away
    assert ranges([(None, None), (b"other", b"{}"), (b"q/progress", b'{"state": "done"}')]) == []


@pytest.mark.parametrize("state", [None, State.PLANNING, State.CANARY, State.RUNNING])
def test_a_plan_that_is_being_aborted_has_its_letters_until_the_abort_is_done(state: State | None) -> None:
    """The one who works on it may be sending some of them at this moment."""
    assert ranges([*planned("p", state, {0: 7}), (b"p/abort", b'{"author": "a"}')]) == WHOLE


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"topic": "dlq"}', json.dumps({"spans": [1], "topic": "d"}).encode()])
def test_a_plan_that_can_not_be_read_is_an_error(value: bytes) -> None:
    with pytest.raises(PipelineError, match="redrive plan p"):
        ranges([(b"p/plan", value)])
