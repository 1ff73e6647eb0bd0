"""Changes of many messages over REST and on the command line: what is refused and how, and what each step answers."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.model.record import TopicPartition
from sidecar.operations.bulk.plan import TOKEN_LENGTH, Change, ChangePlan, Counted, Progress
from sidecar.operations.jobs.job import State
from sidecar.operations.jobs.runner import LEASE_MS
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.change_world import TTL_MS
from tests.unit.cli.test_cli_rest import Terminal, tickover

__all__ = ["tickover"]

OK, FAILED, USAGE, NOT_FOUND, CONFLICT = range(5)
LANE = TopicPartition("reminders", 0)
FILTER = {"topic": "reminders"}
DUE_MS = NOW_MS + 60_000
DAY_MS = 86_400_000
WAIT_S = 60.0


@pytest.fixture(name="api")
def api_fixture() -> Iterator[World]:
    with world() as there:
        fill(there)
        yield there


def fill(api: World, count: int = 5) -> None:
    """Held messages, one of them without an id."""
    api.add(REMINDERS)
    group = api.changing.group
    group.lanes, group.next = {LANE: {}}, {LANE: 0}
    for n in range(count):
        group.accept(LANE, DUE_MS + n, str(n), target="mail-out" if n % 2 else "push", policy="reminders@1")
    group.accept(LANE, DUE_MS, None)


def planned(api: World, action: str = "cancel", **body: Any) -> dict[str, Any]:
    response = api.call("POST", "/v1/changes", json={"action": action, "filter": FILTER, **body})
    assert response.status_code == 202, response.text
    document = response.json()
    assert response.headers["location"] == f"/v1/changes/{document['id']}"
    return wait_for(api, document["id"], "planned")


def run(api: World, document: dict[str, Any]) -> Any:
    return api.call("POST", f"/v1/changes/{document['id']}/run", json={"token": document["token"]})


def wait_for(api: World, id: str, state: str) -> dict[str, Any]:
    """The legs are threads: until one has come so far, and has gone."""
    waiting = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        document: dict[str, Any] = api.call("GET", f"/v1/changes/{id}").json()
        if document["state"] == state and not api.changing.changes.crew.works_on(id):
            return document
        waiting.wait(0.01)
    raise AssertionError(f"not {state}: {document}")


def test_a_plan_counts_and_changes_nothing(api: World) -> None:
    document = planned(api)
    assert document["planned"]["messages"] == 5
    assert document["planned"]["targets"] == {"push": 3, "mail-out": 2}
    assert document["planned"]["policies"] == {"reminders@1": 5}
    assert document["planned"]["skipped"] == {"no_id": 1}
    assert [item["id"] for item in document["planned"]["sample"]] == list("01234")
    assert document["planned"]["sample"][1]["position"] == {"topic": "reminders", "partition": 0, "offset": 1}
    assert (len(document["token"]), document["expires"]) == (TOKEN_LENGTH, NOW_MS + TTL_MS)
    assert (document["outcomes"], document["remaining"]) == ({}, 5)
    assert api.changing.group.sent == []
    assert [item["id"] for item in api.call("GET", "/v1/changes").json()["items"]] == [document["id"]]


def test_a_run_changes_what_was_planned_and_each_has_a_receipt(api: World) -> None:
    document = planned(api)
    api.changing.group.accept(LANE, DUE_MS, "later")
    api.changing.group.emit(LANE, 3)
    started = run(api, document)
    assert started.status_code == 202
    done = wait_for(api, document["id"], "done")
    assert (done["outcomes"], done["remaining"], done["gone"], done["pending"]) == ({"cancelled": 4}, 0, 1, 0)
    assert sorted(api.changing.group.lanes[LANE]) == [5, 6]  # without an id, and later
    first = api.call("GET", f"/v1/changes/{document['id']}/receipts?limit=3").json()
    assert [receipt["id"] for receipt in first["items"]] == ["0", "1", "2"]
    assert first["items"][0] == {
        "id": "0", "source": "reminders", "action": "cancel", "outcome": "cancelled", "state": None, "due": DUE_MS,
        "due_utc": "2027-01-15T08:01:00.000Z", "position": {"topic": "reminders", "partition": 0, "offset": 0},
        "place": "reminders/0/0", "control": {"topic": "reminders", "partition": 0, "offset": 7},
        "control_place": "reminders/0/7",
    }  # fmt: skip
    rest = api.call("GET", f"/v1/changes/{document['id']}/receipts?limit=3&cursor={first['next']}").json()
    assert ([receipt["id"] for receipt in rest["items"]], rest["next"]) == (["4"], None)


@pytest.mark.parametrize(
    ("body", "due_ms"),
    [
        ({"by": "+10m"}, DUE_MS + 600_000),
        ({"by": "-10s"}, DUE_MS - 10_000),
        ({"by": "10m"}, DUE_MS + 600_000),
        ({"by": -5}, DUE_MS - 5),
        ({"delay": "2h"}, NOW_MS + 7_200_000),
        ({"deliver_at": NOW_MS + 5}, NOW_MS + 5),
        ({"deliver_at": "2027-01-15T08:00:00.005Z"}, NOW_MS + 5),
    ],
)
def test_rescheduled(api: World, body: dict[str, Any], due_ms: int) -> None:
    document = planned(api, "reschedule", **body)
    run(api, document)
    assert wait_for(api, document["id"], "done")["outcomes"] == {"rescheduled": 5}
    receipt = api.changing.jobs.receipts()[0]
    assert (receipt["outcome"], receipt["due"]) == ("rescheduled", due_ms)
    assert api.changing.group.lanes[LANE][6].due_ms == due_ms


def test_what_its_policy_does_not_allow_is_refused_message_by_message(api: World) -> None:
    document = planned(api, "reschedule", by="3650d")
    run(api, document)
    assert wait_for(api, document["id"], "done")["outcomes"] == {"refused": 5}
    assert {receipt["state"] for receipt in api.changing.jobs.receipts()} == {"too_far"}
    assert api.changing.group.sent == []


def test_fired(api: World) -> None:
    document = planned(api, "fire")
    run(api, document)
    assert wait_for(api, document["id"], "done")["outcomes"] == {"fired": 5}


@pytest.mark.parametrize(
    ("body", "type"),
    [
        ({"action": "cancel"}, "confirmation-needed"),
        ({"action": "cancel", "filter": {}, "confirm_all": False}, "confirmation-needed"),
        ({"action": "cancel", "filter": {"due_from": 0}}, "confirmation-needed"),
        ({"action": "cancel", "filter": {"due_to": 253_402_300_799_999}}, "confirmation-needed"),
        ({"action": "explode", "filter": FILTER}, "invalid-body"),
        ({"filter": FILTER}, "invalid-body"),
        ({"action": "cancel", "filter": {"topics": "x"}}, "invalid-body"),
        ({"action": "cancel", "filter": {"topic": "x", "source": "x"}}, "invalid-body"),
        ({"action": "cancel", "filter": {"due_from": 1_800_000_000}}, "invalid-body"),
        ({"action": "cancel", "filter": {"key_prefix": ""}}, "invalid-body"),
        ({"action": "cancel", "filter": {"due_from": 5, "due_to": 5}}, "invalid-body"),
        ({"action": "cancel", "filter": {"due_from": "soon"}}, "invalid-body"),
        ({"action": "cancel", "filter": {"due_from": "2030-01-01T00:00:00"}}, "invalid-body"),
        ({"action": "cancel", "filter": {"partition": -1}}, "invalid-body"),
        ({"action": "cancel", "filter": FILTER, "delay": "1s"}, "invalid-body"),
        ({"action": "reschedule", "filter": FILTER}, "invalid-body"),
        ({"action": "reschedule", "filter": FILTER, "delay": "1s", "by": "1s"}, "invalid-body"),
        ({"action": "reschedule", "filter": FILTER, "by": "++1s"}, "invalid-body"),
        ({"action": "reschedule", "filter": FILTER, "by": 1.5}, "invalid-body"),
        ({"action": "reschedule", "filter": FILTER, "by": "-3651d"}, "invalid-body"),
        ({"action": "cancel", "filter": FILTER, "rate": -1}, "invalid-body"),
        ({"action": "cancel", "filter": FILTER, "confirm_all": "yes"}, "invalid-body"),
    ],
)
def test_plans_that_are_refused(api: World, body: dict[str, Any], type: str) -> None:
    problem(api.call("POST", "/v1/changes", json=body), 422, type)
    assert api.changing.jobs.changes == {}
    assert api.audited[-1]["outcome"] == "refused"


def test_everything_with_confirmation(api: World) -> None:
    assert planned(api, filter={}, confirm_all=True)["planned"]["messages"] == 5


def test_a_filter_takes_the_words_of_the_query(api: World) -> None:
    plans = [api.call("POST", "/v1/changes", json={"action": "cancel", "filter": {name: "reminders"}})
             for name in ("source", "topic")]  # fmt: skip
    shown = [plan.json()["filter"] for plan in plans]
    assert shown[0] == shown[1] == {"topic": "reminders"}


def test_a_token_that_is_not_this_plans(api: World) -> None:
    one, other = planned(api), planned(api, "fire")
    path = f"/v1/changes/{one['id']}/run"
    problem(api.call("POST", path, json={"token": other["token"]}), 409, "stale-token")
    problem(api.call("POST", path, json={"token": "é"}), 409, "stale-token")
    problem(api.call("POST", path, json={}), 422, "invalid-body")
    assert api.changing.group.sent == []


def test_a_plan_that_was_counted_too_long_ago(api: World) -> None:
    document = planned(api)
    api.changing.jobs.time_ms += TTL_MS
    problem(run(api, document), 409, "plan-expired")
    assert api.changing.group.sent == []


def test_a_plan_of_another_replica(api: World) -> None:
    """The plan stands in the topic: whoever is asked runs it, though it hasn't been read here yet."""
    document = planned(api)
    jobs = api.changing.jobs
    jobs.elsewhere, jobs.changes = jobs.changes, {}
    assert run(api, document).status_code == 202
    assert wait_for(api, document["id"], "done")["outcomes"] == {"cancelled": 5}


def test_unknown_plans(api: World) -> None:
    problem(api.call("GET", "/v1/changes/nobody"), 404, "change-not-found")
    problem(api.call("POST", "/v1/changes/nobody/run", json={"token": "x"}), 404, "change-not-found")
    problem(api.call("POST", "/v1/changes/nobody/abort"), 404, "change-not-found")
    problem(api.call("GET", "/v1/changes/nobody/receipts"), 404, "change-not-found")


def test_what_has_ended_is_neither_run_nor_aborted(api: World) -> None:
    document = planned(api)
    run(api, document)
    wait_for(api, document["id"], "done")
    problem(run(api, document), 409, "change-ended")
    problem(api.call("POST", f"/v1/changes/{document['id']}/abort"), 409, "change-ended")


def test_a_plan_that_is_aborted_is_not_run(api: World) -> None:
    document = planned(api)
    aborted = api.call("POST", f"/v1/changes/{document['id']}/abort")
    assert (aborted.status_code, aborted.json()["state"]) == (202, "aborted")
    problem(run(api, document), 409, "change-ended")
    problem(api.call("POST", f"/v1/changes/{document['id']}/abort"), 409, "change-ended")


def test_a_plan_that_means_nothing(api: World) -> None:
    document = planned(api, filter={"target": "nowhere"})
    assert document["planned"]["messages"] == 0
    problem(run(api, document), 409, "nothing-to-change")


def test_an_abort_ends_a_run_and_what_was_done_has_its_receipt(api: World) -> None:
    document = planned(api)
    reached, go_on = threading.Event(), threading.Event()

    def fault(call: str) -> None:
        if call == "shipped" and api.changing.jobs.progresses[-1].outcomes:
            reached.set()
            assert go_on.wait(WAIT_S)

    api.changing.jobs.fault = fault
    starting = threading.Thread(target=api.changing.changes.run, args=(document["id"], document["token"]))
    starting.start()
    assert reached.wait(WAIT_S)
    problem(run(api, document), 409, "change-active")
    aborted = api.call("POST", f"/v1/changes/{document['id']}/abort").json()
    assert (aborted["state"], aborted["aborted_by"], aborted["outcomes"]) == ("aborting", "anonymous", {"cancelled": 3})
    go_on.set()
    starting.join(WAIT_S)
    wait_for(api, document["id"], "aborted")
    assert api.changing.jobs.changes[document["id"]].progress.state is State.ABORTED
    assert len(api.changing.group.lanes[LANE]) == 3
    assert len(api.changing.jobs.receipts()) == 3
    assert api.audited[-1]["notes"] == {"action": "cancel", "outcomes": {"cancelled": 3}}


def test_once_a_change_is_aborted_no_more_is_changed(api: World) -> None:
    document = planned(api)
    changing = api.changing
    answers: list[State] = []

    def abort(step: str) -> None:
        if step == "page" and not answers:
            answers.append(changing.changes.abort(document["id"], "me").state)

    changing.group.fault = abort
    change = changing.changes.run(document["id"], document["token"])
    assert answers == [State.ABORTING]
    assert change.state is change.progress.state is State.ABORTED
    assert changing.group.sent == []


def test_nobody_answers_in_time(api: World) -> None:
    document = planned(api)
    api.changing.group.silent = True
    run(api, document)
    assert wait_for(api, document["id"], "done")["outcomes"] == {"unanswered": 5}
    assert api.changing.jobs.receipts()[0]["control"]["offset"] == 6


def test_what_cannot_be_asked_for_now_is_waited_for_and_never_passed_over(api: World) -> None:
    group = api.changing.group
    group.missing, group.down = [[LANE], [], [LANE]], ["Redis is away"]
    problem(api.call("POST", "/v1/changes", json={"action": "cancel", "filter": FILTER}), 503, "look-up-incomplete")
    document = planned(api)
    assert document["planned"]["messages"] == 5
    assert document["reason"] is None
    group.missing, group.down, group.trouble = [[LANE]], ["Redis is away"], "brokers away"
    stops = iter([False] * 8)

    def healed() -> bool:
        if not next(stops, True):
            return False
        group.trouble = ""
        return False

    api.changing.stops = healed
    run(api, document)
    assert wait_for(api, document["id"], "done")["outcomes"] == {"cancelled": 5}
    assert any(progress.reason == "brokers away" for progress in api.changing.jobs.progresses)


def test_what_is_done_is_recorded(api: World) -> None:
    document = planned(api)
    run(api, document)
    wait_for(api, document["id"], "done")
    records = [(record["action"], record["outcome"], record["notes"]) for record in api.audited]
    assert records == [
        ("plan_change", "done", {"action": "cancel", "filter": FILTER, "plan": document["id"]}),
        ("run_change", "done", {"action": "cancel", "planned": 5}),
    ]


def test_what_a_dead_process_left_is_gone_on_with_once_its_lease_is_over(api: World) -> None:
    document = planned(api)
    jobs, crew = api.changing.jobs, api.changing.changes.crew
    progress = jobs.changes[document["id"]].progress
    update = {"state": State.RUNNING, "owner": "other", "updated_ms": jobs.time_ms}
    running = jobs.changes[document["id"]].model_copy(update={"progress": progress.model_copy(update=update)})
    jobs.changes[document["id"]] = running
    jobs.time_ms += LEASE_MS
    assert crew.abandoned() == []
    jobs.time_ms += 1
    assert crew.abandoned() == [document["id"]]


def test_a_cursor_that_is_none(api: World) -> None:
    document = planned(api)
    for cursor in ("x", "MQ", "MS8t"):
        problem(api.call("GET", f"/v1/changes/{document['id']}/receipts?cursor={cursor}"), 422, "invalid-cursor")
    assert api.call("GET", f"/v1/changes/{document['id']}/receipts").json() == {"items": [], "next": None}


@pytest.mark.parametrize("past", [False, True])
def test_a_plan_says_what_would_be_refused_and_the_run_refuses_just_that(api: World, past: bool) -> None:
    """Due in a minute to 401 days, and one long ago: shifted by -5m the first ones come to the past."""
    group = api.changing.group
    group.lanes[LANE].clear()
    for n, due_ms in enumerate((NOW_MS - DAY_MS, DUE_MS, NOW_MS + 240_000, NOW_MS + 401 * DAY_MS)):
        group.accept(LANE, due_ms, f"m{n}", target="push", policy="reminders@1")
    body = {"action": "reschedule", "filter": FILTER, "by": "-5m"}
    response = api.call("POST", f"/v1/changes?past={past}", json=body)
    document = wait_for(api, response.json()["id"], "planned")
    refused = {"too_far": 1} if past else {"in_the_past": 2, "too_far": 1}
    assert document["planned"]["messages"] == 4
    assert (document["planned"]["refused"], document["planned"]["overdue"]) == (refused, 1)
    assert group.sent == []
    api.changing.jobs.time_ms += TTL_MS - 1  # it is judged as when it was planned
    run(api, document)
    done = wait_for(api, document["id"], "done")
    assert done["outcomes"] == {"refused": sum(refused.values()), "rescheduled": 4 - sum(refused.values())}
    receipts = api.changing.jobs.receipts()
    assert Counter(one["state"] for one in receipts if one["outcome"] == "refused") == refused


def test_a_change_to_a_time_in_the_past_must_be_meant(api: World) -> None:
    body = {"action": "reschedule", "filter": FILTER, "deliver_at": NOW_MS - 60_001}
    problem(api.call("POST", "/v1/changes", json=body), 422, "in-the-past")
    assert api.changing.jobs.changes == {}
    assert api.call("POST", "/v1/changes?past=true", json=body).status_code == 202


def test_what_is_foreseen_is_no_part_of_the_token(api: World) -> None:
    """A process of an older version, which foresees nothing, must know the token that this one has shown."""
    change = api.changing.jobs.changes[planned(api)["id"]]
    told = change.progress.planned.model_copy(update={"refused": {"too_far": 1}, "overdue": 3})
    progress = change.progress.model_copy(update={"planned": told})
    assert change.model_copy(update={"progress": progress}).token == change.token


def test_a_plan_of_an_older_version_goes_on_as_that_one_would(api: World) -> None:
    plan = api.changing.jobs.changes[planned(api)["id"]].plan
    assert not plan.past
    assert ChangePlan.model_validate(plan.model_dump(exclude={"past"})).past


def test_names_beyond_a_limit_are_counted_together(api: World) -> None:
    document = planned(api)
    [item] = api.changing.jobs.changes[document["id"]].progress.planned.sample[:1]
    counted = Counted().plus([item.model_copy(update={"target": f"t{n}"}) for n in range(205)], {}, {}, 0)
    assert (len(counted.targets), counted.targets["(others)"], counted.messages) == (201, 5, 205)
    assert len(counted.sample) == 10
    plan = api.changing.jobs.changes[document["id"]].plan
    assert Change(plan=plan, progress=Progress(planned=counted, planned_ms=1)).token != document["token"]


# --- the command line ---------------------------------------------------------------------------------------------


def test_from_plan_to_receipts(tickover: Terminal) -> None:
    fill(tickover.there)
    plan = tickover.data("changes", "plan", "cancel", "--topic", "reminders", "--target", "push", "--rate", "0")
    assert (plan["state"], plan["planned"]["messages"]) == ("planned", 3)
    asked = tickover("changes", "run", plan["id"])
    assert (asked.exit_code, "cancel 3 messages?" in asked.stderr) == (FAILED, True)
    assert tickover("changes", "run", plan["id"], "--plan-token", "old").exit_code == CONFLICT
    done = tickover.data("changes", "run", plan["id"], "--yes")
    assert (done["state"], done["outcomes"]) == ("done", {"cancelled": 3})
    assert tickover("changes", "run", plan["id"], "--yes").exit_code == CONFLICT
    assert tickover("changes", "abort", plan["id"]).exit_code == CONFLICT
    assert [receipt["id"] for receipt in tickover.data("changes", "receipts", plan["id"])] == ["0", "2", "4"]
    table = tickover("changes", "receipts", plan["id"], "--limit", "2")
    assert "reminders/0/2" in table.stdout
    assert "more than 2" in table.stderr
    assert "cancelled" in tickover("changes", "status").stdout
    assert "2027-01-15T08:15:00.000Z" in tickover("changes", "status", plan["id"]).stdout
    assert [item["id"] for item in tickover.data("changes", "status")] == [plan["id"]]


def test_rescheduling_on_the_command_line(tickover: Terminal) -> None:
    fill(tickover.there)
    plan = tickover.data(
        "changes", "plan", "reschedule", "--by", "-10s", "--key-prefix", "k", "--due-from", "100000000000"
    )
    assert plan["by"] == -10_000
    told = {"key_prefix": "***", "due_from": 100_000_000_000, "due_from_utc": "1973-03-03T09:46:40.000Z"}
    assert plan["filter"] == told
    aborted = tickover("changes", "abort", plan["id"], "-o", "yaml")
    assert (aborted.exit_code, "state: aborted" in aborted.stdout) == (OK, True)


def test_a_plan_says_in_words_what_cannot_be_done(tickover: Terminal) -> None:
    fill(tickover.there)
    tickover.there.changing.group.accept(LANE, NOW_MS - DAY_MS, "late", target="push", policy="reminders@1")
    result = tickover("changes", "plan", "reschedule", "--topic", "reminders", "--by", "-10m")
    assert result.exit_code == OK
    assert "not meant, though they match: 1 no_id" in result.stderr
    assert "6 of 6 would be refused: 6 in_the_past" in result.stderr
    assert "1 of 6 are due already" in result.stderr
    [id] = [line.split("\t")[1] for line in result.stdout.splitlines() if line.startswith("id\t")]
    assert "would be refused" in tickover("changes", "run", id).stderr, "before it is confirmed"
    meant = tickover("changes", "plan", "reschedule", "--topic", "reminders", "--by", "-10m", "--past")
    assert "refused" not in meant.stderr


def test_usage(tickover: Terminal) -> None:
    assert tickover("changes", "plan", "cancel").exit_code == USAGE
    assert tickover("changes", "plan", "explode", "--all").exit_code == USAGE
    assert tickover("changes", "plan", "cancel", "--all", "--by", "1m").exit_code == USAGE
    assert tickover("changes", "plan", "reschedule", "--all").exit_code == USAGE
    assert tickover("changes", "plan", "reschedule", "--all", "--by", "1m", "--delay", "1m").exit_code == USAGE
    assert tickover("changes", "plan", "cancel", "--due-to", "soon").exit_code == USAGE
    for option, text in (("--delay", "10"), ("--by", "+10"), ("--by", "-10"), ("--by", "10")):
        result = tickover("changes", "plan", "reschedule", "--all", option, text)
        assert (result.exit_code, "10s? 10ms?" in result.stderr) == (USAGE, True)
    assert tickover("changes", "status", "nobody").exit_code == NOT_FOUND
