"""Schedules on a real Kafka: each occurrence once and never early, whoever of two replicas is killed."""

import base64
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from confluent_kafka import Message, TopicPartition

from tests.integration.conftest import NewSite
from tests.services.clients import consumer
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

POLICIES = """
name: ticks
match: {topics: ["~source", "~narrow"]}
delay: {default: 1s, max: 1h}
target: {allow: ["~ticks"]}
"""
WAIT_S = 180.0
KILLS = 3
EVERY_MS = {"steady": 2_000, "spring": 1_000}


class Bench:
    """Two replicas of one group, and a target whose timestamps are the broker's."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.topic("source", 4)
        site.topic("narrow", 1, max_message_bytes=2_000)
        site.target("ticks")
        site.policies(POLICIES)
        self.replicas = [site.sidecar(name, SCHEDULES__LOOK_AHEAD="2s").start() for name in ("one", "two")]

    def put(self, name: str, **changes: Any) -> None:
        body = {"cron": "*/2 * * * * *", "target": self.site.name("ticks"), "source": self.site.name("source")}
        headers = {"If-None-Match": "*"}
        answer = self.replicas[0].call("PUT", f"/v1/schedules/{name}", json={**body, **changes}, headers=headers)
        assert answer.status_code == httpx.codes.CREATED, answer.text

    def delete(self, name: str) -> None:
        answer = self.replicas[1].call("DELETE", f"/v1/schedules/{name}", headers={"If-Match": "*"})
        assert answer.status_code == httpx.codes.NO_CONTENT, answer.text

    def item(self, sidecar: Sidecar, name: str) -> dict[str, Any]:
        items = sidecar.call("GET", "/v1/schedules").json()["items"]
        return next((item for item in items if item["name"] == name), {})

    def writers(self) -> list[Sidecar]:
        """Replicas that write what schedules owe."""
        return [one for one in self.replicas if one.runs and _writes(one)]

    def writer(self) -> Sidecar:
        found: list[Sidecar] = []

        def is_known() -> bool:
            found[:] = self.writers()  # asked once: after a refusal whoever writes lets go for a second
            return len(found) == 1

        self.wait(is_known, lambda: f"{len(found)} write")
        return found[0]

    def arrived(self, name: str) -> list[Message]:
        """Messages of this schedule that readers of committed records see."""
        prefix = f"schedule:{name}:".encode()
        found = self.site.kafka.read_all(self.site.name("ticks"))
        return [message for message in found if (dict(headers_of(message))["tickover-id"] or b"").startswith(prefix)]

    def wait_until_arrived(self, name: str, until_ms: int) -> None:
        """Until an occurrence behind this time has arrived."""

        def last_ms() -> int:
            return max(map(due_of, self.arrived(name)), default=0)

        self.wait(lambda: last_ms() > until_ms, lambda: f"{name} has arrived up to {last_ms()}, not {until_ms}")

    def wait(self, true: Callable[[], bool], otherwise: Callable[[], object]) -> None:
        wait_until(true, WAIT_S, lambda: str(otherwise()))


def _writes(sidecar: Sidecar) -> bool:
    try:
        return b"tickover_schedule_writer 1.0" in sidecar.call("GET", "/metrics").content
    except httpx.TransportError:
        return False  # it starts


@pytest.fixture(scope="module")
def bench(new_site: NewSite) -> Bench:
    return Bench(new_site())


def missing(bench: Bench, name: str, end_ms: int) -> set[int]:
    """When occurrences were due that haven't arrived."""
    due = set(map(due_of, bench.arrived(name)))
    return set(range(min(due), end_ms + 1, EVERY_MS[name])) - due


def test_killed_again_and_again_each_occurrence_arrives_once_and_none_early(bench: Bench) -> None:
    begun_ms = now_ms()
    bench.put("steady", missed="all")
    bench.put("spring", missed="all", cron="* * * * * *", key="k", value="v", time_zone="Europe/Berlin")
    put_ms = now_ms()
    for kill in range(KILLS):
        bench.wait_until_arrived("steady", now_ms())
        writer = bench.writer()
        writer.kill()
        if kill == 0:
            assert bench.writer() is not writer  # the other one takes over
        writer.launch()
    for replica in bench.replicas:
        replica.wait_until_ready()
    end_ms = now_ms()
    for name in EVERY_MS:
        bench.wait_until_arrived(name, end_ms)
    for name in EVERY_MS:  # they come by different partitions: one may be late when a later one is there
        bench.wait(lambda name=name: not missing(bench, name, end_ms), lambda name=name: missing(bench, name, end_ms))  # type: ignore[misc]
    for name, every_ms in EVERY_MS.items():
        messages = bench.arrived(name)
        due = sorted(due_of(message) for message in messages)
        assert [at_ms for at_ms, count in Counter(due).items() if count > 1] == []
        assert begun_ms < due[0] <= put_ms + every_ms
        due_by_end = [at_ms for at_ms in due if at_ms <= end_ms]
        assert due_by_end == list(range(due[0], end_ms + 1, every_ms)), "an occurrence is missing"
        early = [message for message in messages if message.timestamp()[1] < due_of(message)]
        assert early == []
    assert {(message.key(), message.value()) for message in bench.arrived("spring")} == {(b"k", b"v")}
    assert [replica.messages("critical") for replica in bench.replicas] == [[], []]
    for name in EVERY_MS:
        bench.delete(name)


def test_a_record_that_kafka_refuses_is_said_and_holds_up_no_other(bench: Bench) -> None:
    bench.put("fine")  # nobody writes while there are no schedules
    other = next(replica for replica in bench.replicas if replica is not bench.writer())
    bench.put("large", source=bench.site.name("narrow"), value={"base64": base64.b64encode(os.urandom(5_000)).decode()})
    refused: dict[str, Any] = {}

    def is_refused() -> bool:
        refused.update(bench.item(other, "large"))
        return refused.get("state") == "failing"

    bench.wait(is_refused, lambda: refused)
    assert "Message size too large" in refused["problem"]
    bench.wait_until_arrived("fine", now_ms())
    bench.wait(lambda: bench.item(other, "fine")["state"] == "active", lambda: bench.item(other, "fine"))
    assert bench.arrived("large") == []
    for name in ("large", "fine"):
        bench.delete(name)


def lag(bench: Bench) -> dict[int, int]:
    """Lag of the group's commits behind the source, by partition, as anybody would count it."""
    topic = bench.site.name("source")
    with closing(consumer(bench.site.kafka.bootstrap, bench.site.group)) as anyone:
        places = anyone.committed([TopicPartition(topic, partition) for partition in range(4)], WAIT_S)
        ends = {place.partition: anyone.get_watermark_offsets(place, WAIT_S)[1] for place in places}
    return {place.partition: ends[place.partition] - max(place.offset, 0) for place in places}


def test_when_all_has_fired_no_lag_is_left_behind_the_marks_of_transactions(bench: Bench) -> None:
    bench.put("last")
    bench.wait_until_arrived("last", now_ms())
    bench.delete("last")
    bench.wait(lambda: not any(lag(bench).values()), lambda: lag(bench))
