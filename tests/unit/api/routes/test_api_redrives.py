"""Redrives over REST: what is refused and how, and what each step answers. The work itself: `test_redrives.py`."""

from typing import Any

import pytest

from sidecar.model.times import rfc_3339
from sidecar.operations.dead_letters.masking import MASK, Search
from sidecar.operations.jobs.job import State
from sidecar.operations.jobs.runner import LEASE_MS, LEGS_MAX
from tests.unit.api_world import LETTER_RULES, NOW_MS, World, problem, world
from tests.unit.letter_world import dead

FILTER = {"reason": "attempts_exhausted"}


def filled(api: World) -> None:
    for n in range(4):
        api.letters.add("orders-dlq", dead(), partition=n % 2)
    api.letters.add("orders", [])


def planned(api: World, **body: Any) -> str:
    filled(api)
    response = api.call("POST", "/v1/redrives", json={"topic": "orders-dlq", "filter": FILTER, **body})
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/redrives/{response.json()['id']}"
    return str(response.json()["id"])


def test_a_plan_pins_the_letters_of_now() -> None:
    with world() as api:
        plan = planned(api, rate=5, ramp="1m", stop_share=1, watch=0)
        document = api.call("GET", f"/v1/redrives/{plan}").json()
        assert document["state"] == "planned"
        assert document["limits"] == {"rate": 5, "ramp_ms": 60_000, "stop_share": 1.0, "watch_ms": 0}
        assert document["planned"]["targets"] == {"orders": 3}
        assert document["records"] == {"read": 0, "remaining": 4}
        spans = api.redriving.plans.redrives[plan].plan.spans
        assert [(span.start, span.end) for span in spans] == [(0, 2), (0, 2)]
        assert [item["id"] for item in api.call("GET", "/v1/redrives").json()["items"]] == [plan]


@pytest.mark.parametrize(
    ("body", "status", "type"),
    [
        ({}, 422, "confirmation-needed"),
        ({"filter": {}, "confirm_all": False}, 422, "confirmation-needed"),
        ({"filter": FILTER, "topic": "nowhere-dlq"}, 404, "topic-not-found"),
        ({"filter": FILTER, "topic": "orders"}, 404, "topic-not-found"),
        ({"filter": FILTER, "target": "orders-dlq"}, 422, "redrive-loop"),
        ({"filter": FILTER, "target": "other-dlq"}, 422, "redrive-loop"),
        ({"filter": FILTER, "target": "tickover.policies"}, 422, "redrive-loop"),
        ({"filter": FILTER, "target": "tickover.another.ledger"}, 422, "redrive-loop"),
        ({"filter": FILTER, "target": "nowhere"}, 422, "unknown-target"),
        ({"filter": FILTER, "target": "__consumer_offsets"}, 422, "unknown-target"),
        ({"filter": FILTER, "rate": -1}, 422, "invalid-body"),
        ({"filter": FILTER, "ramp": "soon"}, 422, "invalid-body"),
        ({"filter": FILTER, "stop_share": 2}, 422, "invalid-body"),
        ({"filter": {"reasons": "x"}}, 422, "invalid-body"),
        ({"filter": FILTER, "confirm_all": "yes"}, 422, "invalid-body"),
    ],
)
def test_plans_that_are_refused(body: dict[str, Any], status: int, type: str) -> None:
    with world() as api:
        filled(api)
        api.letters.add("other-dlq", [])
        api.letters.add("__consumer_offsets", [])
        problem(api.call("POST", "/v1/redrives", json={"topic": "orders-dlq", **body}), status, type)
        assert api.redriving.plans.redrives == {}
        assert api.audited[-1]["outcome"] == "refused"


def test_letters_that_were_redriven_are_meant_only_where_that_is_said() -> None:
    with world() as api:
        once, again = planned(api), planned(api, again=True)
        plans = api.redriving.plans.redrives
        assert (plans[once].plan.again, plans[again].plan.again) == (False, True)
        assert api.call("GET", f"/v1/redrives/{again}").json()["again"]


def test_everything_with_confirmation() -> None:
    with world() as api:
        planned(api, filter={}, confirm_all=True)


def test_canary_run_and_their_refusals() -> None:
    with world() as api:
        plan = planned(api)
        started = api.call("POST", f"/v1/redrives/{plan}/canary", json={"count": 2})
        assert (started.status_code, started.json()["state"]) == (202, "canary")
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "redrive-active")
        api.redriving.finish(state=State.CANARIED)
        assert api.call("POST", f"/v1/redrives/{plan}/run").json()["state"] == "running"
        api.redriving.finish(state=State.DONE)
        for path in ("run", "abort"):
            problem(api.call("POST", f"/v1/redrives/{plan}/{path}"), 409, "redrive-ended")
        problem(api.call("POST", f"/v1/redrives/{plan}/canary", json={"count": 0}), 422, "invalid-body")
        actions = [(record["action"], record["outcome"], record["problem"]) for record in api.audited]
        assert actions[:3] == [
            ("plan_redrive", "done", None),
            ("canary_redrive", "done", None),
            ("run_redrive", "refused", "redrive-active"),
        ]
        assert api.audited[0]["notes"]["plan"] == plan
        assert api.audited[1]["notes"] == {"count": 2}


def test_a_stopped_redrive_may_go_on_and_an_aborted_one_not() -> None:
    with world() as api:
        plan = planned(api)
        api.call("POST", f"/v1/redrives/{plan}/run")
        api.redriving.finish(state=State.STOPPED, reason="3 of 9 failed again")
        assert api.call("GET", f"/v1/redrives/{plan}").json()["reason"] == "3 of 9 failed again"
        assert api.call("POST", f"/v1/redrives/{plan}/run").status_code == 202
        aborted = api.call("POST", f"/v1/redrives/{plan}/abort")
        assert (aborted.status_code, aborted.json()["state"]) == (202, "aborting")
        again = api.call("POST", f"/v1/redrives/{plan}/abort")
        assert (again.status_code, again.json()["state"]) == (202, "aborting")
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "redrive-active")
        api.redriving.finish(state=State.ABORTED)
        assert api.call("GET", f"/v1/redrives/{plan}").json()["state"] == "aborted"
        problem(api.call("POST", f"/v1/redrives/{plan}/abort"), 409, "redrive-ended")
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "redrive-ended")


def test_unknown_plans() -> None:
    with world() as api:
        problem(api.call("GET", "/v1/redrives/nobody"), 404, "redrive-not-found")
        problem(api.call("POST", "/v1/redrives/nobody/run"), 404, "redrive-not-found")
        problem(api.call("POST", "/v1/redrives/nobody/abort"), 404, "redrive-not-found")
        problem(api.call("POST", "/v1/redrives/nobody/canary", json={"count": 1}), 404, "redrive-not-found")


def test_a_target_that_is_gone_by_the_time_of_the_run() -> None:
    with world() as api:
        plan = planned(api)
        del api.letters.partitions["orders", 0]
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "target-gone")


@pytest.mark.parametrize("had", ["id of orders-dlq", ""], ids=["with ids", "of an older version"])
def test_letters_that_are_gone_by_the_time_of_the_run(had: str) -> None:
    with world() as api:
        plan = planned(api)
        plans = api.redriving.plans.redrives
        assert plans[plan].plan.topic_id == "id of orders-dlq"
        plans[plan] = plans[plan].model_copy(update={"plan": plans[plan].plan.model_copy(update={"topic_id": had})})
        kept = api.letters.partitions.pop(("orders-dlq", 1))
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "letters-gone")
        api.letters.partitions["orders-dlq", 1] = kept[:-1]
        response = api.call("POST", f"/v1/redrives/{plan}/canary", json={"count": 1})
        assert "orders-dlq/1 is shorter" in problem(response, 409, "letters-gone")["detail"]
        api.letters.partitions["orders-dlq", 1] = kept
        lost = [api.letters.partitions.pop(("orders-dlq", partition)) for partition in (0, 1)]
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "letters-gone")
        api.letters.partitions |= {("orders-dlq", partition): letters for partition, letters in enumerate(lost)}
        assert api.call("POST", f"/v1/redrives/{plan}/run").status_code == 202


def test_times_of_a_filter_are_texts_or_milliseconds() -> None:
    with world() as api:
        for since in (NOW_MS, rfc_3339(NOW_MS)):
            plan = planned(api, filter=FILTER | {"since": since})
            assert api.call("GET", f"/v1/redrives/{plan}").json()["filter"]["since"] == NOW_MS
        for since in (NOW_MS // 1_000, "yesterday", -1, True):
            body = {"topic": "orders-dlq", "filter": FILTER | {"since": since}}
            problem(api.call("POST", "/v1/redrives", json=body), 422, "invalid-body")


def test_one_redrive_at_a_time_sends_the_same_letters() -> None:
    with world() as api:
        first, second = planned(api), planned(api, filter={"policy": "orders"})
        others = planned(api, filter={"policy": "other"}), planned(api, filter=FILTER | {"until": 1_000_000_000_000})
        assert api.call("POST", f"/v1/redrives/{first}/canary", json={"count": 1}).status_code == 202
        response = api.call("POST", f"/v1/redrives/{second}/run")
        assert first in problem(response, 409, "letters-busy")["detail"]
        api.redriving.finish(state=State.CANARIED)
        for plan in (second, others[0]):
            assert api.call("POST", f"/v1/redrives/{plan}/run").status_code == 202
        problem(api.call("POST", f"/v1/redrives/{others[1]}/run"), 409, "letters-busy")
        for leg in api.redriving.legs:
            leg.end.set()


def test_a_topic_that_was_made_anew_has_none_of_the_plans_letters() -> None:
    with world() as api:
        plan = planned(api)
        api.redriving.topic_ids["orders-dlq"] = "another"
        response = api.call("POST", f"/v1/redrives/{plan}/run")
        assert "deleted and created again" in problem(response, 409, "letters-gone")["detail"]
        for silent in (None, ""):
            api.redriving.topic_ids["orders-dlq"] = silent
            problem(
                api.call("POST", f"/v1/redrives/{plan}/run"), 503, "kafka-unavailable"
            )  # which doesn't say that it is the same
        assert [leg._state for leg in api.redriving.legs] == [None], "none has begun"
        del api.redriving.topic_ids["orders-dlq"]
        assert api.call("POST", f"/v1/redrives/{plan}/run").status_code == 202


def test_a_plan_without_letters_is_not_run() -> None:
    with world() as api:
        plan = planned(api)
        api.redriving.plans.set(
            plan, planned=api.redriving.plans.redrives[plan].progress.planned.model_copy(update={"targets": {}})
        )
        problem(api.call("POST", f"/v1/redrives/{plan}/run"), 409, "nothing-to-redrive")


def test_only_so_many_at_once() -> None:
    with world() as api:
        plans = [planned(api, filter={"policy": f"of {number}"}) for number in range(LEGS_MAX + 1)]
        for plan in plans[:-1]:
            assert api.call("POST", f"/v1/redrives/{plan}/run").status_code == 202
        problem(api.call("POST", f"/v1/redrives/{plans[-1]}/run"), 503, "redrives-busy")
        for leg in api.redriving.legs:
            leg.end.set()


def test_what_a_dead_process_left_is_gone_on_with_once_its_lease_is_over() -> None:
    with world() as api:
        plan = planned(api)
        plans, redrives = api.redriving.plans, api.redriving.redrives.crew
        plans.set(plan, state=State.RUNNING, updated_ms=plans.time_ms)
        plans.time_ms += LEASE_MS
        assert redrives.abandoned() == []
        plans.time_ms += 1
        assert redrives.abandoned() == [plan]
        plans.set(plan, updated_ms=plans.time_ms)
        assert redrives.abandoned() == []
        plans.set(plan, state=State.DONE)
        assert redrives.abandoned() == []
        ours = plans.redrives[plan].plan.model_copy(update={"id": "ours"})
        plans.write_plan(ours)
        plans.set("ours", state=State.RUNNING, updated_ms=plans.time_ms, owner="here")  # before it was restarted
        assert redrives.abandoned() == ["ours"]


def test_what_a_dead_process_was_to_abort_is_aborted_by_whoever_takes_it_over() -> None:
    with world() as api:
        plan = planned(api)
        plans, redrives = api.redriving.plans, api.redriving.redrives.crew
        plans.set(plan, state=State.RUNNING, updated_ms=plans.time_ms)
        assert api.call("POST", f"/v1/redrives/{plan}/abort").json()["state"] == "aborting"
        plans.time_ms += LEASE_MS + 1
        assert redrives.abandoned() == [plan]


def test_what_another_process_has_taken_from_us_is_not_taken_back_at_once() -> None:
    """The progress names this process as owner until the other writes: two would take a redrive from each other."""
    with world() as api:
        plan = planned(api)
        plans, redrives = api.redriving.plans, api.redriving.redrives.crew
        api.call("POST", f"/v1/redrives/{plan}/run")
        plans.time_ms += LEASE_MS + 1
        api.redriving.finish(owner="here")  # the leg has ended, and the redrive is as active as it was
        assert redrives.abandoned() == []
        plans.time_ms += LEASE_MS
        assert redrives.abandoned() == []
        plans.time_ms += 1
        assert redrives.abandoned() == [plan]


def test_a_plan_may_name_its_letters() -> None:
    with world() as api:
        plan = planned(api, filter={}, letters=["orders-dlq/1/1", "orders-dlq/0/0", "orders-dlq/1/0"])
        kept = api.redriving.plans.redrives[plan].plan
        assert (kept.letters, kept.schema_version) == ({0: (0,), 1: (0, 1)}, 2)
        document = api.call("GET", f"/v1/redrives/{plan}").json()
        assert document["letters"] == ["orders-dlq/0/0", "orders-dlq/1/0", "orders-dlq/1/1"]
        assert document["records"] == {"read": 0, "remaining": 3}
        body = {"topic": "orders-dlq", "letters": ["orders-dlq/0/99"]}
        problem(api.call("POST", "/v1/redrives", json=body), 409, "letters-gone")
        for letter in ("other-dlq/0/0", "orders-dlq", "orders-dlq/0/x"):
            body = {"topic": "orders-dlq", "letters": [letter]}
            problem(api.call("POST", "/v1/redrives", json=body), 422, "invalid-body")


def test_a_plan_that_programs_of_before_understand_is_written_as_they_read_it() -> None:
    with world() as api:
        plans = [planned(api), planned(api, action="discard"), planned(api, edit={"value": None})]
        plans += [planned(api, filter={"error": "x"}), planned(api, filter={"id": "x"})]
        versions = [api.redriving.plans.redrives[plan].plan.schema_version for plan in plans]
        assert versions == [1, 2, 2, 2, 2]


def test_a_plan_takes_the_words_of_a_search_and_the_rules_by_which_it_was_done() -> None:
    with world() as api:
        words = {"error": "card was declined", "id": "i-7"}
        plan = planned(api, filter={**FILTER, **words})
        kept = api.redriving.plans.redrives[plan].plan
        assert (kept.selection.search, kept.mask) == (Search(**words), LETTER_RULES.masking.rules)
        assert kept.mask
        assert api.call("GET", f"/v1/redrives/{plan}").json()["filter"] == {**FILTER, **words}
        assert api.audited[-1]["notes"]["filter"] == {**FILTER, **words, "error": MASK}
        assert api.redriving.plans.redrives[planned(api)].plan.mask == (), "no search, no rules"


@pytest.mark.parametrize("words", [{"error": ""}, {"error": "x" * 257}, {"id": ""}, {"header": "x"}, {"header": "=x"}])
def test_words_that_no_search_takes(words: dict[str, str]) -> None:
    with world() as api:
        filled(api)
        body = {"topic": "orders-dlq", "filter": words}
        problem(api.call("POST", "/v1/redrives", json=body), 422, "invalid-body")


def test_a_plan_to_discard_is_under_no_limit_unless_it_says_one() -> None:
    with world() as api:
        plan = planned(api, action="discard", rate=7)
        document = api.call("GET", f"/v1/redrives/{plan}").json()
        assert document["action"] == "discard"
        assert document["limits"] == {"rate": 7, "ramp_ms": 0, "stop_share": 1.0, "watch_ms": 0}
        notes = api.audited[-1]["notes"]
        assert (notes["action"], notes["topic"], notes["plan"]) == ("discard", "orders-dlq", plan)
        for more in ({"target": "orders"}, {"edit": {"value": "x"}}):
            body = {"topic": "orders-dlq", "filter": FILTER, "action": "discard", **more}
            problem(api.call("POST", "/v1/redrives", json=body), 422, "invalid-body")


def test_an_edit_is_kept_and_told_by_how_much_it_changes() -> None:
    with world() as api:
        edit = {
            "merge": {"amount": "told-to-nobody"},
            "key": None,
            "headers": {"trace": {"base64": "/w=="}, "old": None},
        }
        plan = planned(api, edit=edit)
        kept = api.redriving.plans.redrives[plan].plan.edit
        assert kept is not None
        assert (kept.merge, kept.headers) == ({"amount": "told-to-nobody"}, {"trace": b"\xff", "old": None})
        assert (kept.value, kept.key and kept.key.data) == (None, None)
        assert kept.key is not None
        told = {"merge": 1, "value": False, "key": True, "headers": 2}
        answer = api.call("GET", f"/v1/redrives/{plan}")
        assert answer.json()["edit"] == told
        assert api.audited[-1]["notes"]["edit"] == told
        assert "told-to-nobody" not in answer.text + str(api.audited)


@pytest.mark.parametrize(
    ("edit", "type"),
    [
        ({}, "invalid-edit"),
        ({"merge": {}, "value": "x"}, "invalid-edit"),
        ({"headers": {"tickover-edited-by": "somebody else"}}, "invalid-edit"),
        ({"headers": {"tickover-redrive-count": None}}, "invalid-edit"),
        ({"headers": {"tickover-id": "x"}}, "invalid-edit"),
        ({"merge": {"card": "***"}}, "masked-content"),
        ({"value": '{"card": "***"}'}, "masked-content"),
        ({"value": {"base64": "?"}}, "invalid-base64"),
        ({"merge": []}, "invalid-body"),
        ({"values": "x"}, "invalid-body"),
    ],
)
def test_edits_that_are_refused(edit: dict[str, Any], type: str) -> None:
    with world() as api:
        filled(api)
        body = {"topic": "orders-dlq", "filter": FILTER, "edit": edit}
        problem(api.call("POST", "/v1/redrives", json=body), 422, type)
        assert api.redriving.plans.redrives == {}
