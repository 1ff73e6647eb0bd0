"""A schedule's last runs, and running it now, over REST and on the command line."""

import json
from typing import Any

import pytest

from api.ports import SenderUnavailable
from sidecar.operations.schedules.schedule import COUNTED_MAX, MissedRuns, Progress, Run
from sidecar.operations.schedules.store import progress_parcel
from tests.unit.api.routes.test_api_schedules import REPORT, api, put
from tests.unit.api_world import NOW_MS, World, problem
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.schedule_world import TOPIC

__all__ = ["api"]

DAY_MS = 86_400_000


def run(api: World, key: str = "k", name: str = "report") -> Any:
    return api.call("POST", f"/v1/schedules/{name}/run", headers={"idempotency-key": key})


def reached(api: World, progress: Progress) -> None:
    api.schedules.topic.records.append(progress_parcel(TOPIC, "report", progress))
    api.schedules.store.catch_up()


def test_the_last_runs_and_what_was_missed(api: World) -> None:
    put(api)
    assert api.call("GET", "/v1/schedules/report/runs").json() == {"items": [], "missed": []}
    runs = (Run(NOW_MS - DAY_MS, NOW_MS - DAY_MS - 10_000), Run(NOW_MS, NOW_MS + 5))
    missed = (MissedRuns(5, 10, COUNTED_MAX, 0, 12), MissedRuns(20, 30, 2, 1, 40))
    reached(api, Progress(NOW_MS, began=1, runs=runs, missed=missed))
    told = api.call("GET", "/v1/schedules/report/runs").json()
    assert told["items"][0] == {
        "at": NOW_MS, "at_utc": "2027-01-15T08:00:00.000Z", "local": "2027-01-15T09:00:00+01:00",
        "written": NOW_MS + 5, "written_utc": "2027-01-15T08:00:00.005Z", "id": f"schedule:report:{NOW_MS}",
    }  # fmt: skip
    assert [item["at"] for item in told["items"]] == [NOW_MS, NOW_MS - DAY_MS]
    assert [(one["count"], one["is_whole"], one["made_up"]) for one in told["missed"]] == [
        (2, True, 1),
        (COUNTED_MAX, False, 0),
    ]
    problem(api.call("GET", "/v1/schedules/none/runs"), 404, "schedule-not-found")


def test_it_is_run_once_for_a_key(api: World) -> None:
    put(api, {**REPORT, "key": "k", "headers": [["kind", "daily"]]})
    first = run(api)
    assert first.status_code == 202
    again = run(api)
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    [record] = api.sender.sent
    headers = {name: (value or b"").decode() for name, value in record.headers}
    assert (record.topic, record.key, record.value) == ("reminders", b"k", b"go")
    assert headers == {
        "kind": "daily", "tickover-delay": "0", "tickover-target": "push", "tickover-id": first.json()["id"]
    }  # fmt: skip
    assert first.json()["due"] == NOW_MS
    assert first.json()["id"].startswith("schedule:report:")
    other = run(api, "another").json()
    assert (len(api.sender.sent), other["id"] == first.json()["id"]) == (2, False)
    assert api.audited[-1]["notes"]["target"] == "push"
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["version"], item["written_up_to"]) == (1, None), "its occurrences are as they were"


def test_the_key_of_one_schedule_is_none_of_another_and_none_of_a_message(api: World) -> None:
    put(api)
    put(api, {**REPORT, "name": "other"}, "other")
    for name in ("report", "other"):
        assert run(api, "k", name).status_code == 202
    body = {"target": "push", "delay": 0}
    assert api.call("POST", "/v1/messages", json=body, headers={"idempotency-key": "k"}).status_code == 202
    assert len(api.sender.sent) == 3


def test_a_try_that_failed_is_repeated_with_the_same_id(api: World) -> None:
    put(api)
    api.sender.failures = [SenderUnavailable("away")]
    problem(run(api), 503, "kafka-unavailable")
    api.schedules.put(1, **{**REPORT, "value": "changed meanwhile"})
    first = run(api).json()["id"]
    api.idempotency.kept.clear()  # Redis has lost it
    assert run(api).json()["id"] == first


def test_a_paused_one_runs_too(api: World) -> None:
    put(api, {**REPORT, "paused": True})
    assert run(api).status_code == 202


def test_what_is_refused(api: World) -> None:
    put(api)
    problem(api.call("POST", "/v1/schedules/report/run"), 422, "invalid-parameter")
    problem(run(api, ""), 422, "invalid-idempotency-key")
    problem(run(api, "x" * 256), 422, "invalid-idempotency-key")
    problem(run(api, name="none"), 404, "schedule-not-found")
    api.idempotency.down = True
    problem(run(api), 503, "idempotency-unavailable")
    api.idempotency.down = False
    del api.sender.topics["reminders"]
    problem(run(api), 422, "unknown-source")
    api.sender.topics["reminders"] = 1
    api.sources.not_consumed = {"reminders"}
    problem(run(api), 422, "not-a-source")
    assert api.sender.sent == []


def test_the_command_line(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    tickover = Terminal(api)
    put(api)
    reached(
        api, Progress(NOW_MS, began=1, runs=(Run(NOW_MS, NOW_MS),), missed=(MissedRuns(5, 10, COUNTED_MAX, 0, 12),))
    )
    told = tickover("schedules", "runs", "report")
    assert "2027-01-15T08:00:00.000Z" in told.stdout
    assert f"missed: {COUNTED_MAX} or more after" in told.stderr
    assert tickover.data("schedules", "runs", "report")["missed"][0]["count"] == COUNTED_MAX
    ids = {tickover.data("schedules", "run", "report", "--key", "k")["id"] for _ in range(2)}
    assert len(ids | {tickover.data("schedules", "run", "report")["id"]}) == 2
    api.sender.failures = [SenderUnavailable("away")]
    failed = tickover("schedules", "run", "report")
    assert (failed.exit_code, "--key " in failed.stderr) == (1, True)
    key = failed.stderr.split("--key ")[1].split()[0]
    assert json.loads(tickover("schedules", "run", "report", "--key", key, "-o", "json").stdout)["due"] == NOW_MS
    assert tickover("schedules", "run", "none").exit_code == 3
