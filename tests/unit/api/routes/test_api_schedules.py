"""Schedules over REST and on the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.model.times import rfc_3339
from sidecar.operations.jobs.transactional_sender import ShipmentFailed
from sidecar.operations.schedules.schedule import Progress
from sidecar.operations.schedules.store import FAILURES_MAX, progress_parcel
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.schedule_world import TOPIC

REPORT: dict[str, Any] = {
    "name": "report",
    "cron": "0 9 * * MON-FRI",
    "time_zone": "Europe/Berlin",
    "target": "push",
    "value": "go",
}


@pytest.fixture
def api() -> Iterator[World]:
    with world() as made:
        made.add(REMINDERS)
        made.sender.topics["push"] = 1
        yield made


def put(api: World, document: Any = REPORT, name: str = "report", **headers: str) -> Any:
    headers = {name.replace("_", "-"): value for name, value in headers.items()} or {"if-none-match": "*"}
    return api.call("PUT", f"/v1/schedules/{name}", json=document, headers=headers)


def test_create_read_replace_delete(api: World) -> None:
    created = put(api)
    assert (created.status_code, created.headers["etag"]) == (201, '"1"')
    assert created.headers["location"] == "/v1/schedules/report"
    shown = api.call("GET", "/v1/schedules/report?payload=true")
    assert shown.headers["etag"] == '"1"'
    assert shown.json() == {**REPORT, "headers": [], "missed": "skip", "paused": False}

    problem(put(api), 412, "precondition-failed")
    problem(api.call("PUT", "/v1/schedules/report", json=REPORT), 428, "precondition-required")
    problem(put(api, if_match='"2"'), 412, "precondition-failed")
    replaced = put(api, {**shown.json(), "paused": True}, if_match='"1"')
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')

    problem(api.call("DELETE", "/v1/schedules/report"), 428, "precondition-required")
    problem(api.call("DELETE", "/v1/schedules/report", headers={"if-match": '"1"'}), 412, "precondition-failed")
    assert api.call("DELETE", "/v1/schedules/report", headers={"if-match": '"2"'}).status_code == 204
    for method, path in (("GET", ""), ("GET", "/next"), ("DELETE", "")):
        problem(api.call(method, f"/v1/schedules/report{path}"), 404, "schedule-not-found")
    assert put(api).headers["etag"] == '"4"'


def test_a_lost_race_is_told(api: World) -> None:
    put(api)
    other = api.schedules.replica()
    other.catch_up()
    entry = other.get("report").entry
    assert entry is not None
    api.schedules.topic.meanwhile = lambda: other.put(entry.schedule, "reminders", 1, "they") and None
    lost = put(api, if_match='"1"')
    problem(lost, 412, "precondition-failed")
    assert lost.headers["etag"] == '"2"'


def test_the_list_says_how_far_each_has_come(api: World) -> None:
    put(api)
    put(api, {**REPORT, "name": "paused", "paused": True}, "paused")
    put(api, {**REPORT, "name": "wrong", "source": "reminders"}, "wrong")
    api.schedules.topic.records.append(progress_parcel(TOPIC, "wrong", Progress(5, "no such topic")))
    api.schedules.store.catch_up()
    items = {item["name"]: item for item in api.call("GET", "/v1/schedules").json()["items"]}
    told = {
        name: [item[part] for part in ("state", "problem", "written_up_to", "version")] for name, item in items.items()
    }
    assert told == {
        "paused": ["paused", None, None, 1],
        "report": ["active", None, None, 1],
        "wrong": ["failing", "no such topic", 5, 1],
    }
    assert items["report"]["source"] == "reminders"
    assert (items["report"]["next"], items["paused"]["next"]) == (NOW_MS + 3 * 86_400_000, None)
    page = api.call("GET", "/v1/schedules?limit=2").json()
    assert [item["name"] for item in page["items"]] == ["paused", "report"]
    rest = api.call("GET", f"/v1/schedules?limit=2&cursor={page['next']}").json()
    assert [item["name"] for item in rest["items"]] == ["wrong"]


def test_a_schedule_is_set_back(api: World) -> None:
    put(api)
    reached_ms = NOW_MS + 86_400_000  # by a clock that was far ahead
    progress = progress_parcel(TOPIC, "report", Progress(reached_ms, began=1))
    api.schedules.topic.records.append(progress)
    api.schedules.store.catch_up()
    rewind = "/v1/schedules/report/rewind"
    body = {"to": "2027-01-15T08:00:00Z"}
    problem(api.call("POST", rewind, json=body), 428, "precondition-required")
    problem(api.call("POST", rewind, json=body, headers={"if-match": '"2"'}), 412, "precondition-failed")
    head = {"if-match": '"1"'}
    forward = problem(api.call("POST", rewind, json={"to": reached_ms}, headers=head), 422, "rewind-not-back")
    assert str(rfc_3339(reached_ms)) in forward["detail"]
    for bad in ({}, {"to": "soon"}, {"to": -1}, {"to": 1.5}, {"to": 1, "by": 2}):
        problem(api.call("POST", rewind, json=bad, headers=head), 422, "invalid-body")
    problem(api.call("POST", "/v1/schedules/none/rewind", json=body, headers=head), 404, "schedule-not-found")
    done = api.call("POST", rewind, json=body, headers=head)
    assert (done.status_code, done.headers["etag"], done.json()["cron"]) == (200, '"2"', REPORT["cron"])
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["version"], item["written_up_to"]) == (2, None)
    entry = api.schedules.store.get("report").entry
    assert entry is not None
    assert entry.since_ms == NOW_MS
    assert api.audited[-1]["notes"] == {"to": NOW_MS, "version": 2}


def test_what_comes_next(api: World) -> None:
    put(api)
    items = api.call("GET", "/v1/schedules/report/next?n=2").json()["items"]
    assert items == [
        {"at": at_ms, "at_utc": utc, "local": local, "id": f"schedule:report:{at_ms}"}
        for at_ms, utc, local in (
            (NOW_MS + 3 * 86_400_000, "2027-01-18T08:00:00.000Z", "2027-01-18T09:00:00+01:00"),
            (NOW_MS + 4 * 86_400_000, "2027-01-19T08:00:00.000Z", "2027-01-19T09:00:00+01:00"),
        )
    ]
    assert len(api.call("GET", "/v1/schedules/report/next").json()["items"]) == 5
    problem(api.call("GET", "/v1/schedules/report/next?n=101"), 422, "invalid-parameter")
    put(api, {**REPORT, "paused": True}, if_match="*")
    assert api.call("GET", "/v1/schedules/report/next").json() == {"items": []}


@pytest.mark.parametrize(
    ("changes", "type", "says"),
    [
        ({"cron": "0 0 31 2 *"}, "invalid-body", "such a day never comes"),
        ({"time_zone": "Europe/Berlino"}, "invalid-body", "not an IANA time zone"),
        ({"value": {"base64": "?"}}, "invalid-body", "not base64"),
        ({"name": "other"}, "name-differs", "not report"),
        ({"target": "nowhere"}, "no-source", "No delay policy allows"),
        ({"target": "nowhere", "source": "reminders"}, "target-not-allowed", "would be quarantined"),
        ({"target": "mail-missing"}, "unknown-target", "create it first"),
        ({"source": "missing"}, "no-policy", "would be quarantined"),
        ({"headers": {"x": "y" * 300_000}}, "too-many-headers", "bytes of headers"),
        ({"value": "x" * 600_000}, "schedule-too-large", "bytes"),
    ],
)
def test_bad_input_has_an_answer_that_says_what_to_do(
    api: World, changes: dict[str, Any], type: str, says: str
) -> None:
    if type == "no-policy":
        api.sender.topics["missing"] = 1
    assert says in str(problem(put(api, {**REPORT, **changes}), 422, type))
    assert api.schedules.topic.records == []


def test_a_source_that_is_missing_or_holds_for_too_short(api: World) -> None:
    del api.sender.topics["reminders"]
    problem(put(api), 422, "unknown-source")
    api.sender.topics["reminders"] = 1
    api.add({**REMINDERS, "delay": {"default": "1s", "max": "1s"}})
    problem(put(api), 422, "too-far")  # it is written further ahead than the policy holds


def test_kafka_that_does_not_answer(api: World) -> None:
    api.schedules.topic.failures += [ShipmentFailed("no answer")] * FAILURES_MAX
    assert problem(put(api), 503, "schedules-unavailable")["detail"].endswith("look again.")


def test_who_may_and_what_is_recorded(api: World) -> None:
    put(api)
    put(api)
    api.call("DELETE", "/v1/schedules/report", headers={"if-match": "*"})
    told = [(record["action"], record["outcome"], record["subject"]) for record in api.audited]
    name = {"name": "report"}
    assert told == [
        ("put_schedule", "done", name),
        ("put_schedule", "refused", name),
        ("delete_schedule", "done", name),
    ]
    assert api.audited[0]["notes"] == {
        "cron": REPORT["cron"], "time_zone": "Europe/Berlin", "target": "push", "paused": False,
        "source": "reminders", "version": 1,
    }  # fmt: skip


def test_the_command_line(api: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    tickover = Terminal(api)
    path = tmp_path / "schedules.yaml"
    path.write_text(yaml.safe_dump_all([REPORT, {**REPORT, "name": "other"}]))
    file = str(path)
    assert [row["result"] for row in tickover.data("schedules", "apply", file)] == ["created", "created"]
    assert [row["result"] for row in tickover.data("schedules", "apply", "-f", file)] == ["unchanged", "unchanged"]
    path.write_text(yaml.safe_dump_all([{**REPORT, "value": "new"}]))
    assert [row["result"] for row in tickover.data("schedules", "apply", file)] == ["replaced"]
    assert [item["name"] for item in tickover.data("schedules", "list")] == ["other", "report"]
    assert tickover.data("schedules", "get", "report", "--payload")["value"] == "new"
    assert len(tickover.data("schedules", "next", "report", "-n", "3")) == 3
    assert "2027-01-18T08:00:00.000Z" in tickover("schedules", "next", "report").stdout
    assert "2027-01-18T08:00:00.000Z" in tickover("schedules", "list").stdout
    topic, store = api.schedules.topic, api.schedules.store
    topic.records.append(progress_parcel(TOPIC, "report", Progress(NOW_MS + 60_000)))
    store.catch_up()
    assert tickover("schedules", "rewind", "report", "--to", "2027-01-15T08:00:00Z").exit_code == 0
    entry = store.get("report").entry
    assert entry is not None
    assert (entry.version, entry.since_ms) == (3, NOW_MS)
    assert tickover("schedules", "rewind", "report", "--to", "2027-01-15T08:00:00Z").exit_code == 1
    assert tickover("schedules", "rewind", "report", "--to", "today").exit_code == 2
    assert tickover("schedules", "rewind", "none", "--to", "2020-01-01T00:00:00Z").exit_code == 3
    assert tickover("schedules", "delete", "other").exit_code == 0
    assert tickover("schedules", "get", "other").exit_code == 3
    path.write_text(yaml.safe_dump_all([{**REPORT, "cron": "0 0 31 2 *"}]))
    refused = tickover("schedules", "apply", file)
    assert (refused.exit_code, "such a day never comes" in refused.stderr) == (1, True)
    assert tickover("schedules", "apply").exit_code == 2
    assert tickover("schedules", "apply", str(tmp_path / "missing.yaml")).exit_code == 2


def test_a_schedule_with_a_start_and_an_end(api: World) -> None:
    bounds = {"start": "2027-01-20T00:00:00Z", "end": "2027-01-22T09:00:00+01:00"}
    assert put(api, {**REPORT, **bounds}).status_code == 201
    items = api.call("GET", "/v1/schedules/report/next?n=9").json()["items"]
    assert [item["at_utc"][:16] for item in items] == ["2027-01-20T08:00", "2027-01-21T08:00"]
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["state"], item["start_utc"], item["end_utc"]) == (
        "active", "2027-01-20T00:00:00.000Z", "2027-01-22T08:00:00.000Z",
    )  # fmt: skip
    whole = api.call("GET", "/v1/schedules/report?payload=true").json()
    assert put(api, whole, if_match='"1"').status_code == 200, "as it is shown it is taken"
    api.now_ms += 7 * 86_400_000
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["state"], item["next"]) == ("ended", None)
    problem(put(api, {**REPORT, "start": bounds["end"], "end": bounds["start"]}, if_match='"2"'), 422, "invalid-body")
