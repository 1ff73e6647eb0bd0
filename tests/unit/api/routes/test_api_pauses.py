"""Pauses and targets over REST."""

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.lookup.query import row_of
from sidecar.model.condition import Pausable, Pause, PauseKind, Switch, Switches
from sidecar.model.record import TopicPartition
from sidecar.model.stats import TargetFlow
from sidecar.operations.pauses import store
from tests.unit.api_world import NOW_MS, World, world
from tests.unit.change_world import held
from tests.unit.schedule_world import schedule

REMINDERS = {
    "name": "reminders",
    "match": {"topics": ["reminders"]},
    "delay": {"max": "30d"},
    "target": {"topic": "push", "allow": ["push"]},
    "dead_letter": {"topic": "dead"},
}
WHY = {"reason": "a release"}
LANE = TopicPartition("reminders", 0)
MAIL = Pausable(PauseKind.TARGET, "mail")


@pytest.fixture
def api() -> Iterator[World]:
    with world() as api:
        api.add(REMINDERS)
        api.sender.topics |= {"push": 1, "mail": 1}
        api.schedules.store.put(schedule(name="tick"), "reminders", 0, "me")
        yield api


def paused(api: World) -> list[str]:
    return [f"{item['kind']}/{item['name']}" for item in api.call("GET", "/v1/pauses").json()["items"]]


@pytest.mark.parametrize("what", ["policy/reminders", "source/reminders", "target/push", "schedule/tick"])
def test_each_kind_is_paused_and_resumed(api: World, what: str) -> None:
    answer = api.call("PUT", f"/v1/pauses/{what}", json={**WHY, "until": NOW_MS + 60_000})
    assert answer.status_code == 200
    document = answer.json()
    assert (document["reason"], document["by"], document["since"]) == ("a release", "anonymous", NOW_MS)
    assert document["until_utc"] == "2027-01-15T08:01:00.000Z"
    assert paused(api) == [what]
    assert api.call("DELETE", f"/v1/pauses/{what}").status_code == 204
    assert paused(api) == []
    assert api.call("DELETE", f"/v1/pauses/{what}").json()["type"] == "/problems/pause-not-found"


def test_a_pause_that_is_said_again_began_when_it_did(api: World) -> None:
    api.call("PUT", "/v1/pauses/target/push", json=WHY)
    api.now_ms += 5_000
    assert api.call("PUT", "/v1/pauses/target/push", json={"reason": "longer"}).json()["since"] == NOW_MS
    assert [item["reason"] for item in api.call("GET", "/v1/pauses").json()["items"]] == ["longer"]


def test_a_pause_is_gone_when_its_time_is_over(api: World) -> None:
    api.call("PUT", "/v1/pauses/target/push", json={**WHY, "until": NOW_MS + 1_000})
    api.pauses.now_ms += 1_000
    assert paused(api) == []
    assert api.call("DELETE", "/v1/pauses/target/push").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        ("policy/none", WHY, 404, "policy-not-found"),
        ("schedule/none", WHY, 404, "schedule-not-found"),
        ("source/push", WHY, 422, "not-a-source"),
        ("target/none", WHY, 422, "unknown-target"),
        ("topic/push", WHY, 422, "invalid-parameter"),
        ("target/push", {}, 422, "invalid-body"),
        ("target/push", {"reason": ""}, 422, "invalid-body"),
        ("target/push", {**WHY, "until": NOW_MS}, 422, "in-the-past"),
        ("target/push", {**WHY, "untill": NOW_MS}, 422, "invalid-body"),
    ],
)
def test_what_can_not_be_paused_is_refused(
    api: World, path: str, body: dict[str, Any], status: int, problem: str
) -> None:
    api.sources.not_consumed.add("push")
    answer = api.call("PUT", f"/v1/pauses/{path}", json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{problem}")
    assert api.pauses.records == []


def test_there_are_not_more_than_so_many(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAUSES_MAX", 1)
    assert api.call("PUT", "/v1/pauses/target/push", json=WHY).status_code == 200
    assert api.call("PUT", "/v1/pauses/target/mail", json=WHY).json()["type"] == "/problems/too-many-pauses"
    assert api.call("PUT", "/v1/pauses/target/push", json=WHY).status_code == 200


def test_without_kafka_nothing_is_paused(api: World) -> None:
    api.pauses.is_away = True
    for method, options in (("PUT", {"json": WHY}), ("DELETE", {})):
        answer = api.call(method, "/v1/pauses/target/push", **options)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/pauses-unavailable")


def test_who_has_done_it_is_recorded(api: World) -> None:
    api.call("PUT", "/v1/pauses/target/push", json=WHY)
    api.call("DELETE", "/v1/pauses/target/push")
    told = [(one["action"], one["subject"], one["notes"]) for one in api.audited[-2:]]
    subject = {"kind": "target", "name": "push"}
    assert told == [
        ("put_pause", subject, {"reason": "a release", "until": None}),
        ("delete_pause", subject, {}),
    ]


def test_how_many_wait_here_is_shown(api: World) -> None:
    api.pauses.store.put(MAIL, Pause("a release", "me", NOW_MS))
    api.pauses.store.put(Pausable(PauseKind.SOURCE, "reminders"), Pause("a release", "me", NOW_MS))
    api.change_stats(paused={MAIL: 7})
    assert {item["kind"]: item["waiting"] for item in api.call("GET", "/v1/pauses").json()["items"]} == {
        "source": None,
        "target": 7,
    }


BROKEN = {
    "name": "retries",
    "match": {"topics": ["orders-retry"]},
    "retry": {"attempts": 3, "backoff": {"kind": "fixed", "delay": "1s"}, "breaker": {}},
    "target": {"topic": "orders"},
}


@pytest.mark.parametrize("act", ["open", "close"])
def test_a_breaker_is_switched_for_all_replicas_and_that_is_recorded(api: World, act: str) -> None:
    api.add(BROKEN)
    api.sources.topics = {"orders-retry"}
    told = list[Switches]()
    api.pauses.another().on_switch(told.append)
    answer = api.call("POST", f"/v1/targets/orders/{act}-breaker")
    assert (answer.status_code, answer.json()["name"], answer.json()["by"]) == (200, "orders", "anonymous")
    assert answer.json()["at"] == NOW_MS
    assert told[-1] == {"orders": Switch(act == "open", NOW_MS)}
    assert (api.audited[-1]["action"], api.audited[-1]["subject"]) == (f"{act}_breaker", {"name": "orders"})


def test_a_breaker_is_listed_before_anything_has_gone_to_its_target(api: World) -> None:
    """Else the console would not offer to open it when somebody knows beforehand that retries will fail."""
    api.add(BROKEN)
    api.sources.topics = {"orders-retry"}
    [told] = [one for one in api.call("GET", "/v1/targets").json()["items"] if one["name"] == "orders"]
    assert told["breaker"] == "closed"
    api.change_stats(targets={"orders": TargetFlow(1, 0.0, "half_open")})
    [told] = [one for one in api.call("GET", "/v1/targets").json()["items"] if one["name"] == "orders"]
    assert told["breaker"] == "half_open"


@pytest.mark.parametrize("act", ["open", "close"])
def test_one_that_a_former_policy_gave_and_this_replica_still_has_is_switched_too(api: World, act: str) -> None:
    api.change_stats(targets={"push": TargetFlow(1, 0.0, "open")})
    assert api.call("POST", f"/v1/targets/push/{act}-breaker").status_code == 200


@pytest.mark.parametrize("act", ["open", "close"])
def test_where_there_is_no_breaker_none_is_switched_and_what_helps_is_said(api: World, act: str) -> None:
    answer = api.call("POST", f"/v1/targets/push/{act}-breaker")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/breaker-not-found")
    assert answer.json()["detail"].endswith("To hold up what goes to it, pause it.")
    assert api.pauses.records == []
    api.change_stats(targets={"push": TargetFlow(1, 0.0, "open")})
    api.pauses.is_away = True
    answer = api.call("POST", f"/v1/targets/push/{act}-breaker")
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/pauses-unavailable")


def test_targets_say_what_keeps_messages_from_them(api: World) -> None:
    api.pauses.store.put(MAIL, Pause("a release", "me", NOW_MS))
    api.change_stats(
        replica="one",
        targets={"mail": TargetFlow(3, 2.5, "open")},
        suspended=("sick",),
        suspended_since_ms={"sick": NOW_MS - 5_000},
        paused={MAIL: 4},
    )
    answer = api.call("GET", "/v1/targets").json()
    assert answer["replica"] == "one"
    told = {item["name"]: item for item in answer["items"]}
    assert list(told) == ["mail", "push", "sick"]
    assert (told["mail"]["waiting"], told["mail"]["rate"], told["mail"]["breaker"]) == (7, 2.5, "open")
    assert told["mail"]["paused"]["reason"] == "a release"
    assert (told["push"]["waiting"], told["push"]["suspended"], told["push"]["paused"]) == (0, False, None)
    assert (told["sick"]["suspended"], told["sick"]["suspended_since"]) == (True, NOW_MS - 5_000)
    assert api.call("GET", "/v1/targets?limit=1&nme=x").json()["type"] == "/problems/unknown-parameter"


@pytest.mark.parametrize("what", [MAIL, Pausable(PauseKind.POLICY, "reminders")])
def test_a_held_message_says_which_pause_it_waits_for(api: World, what: Pausable) -> None:
    api.held.rows = [row_of(LANE, held(1, NOW_MS - 60_000, id="a", target="mail", policy="reminders@3"), "wheel")]
    assert api.call("GET", "/v1/messages/a").json()["paused"] is None
    api.pauses.store.put(what, Pause("a release", "me", NOW_MS - 90_000))
    document = api.call("GET", "/v1/messages/a").json()
    assert (document["paused"]["kind"], document["paused"]["by"]) == (what.kind, "me")
    event = next(event for event in document["timeline"] if event["event"] == "paused")
    assert (event["name"], event["time"]) == (what.name, NOW_MS - 90_000)
    (row,) = api.call("GET", "/v1/messages").json()["items"]
    assert row["paused"]["name"] == what.name


def test_a_paused_schedule_says_so(api: World) -> None:
    api.call("PUT", "/v1/pauses/schedule/tick", json=WHY)
    (item,) = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["state"], item["next"]) == ("paused", None)
    assert api.call("GET", "/v1/schedules/tick/next").json()["items"] == []
