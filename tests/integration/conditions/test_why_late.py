"""A replica is killed, or stopped, and another takes over: which of both it was is told, and from when to when."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from sidecar.conditions.store import prefix_of
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import START_S, Sidecar, now_ms
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

UNOWNED_MS = 3_000  # at least: so that a sign, had it given one, would be written
NEAR_MS = 1_000  # record and block are of one transaction, in any order
POLICY = """
name: reminders
match: {topics: ["~reminders"]}
delay: {max: 400d}
target: {allow: ["~mail"]}
"""


def why(sidecar: Sidecar, **query: object) -> dict[str, Any]:
    """The answer once the ledger's reader knows that it was emitted."""
    found: list[dict[str, Any]] = []

    def is_told() -> bool:
        found.append(sidecar.call("GET", "/v1/lateness", params=query).json())
        return bool(found[-1].get("state") == "emitted")

    wait_until(is_told, START_S, lambda: str(found[-1]))
    return found[-1]


def wait_for_its_sign(site: Site, topic: str) -> None:
    """Until it is written who has the topic's partition."""
    with Redis.from_url(site.redis_url, protocol=2) as client:
        key = f"{prefix_of(site.group)}open"
        wait_until(lambda: any(topic.encode() in sign for sign in client.hvals(key)), START_S, lambda: "no sign")


@pytest.mark.parametrize(
    ("end", "takes_ms", "cause"), [(Sidecar.kill, 3_000, "unowned"), (Sidecar.stop, 9_000, "revoked")]
)
def test_a_replica_that_ends_is_named_with_the_time_without_an_owner(
    new_site: NewSite, end: Callable[[Sidecar], object], takes_ms: int, cause: str
) -> None:
    site = new_site()
    source, target = site.topic("reminders"), site.target("mail")
    site.policies(POLICY)
    first, next_one = site.sidecar("one").start(), site.sidecar("one")  # by its name it is taken back at once
    wait_for_its_sign(site, source)
    due_ms = now_ms() + takes_ms
    headers = [("tickover-deliver-at", str(due_ms)), ("tickover-target", target), ("tickover-id", "late")]
    report = site.send(source, [(name, value.encode()) for name, value in headers])
    wait_until(lambda: first.stats()["topics"][source]["accepted"] == 1, START_S, lambda: "not read")
    end(first)
    assert now_ms() < due_ms, "this machine is too slow for this delay"
    wait_until(lambda: now_ms() > due_ms + UNOWNED_MS, START_S, lambda: "the clock stands still")
    started_ms = now_ms()
    next_one.start()
    document = why(next_one, id="late")

    parts = document["parts"]
    assert (document["due"], document["position"]["offset"]) == (due_ms, report.offset())
    assert sum(part["ms"] for part in parts) == document["lateness_ms"] == document["until"] - due_ms
    [nobodys] = [part for part in parts if part["cause"] == cause]
    assert (nobodys["from"], nobodys["replica"]) == (due_ms, "one"), "it gave its last sign before"
    assert started_ms - 100 < nobodys["to"] < document["until"], "two clocks may differ by a little"
    assert (parts[-1]["cause"], parts[-1]["to"]) == ("settle", document["until"])
    assert {part["cause"] for part in parts} <= {cause, "recovering", "unaccounted", "settle"}
    [emitted] = site.kafka.read(target, 1)
    assert nobodys["to"] < emitted.timestamp()[1] < document["until"] + NEAR_MS
    by_place = why(next_one, position=f"{source}/0/{report.offset()}")
    assert (by_place["id"], by_place["until"], by_place["lateness_ms"]) == (
        "late",
        document["until"],
        document["lateness_ms"],
    )
