"""The audit topic over REST: newest first, filtered, page by page, and never without end."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.access.auth import Role
from api.ports import Outgoing
from api.routes.about import audit
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api.access.test_api_auth import bearer
from tests.unit.api_world import NOW_MS, World, problem, world


def add(api: World, second: int, **fields: Any) -> None:
    """A record of the audit topic, so many seconds after the first."""
    time_ms = NOW_MS + 1_000 * second
    record = {"time": time_ms, "actor": "ann", "action": "put_policy", "outcome": "done", **fields}
    api.audit.sent.append(Outgoing("tickover.audit", 0, None, json.dumps(record).encode(), (), time_ms))


def listed(api: World, **query: Any) -> list[int]:
    """Offsets of the records that are listed, over all pages; what the asking itself leaves behind is taken away."""
    had, offsets, cursor = list(api.audit.sent), [], None
    while True:
        answer = api.call("GET", "/v1/audit", params={**query, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        api.audit.sent[:] = had
        offsets += [int(item["position"].rpartition("/")[2]) for item in answer.json()["items"]]
        cursor = answer.json()["next"]
        assert bool(cursor) == bool(answer.json()["remaining"])
        if not cursor:
            return offsets


def test_the_newest_comes_first_and_is_told_whole() -> None:
    with world() as api:
        problem(api.call("DELETE", "/v1/policies/gone", headers={"if-match": "*"}), 404, "policy-not-found")
        add(api, 5, notes={"plan": "3f9a0c"})
        last, first = api.call("GET", "/v1/audit").json()["items"]
        assert (first["action"], first["outcome"], first["problem"]) == (
            "delete_policy", "refused", "policy-not-found"
        )  # fmt: skip
        assert (first["subject"], first["actor"], first["status"]) == ({"name": "gone"}, "anonymous", 404)
        assert (last["notes"], last["position"]) == ({"plan": "3f9a0c"}, "tickover.audit/0/1")
        assert (last["time"], last["time_utc"]) == (NOW_MS + 5_000, "2027-01-15T08:00:05.000Z")
        [asking, *_] = api.call("GET", "/v1/audit").json()["items"]
        assert asking["action"] == "list_audit", "to read it is recorded, too"


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ({}, [3, 2, 1, 0]),
        ({"caller": "bob"}, [1]),
        ({"action": "*_redrive"}, [3, 2]),
        ({"outcome": "refused"}, [2]),
        ({"outcome": "done", "caller": "ann"}, [3, 0]),
        ({"since": NOW_MS + 10_000}, [3, 2, 1]),
        ({"until": NOW_MS + 20_000}, [1, 0]),
        ({"since": "2027-01-15T08:00:10Z", "until": "2027-01-15T08:00:30Z"}, [2, 1]),
        ({"caller": "nobody"}, []),
    ],
)
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_filters(query: dict[str, Any], offsets: list[int], limit: int) -> None:
    with world() as api:
        add(api, 0)
        add(api, 10, actor="bob")
        add(api, 20, action="run_redrive", outcome="refused")
        add(api, 30, action="plan_redrive")
        assert listed(api, limit=limit, **query) == offsets


def test_records_of_replicas_whose_clocks_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PIECE", 2)
    with world() as api:
        for second in (0, 100, 59, 118, 300, 241):
            add(api, second)
        assert listed(api, since=NOW_MS + 59_000, until=NOW_MS + 119_000) == [3, 2, 1]
        assert listed(api, until=NOW_MS + 242_000) == [5, 3, 2, 1, 0]


def test_what_nobody_of_tickover_wrote_is_passed_over() -> None:
    with world() as api:
        add(api, 0)
        for value in (b"{", b"[]", b'"x"', b"{}", b'{"time": "now"}', None):
            api.audit.sent.append(Outgoing("tickover.audit", 0, None, value, (), NOW_MS))
        assert listed(api) == [0]


def test_a_page_ends_when_it_has_looked_at_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PIECE", 3)
    monkeypatch.setattr(audit, "SCANNED_MAX", 4)
    with world() as api:
        for second in range(10):
            add(api, second, actor="bob" if second == 1 else "ann")
        page = api.call("GET", "/v1/audit", params={"caller": "bob"}).json()
        assert (page["items"], page["scanned"], page["remaining"]) == ([], 4, 6)
        del api.audit.sent[10:]
        assert listed(api, caller="bob") == [1]
        assert listed(api) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
        monkeypatch.setattr(audit, "SECONDS_MAX", -1.0)
        assert api.call("GET", "/v1/audit").json()["scanned"] == 1


def test_only_what_is_wanted_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PIECE", 10)
    with world() as api:
        for second in range(1_000):
            add(api, 60 * second)
        api.call("GET", "/v1/audit", params={"limit": 10})
        assert api.letters.reads <= 4, "a piece, in batches of three"
        del api.audit.sent[1_000:]
        api.letters.reads = 0
        told = api.call("GET", "/v1/audit", params={"since": NOW_MS + 990 * 60_000}).json()
        assert (len(told["items"]), told["next"]) == (10, None)
        assert api.letters.reads <= 8, "what is older is not read"


@pytest.mark.parametrize(
    "query", [{"outcome": "good"}, {"since": "yesterday"}, {"limit": 501}, {"actor": "ann"}, {"caller": ""}]
)
def test_parameters_that_mean_nothing_are_refused(query: dict[str, Any]) -> None:
    with world() as api:
        assert api.call("GET", "/v1/audit", params=query).status_code == 422


@pytest.mark.parametrize("cursor", ["x", "LTE", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTA"])
def test_a_cursor_that_is_none(cursor: str) -> None:
    with world() as api:
        problem(api.call("GET", "/v1/audit", params={"cursor": cursor}), 422, "invalid-cursor")


def test_it_is_for_admins_and_their_refusals_are_in_it(tmp_path: Path) -> None:
    with world(tokens=tokens(str(tmp_path))) as api:
        problem(api.call("GET", "/v1/audit", headers=bearer(token_of(Role.WRITE))), 403, "forbidden")
        [refused] = api.call("GET", "/v1/audit", headers=bearer(token_of(Role.ADMIN))).json()["items"]
    assert (refused["actor"], refused["outcome"], refused["problem"]) == ("write", "refused", "forbidden")
