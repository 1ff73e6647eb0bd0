"""Acts of people in the console, from the button to the effect in Kafka: a browser before a sidecar as users run it."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.integration.api.console.acting import confirm, fill, told, wait_shown
from tests.integration.conftest import NewSite
from tests.process.api.console.browsing import Console, launched
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site, headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POLICIES = """
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 15m, max: 400d}
target: {allow: ["~mail", "~push", "~letters"]}
---
name: orders-retry
match: {topics: ["~orders-retry"]}
retry: {attempts: 3, backoff: {kind: fixed, delay: 1h}, give_up_on: ["*.ValidationError"]}
target: {topic: ~orders, allow: ["~orders"]}
dead_letter: {topic: ~orders-dlq}
"""
BULK = 5


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    for role in ("reminders", "orders-retry", "orders-dlq"):
        site.topic(role)
    for role in ("mail", "push", "letters", "orders"):
        site.target(role)
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module")
def sidecar(site: Site) -> Sidecar:
    return site.sidecar("one", REDRIVE__RAMP="0ms").start()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def console(sidecar: Sidecar, browser: Browser) -> Iterator[Console]:
    console = Console(sidecar.url, browser)
    yield console
    console.close()
    assert console.problems == []


def test_a_message_that_is_sent_by_the_form_is_held_and_fired_now(console: Console, site: Site) -> None:
    mail = site.name("mail")
    page = console.open("/send")
    fill(page, target=mail, key="42", value="hello", headers="tenant=acme", delay="1h", id="greeting/1")
    page.click("main >> button.first")
    page.click("text=greeting/1")
    wait_shown(page, "text=Fire now")
    assert site.kafka.read_all(mail) == []

    page.click("text=Fire now")

    told(page, "Fired")
    [message] = site.kafka.read(mail, 1)
    assert (message.key(), message.value()) == (b"42", b"hello")
    assert headers_of(message)[0] == ("tenant", b"acme")
    wait_shown(page, ".chip:has-text('emitted')")
    assert len(site.kafka.read_all(mail)) == 1


def test_a_dead_letter_is_corrected_and_sent_again(console: Console, site: Site) -> None:
    orders, letters = site.name("orders"), site.name("orders-dlq")
    error = [("trace", b"t-7"), ("tickover-error-class", b"shop.ValidationError")]
    site.send(site.name("orders-retry"), error, b'{"order": 7, "amount": -3}', b"customer-7")
    site.kafka.read(letters, 1)

    page = console.open(f"/dead-letters?topic={letters}")
    wait_shown(page, f"main a:has-text('{letters}/0/0')")
    page.click(f"main a:has-text('{letters}/0/0')")
    page.click("text=Edit and redrive")
    value = page.input_value("textarea[name=value]")
    assert '"amount": -3' in value
    fill(page, value=value.replace("-3", "3"))
    page.click("text=Plan it")
    told(page, "Nothing has been sent")
    wait_shown(page, "summary:has-text('Send 1 …')")
    assert site.kafka.read_all(orders) == []
    confirm(page, "Send", 1)

    [order] = site.kafka.read(orders, 1)
    assert order.key() == b"customer-7"
    assert json.loads(order.value() or b"") == {"order": 7, "amount": 3}
    headers = dict(headers_of(order))
    assert headers["trace"] == b"t-7"
    assert headers["tickover-edited-by"] == b"anonymous"
    assert headers["tickover-redrive-source"] == f"{letters}/0/0".encode()
    assert site.kafka.read_all(letters)[0].value() == b'{"order": 7, "amount": -3}', "the letter stays as it was"


def test_nothing_comes_to_a_paused_target_until_it_is_resumed(console: Console, site: Site) -> None:
    push = site.name("push")
    page = console.open("/targets")
    page.select_option("select[name=kind]", "target")
    fill(page, name=push, reason="the gateway is being moved")
    page.click("button.danger:has-text('Pause')")
    told(page, "Paused")

    site.send(site.name("reminders"), [("tickover-target", push.encode()), ("tickover-delay", b"10ms")], b"wait")
    wait_shown(page, "#paused :text('1 due messages wait on this replica')")
    assert site.kafka.read_all(push) == []

    page.click("#paused button:has-text('Resume')")
    told(page, "Resumed")
    assert [message.value() for message in site.kafka.read(push, 1)] == [b"wait"]
    assert page.locator("text=Nothing is paused.").count() == 1


def test_a_bulk_cancel_by_its_count_leaves_nothing_to_fire(console: Console, site: Site, sidecar: Sidecar) -> None:
    letters = site.name("letters")
    for number in range(BULK + 1):
        tenant = b"acme" if number < BULK else b"other"
        headers = [("tickover-target", letters.encode()), ("tickover-delay", b"1h"), ("tenant", tenant)]
        site.send(site.name("reminders"), [*headers, ("tickover-id", b"letter-%d" % number)])
    page = console.open(f"/messages?target={letters}")
    wait_shown(page, f"main tbody tr >> nth={BULK}")

    page.goto(f"{console.url}/ui/changes/new?target={letters}&header=tenant%3Dacme")
    page.click("text=Count them")
    wait_shown(page, f"summary:has-text('Cancel {BULK} …')")
    confirm(page, "Cancel", BULK)

    wait_shown(page, f"text={BULK} cancelled")
    for number in range(BULK):
        answer = sidecar.call("POST", f"/v1/messages/letter-{number}/fire")
        assert (answer.status_code, answer.json().get("state")) == (409, "cancelled"), answer.text
    assert sidecar.call("POST", f"/v1/messages/letter-{BULK}/fire").status_code == 200
    site.kafka.read(letters, 1)
    assert [dict(headers_of(message))["tenant"] for message in site.kafka.read_all(letters)] == [b"other"]
