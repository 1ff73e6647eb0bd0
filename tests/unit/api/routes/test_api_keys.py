"""Keys and payloads over REST: the role `read` sees none, whoever sees one has the role `write`, and it is recorded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from api.access.auth import Role, load_tokens
from sidecar.operations.bulk.plan import HIDDEN
from sidecar.operations.dead_letters.masking import MASK, SHOWN_BYTES_MAX, Masking
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api.routes.test_api_held import row
from tests.unit.api_world import REMINDERS, World, problem, world
from tests.unit.cli.test_cli_rest import Terminal

KEY = "alice@corp"
VALUE = '{"amount": 5, "secret": "x"}'
TICK: dict[str, Any] = {
    "name": "tick", "cron": "0 9 * * *", "target": "push", "key": KEY, "value": "plain",
    "headers": [["tenant", "gold"], ["my-secret", "s3cr3t"]],
}  # fmt: skip


class Callers:
    """One API, asked in every role."""

    def __init__(self, api: World, tokens: dict[Role, str]) -> None:
        self.api = api
        self._tokens = tokens

    def ask(self, role: Role, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**bearer(self._tokens[role]), **options.pop("headers", {})}
        return self.api.call(method, path, headers=headers, **options)

    def audited(self) -> list[tuple[Any, ...]]:
        return [
            (one["actor"], one["action"], one["status"], one["notes"])
            for one in self.api.audited
            if one["method"] == "GET"
        ]


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[Callers]:
    path, tokens = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        api.add(REMINDERS)
        api.sender.topics["push"] = 1
        yield Callers(api, tokens)


def put(callers: Callers, document: dict[str, Any] = TICK) -> httpx.Response:
    given = {"if-none-match": "*"}
    return callers.ask(Role.ADMIN, "PUT", f"/v1/schedules/{document['name']}", json=document, headers=given)


def test_who_reads_cannot_ask_for_key_prefixes_and_who_writes_is_recorded(callers: Callers) -> None:
    query = {"key_prefix": KEY, "source": "reminders"}
    problem(callers.ask(Role.READ, "GET", "/v1/messages", params=query), 403, "forbidden")
    assert callers.api.held.asked == []
    assert callers.ask(Role.WRITE, "GET", "/v1/messages", params=query).status_code == 200
    assert callers.api.held.asked[0].key_prefix == KEY
    assert callers.ask(Role.READ, "GET", "/v1/messages", params={"key_prefix": ""}).status_code == 200
    noted = {"filter": {"topic": "reminders", "key_prefix": HIDDEN}}
    assert callers.audited() == [
        ("READ", "list_messages", 403, noted),
        ("WRITE", "list_messages", 200, {**noted, "count": 0}),
    ]
    assert KEY not in json.dumps(callers.api.audited)


def test_who_reads_cannot_ask_for_headers_and_who_writes_is_recorded(callers: Callers) -> None:
    query = {"header": f"h={KEY}"}
    problem(callers.ask(Role.READ, "GET", "/v1/messages", params=query), 403, "forbidden")
    assert callers.ask(Role.WRITE, "GET", "/v1/messages", params=query).status_code == 200
    noted = {"filter": {"header": HIDDEN}}
    assert callers.audited() == [
        ("READ", "list_messages", 403, noted),
        ("WRITE", "list_messages", 200, {**noted, "count": 0}),
    ]
    assert KEY not in json.dumps(callers.api.audited)


def test_who_reads_sees_no_payload_of_a_message_and_who_writes_is_recorded(callers: Callers) -> None:
    callers.api.letters.add("reminders", [("tickover-id", b"a")], partition=3, value=VALUE.encode())
    callers.api.held.rows = [row(0, id="a")]
    path = "/v1/messages/a?payload=true"
    problem(callers.ask(Role.READ, "GET", path), 403, "forbidden")
    assert callers.ask(Role.WRITE, "GET", path).json()["payload"]["value"] == {"amount": 5, "secret": MASK}
    noted = {"id": "a", "payload": True}
    assert callers.audited() == [("READ", "get_message", 403, noted), ("WRITE", "get_message", 200, noted)]


def test_a_change_of_ids_shows_how_many_and_of_a_header_only_that_there_is_one(callers: Callers) -> None:
    body = {"action": "cancel", "filter": {"ids": ["a", "b", "c"], "header": f"my-secret={KEY}"}}
    planned = callers.ask(Role.WRITE, "POST", "/v1/changes", json=body).json()
    assert planned["filter"] == {"ids": 3, "header": HIDDEN}
    assert callers.api.audited[0]["notes"]["filter"] == planned["filter"]
    shown = callers.ask(Role.WRITE, "GET", f"/v1/changes/{planned['id']}?payload=true").json()["filter"]
    assert shown == {"ids": 3, "header": f"my-secret={MASK}"}


def test_a_change_says_that_keys_are_chosen_and_not_which(callers: Callers) -> None:
    body = {"action": "cancel", "filter": {"topic": "reminders", "key_prefix": KEY}}
    planned = callers.ask(Role.WRITE, "POST", "/v1/changes", json=body)
    assert planned.status_code == 202
    path = f"/v1/changes/{planned.json()['id']}"
    shown = {"topic": "reminders", "key_prefix": HIDDEN}
    assert planned.json()["filter"] == shown
    assert callers.ask(Role.READ, "GET", path).json()["filter"] == shown
    assert callers.ask(Role.READ, "GET", "/v1/changes").json()["items"][0]["filter"] == shown
    assert callers.ask(Role.WRITE, "POST", f"{path}/abort").json()["filter"] == shown
    assert callers.api.audited[0]["notes"]["filter"] == shown
    assert KEY not in json.dumps(callers.api.audited)


def test_what_a_change_chooses_is_executed_and_shown_on_demand_to_who_writes(callers: Callers) -> None:
    body = {"action": "cancel", "filter": {"key_prefix": KEY}}
    id = callers.ask(Role.WRITE, "POST", "/v1/changes", json=body).json()["id"]
    assert callers.api.changing.jobs.changes[id].plan.selection.query.key_prefix == KEY
    path = f"/v1/changes/{id}?payload=true"
    problem(callers.ask(Role.READ, "GET", path), 403, "forbidden")
    assert callers.ask(Role.WRITE, "GET", path).json()["filter"] == {"key_prefix": KEY}
    assert [told[:3] for told in callers.audited()] == [("READ", "get_change", 403), ("WRITE", "get_change", 200)]
    assert KEY not in json.dumps(callers.api.audited)


def test_a_redrive_says_that_letters_are_chosen_by_key_or_header_and_to_whom_by_which(callers: Callers) -> None:
    callers.api.letters.add("orders-dlq", [])
    chosen = {"key_prefix": KEY, "header": f"my-secret={KEY}"}
    body = {"topic": "orders-dlq", "filter": {"error": "declined", **chosen}}
    planned = callers.ask(Role.WRITE, "POST", "/v1/redrives", json=body)
    path = f"/v1/redrives/{planned.json()['id']}"
    kept = callers.api.redriving.plans.redrives[planned.json()["id"]].plan.selection
    assert (kept.key_prefix, kept.header) == (KEY, f"my-secret={KEY}")
    shown = {"error": "declined", "key_prefix": HIDDEN, "header": HIDDEN}
    assert planned.json()["filter"] == shown
    assert callers.ask(Role.READ, "GET", path).json()["filter"] == shown
    assert callers.ask(Role.READ, "GET", "/v1/redrives").json()["items"][0]["filter"] == shown
    problem(callers.ask(Role.READ, "GET", f"{path}?payload=true"), 403, "forbidden")
    spelt = callers.ask(Role.WRITE, "GET", f"{path}?payload=true").json()["filter"]
    assert spelt == {"error": "declined", "key_prefix": KEY, "header": f"my-secret={MASK}"}
    assert [told[:3] for told in callers.audited()] == [("READ", "get_redrive", 403), ("WRITE", "get_redrive", 200)]
    assert callers.api.audited[0]["notes"]["filter"] == {**shown, "error": HIDDEN}
    assert KEY not in json.dumps(callers.api.audited)


def test_who_reads_sees_of_a_schedule_how_large_its_payload_is(callers: Callers) -> None:
    created = put(callers)
    assert created.status_code == 201
    one = callers.ask(Role.READ, "GET", "/v1/schedules/tick").json()
    [item] = callers.ask(Role.READ, "GET", "/v1/schedules").json()["items"]
    for shown in (created.json(), one, item):
        assert not {"key", "value", "headers"} & shown.keys()
        assert (shown["key_bytes"], shown["value_bytes"], shown["header_count"]) == (10, 5, 2)
        assert not {KEY, "plain", "gold", "tenant", "s3cr3t"} & set(json.dumps(shown).split('"'))
    assert callers.audited() == []
    rewound = callers.ask(
        Role.ADMIN, "POST", "/v1/schedules/tick/rewind", json={"to": 100_000_000_000}, headers={"if-match": "*"}
    )
    assert "plain" not in rewound.text


def test_who_writes_sees_payloads_of_schedules_masked_and_recorded(callers: Callers) -> None:
    put(callers, {**TICK, "value": VALUE})
    for path in ("/v1/schedules", "/v1/schedules/tick"):
        problem(callers.ask(Role.READ, "GET", f"{path}?payload=true"), 403, "forbidden")
        answer = callers.ask(Role.WRITE, "GET", f"{path}?payload=true").json()
        shown = answer["items"][0] if "items" in answer else answer
        assert (shown["key"], shown["value"]) == (KEY, {"amount": 5, "secret": MASK})
        assert shown["headers"] == [["tenant", "gold"], ["my-secret", MASK]]
        assert shown["masked"] == ["my-secret", "value"]
    assert [told[:3] for told in callers.audited()] == [
        ("READ", "list_schedules", 403), ("WRITE", "list_schedules", 200),
        ("READ", "get_schedule", 403), ("WRITE", "get_schedule", 200),
    ]  # fmt: skip
    assert not {KEY, "gold", "s3cr3t"} & set(json.dumps(callers.api.audited).split('"'))


@pytest.mark.parametrize("query", ["", "?payload=true"])
def test_a_schedule_of_which_something_is_hidden_cannot_be_put_back(callers: Callers, query: str) -> None:
    """Else it would lose its payload, or have masks in its place."""
    put(callers)
    shown = callers.ask(Role.ADMIN, "GET", f"/v1/schedules/tick{query}").json()
    again = callers.ask(Role.ADMIN, "PUT", "/v1/schedules/tick", json=shown, headers={"if-match": "*"})
    problem(again, 422, "invalid-body")


def test_a_schedule_of_which_nothing_is_masked_is_shown_as_it_is_put(callers: Callers) -> None:
    whole = {**TICK, "headers": {"tenant": "gold", "raw": {"base64": "aGk="}}, "value": '{ "a": 1 }'}
    put(callers, whole)
    shown = callers.ask(Role.ADMIN, "GET", "/v1/schedules/tick?payload=true").json()
    assert {name: shown[name] for name in ("key", "value", "headers")} == {
        name: whole[name] for name in ("key", "value", "headers")
    }
    again = callers.ask(Role.ADMIN, "PUT", "/v1/schedules/tick", json=shown, headers={"if-match": "*"})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("data", "is_whole"),
    [
        (None, True), (b"text", True), (b'{"a": 1}', True), (b'{"secret": 1}', False), (b"\xff", False),
        (b"x" * (SHOWN_BYTES_MAX + 1), False), (b'{"a": {"secret": 1}, "a": 2}', False), (b"[" * 5_000, True),
    ],
)  # fmt: skip
def test_what_is_shown_as_it_is_has_nothing_that_a_rule_would_mask(data: bytes | None, is_whole: bool) -> None:
    assert Masking(("*secret*",)).shows("value", data) is is_whole
    assert not Masking(("value",)).shows("value", b"text")


def test_schedules_are_compared_with_their_payload_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    plain, masked = {**TICK, "name": "plain", "headers": []}, {**TICK, "name": "masked"}
    with world() as api:
        api.add(REMINDERS)
        api.sender.topics["push"] = 1
        tickover, file = Terminal(api), tmp_path / "schedules.yaml"
        file.write_text(yaml.safe_dump_all([plain, masked]))
        results = [[row["result"] for row in tickover.data("schedules", "apply", str(file))] for _ in range(2)]
        assert results == [["created"] * 2, ["unchanged", "replaced"]]  # behind a mask nobody sees what changed
        assert "value" not in tickover.data("schedules", "get", "plain")
        assert tickover.data("schedules", "get", "plain", "--payload")["value"] == "plain"
