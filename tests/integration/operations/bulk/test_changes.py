"""Changes of many messages on a real Kafka and Redis: each message once, whoever is killed and whoever is asked."""

import signal
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.faults.failpoints import POINTS
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

POLICIES = """
name: reminders
match: {topics: ["~delays"]}
delay: {max: 1h}
target: {allow: ["~mail", "~push"]}
"""
WAIT_S = 200.0
IN_MID_RUN = "changed, not written down"
PARTITIONS = 3
FAR, NEAR = 1_200, 250  # for each target
FAR_MS, SOON_MS, SPREAD_MS = 1_800_000, 6_000, 40
SETTINGS = {"HORIZON": "5s", "CHANGES__IN_FLIGHT": "100", "CHANGES__RATE": "500"}


class Bench:
    """Held messages, and the sidecar that changes them."""

    def __init__(self, site: Site, sidecar: Sidecar) -> None:
        self.site = site
        self.sidecar = sidecar

    def ask(self, method: str, path: str = "", status: int = 202, asked: Sidecar | None = None, **body: Any) -> Any:
        options = {"json": body} if body else {}
        response = (asked or self.sidecar).answer(method, f"/v1/changes{path}", **options)
        assert response.status_code == status, response.text
        return response.json()

    def send(self, role: str, numbers: range, due_ms: int, spread_ms: int = 0) -> None:
        """Messages with the id `role-number`."""
        target = self.site.name(role).encode()
        records = []
        for n in numbers:
            headers = [("tickover-id", b"%s-%d" % (role.encode(), n)), ("tickover-target", target)]
            at = ("tickover-deliver-at", b"%d" % (due_ms + (n - numbers.start) * spread_ms))
            records.append((b"k%d" % n, b"%d" % n, [*headers, at], 0, n % PARTITIONS))
        self.site.kafka.produce(self.site.name("delays"), records)

    def wait_accepted(self, count: int, held: int) -> None:
        """Wait until `count` messages are read and `held` of them held: between the two a message may wait for its
        target to be known.
        """

        def are_there() -> bool:
            topics = self.sidecar.stats()["topics"].values()
            accepted = sum(int(topic["accepted"]) for topic in topics)
            return accepted >= count and sum(sum(topic["held"].values()) for topic in topics) >= held

        wait_until(are_there, WAIT_S, self.sidecar.last_words)

    def wait_held(self, count: int, query: str) -> list[dict[str, Any]]:
        """Wait until `count` messages are found, by due time: a partition may be on its way, or a replica busy."""
        page: list[dict[str, Any]] = []

        def found() -> bool:
            answer = self.sidecar.call("GET", f"/v1/messages?{query}&limit=500")
            page[:] = answer.json()["items"] if answer.is_success else []
            return len(page) == count

        wait_until(found, WAIT_S, lambda: f"{len(page)} of {count} are held: {self.sidecar.last_words()}")
        return page

    def plan(self, action: str, filter: dict[str, Any], **when: Any) -> dict[str, Any]:
        id = self.ask("POST", action=action, filter=filter, **when)["id"]
        return self.until(id, "planned")

    def run(self, plan: dict[str, Any], asked: Sidecar | None = None) -> None:
        self.ask("POST", f"/{plan['id']}/run", asked=asked, token=plan["token"])

    def until(self, id: str, state: str) -> dict[str, Any]:
        def document() -> dict[str, Any]:
            found: dict[str, Any] = self.ask("GET", f"/{id}", 200)
            return found

        wait_until(lambda: document()["state"] == state, WAIT_S, lambda: f"{document()} {self.sidecar.last_words()}")
        return document()

    def receipts(self, id: str) -> dict[str, dict[str, Any]]:
        """By message; none twice."""
        found: list[dict[str, Any]] = []
        cursor = "limit=500"
        while cursor:
            page = self.ask("GET", f"/{id}/receipts?{cursor}", 200)
            found += page["items"]
            cursor = f"limit=500&cursor={page['next']}" if page["next"] else ""
        by_id = {receipt["id"]: receipt for receipt in found}
        assert len(by_id) == len(found), "a message has two receipts"
        return by_id

    def controls(self) -> int:
        """Control records that were sent."""
        messages = self.site.kafka.read_all(self.site.name("delays"))
        return sum("tickover-action" in dict(message.headers() or []) for message in messages)

    def arrived(self, role: str) -> Counter[str]:
        """How often readers of committed records see each message, by `role-value`."""
        messages = self.site.kafka.read_all(self.site.name(role))
        return Counter(f"{role}-{(message.value() or b'').decode()}" for message in messages)


@pytest.fixture(scope="module")
def bench(new_site: NewSite) -> Bench:
    site = new_site()
    site.topic("delays", PARTITIONS)
    site.target("mail")
    site.target("push")
    site.policies(POLICIES)
    sidecar = site.sidecar("one", **SETTINGS)
    sidecar.failpoint = f"{IN_MID_RUN}:{POINTS[IN_MID_RUN].most}"  # its first life ends there
    return Bench(site, sidecar.start())


def names(role: str, numbers: range) -> set[str]:
    return {f"{role}-{n}" for n in numbers}


def test_killed_in_mid_run_each_message_is_cancelled_with_a_receipt_or_emitted(bench: Bench) -> None:
    far, near = range(FAR), range(FAR, FAR + NEAR)
    start_ms = now_ms()
    for role in ("mail", "push"):
        bench.send(role, far, start_ms + FAR_MS)
        bench.send(role, near, start_ms + SOON_MS, SPREAD_MS)
    bench.wait_accepted(2 * (FAR + NEAR), held=2 * FAR)
    plan = bench.plan("cancel", {"target": bench.site.name("mail")})
    assert plan["planned"]["messages"] <= FAR + NEAR
    assert plan["planned"]["targets"].keys() == {bench.site.name("mail")}
    later = range(FAR + NEAR, FAR + NEAR + 10)
    bench.send("mail", later, start_ms + FAR_MS)
    with suppress(httpx.TransportError):  # it may die before it has answered
        bench.run(plan)
    assert bench.sidecar.wait_until_ended(WAIT_S) == -signal.SIGKILL
    assert 0 < bench.controls() < FAR
    bench.sidecar.failpoint = ""
    bench.sidecar.start()
    done = bench.until(plan["id"], "done")

    receipts = bench.receipts(plan["id"])
    assert done["outcomes"] == Counter(receipt["outcome"] for receipt in receipts.values())
    cancelled = {id for id, receipt in receipts.items() if receipt["outcome"] == "cancelled"}
    assert names("mail", far) <= cancelled
    assert not cancelled & names("mail", later)
    left = names("mail", near) - cancelled
    wait_until(lambda: left <= bench.arrived("mail").keys(), WAIT_S, bench.sidecar.last_words)
    assert bench.arrived("mail") == Counter(left), "cancelled and emitted, or emitted twice"
    assert done["gone"] == max(plan["planned"]["messages"] - len(receipts), 0)

    fired = bench.plan("fire", {"target": bench.site.name("push"), "due_from": start_ms + FAR_MS}, rate=0)
    assert fired["planned"]["messages"] == FAR
    bench.run(fired)
    assert bench.until(fired["id"], "done")["outcomes"] == {"fired": FAR}
    everything = names("push", far) | names("push", near)
    wait_until(lambda: everything <= bench.arrived("push").keys(), WAIT_S, bench.sidecar.last_words)
    assert bench.arrived("push") == Counter(everything)
    assert bench.sidecar.stats()["ledger_imbalance"] == 0


def test_a_plan_of_another_replica_shifts_each_message_once(bench: Bench) -> None:
    due_ms = now_ms() + FAR_MS
    numbers = range(5_000, 5_200)
    bench.send("push", numbers, due_ms, 1)
    filter = {"due_from": due_ms, "due_to": due_ms + len(numbers), "target": bench.site.name("push")}
    bench.wait_held(len(numbers), "&".join(f"{name}={value}" for name, value in filter.items()))
    plan = bench.plan("reschedule", filter, by="+10m")
    assert plan["planned"]["messages"] == len(numbers)
    other = bench.site.sidecar("two", **SETTINGS).start()
    bench.run(plan, asked=other)
    done = bench.until(plan["id"], "done")
    assert (done["outcomes"], done["owner"]) == ({"rescheduled": len(numbers)}, "two")
    moved = bench.receipts(plan["id"])
    assert {id: receipt["due"] for id, receipt in moved.items()} == {
        f"push-{n}": due_ms + 600_000 + n - numbers.start for n in numbers
    }
    page = bench.wait_held(len(numbers), f"due_from={due_ms + 600_000}&target={filter['target']}")
    assert [item["due"] for item in page] == [due_ms + 600_000 + n for n in range(len(numbers))]
    assert bench.ask("POST", f"/{plan['id']}/abort", 409)["type"] == "/problems/change-ended"
    assert other.stop() == 0
