"""Plans that somebody else has to approve: who may, what waits for it, and what its record has to be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from api.access.auth import load_tokens, new_token
from sidecar.operations.bulk.plan import FORM as CHANGES
from sidecar.operations.dead_letters.redrive_plan import FORM as REDRIVES
from sidecar.operations.dead_letters.redrive_plan import Plan
from sidecar.operations.jobs.job import Form, State, decoded
from sidecar.operations.jobs.runner import JobRefused
from sidecar.settings.settings import Settings
from tests.unit.api.routes.test_api_changes import FILTER as HELD
from tests.unit.api.routes.test_api_changes import LANE, fill
from tests.unit.api.routes.test_api_redrives import FILTER, filled
from tests.unit.api_world import World, problem, world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.letter_world import MemoryLetterLog
from tests.unit.operations.dead_letters.test_redrive_parts import encode, plan
from tests.unit.operations.jobs.test_jobs import Record, log_of_redrives
from tests.unit.redrive_world import MemoryRedrives, wait_until_gone


class People:
    """Three who may write and one who may only read, each with a token, before a sidecar where another approves."""

    def __init__(self, api: World, tokens: dict[str, str]) -> None:
        self.api = api
        self.tokens = tokens

    def ask(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.tokens[who]}"}
        return self.api.call(method, path, headers=headers, **options)

    def change(self, who: str) -> dict[str, Any]:
        """A planned change of this one."""
        answer = self.ask(who, "POST", "/v1/changes", json={"action": "cancel", "filter": HELD})
        id = answer.json()["id"]
        wait_until_gone(lambda: not self.api.changing.changes.crew.works_on(id))
        document: dict[str, Any] = self.ask(who, "GET", f"/v1/changes/{id}").json()
        return document

    def redrive(self, who: str) -> str:
        """Id of a planned redrive of this one."""
        filled(self.api)
        answer = self.ask(who, "POST", "/v1/redrives", json={"topic": "orders-dlq", "filter": FILTER})
        return str(answer.json()["id"])


@pytest.fixture(name="people")
def people_fixture(tmp_path: Path) -> Iterator[People]:
    roles = {"ann": "write", "ben": "write", "cleo": "admin", "reader": "read"}
    made = {name: new_token() for name in roles}
    path = tmp_path / "tokens.yaml"
    path.write_text(json.dumps([{"name": name, "role": roles[name], "hash": made[name][1]} for name in roles]))
    with world(tokens=load_tokens(path), approval="other") as api:
        fill(api)
        yield People(api, {name: token for name, (token, _) in made.items()})


def run(people: People, who: str, change: dict[str, Any]) -> httpx.Response:
    return people.ask(who, "POST", f"/v1/changes/{change['id']}/run", json={"token": change["token"]})


def test_a_change_runs_when_another_has_approved_it(people: People) -> None:
    change = people.change("ann")
    assert (change["approval"], change["waits_for"]) == ("other", "approval by somebody other than ann")
    path = f"/v1/changes/{change['id']}"
    for who in ("ann", "ben"):
        assert "ann" in problem(run(people, who, change), 409, "approval-needed")["detail"]
    problem(people.ask("ann", "POST", f"{path}/approve"), 403, "own-plan")
    problem(people.ask("reader", "POST", f"{path}/approve"), 403, "forbidden")
    assert not people.api.changing.group.sent
    approved = people.ask("ben", "POST", f"{path}/approve")
    assert approved.status_code == 200
    document = approved.json()
    assert (document["approved_by"], document["waits_for"], document["state"]) == ("ben", None, "planned")
    assert document["approved_utc"].startswith("20")
    assert run(people, "ann", change).status_code == 202
    wait_until_gone(lambda: not people.api.changing.changes.crew.works_on(change["id"]))
    assert people.ask("ann", "GET", path).json()["outcomes"] == {"cancelled": 5}
    problem(people.ask("ben", "POST", f"{path}/approve"), 409, "change-ended")


def test_who_approves_is_recorded_and_so_is_who_may_not(people: People) -> None:
    change = people.change("ann")
    for who in ("ann", "ben"):
        people.ask(who, "POST", f"/v1/changes/{change['id']}/approve")
    told = [(one["actor"], one["status"], one.get("problem")) for one in people.api.audited[-2:]]
    assert told == [("ann", 403, "own-plan"), ("ben", 200, None)]
    assert people.api.audited[-1]["notes"]["planned_by"] == "ann"


def test_an_approval_stays_as_it_is(people: People) -> None:
    change = people.change("ann")
    for who in ("ben", "cleo"):
        assert people.ask(who, "POST", f"/v1/changes/{change['id']}/approve").json()["approved_by"] == "ben"


def test_a_canary_waits_for_it_as_a_run_does_and_it_counts_for_both(people: People) -> None:
    id = people.redrive("ann")
    people.api.redriving.ending = {"state": State.CANARIED}
    canary, run = f"/v1/redrives/{id}/canary", f"/v1/redrives/{id}/run"
    problem(people.ask("ann", "POST", canary, json={"count": 1}), 409, "approval-needed")
    problem(people.ask("cleo", "POST", run), 409, "approval-needed")
    assert people.ask("cleo", "POST", f"/v1/redrives/{id}/approve").status_code == 200
    assert people.ask("ann", "POST", canary, json={"count": 1}).status_code == 202
    wait_until_gone(lambda: not people.api.redriving.redrives.crew.works_on(id))
    assert people.ask("ann", "POST", run).status_code == 202


def test_nobody_approves_what_is_being_counted(people: People) -> None:
    id = people.redrive("ann")
    people.api.redriving.plans.set(id, state=State.PLANNING)
    problem(people.ask("ben", "POST", f"/v1/redrives/{id}/approve"), 409, "redrive-active")


def test_who_has_no_name_can_not_approve() -> None:
    with world() as api:
        filled(api)
        body = {"topic": "orders-dlq", "filter": FILTER}
        id = api.call("POST", "/v1/redrives", json=body).json()["id"]
        plans = api.redriving.plans.redrives
        one = plans[id]
        plans[id] = one.model_copy(update={"plan": one.plan.model_copy(update={"author": "ann"})})
        problem(api.call("POST", f"/v1/redrives/{id}/approve"), 403, "approver-unknown")
        assert plans[id].approved_by is None


def test_the_command_line_says_who_waits_for_whom(people: People, tmp_path: Path) -> None:
    tickover = Terminal(people.api)

    def ask(who: str, *arguments: str) -> Any:
        path = tmp_path / who
        path.write_text(people.tokens[who])
        return tickover("changes", *arguments, "--token-file", str(path), "-o", "json")

    planned = ask("ann", "plan", "cancel", "--source", LANE.topic)
    id = json.loads(planned.stdout)["id"]
    assert f"waits for approval by somebody other than ann: tickover changes approve {id}" in planned.stderr
    refused = ask("ann", "run", id, "--yes")
    assert (refused.exit_code, "approval" in refused.stderr) == (4, True)
    assert json.loads(ask("ben", "approve", id).stdout)["approved_by"] == "ben"
    assert ask("ann", "run", id, "--yes").exit_code == 0


# --- the plan and its log -----------------------------------------------------------------------------------------


def test_a_plan_of_before_the_setting_waits_as_well_and_a_plan_keeps_its_own_rule() -> None:
    strict, free = (MemoryRedrives(MemoryLetterLog(), approval) for approval in ("other", "none"))
    for there, approval in ((strict, "none"), (free, "other")):
        there.plans.write_plan(plan(id="p", author="ann", approval=approval, created_ms=there.plans.time_ms))
        there.plans.set("p", state=State.PLANNED)
        with pytest.raises(JobRefused, match="other than ann"):
            there.redrives.crew.startable("p")
        there.redrives.approve("p", "ben")
        there.redrives.crew.startable("p")


def test_an_approval_that_another_replica_took_is_found() -> None:
    there = MemoryRedrives(MemoryLetterLog(), "other")
    there.plans.write_plan(plan(id="p", author="ann", created_ms=there.plans.time_ms))
    there.plans.set("p", state=State.PLANNED)
    there.plans.catch_up = lambda: there.plans.write_approval("p", "ben")  # type: ignore[method-assign]
    there.redrives.crew.startable("p")


@pytest.mark.parametrize(
    ("value", "by"),
    [
        (b'{"author": "ben", "time": 7}', "ben"),
        (b'{"author": "ann", "time": 7}', None),  # whoever writes it there: two people are two
        (b'{"author": "", "time": 7}', None),
        (b'{"time": 7}', None),
        (b"nonsense", None),
        (b"[" * 200_000, None),
    ],
)
@pytest.mark.parametrize("is_early", [False, True], ids=["behind the plan", "before the plan"])
def test_what_a_log_takes_for_an_approval(value: bytes, by: str | None, is_early: bool) -> None:
    log = log_of_redrives()
    records = [(b"p/plan", encode(plan(id="p", author="ann", approval="other"))), (b"p/approval", value)]
    for offset, (key, content) in enumerate(reversed(records) if is_early else records):
        log.take(Record(offset, key, content))
    job = log.get("p")
    assert job is not None
    assert (job.approved_by, job.approved_ms) == (by, 7 if by else 0)
    assert bool(job.waits_for) == (by is None)


def test_a_program_that_knows_of_no_approval_does_not_know_the_plan(people: People) -> None:
    change, redrive = people.change("ann"), people.redrive("ann")
    plans = (people.api.changing.jobs.changes[change["id"]].plan, people.api.redriving.plans.redrives[redrive].plan)
    for written in plans:
        value = written.model_dump_json().encode()
        assert decoded(type(written), value, 1) is None
        form: Form[Any] = REDRIVES if isinstance(written, Plan) else CHANGES
        assert form.planned(value) is not None
    assert MemoryRedrives(MemoryLetterLog()).redrives.crew.plan(plan(id="p")).plan.schema_version == 1


def test_a_plan_of_an_older_version_needs_no_approval() -> None:
    older = plan(id="p").model_dump(exclude={"approval"})
    assert Plan.model_validate(older).approval == "none"


@pytest.mark.parametrize("api", [{}, {"allow_unauthenticated": True}])
def test_without_names_nobody_could_approve(api: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="nobody can approve"):
        Settings.model_validate({"group": "g", "changes": {"approval": "other"}, "api": api})
    Settings.model_validate({"group": "g", "changes": {"approval": "other"}, "api": {"tokens_file": "t.yaml"}})
