import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.routes.explain import WAITING_MAX
from policies.decision import Facts
from policies.explain import Explanation, explain
from policies.model import GLOB_TEXT_MAX, ManagedBy, Policy, glob_text_length
from policies.table import PolicyTable
from sidecar.model.stats import Left
from tests.unit.api_world import BASE_URL, NOW_MS, REMINDERS, RETRY, World, problem, world


@pytest.fixture
def api() -> Iterator[World]:
    with world() as made:
        yield made


def put(api: World, document: dict[str, Any], name: str = "", **headers: str) -> Any:
    path = f"/v1/policies/{name or document['name']}"
    return api.call("PUT", path, json=document, headers={k.replace("_", "-"): v for k, v in headers.items()})


def meanwhile(api: World, document: dict[str, Any], managed_by: ManagedBy) -> None:
    """Somebody else writes between this API's look at the policy and its write."""

    def write() -> None:
        api.policies.lost_race = lambda: None
        api.add(document, managed_by)

    api.policies.lost_race = write


def test_create_read_replace_delete(api: World) -> None:
    created = put(api, REMINDERS, if_none_match="*")
    assert (created.status_code, created.headers["etag"]) == (201, '"1"')
    assert created.headers["location"] == "/v1/policies/reminders"

    shown = api.call("GET", "/v1/policies/reminders")
    assert shown.status_code == 200
    assert shown.headers["etag"] == '"1"'
    assert shown.headers["tickover-managed-by"] == "api"
    assert shown.json()["delay"] == {"default": "15m", "max": "400d"}

    changed = {**shown.json(), "delay": {"default": "1m"}}
    replaced = put(api, changed, if_match=shown.headers["etag"])
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
    assert replaced.json()["delay"]["default"] == "1m"

    problem(api.call("DELETE", "/v1/policies/reminders"), 428, "precondition-required")
    problem(api.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"1"'}), 412, "precondition-failed")
    deleted = api.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"2"'})
    assert (deleted.status_code, deleted.content) == (204, b"")
    problem(api.call("GET", "/v1/policies/reminders"), 404, "policy-not-found")
    problem(api.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"2"'}), 404, "policy-not-found")
    assert put(api, REMINDERS, if_none_match="*").headers["etag"] == '"4"'


def test_what_would_be_left_without_a_policy_is_said_and_wants_force(api: World) -> None:
    api.add(REMINDERS)
    api.sources.holding = {"reminders": Left(3, 2)}
    renamed = {**REMINDERS, "match": {"topics": ["reminders-v2"]}}
    for method, body in (("DELETE", None), ("PUT", renamed)):
        refused = api.call(method, "/v1/policies/reminders", json=body, headers={"if-match": '"1"'})
        told = problem(refused, 409, "holds-messages")
        assert told["topics"]["reminders"] == {"held": 3, "unsettled": 2}
        assert "reminders (5 records)" in told["detail"]
    kept = {**REMINDERS, "delay": {"max": "1d"}}
    assert put(api, kept, if_match='"1"').status_code == 200, "the topic stays a source"
    forced = api.call("PUT", "/v1/policies/reminders?force=true", json=renamed, headers={"if-match": '"2"'})
    assert forced.status_code == 200
    back = api.call("POST", "/v1/policies/reminders/rollback", json={"version": 1})
    assert back.status_code == 200, "the topic is a source again"
    again = api.call("POST", "/v1/policies/reminders/rollback", json={"version": 3})
    problem(again, 409, "holds-messages")
    gone = api.call("DELETE", "/v1/policies/reminders?force=true", headers={"if-match": '"4"'})
    assert gone.status_code == 204


def test_what_would_be_left_can_not_be_asked_for_now(api: World) -> None:
    api.add(REMINDERS)
    api.sources.down = "no answer"
    refused = api.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"1"'})
    assert "force=true" in problem(refused, 503, "policies-unavailable")["detail"]
    forced = api.call("DELETE", "/v1/policies/reminders?force=true", headers={"if-match": '"1"'})
    assert forced.status_code == 204


@pytest.mark.parametrize(
    ("headers", "status", "type"),
    [
        ({}, 428, "precondition-required"),
        ({"if_none_match": "*"}, 412, "precondition-failed"),
        ({"if_match": '"2"'}, 412, "precondition-failed"),
        ({"if_match": 'W/"2"'}, 412, "precondition-failed"),
        ({"if_match": '"gzip", "-gzip", "1-"'}, 412, "precondition-failed"),
        ({"if_match": '"11"'}, 412, "precondition-failed"),
        ({"if_match": "1"}, 412, "precondition-failed"),
        ({"if_match": "stale"}, 412, "precondition-failed"),
        ({"if_match": ""}, 412, "precondition-failed"),
        ({"if_none_match": '"1"'}, 422, "invalid-precondition"),
        ({"if_match": '"1"', "if_none_match": "*"}, 422, "invalid-precondition"),
    ],
)
def test_preconditions(api: World, headers: dict[str, str], status: int, type: str) -> None:
    api.add(REMINDERS)
    problem(put(api, REMINDERS, **headers), status, type)
    assert len(api.policies.versions("reminders")) == 1


@pytest.mark.parametrize(
    "if_match", ["*", '"7", "1"', ' "1" ', 'W/"1"', 'W/"7",W/"1"', '"1-gzip"', 'W/"1-br"', '"1--gzip"']
)
def test_if_match_forms(api: World, if_match: str) -> None:
    api.add(REMINDERS)
    assert put(api, REMINDERS, if_match=if_match).status_code == 200


@pytest.mark.parametrize("if_match", ["*", '"1"'])
def test_nothing_to_replace(api: World, if_match: str) -> None:
    problem(put(api, REMINDERS, if_match=if_match), 412, "precondition-failed")


def test_a_lost_race(api: World) -> None:
    api.add(REMINDERS)
    meanwhile(api, {**REMINDERS, "delay": {"default": "2m"}}, "api")
    response = put(api, REMINDERS, if_match='"1"')
    problem(response, 412, "precondition-failed")
    assert response.headers["etag"] == '"2"'


@pytest.mark.parametrize(
    ("change", "type"),
    [
        ({"name": "other"}, "name-differs"),
        ({"name": "No"}, "invalid-body"),
        ({"delay": None}, "invalid-body"),
        ({"delay": {"default": "soon"}}, "invalid-body"),
        ({"delay": {"default": "2d", "max": "1d"}}, "invalid-body"),
        ({"more": 1}, "invalid-body"),
        ({"match": {"topics": []}}, "invalid-body"),
        ({"retry": RETRY["retry"]}, "invalid-body"),
    ],
)
def test_invalid_policy(api: World, change: dict[str, Any], type: str) -> None:
    response = put(api, {**REMINDERS, **change}, name="reminders", if_none_match="*")
    document = problem(response, 422, type)
    if type == "invalid-body":
        assert document["errors"][0]["at"].startswith("/")


def test_all_faults_of_a_policy_are_told_at_once_unknown_keys_first(api: World) -> None:
    wrong = {"match": {"topcs": ["a"]}, "delay": {"default": "soon", "max": 5.5}, "more": 1}
    response = put(api, {**REMINDERS, **wrong}, name="reminders", if_none_match="*")
    assert problem(response, 422, "invalid-body")["errors"] == [
        {"at": "/match/topcs", "message": "unknown key; did you mean topics?"},
        {"at": "/more", "message": f"unknown key; known here: {', '.join(Policy.model_fields)}"},
        {"at": "/delay/default", "message": "not a duration (write 250ms, 90s, 15m, 2h, 3d, 1h30m or PT90S)"},
        {"at": "/delay/max", "message": "a fraction needs its unit: write 1.5s, or 2ms"},
    ]


def test_the_name_may_be_left_out_of_the_body(api: World) -> None:
    document = {key: value for key, value in REMINDERS.items() if key != "name"}
    assert put(api, document, name="reminders", if_none_match="*").json()["name"] == "reminders"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", REMINDERS),
        ("DELETE", "", None),
        ("POST", "/rollback", {"version": 1}),
    ],
)
def test_file_managed_is_read_only(api: World, method: str, path: str, body: Any) -> None:
    api.add(REMINDERS, "file")
    response = api.call(method, f"/v1/policies/reminders{path}", json=body, headers={"if-match": '"1"'})
    problem(response, 409, "file-managed")
    assert len(api.policies.versions("reminders")) == 1


def test_file_managed_is_said_first(api: World) -> None:
    api.add(REMINDERS, "file")
    problem(put(api, REMINDERS), 409, "file-managed")
    problem(put(api, REMINDERS, if_none_match="*"), 409, "file-managed")


def test_file_managed_found_out_by_the_store(api: World) -> None:
    meanwhile(api, REMINDERS, "file")
    problem(put(api, REMINDERS, if_none_match="*"), 409, "file-managed")


def test_not_ready_for_writes(api: World) -> None:
    api.add(REMINDERS)
    api.policies.reason = "schema 2"
    problem(put(api, REMINDERS, if_match='"1"'), 503, "policies-unavailable")
    problem(api.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"1"'}), 503, "policies-unavailable")
    assert api.call("GET", "/v1/policies/reminders").status_code == 200
    assert api.call("GET", "/readyz").json() == {"status": "ready", "warnings": ["policies: schema 2"]}
    assert api.message(target="push").status_code == 202


def test_pages(api: World) -> None:
    names = [f"p{number:03}" for number in range(25)]
    for name in reversed(names):
        api.add({**REMINDERS, "name": name})
    seen: list[str] = []
    cursor, pages, document = None, 0, {}
    while cursor or not pages:
        query = {"limit": 10} | ({"cursor": cursor} if cursor else {})
        document = api.call("GET", "/v1/policies", params=query).json()
        seen += [item["name"] for item in document["items"]]
        cursor, pages = document["next"], pages + 1
    assert seen == names
    assert pages == 3
    assert document["items"][0]["version"] == 1


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x"])
def test_bad_limit(api: World, query: str) -> None:
    problem(api.call("GET", f"/v1/policies?{query}"), 422, "invalid-parameter")


@pytest.mark.parametrize("cursor", ["*", "%00", "_w", "a" * 5])
def test_bad_cursor(api: World, cursor: str) -> None:
    problem(api.call("GET", f"/v1/policies?cursor={cursor}"), 422, "invalid-cursor")


def test_versions_and_rollback(api: World) -> None:
    api.add(REMINDERS)
    api.add({**REMINDERS, "delay": {"default": "1m"}})

    response = api.call("POST", "/v1/policies/reminders/rollback", json={"version": 1})
    assert (response.status_code, response.headers["etag"]) == (200, '"3"')
    assert response.json()["delay"]["default"] == "15m"

    document = api.call("GET", "/v1/policies/reminders/versions").json()
    assert [item["version"] for item in document["items"]] == [1, 2, 3]
    assert [item["author"] for item in document["items"]] == ["test", "test", "anonymous"]
    assert {item["time"] for item in document["items"]} == {NOW_MS}
    assert document["items"][0]["policy"] == document["items"][2]["policy"]
    assert document["next"] is None


def test_rollback_of_a_deleted_policy(api: World) -> None:
    api.add(REMINDERS)
    api.policies.delete("reminders", 1, "test")
    problem(api.call("POST", "/v1/policies/reminders/rollback", json={"version": 2}), 422, "version-is-deletion")
    assert api.call("POST", "/v1/policies/reminders/rollback", json={"version": 1}).status_code == 200
    items = api.call("GET", "/v1/policies/reminders/versions").json()["items"]
    assert [item["policy"] is None for item in items] == [False, True, False]


@pytest.mark.parametrize(
    ("body", "status", "type"),
    [
        ({"version": 9}, 404, "version-not-found"),
        ({"version": 0}, 422, "invalid-body"),
        ({"version": "1"}, 422, "invalid-body"),
        ({}, 422, "invalid-body"),
    ],
)
def test_bad_rollback(api: World, body: Any, status: int, type: str) -> None:
    api.add(REMINDERS)
    problem(api.call("POST", "/v1/policies/reminders/rollback", json=body), status, type)


def test_no_such_policy(api: World) -> None:
    for path in ("", "/versions"):
        problem(api.call("GET", f"/v1/policies/none{path}"), 404, "policy-not-found")
    problem(api.call("POST", "/v1/policies/none/rollback", json={"version": 1}), 404, "policy-not-found")


def test_schema(api: World) -> None:
    schema = api.call("GET", "/v1/schemas/policy").json()
    assert schema["$schema"].endswith("2020-12/schema")
    assert "match" in schema["properties"]


def explained(api: World, **body: Any) -> Any:
    return api.call("POST", "/v1/policies/explain", json=body)


def test_explain_a_policy_that_does_not_exist_yet(api: World) -> None:
    document = explained(api, policy=RETRY, record={"topic": "orders-retry", "timestamp": 1_000}).json()
    assert document["policy"] == "orders-retry@1"
    assert document["decision"]["kind"] == "hold"
    assert document["decision"]["target"] == "orders"
    assert document["decision"]["due"] == 2_000
    assert [step["attempt"] for step in document["schedule"]] == [2, 3, 4, 5, 6]
    assert [step["delay_max"] for step in document["schedule"]] == [1_000, 2_000, 4_000, 8_000, 16_000]
    assert document["end"] == "attempts_exhausted"
    assert api.policies.table.policies == {}
    told = explained(api, policy=RETRY, record={"topic": "orders-retry", "timestamp": "1970-01-01T00:00:01Z"}).json()
    assert told["decision"]["due"] == 2_000


def test_explain_with_what_is_there(api: World) -> None:
    api.add(REMINDERS)
    record = {"topic": "reminders", "headers": [["tickover-target", "push"]]}
    for policy in ({}, {"policy": "reminders"}):
        document = explained(api, record=record, **policy).json()
        assert document["decision"]["due"] == NOW_MS + 900_000
        assert document["candidates"] == ["reminders@1"]


def test_explain_a_record_given_whole(api: World) -> None:
    api.add(REMINDERS)
    record = {"topic": "reminders", "headers": {"tickover-target": "push"}}
    whole = {**record, "partition": 1, "offset": 7, "key": "k", "value": {"base64": "AAE="}}
    assert explained(api, record=whole).json() == explained(api, record=record).json()


def test_a_record_may_be_named_by_its_place_on_which_its_jitter_depends(api: World) -> None:
    policy = {**RETRY, "retry": {"attempts": 5, "backoff": {"kind": "fixed", "delay": "1h", "jitter": "full"}}}

    def due(**record: Any) -> int:
        return int(explained(api, policy=policy, record={"timestamp": 1_000, **record}).json()["decision"]["due"])

    assert due(place="orders-retry/3/7") == due(topic="orders-retry", partition=3, offset=7)
    assert due(place="orders-retry/3/8") != due(place="orders-retry/3/7")


def test_explain_quarantine_and_dead(api: World) -> None:
    record = {"topic": "orders-retry", "headers": [["tickover-attempt", "6"]]}
    assert explained(api, policy=RETRY, record=record).json()["decision"]["reason"] == "attempts_exhausted"
    record["headers"] = [["tickover-attempt", "1"], ["tickover-attempt", "1"]]
    assert explained(api, policy=RETRY, record=record).json()["decision"]["reason"] == "bad_header"
    assert explained(api, record=record).json()["decision"]["reason"] == "no_policy"


@pytest.mark.parametrize(
    ("body", "status", "type"),
    [
        ({"policy": "none", "record": {"topic": "t"}}, 404, "policy-not-found"),
        ({"policy": {}, "record": {"topic": "t"}}, 422, "invalid-body"),
        ({"policy": RETRY}, 422, "invalid-body"),
        ({"policy": RETRY, "record": {"topic": "t", "offset": -1}}, 422, "invalid-body"),
        ({"policy": RETRY, "record": {}}, 422, "invalid-body"),
        ({"policy": RETRY, "record": {"topic": "t", "place": "t/0/1"}}, 422, "invalid-body"),
        ({"policy": RETRY, "record": {"place": "t/0/1", "partition": 0}}, 422, "invalid-body"),
        ({"policy": RETRY, "record": {"place": "t/0"}}, 422, "invalid-body"),
    ],
)
def test_bad_explain(api: World, body: Any, status: int, type: str) -> None:
    problem(explained(api, **body), status, type)


def with_globs(length: int) -> dict[str, Any]:
    """A policy whose globs have so many characters together, in every place that takes globs."""
    topics = [f"{number:03}{'t' * 97}" for number in range(200)]
    classes = [f"{number:03}*{'c' * 1_000}" for number in range(20)]
    fixed: dict[str, Any] = {
        "match": {"topics": topics, "headers": {"h": "[0-9]" * 100}},
        "target": {"topic": "orders", "allow": ["a?*" * 80]},
        "retry": {**RETRY["retry"], "retry_on": classes, "give_up_on": classes[:19]},
    }
    given = sum(map(len, (*topics, "[0-9]" * 100, "a?*" * 80, *classes, *classes[:19])))
    fixed["retry"]["give_up_on"] += ["x" * 1_000] * ((length - given) // 1_000) + ["x" * ((length - given) % 1_000)]
    return {**RETRY, **fixed}


def test_the_globs_of_a_policy_have_a_limit_together(api: World) -> None:
    as_it_may_be, too_long = with_globs(GLOB_TEXT_MAX), with_globs(GLOB_TEXT_MAX + 1)
    record = {"topic": "orders-retry"}
    assert explained(api, policy=as_it_may_be, record=record).status_code == 200
    document = problem(explained(api, policy=too_long, record=record), 422, "globs-too-long")
    assert document["detail"].startswith("The policy's globs have 65537 characters together, and may have 65536")
    put = api.call("PUT", "/v1/policies/orders-retry", json=too_long, headers={"if-none-match": "*"})
    problem(put, 422, "globs-too-long")
    put = api.call("PUT", "/v1/policies/orders-retry", json=as_it_may_be, headers={"if-none-match": "*"})
    assert put.status_code == 201, put.text


def test_a_policy_with_longer_globs_that_is_there_already_goes_on(api: World) -> None:
    """A version without the limit has written the record: the policy is read, asked and taken up again as before."""
    api.add(with_globs(2 * GLOB_TEXT_MAX))
    api.add(RETRY)
    assert api.call("POST", "/v1/policies/orders-retry/rollback", json={"version": 1}).status_code == 200
    record = {"topic": "000" + "t" * 97, "headers": {"h": "1" * 100}}
    table = api.policies.table
    assert glob_text_length(table.policies["orders-retry"].policy) == 2 * GLOB_TEXT_MAX
    assert explained(api, policy="orders-retry", record=record).json()["policy"] == "orders-retry@3"


def test_explanations_wait_for_each_other_and_no_more_than_some_of_them(api: World) -> None:
    began, end = threading.Event(), threading.Event()
    api.add(RETRY)

    async def ask_all() -> list[int]:
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            body = {"record": {"topic": "orders-retry"}}
            asked = [client.post("/v1/policies/explain", json=body) for _ in range(WAITING_MAX + 4)]
            tasks = [asyncio.ensure_future(one) for one in asked]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status_code for task in done} == {503}
            end.set()
            return [response.status_code for response in await asyncio.gather(*tasks)]

    def slow(facts: Facts, table: PolicyTable) -> Explanation:
        began.set()
        assert end.wait(10)
        return explain(facts, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.routes.explain.explain", slow)
        statuses = api.runner.run(ask_all())
    assert began.is_set()
    assert sorted(statuses) == [200] * WAITING_MAX + [503] * 4
