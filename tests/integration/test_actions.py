"""Cancel, reschedule, fire and replace on a real Kafka and Redis: in memory, in the overflow, and over crashes."""

from collections import Counter

import pytest
from confluent_kafka import Message

from sidecar.block import decode
from sidecar.record import Outcome
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

POLICIES = """
name: reminders
match: {topics: ["~delays"]}
delay: {max: 1h}
target: {topic: "~mail"}
"""
WAIT_S = 60.0
FAR = b"30m"  # in Redis: the horizon is a second
MESSAGES = 60
Rows = dict[int | None, tuple[Outcome, int | None]]
ID, DELAY, ACTION = "tickover-id", "tickover-delay", "tickover-action"


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("delays", 2)
    site.target("mail")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar().start()


def send(site: Site, message_id: str, delay: bytes, value: bytes = b"value", key: bytes | None = b"key") -> Message:
    return site.send(site.name("delays"), [(ID, message_id.encode()), (DELAY, delay)], value, key)


def act(site: Site, message_id: str, action: bytes, delay: bytes | None = None) -> Message:
    headers: list[tuple[str, bytes | None]] = [(ID, message_id.encode()), (ACTION, action)]
    return site.send(site.name("delays"), [*headers, *([(DELAY, delay)] if delay is not None else [])])


def rows(site: Site) -> Rows:
    """Outcome and related offset of what was settled in partition 0, by offset."""
    found: Rows = {}
    for message in site.kafka.read_all(f"tickover.{site.group}.ledger"):
        block = decode(message.value())
        if block.partition == 0:
            for offset, outcome in zip(block.settled.offsets, block.settled.outcomes, strict=True):
                assert offset not in found, f"{offset} was settled twice"
                found[offset] = Outcome(outcome), block.settled.related.get(offset)
    return found


def wait_settled(site: Site, sidecar: Sidecar, *reports: Message) -> Rows:
    offsets = {report.offset() for report in reports}
    wait_until(lambda: offsets <= set(rows(site)), WAIT_S, sidecar.last_words)
    return rows(site)


def wait_in_redis(sidecar: Sidecar, count: int = 1) -> None:
    def overflow() -> int:
        return sum(int(topic["held"]["overflow"]) for topic in sidecar.stats()["topics"].values())

    wait_until(lambda: overflow() >= count, WAIT_S, sidecar.last_words)


def mail(site: Site) -> dict[bytes, Message]:
    """What was emitted, by value; nothing twice."""
    messages = site.kafka.read_all(site.name("mail"))
    assert all(count == 1 for count in Counter(message.value() for message in messages).values())
    return {message.value() or b"": message for message in messages}


@pytest.mark.parametrize("delay", [b"900ms", FAR], ids=["in memory", "in Redis"])
@pytest.mark.parametrize("action", [b"cancel", b"fire", b"reschedule"])
def test_a_held_message_is_cancelled_fired_or_rescheduled(
    site: Site, sidecar: Sidecar, action: bytes, delay: bytes
) -> None:
    name = f"{action.decode()}-{delay.decode()}"
    held = send(site, name, delay, name.encode())
    if delay == FAR:
        wait_in_redis(sidecar)
    before_ms = now_ms()
    control = act(site, name, action, b"2500ms" if action == b"reschedule" else None)
    found = wait_settled(site, sidecar, held, control)

    if action == b"cancel":
        assert found[held.offset()] == (Outcome.CANCELLED, control.offset())
        assert found[control.offset()] == (Outcome.APPLIED, held.offset())
        assert name.encode() not in mail(site)
        return
    assert found[held.offset()] == (Outcome.MOVED, control.offset())
    assert found[control.offset()] == (Outcome.EMITTED, held.offset())
    emitted = mail(site)[name.encode()]
    due_ms = due_of(emitted)
    assert emitted.timestamp()[1] >= due_ms
    assert due_ms == control.timestamp()[1] + 2_500 if action == b"reschedule" else due_ms >= before_ms
    assert dict(headers_of(emitted))["tickover-origin"] == place(held)


def test_a_second_record_with_the_same_id_and_key_replaces_the_first(site: Site, sidecar: Sidecar) -> None:
    near, far = send(site, "near", b"5s", b"first near"), send(site, "far", FAR, b"first far")
    other = send(site, "near", b"100ms", b"other key", key=b"other")
    wait_in_redis(sidecar)
    again = [send(site, "near", b"200ms", b"second near", key=b"other"), send(site, "far", b"200ms", b"second far")]
    found = wait_settled(site, sidecar, far, other, *again)

    assert found[far.offset()] == (Outcome.REPLACED, again[1].offset())
    emitted = mail(site)
    assert {b"second near", b"second far"} <= set(emitted)
    assert b"first far" not in emitted
    found = wait_settled(site, sidecar, near)  # it has another key, so it stays
    assert found[near.offset()] == (Outcome.EMITTED, None)


def test_an_action_that_can_do_nothing_is_applied_all_the_same(site: Site, sidecar: Sidecar) -> None:
    gone = send(site, "gone", b"0", b"gone")
    wait_settled(site, sidecar, gone)
    held = send(site, "stays", b"4s", b"stays")
    [elsewhere] = site.kafka.produce(
        site.name("delays"), [(b"key", b"", [(ID, b"stays"), (ACTION, b"cancel")], 0, 1)]
    )  # the wrong partition
    twice = send(site, "twice", FAR)
    controls = [act(site, "gone", b"cancel"), act(site, "never", b"fire"), act(site, "twice", b"cancel")]
    late = act(site, "twice", b"reschedule", b"1s")
    found = wait_settled(site, sidecar, *controls, late, twice, held)

    assert [found[control.offset()] for control in controls] == [
        (Outcome.APPLIED, None),
        (Outcome.APPLIED, None),
        (Outcome.APPLIED, twice.offset()),
    ]
    assert found[late.offset()] == (Outcome.APPLIED, None)  # of two at once, the second comes too late
    assert found[twice.offset()] == (Outcome.CANCELLED, controls[2].offset())
    assert found[held.offset()] == (Outcome.EMITTED, None)
    wait_until(lambda: elsewhere_applied(sidecar, site) > 0, WAIT_S, sidecar.last_words)
    assert elsewhere.partition() == 1


def test_over_rest_with_receipts(site: Site, sidecar: Sidecar) -> None:
    target = site.name("mail")
    body = {"source": site.name("delays"), "target": target, "value": "by rest", "delay": "20m", "id": "by/rest"}
    sent = sidecar.call("POST", "/v1/messages", json=body).json()
    moved = sidecar.call("PATCH", "/v1/messages/by%2Frest", json={"delay": "19m"})
    assert moved.status_code == 200, moved.text
    assert moved.json()["outcome"] == "rescheduled"
    assert moved.json()["position"] == sent["position"]
    assert moved.json()["due"] < sent["due"]
    fired = sidecar.call("POST", "/v1/messages/by%2Frest/fire")
    assert fired.status_code == 200, fired.text
    assert fired.json()["outcome"] == "fired"
    assert fired.json()["position"] in (sent["position"], moved.json()["control"])
    wait_until(lambda: b"by rest" in mail(site), WAIT_S, sidecar.last_words)
    wait_until(lambda: sidecar.call("DELETE", "/v1/messages/by%2Frest").status_code == 409, WAIT_S, sidecar.last_words)
    sidecar.call("POST", "/v1/messages", json=body | {"id": "second", "value": "second"})
    assert sidecar.call("DELETE", "/v1/messages/second").json()["outcome"] == "cancelled"
    assert sidecar.call("DELETE", "/v1/messages/nobody").status_code == 404


def elsewhere_applied(sidecar: Sidecar, site: Site) -> int:
    applied: int = sidecar.stats()["topics"][site.name("delays")]["applied"]
    return applied


def test_over_kills_and_a_wiped_redis_each_message_is_cancelled_or_emitted(new_site: NewSite) -> None:
    site = new_site()
    site.topic("delays")
    site.target("mail")
    site.policies(POLICIES)
    sidecar = site.sidecar().start()
    held = {str(number): send(site, str(number), b"10m", b"%d" % number) for number in range(MESSAGES)}
    wait_in_redis(sidecar, MESSAGES)
    wanted = {0: (b"cancel", None), 1: (b"reschedule", b"5s"), 2: (b"fire", None), 3: (b"cancel", None)}
    controls = {}
    for number in range(MESSAGES):
        action, delay = wanted[number % 4]
        controls[number] = act(site, str(number), action, delay)
        if number in (15, 35):  # in the middle of its work
            sidecar.kill()
            sidecar = sidecar.start()
        if number == 48:
            site.wipe_redis()
    found = wait_settled(site, sidecar, *held.values(), *controls.values())

    emitted = mail(site)
    for number in range(MESSAGES):
        message, control = held[str(number)].offset(), controls[number].offset()
        if number % 4 in (0, 3):
            assert found[message] == (Outcome.CANCELLED, control)
            assert found[control] == (Outcome.APPLIED, message)
            assert b"%d" % number not in emitted
        else:
            assert found[message] == (Outcome.MOVED, control)
            assert found[control] == (Outcome.EMITTED, message)
            due_ms = due_of(emitted[b"%d" % number])
            assert emitted[b"%d" % number].timestamp()[1] >= due_ms
            if number % 4 == 1:
                assert due_ms == controls[number].timestamp()[1] + 5_000
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0
