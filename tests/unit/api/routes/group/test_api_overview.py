"""`GET /v1/overview` and `GET /v1/replicas`: the figures of all replicas together, and of each."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.lookup import WAITING_MAX
from api.routes.group.looks import KEPT_S
from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import MINUTE_MS, DueMinute, Flow, Minute, Rebuild, Report, Target, Wait
from sidecar.model.record import TopicPartition
from tests.unit.api_world import BASE_URL, NOW_MS, World, problem, world
from tests.unit.report_world import LANE, late, report, seen

THIS = NOW_MS // MINUTE_MS
FLOW: dict[str, Any] = {"emitted": 3, "retried": 1, "dead": 2, "quarantined": 1, "late": late(3, 3, 90)}


@pytest.fixture(name="api")
def api_fixture() -> Iterator[World]:
    with world() as api:
        yield api


def get(api: World, path: str) -> dict[str, Any]:
    response = api.call("GET", path)
    assert response.status_code == 200, response.text
    document = response.json()
    assert isinstance(document, dict)
    return document


def sees(api: World, *reports: Report, **fields: Any) -> None:
    """Have the group be seen so, and what was seen before forgotten."""
    api.group.seen = seen(*reports, **fields)
    api.monotonic_s += 2 * KEPT_S


def test_figures_of_all_replicas_are_added(api: World) -> None:
    sees(
        api,
        report("a", wheel=5, overflow=7, parked=1, partitions=2, next_due_ms=NOW_MS + 9, oldest_overdue_ms=4),
        report("b", wheel=1, overflow=2, partitions=3, recovering=1, next_due_ms=NOW_MS + 5, oldest_overdue_ms=8),
        report("c"),
    )
    document = get(api, "/v1/overview")
    assert document["held"] == {"wheel": 6, "overflow": 9, "parked": 1}
    assert document["partitions"] == {"assigned": 5, "recovering": 1, "paused": 0}
    assert (document["next_due"], document["oldest_overdue_ms"]) == (NOW_MS + 5, 8)
    assert (document["group"], document["guarantee"], document["as_of"]) == ("payments", "exactly_once", NOW_MS)
    assert document["as_of_utc"] == "2027-01-15T08:00:00.000Z"
    assert document["replicas"] == {"answered": 3, "silent": []}


def test_the_last_hour_is_added_by_minute(api: World) -> None:
    first, second = (Minute(at_ms=(THIS - back) * MINUTE_MS, **FLOW) for back in (1, 0))
    long_ago = Minute(at_ms=(THIS - 60) * MINUTE_MS, **FLOW)
    quick = {**FLOW, "late": late(1, 1, 1)}
    sees(
        api,
        report("a", minutes=(long_ago, first, second), last_minute=Flow(**FLOW), late_max_ms=95),
        report("b", minutes=(second,), last_minute=Flow(**quick), late_max_ms=70),
    )
    hour = get(api, "/v1/overview")["hour"]
    assert [hour[name] for name in ("emitted", "retried", "dead", "quarantined")] == [9, 3, 6, 3]
    assert len(hour["minutes"]) == 60
    assert [one["emitted"] for one in hour["minutes"][-3:]] == [0, 3, 6]
    assert [one["minute"] for one in hour["minutes"][::59]] == [(THIS - 59) * MINUTE_MS, THIS * MINUTE_MS]
    assert hour["minutes"][0]["lateness_ms"] == {"p50": None, "p99": None}
    assert hour["minutes"][-1]["lateness_ms"] == {"p50": 4.0, "p99": 95.0}
    assert get(api, "/v1/overview")["last_minute"]["lateness_ms"] == {"p50": 1.0, "p99": 95.0}


def test_what_is_due_by_minute(api: World) -> None:
    one = report("a", near=(DueMinute(minute=THIS, held=2), DueMinute(minute=THIS + 59, held=9)))
    other = report("b", near=(DueMinute(minute=THIS, held=1),))
    sees(api, one, other, minutes={THIS - 3: 2, THIS - 1: 1, THIS: 5, THIS + 59: 4, THIS + 60: 8, -1: 100})
    due = get(api, "/v1/overview")["due"]
    assert (due["overdue"], due["hour"], due["later"]) == (3, 9, 108)
    assert [due["minutes"][place]["held"] for place in (0, 1, 59)] == [5, 0, 4]
    assert [due["minutes"][place]["near"] for place in (0, 1, 59)] == [3, 0, 4]
    assert len(due["minutes"]) == 60


def test_breakers_and_targets_are_told_once_with_the_earliest_begin(api: World) -> None:
    def one(replica: str, state: str, since_ms: int) -> Report:
        waits = tuple(Wait(kind=kind, topic="mail", since_ms=since_ms) for kind in ("breaker", "suspended"))
        target = Target(topic="mail", waiting=5, breaker=state)
        return report(replica, targets=(target,), suspended=("mail",), waits=waits)

    closed = report("c", targets=(Target(topic="push", breaker="closed"),))
    sees(api, one("a", "half_open", NOW_MS - 9), one("b", "open", NOW_MS - 5), closed)
    document = get(api, "/v1/overview")
    (breaker,), (target,) = document["breakers"], document["suspended"]
    assert [breaker[name] for name in ("target", "state", "waiting", "since")] == ["mail", "open", 10, NOW_MS - 9]
    assert (target["target"], target["since"]) == ("mail", NOW_MS - 9)
    assert [one["kind"] for one in document["problems"]] == ["suspended", "breaker"]


def test_problems_have_words_and_a_fix(api: World) -> None:
    sees(api, report("a", kafka_problem="no broker answers"))
    (told,) = get(api, "/v1/overview")["problems"]
    assert told["text"].startswith("a can't work with Kafka: no broker answers.")
    assert (told["level"], told["kind"], told["fix"], told["since"]) == ("bad", "kafka", "tickover doctor", None)


def test_who_does_not_answer_and_what_is_missing_is_named(api: World) -> None:
    sees(api, report("b"), silent=(Sign("r", "a", NOW_MS - 4_000),), missing=[TopicPartition("t", 2)])
    document = get(api, "/v1/overview")
    silent = document["replicas"]["silent"]
    assert [(one["replica"], one["last_sign"]) for one in silent] == [("a", NOW_MS - 4_000)]
    assert (document["partial"], document["missing"]) == (True, [{"topic": "t", "partition": 2}])
    replicas = get(api, "/v1/replicas")
    assert [(one["replica"], one["state"]) for one in replicas["items"]] == [("a", "silent"), ("b", "running")]
    assert replicas["partial"]


def test_a_replica_says_what_it_has_and_how_far_it_is(api: World) -> None:
    other = TopicPartition("t", 1)
    part = Rebuild(topic="t", partition=1, done=5, held=9, read_share=0.25)
    waits = (Wait(kind="recovering", topic="t", partition=4, since_ms=NOW_MS - 50),)
    one = report("a", partitions=2, recovering=1, memory_bytes=7, rebuilding=(part,), recovery_ms=12, waits=waits)
    sees(api, one, read={LANE: 5, other: 3}, lags={LANE: 40, other: 2})
    (told,) = get(api, "/v1/replicas")["items"]
    assert [told[name] for name in ("state", "lag", "memory_bytes", "version")] == ["recovering", 42, 7, "0.2.0"]
    recovery = {name: told["recovery"][name] for name in ("partitions", "since", "last_ms")}
    assert recovery == {"partitions": 1, "since": NOW_MS - 50, "last_ms": 12}
    assert told["rebuilds"][0]["ledger_read_share"] == 0.25
    sees(api, one, read={LANE: 5, other: 3}, lags={LANE: 40})
    assert get(api, "/v1/replicas")["items"][0]["lag"] is None, "of one partition nobody knows"


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "running"),
        ({"group_problem": "waiting", "kafka_problem": "away"}, "waiting"),
        ({"turn_age_ms": 12_000}, "stalled"),
        ({"rebuilding": (Rebuild(topic="t", partition=0),)}, "rebuilding"),
        ({"overflow_problem": "away"}, "impaired"),
    ],
)
def test_states_of_a_replica(api: World, fields: dict[str, Any], state: str) -> None:
    sees(api, report("a", **fields))
    assert get(api, "/v1/replicas")["items"][0]["state"] == state


def test_replicas_come_page_by_page(api: World) -> None:
    sees(api, *(report(f"r{number}") for number in (3, 1, 2)))
    first = get(api, "/v1/replicas?limit=2")
    second = get(api, f"/v1/replicas?limit=2&cursor={first['next']}")
    assert [one["replica"] for page in (first, second) for one in page["items"]] == ["r1", "r2", "r3"]
    assert second["next"] is None


def test_however_many_ask_the_replicas_are_asked_once(api: World) -> None:
    async def ask_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=api.client_headers) as client:
            paths = ["/v1/overview", "/v1/replicas"] * WAITING_MAX
            return list(await asyncio.gather(*(client.get(path) for path in paths)))

    assert {response.status_code for response in api.runner.run(ask_all())} == {200}
    assert len(api.group.looks) == 1
    get(api, "/v1/overview")
    assert len(api.group.looks) == 1
    api.monotonic_s += KEPT_S
    get(api, "/v1/overview")
    assert len(api.group.looks) == 2


def test_a_look_that_failed_is_not_kept(api: World) -> None:
    def fail() -> Any:
        raise ValueError("of the engine")

    look, api.group.look = api.group.look, fail  # type: ignore[method-assign]
    problem(api.call("GET", "/v1/overview"), 500, "internal-error")
    api.group.look = look  # type: ignore[method-assign]
    assert get(api, "/v1/overview")["group"] == "payments"


@pytest.mark.parametrize("path", ["/v1/overview?of=all", "/v1/replicas?name=a"])
def test_an_unknown_parameter_is_refused(api: World, path: str) -> None:
    problem(api.call("GET", path), 422, "unknown-parameter")


def test_when_nothing_is_known_nothing_is_made_up(api: World) -> None:
    api.group.seen = replace_overview(api)
    api.monotonic_s += 2 * KEPT_S
    document = get(api, "/v1/overview")
    assert (document["next_due"], document["oldest_overdue_ms"], document["replicas"]["answered"]) == (None, 0, 0)


def replace_overview(api: World) -> Any:
    return api.group.seen._replace(overview=api.group.seen.overview._replace(replicas=[], minutes={}))
