"""`GET /v1/capacity`: what is due against the rates of policies."""

from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.model.record import TopicPartition
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world

THIS = NOW_MS // 60_000


@pytest.fixture(name="api")
def api_fixture() -> Iterator[World]:
    with world() as api:
        api.add({**REMINDERS, "target": {"topic": "mail", "rate": "60/m"}})
        api.sources.topics = ("reminders", "others")
        yield api


def one(api: World, **query: Any) -> dict[str, Any]:
    response = api.call("GET", "/v1/capacity", params=query)
    assert response.status_code == 200, response.text
    (item,) = response.json()["items"]
    assert isinstance(item, dict)
    return item


def test_a_peak_that_does_not_fit_says_how_late_it_is_and_what_would_fit(api: World) -> None:
    api.held.minutes = {THIS + 2: 300, THIS + 30: 10}
    item = one(api)
    told = [item[name] for name in ("policy", "targets", "sources", "rate", "is_exact", "fits")]
    assert told == ["reminders", ["mail"], ["reminders"], 1.0, True, False]
    assert (item["late_ms"], item["spread_ms"]) == (240_000, 240_000)
    assert [item[name] for name in ("over_from", "over_to")] == [(THIS + 2) * 60_000, (THIS + 6) * 60_000]
    assert (item["peak"]["minute"], item["peak"]["held"]) == ((THIS + 2) * 60_000, 300)
    assert len(item["minutes"]) == 60
    assert [query.topic for query in api.held.asked] == ["reminders"]


def test_what_fits_says_so(api: World) -> None:
    api.held.minutes = {THIS + 2: 60, THIS - 5: 0}
    item = one(api, minutes=10)
    assert (item["fits"], item["late_ms"], item["spread_ms"], item["over_from"]) == (True, 0, 0, None)
    assert len(item["minutes"]) == 10


def test_of_several_targets_it_is_no_more_than_a_bound(api: World) -> None:
    api.add({**REMINDERS, "target": {"allow": ["mail-*"], "rate": "60/m"}})
    assert one(api)["is_exact"] is False


def test_a_policy_without_a_rate_has_no_limit_to_fit_into(api: World) -> None:
    api.add(REMINDERS)
    assert api.call("GET", "/v1/capacity").json()["items"] == []


def test_policies_come_page_by_page(api: World) -> None:
    api.add({**REMINDERS, "name": "again", "match": {"topics": ["others"]}, "target": {"topic": "t", "rate": "1/s"}})
    first = api.call("GET", "/v1/capacity?limit=1").json()
    second = api.call("GET", f"/v1/capacity?limit=1&cursor={first['next']}").json()
    assert [page["items"][0]["policy"] for page in (first, second)] == ["again", "reminders"]
    assert second["next"] is None


def test_what_could_not_be_asked_is_named(api: World) -> None:
    api.held.missing = [TopicPartition("reminders", 2)]
    answer = api.call("GET", "/v1/capacity").json()
    assert (answer["partial"], answer["missing"]) == (True, [{"topic": "reminders", "partition": 2}])
    api.held.down = "Redis is away"
    problem(api.call("GET", "/v1/capacity"), 503, "look-up-unavailable")
