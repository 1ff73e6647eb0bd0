"""The audit topic: one record for every action and every refusal of one, and what happens when it can't be written."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from api.access.auth import Role, load_tokens
from api.audit import CHEAP_PER_S_MAX
from api.ports import SenderUnavailable
from api.problems import TOLD
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World, problem, world

ADDED = {"if-none-match": "*"}


def outline(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["actor"], record["action"], record["outcome"], record["status"], record["problem"]


def test_what_is_done_is_recorded() -> None:
    with world() as api:
        api.call("PUT", "/v1/policies/reminders", json=REMINDERS, headers={**ADDED, "x-request-id": "order-4711"})
        api.message(target="push", value="secret", id="i-1", headers={"h": "secret"})
        put, sent = api.audited
        assert put == {
            "time": NOW_MS,
            "actor": "anonymous",
            "action": "put_policy",
            "method": "PUT",
            "path": "/v1/policies/reminders",
            "subject": {"name": "reminders"},
            "outcome": "done",
            "status": 201,
            "problem": None,
            "client": "127.0.0.1",
            "request_id": "order-4711",
            "notes": {},
        }
        assert outline(sent) == ("anonymous", "send_message", "done", 202, None)
        assert sent["notes"]["id"] == "i-1"
        assert sent["notes"]["position"] == {"topic": "reminders", "partition": 5, "offset": 0}
        assert "secret" not in json.dumps(sent)
        assert {(record.topic, record.partition) for record in api.audit.sent} == {("tickover.audit", 0)}


def test_reading_is_not_recorded() -> None:
    with world() as api:
        api.add(REMINDERS)
        for path in ("/v1/policies", "/v1/policies/reminders", "/v1/stats", "/livez", "/nothing"):
            api.call("GET", path)
        explain = api.call("POST", "/v1/policies/explain", json={"record": {"topic": "reminders"}})
        assert explain.status_code == 200
        assert api.call("POST", "/v1/nothing").status_code == 404
        assert api.audited == []


def test_refusals_are_recorded() -> None:
    with world() as api:
        api.add(REMINDERS, "file")
        api.add(RETRY)
        api.call("PUT", "/v1/policies/reminders", json=REMINDERS, headers=ADDED)
        api.call("PUT", "/v1/policies/orders-retry", json=RETRY)
        api.call("PUT", "/v1/policies/orders-retry", json=RETRY, headers=ADDED)
        api.call("DELETE", "/v1/policies/nobody", headers={"if-match": "*"})
        api.send_raw("POST", "/v1/messages", b"{")
        api.send_raw("POST", "/v1/messages", b" " * (api.limits.body_bytes + 1))
        assert [outline(record)[1:] for record in api.audited] == [
            ("put_policy", "refused", 409, "file-managed"),
            ("put_policy", "refused", 428, "precondition-required"),
            ("put_policy", "refused", 412, "precondition-failed"),
            ("delete_policy", "refused", 404, "policy-not-found"),
            ("send_message", "refused", 400, "malformed-json"),
            (None, "refused", 413, None),
        ]


def test_callers_without_name_or_role(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        api.call("DELETE", "/v1/policies/x", headers={"if-match": "*"})
        api.call("DELETE", "/v1/policies/x", headers={"if-match": "*", **bearer(given[Role.WRITE])})
        assert [outline(record) for record in api.audited] == [
            (None, "delete_policy", "refused", 401, "unauthorized"),
            ("WRITE", "delete_policy", "refused", 403, "forbidden"),
        ]
        assert given[Role.WRITE] not in json.dumps(api.audited)


def test_nobody_fills_the_topic_without_a_token(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        for _ in range(CHEAP_PER_S_MAX + 5):
            problem(api.call("DELETE", "/v1/policies/x"), 401, "unauthorized")
        assert len(api.audited) == CHEAP_PER_S_MAX
        api.call("DELETE", "/v1/policies/x", headers=bearer(given[Role.WRITE]))
        assert api.audited[-1]["unrecorded"] == 5
        api.monotonic_s += 1
        api.call("DELETE", "/v1/policies/x")
        assert "unrecorded" not in api.audited[-1]


def test_a_failure_is_recorded_as_one(caplog: pytest.LogCaptureFixture) -> None:
    with world() as api:
        api.add(REMINDERS)
        api.sender.failures = [SenderUnavailable("away")]
        problem(api.message(target="push"), 503, "kafka-unavailable")
        api.sender.failures = [ZeroDivisionError()]
        problem(api.message(target="push"), 500, "internal-error")
        assert [outline(record)[2:] for record in api.audited] == [
            ("failed", 503, "kafka-unavailable"),
            ("failed", 500, None),
        ]


def test_what_was_done_without_a_record_is_recorded_before_anything_else(caplog: pytest.LogCaptureFixture) -> None:
    with world() as api:
        api.add(REMINDERS)
        api.audit.failures = [SenderUnavailable("away")]
        assert api.message(target="push", id="first").status_code == 202  # it is in Kafka, and can't be undone
        assert "not written, kept" in caplog.text
        api.audit.failures = [SenderUnavailable("away")] * 2
        problem(api.message(target="push", id="second"), 503, "audit-unavailable")
        assert len(api.sender.sent) == 1
        assert api.call("GET", "/v1/policies").status_code == 200
        assert api.message(target="push", id="third").status_code == 202
        assert [record["notes"].get("id") for record in api.audited] == ["first", "third"]


def test_refusals_go_on_without_the_topic() -> None:
    with world() as api:
        api.audit.failures = [SenderUnavailable("away")]
        problem(api.message(target="nowhere"), 422, "no-source")
        problem(api.message(target="nowhere"), 422, "no-source")
        assert len(api.audited) == 1


async def send_a_message(api: World, receive: Any, state: dict[str, Any]) -> None:
    headers = [(b"host", b"127.0.0.1:8230"), (b"content-type", b"application/json"), (b"content-length", b"17")]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
    }
    scope |= {"path": "/v1/messages", "raw_path": b"/v1/messages", "query_string": b"", "root_path": ""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8230), "state": state}

    async def nobody(message: Any) -> None:
        pass

    await api.app(scope, receive, nobody)


async def whole_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b'{"target":"push"}', "more_body": False}


async def hung_up() -> dict[str, Any]:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("is_done", [False, True], ids=["the message is on its way", "the record is on its way"])
def test_what_the_stop_interrupts_is_in_the_log(
    is_done: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with world() as api:
        api.add(REMINDERS)
        entered = asyncio.Event()

        async def never(record: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

        async def interrupted() -> None:
            task = asyncio.create_task(send_a_message(api, whole_body, {}))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        monkeypatch.setattr(api.audit if is_done else api.sender, "send", never)
        api.runner.run(interrupted())
    (line,) = (line for line in caplog.records if line.name == "tickover.audit")
    record: dict[str, Any] = vars(line)["record"]
    assert line.levelname == "ERROR"
    assert outline(record) == (
        ("anonymous", "send_message", "done", 202, None)
        if is_done
        else ("anonymous", "send_message", "unknown", None, None)
    )


@pytest.mark.parametrize(("state", "status"), [({}, 499), ({TOLD: 408}, 408)])
def test_a_client_that_hangs_up_or_is_late_has_not_failed(state: dict[str, Any], status: int) -> None:
    with world() as api:
        api.runner.run(send_a_message(api, hung_up, state))
        assert [outline(record)[1:] for record in api.audited] == [("send_message", "refused", status, None)]


def test_requests_side_by_side_pay_once() -> None:
    with world() as api:
        api.add(REMINDERS)
        api.audit.failures = [SenderUnavailable("away")]
        api.message(target="push", id="owed")
        audit = api.app.state.audit

        async def both() -> None:
            await asyncio.gather(audit.ready(), audit.ready())

        api.runner.run(both())
        assert [record["notes"]["id"] for record in api.audited] == ["owed"]


def test_long_names_are_cut() -> None:
    with world() as api:
        api.call("DELETE", "/v1/policies/" + "x" * 5_000, headers={"if-match": "*"})
        assert len(api.audited[0]["path"]) == len(api.audited[0]["subject"]["name"]) == 500


def test_every_changing_route_is_audited() -> None:
    """The author of a new route need not think of its audit."""
    everything = World()
    paths = everything.app.openapi()["paths"]
    changing = [
        (method.upper(), path) for path, calls in paths.items() for method in calls if method not in ("get", "head")
    ]
    assert len(changing) > 3
    with world() as api:
        for method, path in changing:
            before = len(api.audited)
            api.call(method, path, headers={"host": "evil.example"})
            assert len(api.audited) - before == 1, (method, path)
            api.monotonic_s += 1
