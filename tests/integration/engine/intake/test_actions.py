"""Cancel, reschedule, fire and replace on a real Kafka and Redis: in memory, in the overflow, and over crashes."""

from base64 import urlsafe_b64encode
from collections import Counter
from itertools import count
from random import randbytes

import pytest
from confluent_kafka import Message, Producer

from sidecar.ledger.block import decode
from sidecar.model.record import Outcome
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: reminders
match: {topics: ["~delays"]}
delay: {max: 1h}
target: {topic: "~mail"}
"""
WAIT_S = 120.0
HORIZON = "2m"
NEAR, FAR = b"100s", b"30m"  # in memory, and in Redis; too long for either to leave before it is acted on
MESSAGES = 60
LONG_IDS = 2_000
UNDECIDED = (202, 503)  # a receipt or a look-up took too long: right, and no answer yet
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
    return site.sidecar(HORIZON=HORIZON).start()


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


def wait_held(sidecar: Sidecar, tier: str, least: int = 1) -> None:
    def held() -> int:
        return sum(int(topic["held"][tier]) for topic in sidecar.stats()["topics"].values())

    wait_until(lambda: held() >= least, WAIT_S, sidecar.last_words)


def mail(site: Site, *values: bytes) -> dict[bytes, Message]:
    """Messages emitted, by value, none twice; waits for these values, as of a transaction the ledger may show first."""
    found: dict[bytes, Message] = {}

    def are_there() -> bool:
        messages = site.kafka.read_all(site.name("mail"))
        assert all(times == 1 for times in Counter(message.value() for message in messages).values())
        found.update({message.value() or b"": message for message in messages})
        return found.keys() >= set(values)

    wait_until(are_there, WAIT_S, lambda: f"{set(values) - found.keys()} did not arrive")
    return found


@pytest.mark.parametrize("delay", [NEAR, FAR], ids=["in memory", "in Redis"])
@pytest.mark.parametrize("action", [b"cancel", b"fire", b"reschedule"])
def test_a_held_message_is_cancelled_fired_or_rescheduled(
    site: Site, sidecar: Sidecar, action: bytes, delay: bytes
) -> None:
    name = f"{action.decode()}-{delay.decode()}"
    held = send(site, name, delay, name.encode())
    wait_held(sidecar, "overflow" if delay == FAR else "wheel")
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
    emitted = mail(site, name.encode())[name.encode()]
    due_ms = due_of(emitted)
    assert emitted.timestamp()[1] >= due_ms
    assert due_ms == control.timestamp()[1] + 2_500 if action == b"reschedule" else due_ms >= before_ms
    assert dict(headers_of(emitted))["tickover-origin"] == place(held)


def test_what_is_in_memory_is_rescheduled_into_redis_and_fired_from_there(site: Site, sidecar: Sidecar) -> None:
    held = send(site, "to and fro", NEAR, b"to and fro")
    wait_held(sidecar, "wheel")
    moved = act(site, "to and fro", b"reschedule", FAR)
    wait_held(sidecar, "overflow")
    fired = act(site, "to and fro", b"fire")
    found = wait_settled(site, sidecar, held, moved, fired)
    assert [found[report.offset()] for report in (held, moved, fired)] == [
        (Outcome.MOVED, moved.offset()),
        (Outcome.MOVED, fired.offset()),
        (Outcome.EMITTED, held.offset()),
    ]
    assert dict(headers_of(mail(site, b"to and fro")[b"to and fro"]))["tickover-origin"] == place(held)


def test_a_second_record_with_the_same_id_and_key_replaces_the_first(site: Site, sidecar: Sidecar) -> None:
    near, far = send(site, "near", b"5s", b"first near"), send(site, "far", FAR, b"first far")
    other = send(site, "near", b"100ms", b"other key", key=b"other")
    wait_held(sidecar, "overflow")
    again = [send(site, "near", b"200ms", b"second near", key=b"other"), send(site, "far", b"200ms", b"second far")]
    found = wait_settled(site, sidecar, far, other, *again)

    assert found[far.offset()] == (Outcome.REPLACED, again[1].offset())
    assert b"first far" not in mail(site, b"second near", b"second far")
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
    names = (f"by/rest/{number}" for number in count())
    wait_until(lambda: receipts_are_told(site, sidecar, next(names)), WAIT_S, sidecar.last_words)
    assert sidecar.call("DELETE", "/v1/messages/nobody").status_code in (404, 503)


def test_a_message_that_nobody_has_read_yet_is_not_called_unknown(site: Site, sidecar: Sidecar) -> None:
    """The message is behind a stranger's open transaction. When that has ended, its marks are the partition's last."""
    stranger = Producer({"bootstrap.servers": site.kafka.bootstrap, "transactional.id": f"{site.group}-stranger"})
    stranger.init_transactions(WAIT_S)
    stranger.begin_transaction()
    for partition in range(2):
        stranger.produce(site.name("delays"), b"never committed", partition=partition)
    stranger.flush(WAIT_S)
    body = {"source": site.name("delays"), "target": site.name("mail"), "value": "v", "delay": "20m", "id": "unread"}
    assert sidecar.call("POST", "/v1/messages", json=body).status_code == 202
    for method in ("GET", "DELETE"):
        answer = sidecar.call(method, "/v1/messages/unread")
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/look-up-incomplete")
        assert answer.headers["Retry-After"]
    stranger.abort_transaction(WAIT_S)
    wait_until(lambda: sidecar.call("DELETE", "/v1/messages/unread").status_code == 200, WAIT_S, sidecar.last_words)
    wait_until(lambda: sidecar.call("GET", "/v1/messages/nobody").status_code == 404, WAIT_S, sidecar.last_words)


def receipts_are_told(site: Site, sidecar: Sidecar, name: str) -> bool:
    """Of each action on a message; False when one took so long that nobody knows: then it needs another message."""
    path, cancelled = f"/v1/messages/{name.replace('/', '%2F')}", f"/v1/messages/{name.rpartition('/')[2]}"
    body = {"source": site.name("delays"), "target": site.name("mail"), "value": name, "delay": "20m", "id": name}
    answer = sidecar.call("POST", "/v1/messages", json=body)
    second = sidecar.call("POST", "/v1/messages", json=body | {"id": cancelled.rpartition("/")[2]})
    if 503 in (answer.status_code, second.status_code):
        return False
    sent = answer.json()
    for held in (path, cancelled):
        wait_until(lambda held=held: is_held(sidecar, held), WAIT_S, sidecar.last_words)  # type: ignore[misc]
    moved = sidecar.call("PATCH", path, json={"delay": "19m"})
    fired = sidecar.call("POST", f"{path}/fire")
    gone = sidecar.call("DELETE", cancelled)
    if any(answer.status_code in UNDECIDED for answer in (moved, fired, gone)):
        return False
    assert (moved.status_code, fired.status_code, gone.status_code) == (200, 200, 200), moved.text + fired.text
    assert moved.json()["outcome"] == "rescheduled"
    assert moved.json()["position"] == sent["position"]
    assert moved.json()["due"] < sent["due"]
    assert fired.json()["outcome"] == "fired"
    assert fired.json()["position"] in (sent["position"], moved.json()["control"])
    mail(site, name.encode())
    wait_until(lambda: sidecar.call("DELETE", path).status_code == 409, WAIT_S, sidecar.last_words)
    assert gone.json()["outcome"] == "cancelled"
    return True


def is_held(sidecar: Sidecar, path: str) -> bool:
    answer = sidecar.call("GET", path)
    return bool(answer.status_code == 200 and answer.json()["state"] == "held")


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
    wait_held(sidecar, "overflow", MESSAGES)
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

    emitted = mail(site, *(b"%d" % number for number in range(MESSAGES) if number % 4 in (1, 2)))
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


def test_ids_as_long_as_may_be_by_the_thousand_fit_into_a_ledger_as_brokers_make_it(new_site: NewSite) -> None:
    """All of them are moved, and put to Redis, in one settle interval: blocks are as large as they can be."""
    site = new_site()
    site.kafka.create_topic(f"tickover.{site.group}.ledger", 1, message_timestamp_type="LogAppendTime")
    site.topic("delays")
    site.target("mail")
    site.policies(POLICIES)
    ids = [urlsafe_b64encode(randbytes(768)) for _ in range(LONG_IDS)]

    def send_all(*more: tuple[str, bytes]) -> list[Message]:
        return site.kafka.produce(site.name("delays"), [(b"key", b"", [(ID, one), *more], 0, 0) for one in ids])

    held = send_all((DELAY, FAR))
    moves = send_all((ACTION, b"reschedule"), (DELAY, FAR))
    sidecar = site.sidecar(HORIZON=HORIZON, SETTLE_INTERVAL_MS="100", INTAKE__BATCH="10000").start()
    wait_settled(site, sidecar, *held)
    cancels = send_all((ACTION, b"cancel"))
    found = wait_settled(site, sidecar, *moves, *cancels)
    assert [found[report.offset()] for report in held] == [(Outcome.MOVED, report.offset()) for report in moves]
    assert [found[report.offset()] for report in moves] == [(Outcome.CANCELLED, report.offset()) for report in cancels]
    assert sidecar.stop() == 0
