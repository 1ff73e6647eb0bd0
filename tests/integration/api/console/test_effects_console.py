"""Every action of the console, from the button to what comes of it in Kafka: a sidecar as users run it, on the
reference broker (`TICKOVER_TEST_KAFKA=maven` or `docker`: on a real one).

`ACTIONS` has the forms that the application takes, so an action without an effect here fails.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Message
from playwright.sync_api import Page, expect

from api.access.auth import Role
from tests.integration.api.console.acting import PASSED, SOURCE, Desk, confirm, fill, told, wait_shown
from tests.integration.conftest import NewSite
from tests.process.api.console.browsing import Console, launched
from tests.services.kafka import Kafka
from tests.services.sidecar_process import now_ms
from tests.services.site import due_of, headers_of
from tests.services.waiting import wait_until
from tests.unit.api.access.test_api_auth import tokens_file
from tests.unit.api.console.test_console_roles import ACTIONS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POLICIES: Final = """
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 15m, max: 400d}
target: {topic: ~mail, allow: ["~to-*", "~mail", "~passed"]}
---
name: orders-retry
match: {topics: ["~orders-retry"]}
retry: {attempts: 3, backoff: {kind: fixed, delay: 1h}, give_up_on: ["*.ValidationError"]}
target: {topic: ~orders, allow: ["~orders"]}
dead_letter: {topic: ~orders-dlq}
---
name: calls-retry
match: {topics: ["~calls-retry"]}
retry: {attempts: 3, backoff: {kind: fixed, delay: 10ms}, breaker: {open: 1h}}
target: {topic: ~calls, allow: ["~calls"]}
dead_letter: {topic: ~orders-dlq}
"""
EXPRESS: Final = """\
name: express
match: {topics: [~reminders], headers: {lane: express}}
delay: {default: 10ms}
target: {topic: ~fast}
"""
TICK: Final = """\
name: tick
cron: "* * * * * *"
source: ~reminders
target: ~to-ticks
key: clock
value: tick
headers: [[tenant, acme]]
"""
MANY: Final = "target,key,value,delay,header.tenant\n~to-many,1,one,10ms,acme\n~to-many,2,two,10ms,other\n"
SLOW: Final = 40  # seconds of work at one a second: nobody needs so long to press a button; on one page of a list
STOPPED_MS: Final = 3_000  # a schedule that is this much behind another of the same times isn't written any more

Flow = Callable[[Desk], None]


def content(message: Message) -> tuple[bytes | None, bytes | None]:
    return message.key(), message.value()


def of(*ids: str) -> set[tuple[bytes, bytes]]:
    """Content of the messages that a desk has sent under these ids."""
    return {(f"key of {id}".encode(), f"value of {id}".encode()) for id in ids}


def last(desk: Desk, topic: str, key: str) -> Any:
    """The document under this key in one of tickover's own topics; None: there is none."""
    records = [one for one in desk.site.kafka.read_all(topic) if one.key() == key.encode()]
    return json.loads(records[-1].value() or b"null") if records else None


# --- messages -----------------------------------------------------------------------------------------------------


def send(desk: Desk) -> None:
    """By a form, another one like it, and one in place of another."""
    target, source = desk.site.target("to-sent"), desk.site.name(SOURCE)
    page = desk.go("/send")
    fill(page, target=target, key="42", value='{"hello": "you"}', headers="tenant=acme", delay="1s", id="greeting/1")
    page.click("main button.first")
    page.click("main [role=status] a")
    [message] = desk.came("to-sent")
    assert content(message) == (b"42", b'{"hello": "you"}')
    assert headers_of(message)[0] == ("tenant", b"acme")
    assert message.timestamp()[1] >= due_of(message), "early"
    assert ("tickover-id", b"greeting/1") in [
        one for sent in desk.site.kafka.read_all(source) for one in headers_of(sent)
    ]

    page.click("text=Send another like it …")
    fill(page, delay="10ms")
    page.click("main button.first")
    first, second = desk.came("to-sent", 2)
    assert (content(second), headers_of(second)[0]) == (content(first), ("tenant", b"acme"))

    desk.hold("to-sent", "old")
    page.click("text=Replace …")
    fill(page, value="new")
    page.click("main button.first")
    page.click("main [role=status] a")
    page.click("text=Fire now")
    assert content(desk.came("to-sent", 3)[-1]) == (b"key of old", b"new")
    desk.wait_passed()
    desk.came("to-sent", 3)


def send_many(desk: Desk) -> None:
    """As CSV: the dry run sends nothing."""
    desk.site.target("to-many")
    source = desk.site.name(SOURCE)
    page = desk.go("/send/many")
    fill(page, text=MANY.replace("~", f"{desk.site.group}-"))
    there = len(desk.site.kafka.read_all(source))
    page.click("text=Dry run >> visible=true >> nth=-1")
    expect(page.locator("main")).to_contain_text("2 would be sent")
    assert len(desk.site.kafka.read_all(source)) == there

    confirm(page, "Send", 2)
    expect(page.locator("main")).to_contain_text("2 sent, 0 refused")
    found = desk.came("to-many", 2)
    assert {content(message) for message in found} == {(b"1", b"one"), (b"2", b"two")}
    assert {dict(headers_of(message))["tenant"] for message in found} == {b"acme", b"other"}


def fire(desk: Desk) -> None:
    desk.site.target("to-fired")
    page = desk.hold("to-fired", "fired", [("tenant", b"acme")])
    desk.came("to-fired", 0)
    page.click("text=Fire now")
    told(page, "Fired")
    [message] = desk.came("to-fired")
    assert {content(message)} == of("fired")
    assert headers_of(message)[0] == ("tenant", b"acme")
    assert due_of(message) <= now_ms()


def cancel(desk: Desk) -> None:
    """Not even a control record fires it after that."""
    desk.site.target("to-cancelled")
    page = desk.hold("to-cancelled", "cancelled")
    page.click("summary:has-text('Cancel …')")
    page.click("text=Cancel this message")
    told(page, "Cancelled")
    control = [("tickover-action", b"fire"), ("tickover-id", b"cancelled")]
    desk.site.send(desk.site.name(SOURCE), control, b"", b"key of cancelled")
    desk.wait_passed()
    desk.came("to-cancelled", 0)


def reschedule(desk: Desk) -> None:
    desk.site.target("to-moved")
    page = desk.hold("to-moved", "moved")
    asked_ms = now_ms()
    page.click("summary:has-text('Reschedule …')")
    page.fill("details[open] input[name=delay]", "1s")
    page.click("details[open] button")
    told(page, "Rescheduled")
    [message] = desk.came("to-moved")
    assert {content(message)} == of("moved")
    assert asked_ms + 1_000 <= due_of(message) <= message.timestamp()[1]


# --- changes of many ----------------------------------------------------------------------------------------------


def change_selected(desk: Desk) -> None:
    """Two of three, fired once somebody else has approved it."""
    target = desk.site.target("to-some")
    for id in ("one", "two", "three"):
        desk.send("to-some", id)
    page = desk.go(f"/messages?target={target}")
    wait_shown(page, "main tbody tr >> nth=2")
    page.check("input[name=ids][value=one]")
    page.check("input[name=ids][value=three]")
    page.click("button:has-text('Fire now …')")
    page.click("text=Count them")
    desk.approve("summary:has-text('Fire 2 …')")
    desk.came("to-some", 0)
    confirm(page, "Fire", 2)
    assert {content(message) for message in desk.came("to-some", 2)} == of("one", "three")
    desk.wait_passed()
    desk.came("to-some", 2)


def abort_change(desk: Desk) -> None:
    """One that is under way: the rest stays held."""
    target = desk.site.target("to-abort")
    for number in range(SLOW):
        desk.send("to-abort", f"slow-{number}")
    wait_shown(desk.go(f"/messages?target={target}"), f"main tbody tr >> nth={SLOW - 1}")
    page = desk.go(f"/changes/new?action=fire&target={target}")
    fill(page, rate="1")
    page.click("text=Count them")
    desk.approve(f"summary:has-text('Fire {SLOW} …')")
    confirm(page, "Fire", SLOW)
    desk.site.kafka.read(target, 1)
    page.click("button:has-text('Abort')")
    told(page, "Its end is asked for")
    wait_shown(page, ".chip:has-text('aborted')")
    desk.wait_passed()
    fired = len(desk.site.kafka.read_all(target))
    assert 1 <= fired < SLOW
    assert f"{fired} fired" in page.inner_text("main")
    wait_shown(desk.go(f"/messages?target={target}"), f"main tbody:not(:has(tr:nth-child({SLOW - fired + 1})))")
    assert page.locator("main tbody tr").count() == SLOW - fired


# --- what failed --------------------------------------------------------------------------------------------------


def give_up(desk: Desk, error: str, *names: str) -> Page:
    """The list of letters of records with these names that fail for good, with this class of error."""
    headers = [("trace", b"t-7"), ("tickover-error-class", f"{error}.ValidationError".encode())]
    for name in names:
        desk.site.send(desk.site.name("orders-retry"), headers, b'{"amount": -3}', f"{error}-{name}".encode())
    page = desk.go(f"/dead-letters?topic={desk.site.name('orders-dlq')}&error_class={error}.ValidationError")
    wait_shown(page, f"main tbody tr >> nth={len(names) - 1}")
    return page


def ordered(desk: Desk, error: str) -> list[Message]:
    """Records that were sent again, of those that failed so."""
    found = desk.site.kafka.read_all(desk.site.name("orders"))
    return [message for message in found if (message.key() or b"").startswith(f"{error}-".encode())]


def key_of_letter(desk: Desk, partition: int, offset: int) -> bytes | None:
    letters = desk.site.kafka.read_all(desk.site.name("orders-dlq"))
    return next(one.key() for one in letters if (one.partition(), one.offset()) == (partition, offset))


def redrive(desk: Desk) -> None:
    """A canary of one, then the rest."""
    give_up(desk, "stock", "1", "2", "3")
    letters = desk.site.name("orders-dlq")
    page = desk.go(f"/redrives/new?topic={letters}&error_class=stock.ValidationError")
    page.click("text=Plan it")
    told(page, "Nothing has been sent")
    desk.approve("button:has-text('Send these first')")
    assert ordered(desk, "stock") == []

    fill(page, letters="1")
    page.click("button:has-text('Send these first')")
    wait_shown(page, ".chip:has-text('canaried')")
    assert [message.key() for message in ordered(desk, "stock")] == [b"stock-1"]

    confirm(page, "Send", 2)
    wait_shown(page, ".well:has-text('3 letters were sent')")
    sent = ordered(desk, "stock")
    assert [message.key() for message in sent] == [b"stock-1", b"stock-2", b"stock-3"]
    lineage = [dict(headers_of(message))["tickover-redrive-source"] for message in sent]
    there = [one for one in desk.site.kafka.read_all(letters) if (one.key() or b"").startswith(b"stock-")]
    assert lineage == [f"{letters}/0/{one.offset()}".encode() for one in there], "the letters stay where they are"


def abort_redrive(desk: Desk) -> None:
    """One that is under way: the rest isn't sent."""
    give_up(desk, "slow", *map(str, range(SLOW)))
    page = desk.go(f"/redrives/new?topic={desk.site.name('orders-dlq')}&error_class=slow.ValidationError")
    fill(page, rate="1")
    page.click("text=Plan it")
    desk.approve(f"summary:has-text('Send {SLOW} …')")
    confirm(page, "Send", SLOW)
    wait_until(lambda: len(ordered(desk, "slow")) > 0)
    page.click("button:has-text('Abort')")
    told(page, "Its end was asked for")
    wait_shown(page, "main :text('Ended by ADMIN')")
    sent = len(ordered(desk, "slow"))
    assert 1 <= sent < SLOW
    assert f"{sent} letters" in page.inner_text("main")


def act_on_letters(desk: Desk) -> None:
    """One is discarded; of both only the other one is then sent."""
    page = give_up(desk, "gone", "1", "2")
    found = page.url
    chosen = page.locator("input[name=letter]").first.get_attribute("value") or ""
    discarded = key_of_letter(desk, *map(int, chosen.split("/")[-2:]))
    page.check("input[name=letter] >> nth=0")
    page.click("text=Discard selected …")
    desk.approve("summary:has-text('Discard 1 …')")
    confirm(page, "Discard", 1)
    wait_shown(page, ".well:has-text('1 letters were discarded')")
    assert ordered(desk, "gone") == []

    page.goto(found)
    for number in range(2):
        page.check(f"input[name=letter] >> nth={number}")
    page.click("text=Redrive selected …")
    desk.approve("summary:has-text('Send 1 …')")
    confirm(page, "Send", 1)
    wait_shown(page, ".well:has-text('1 letters were sent')")
    assert {message.key() for message in ordered(desk, "gone")} == {b"gone-1", b"gone-2"} - {discarded}
    fates = [
        json.loads(one.value() or b"{}") for one in desk.site.kafka.read_all(f"tickover.{desk.site.group}.redriven")
    ]
    assert [fate for fate in fates if fate.get("discarded")], "nothing else knows it after a restart"


def edit_letter(desk: Desk) -> None:
    page = give_up(desk, "typo", "1")
    page.click("main tbody a")
    page.click("text=Edit and redrive")
    value = page.input_value("textarea[name=value]")
    fill(page, value=value.replace("-3", "3"))
    page.click("text=Plan it")
    desk.approve("summary:has-text('Send 1 …')")
    confirm(page, "Send", 1)
    wait_shown(page, ".well:has-text('1 letters were sent')")
    [order] = ordered(desk, "typo")
    headers = dict(headers_of(order))
    assert json.loads(order.value() or b"") == {"amount": 3}
    assert (headers["trace"], headers["tickover-edited-by"]) == (b"t-7", b"ADMIN")


def say(desk: Desk) -> None:
    """A group of failures is resolved, and is back with the next letter."""
    give_up(desk, "known", "1")
    letters = desk.site.name("orders-dlq")
    page = desk.go(f"/failures?topic={letters}&error_class=known.ValidationError")
    page.click("main tbody a")
    page.select_option("select[name=state]", "resolved")
    fill(page, note="mended in 7.1")
    page.click("text=Write it down")
    told(page, "Written down")
    fingerprint = page.url.partition("?")[0].rpartition("/")[2]
    note = last(desk, f"tickover.{desk.site.group}.redriven", f"groups/{letters}/{fingerprint}")
    assert (note["state"], note["note"], note["author"]) == ("resolved", "mended in 7.1", "ADMIN")
    group = page.url
    give_up(desk, "known", "1", "2")
    page.goto(group)
    wait_shown(page, ".chip:has-text('back again')")


def correct_quarantined(desk: Desk) -> None:
    desk.site.target("to-corrected")
    desk.send("to-corrected", "unclear", delay="soon", headers=[("tenant", b"acme")])
    [aside] = desk.site.kafka.read(desk.site.quarantine, 1)
    page = desk.go("/quarantine")
    wait_shown(page, f"main a:has-text('0/{aside.offset()}')")
    page.click(f"main a:has-text('0/{aside.offset()}')")
    page.fill("input[name=name] >> nth=0", "tickover-delay")
    page.fill("input[name=header] >> nth=0", "10ms")
    page.click("button:has-text('Send to')")
    told(page, "The record was sent to its source")
    [message] = desk.came("to-corrected")
    assert {content(message)} == of("unclear")
    assert dict(headers_of(message))["tenant"] == b"acme"
    assert page.locator("button:has-text('Send to')").count() == 0, "it would be sent twice"


# --- rules --------------------------------------------------------------------------------------------------------


def write_policies(desk: Desk) -> None:
    """Each version decides what comes after it; the check before it decides nothing."""
    for role in ("fast", "slow", "mail"):
        desk.site.target(role)
    text, topic = EXPRESS.replace("~", f"{desk.site.group}-"), f"{desk.site.group}.policies"
    written = len(desk.site.kafka.read_all(topic))
    page = desk.go("/policies/_edit")
    fill(page, text=text)
    page.click("button:has-text('Check')")
    expect(page.locator("#check")).to_contain_text("It is a policy.")
    assert len(desk.site.kafka.read_all(topic)) == written
    assert decided(desk) == ("mail", b"reminders@1")

    page.click("button:has-text('Save')")
    told(page, "Saved")
    wait_decided(desk, "fast", b"express@1")

    page.click("text=Edit …")
    fill(page, text=text.replace("-fast", "-slow"))
    page.click("button:has-text('Save')")
    told(page, "Saved")
    wait_decided(desk, "slow", b"express@2")

    page.click("text=Roll back to 1")
    told(page, "Rolled back")
    wait_decided(desk, "fast", b"express@3")

    page.click("summary:has-text('Delete …')")
    page.click("button:has-text('Delete express')")
    told(page, "Deleted")
    wait_decided(desk, "mail", b"reminders@1")
    changes = [json.loads(one.value() or b"{}") for one in desk.site.kafka.read_all(topic)[written:]]
    assert [(one["author"], one["expected"]) for one in changes] == [("ADMIN", number) for number in range(4)]
    assert changes[-1]["policy"] is None


def decided(desk: Desk) -> tuple[str, bytes | None]:
    """Where a record goes that is sent now, and by which policy."""
    kafka, roles = desk.site.kafka, ("fast", "slow", "mail")
    value = f"probe {now_ms()}".encode()
    desk.site.send(desk.site.name(SOURCE), [("lane", b"express"), ("tickover-delay", b"10ms")], value)
    found: list[tuple[str, bytes | None]] = []

    def is_out() -> bool:
        there = [(role, one) for role in roles for one in kafka.read_all(desk.site.name(role)) if one.value() == value]
        found.extend((role, dict(headers_of(one))["tickover-policy"]) for role, one in there)
        return bool(found)

    wait_until(is_out)
    return found[0]


def wait_decided(desk: Desk, role: str, policy: bytes) -> None:
    """The engine takes a new table within a turn or two of the answer."""
    wait_until(lambda: decided(desk) == (role, policy), otherwise=lambda: f"not {role} by {policy!r}: {decided(desk)}")


def write_schedules(desk: Desk) -> None:
    """One that is saved is written beside another, until it is paused or deleted."""
    target = desk.site.target("to-ticks")
    for name in ("tock", "tick"):
        page = desk.go("/schedules/_edit")
        fill(page, text=TICK.replace("tick\n", f"{name}\n").replace("~", f"{desk.site.group}-"))
        page.click("button:has-text('Save')")
        told(page, "Saved")
    wait_until(lambda: occurrences(desk, "tick") > 0)

    page.click("button:has-text('Run now')")
    told(page, "Sent: this is the message")
    id = page.inner_text("h1").encode()
    wait_until(lambda: any(dict(headers_of(one)).get("tickover-id") == id for one in desk.site.kafka.read_all(target)))
    [once] = [one for one in desk.site.kafka.read_all(target) if dict(headers_of(one)).get("tickover-id") == id]
    assert content(once) == (b"clock", b"tick")
    assert headers_of(once)[0] == ("tenant", b"acme")

    hold_up(desk, "schedule", "tick", "a release")
    wait_until(lambda: occurrences(desk, "tock") > occurrences(desk, "tick") + STOPPED_MS)
    page.click(resume("tick"))
    told(page, "Resumed")
    resumed_ms = now_ms()
    wait_until(lambda: occurrences(desk, "tick") > resumed_ms)

    for name in ("tick", "tock"):
        page = desk.go(f"/schedules/{name}")
        page.click("summary:has-text('Delete …')")
        page.click(f"button:has-text('Delete {name}')")
        told(page, "Deleted")
        assert last(desk, f"tickover.{desk.site.group}.schedules", f"{name}/schedule")["schedule"] is None
        if name == "tick":
            wait_until(lambda: occurrences(desk, "tock") > occurrences(desk, "tick") + STOPPED_MS)


def occurrences(desk: Desk, name: str) -> int:
    """Epoch milliseconds of the last occurrence of a schedule that stands in its source; 0: there is none."""
    ids = [dict(headers_of(one)).get("tickover-id") or b"" for one in desk.site.kafka.read_all(desk.site.name(SOURCE))]
    times = [found[1] for id in ids if (found := re.fullmatch(rf"schedule:{name}:(\d+)", id.decode()))]
    return max(map(int, times), default=0)


# --- targets ------------------------------------------------------------------------------------------------------


def hold_up(desk: Desk, kind: str, name: str, reason: str) -> Page:
    """The page with what is paused, this among it."""
    page = desk.go("/targets")
    page.select_option("select[name=kind]", kind)
    page.fill("form.fields [name=name]", name)
    page.fill("form.fields [name=reason]", reason)
    page.click("button.danger:has-text('Pause')")
    told(page, "Paused")
    return page


def resume(name: str) -> str:
    """The button that lets this go on."""
    return f"#paused .problem:has-text('{name} is paused') button:has-text('Resume')"


def pause(desk: Desk) -> None:
    target, topic = desk.site.target("to-paused"), f"tickover.{desk.site.group}.pauses"
    page = hold_up(desk, "target", target, "the gateway is being moved")
    said = last(desk, topic, f"target/{target}")
    assert (said["reason"], said["by"]) == ("the gateway is being moved", "ADMIN")

    desk.send("to-paused", "waits", "10ms")
    wait_shown(page, "#paused :text('1 due messages wait on this replica')")
    desk.wait_passed()
    desk.came("to-paused", 0)

    page.click(resume(target))
    told(page, "Resumed")
    assert {content(message) for message in desk.came("to-paused")} == of("waits")
    assert last(desk, topic, f"target/{target}") is None


def switch_breaker(desk: Desk) -> None:
    """Retries wait while it is open; then they are tried."""
    target, topic = desk.site.name("calls"), f"tickover.{desk.site.group}.pauses"
    row = f"tr:has(a:text-is('{target}'))"
    page = desk.go("/targets")
    page.click(f"{row} >> text=Open breaker")
    told(page, "Retries wait")
    assert last(desk, topic, f"breaker/{target}")["to"] == "open"
    wait_shown(page, f"{row} >> text=Try now")
    desk.site.send(desk.site.name("calls-retry"), [("tickover-error-class", b"shop.Busy")], b"call", b"7")
    wait_shown(page, f"{row}:has(td.num:text-is('1'))")
    desk.wait_passed()
    desk.came("calls", 0)

    page.click(f"{row} >> text=Try now")
    told(page, "A few retries go as probes")
    [call] = desk.came("calls")
    assert content(call) == (b"7", b"call")
    assert dict(headers_of(call))["tickover-attempt"] == b"2"
    assert last(desk, topic, f"breaker/{target}")["to"] == "closed"


EFFECTS: Final[Mapping[str, Flow]] = {
    "/act/fire": fire,
    "/act/cancel": cancel,
    "/act/reschedule": reschedule,
    "/changes/abort": abort_change,
    "/changes/approve": change_selected,
    "/changes/new": change_selected,
    "/changes/plan": change_selected,
    "/changes/run": change_selected,
    "/dead-letters": act_on_letters,
    "/dead-letters/{topic}/{partition}/{offset}/edit": edit_letter,
    "/failures/{topic}/{fingerprint}": say,
    "/policies/_check": write_policies,
    "/policies/_write": write_policies,
    "/policies/{name}/delete": write_policies,
    "/policies/{name}/rollback": write_policies,
    "/quarantine/{partition}/{offset}/send": correct_quarantined,
    "/redrives": redrive,
    "/redrives/{id}/abort": abort_redrive,
    "/redrives/{id}/approve": redrive,
    "/redrives/{id}/canary": redrive,
    "/redrives/{id}/run": redrive,
    "/schedules/_write": write_schedules,
    "/schedules/{name}/delete": write_schedules,
    "/schedules/{name}/run": write_schedules,
    "/send": send,
    "/send/many": send_many,
    "/send/try": send_many,
    "/targets/close-breaker": switch_breaker,
    "/targets/open-breaker": switch_breaker,
    "/targets/pause": pause,
    "/targets/resume": pause,
}


@pytest.fixture(scope="module")
def kafka(clients_kafka: Kafka) -> Kafka:
    """The reference broker, unless a real one is asked for."""
    return clients_kafka


@pytest.fixture(scope="module")
def console(new_site: NewSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Console]]:
    """A desk before a sidecar in which nobody's plan begins without somebody else."""
    site = new_site()
    for role in (SOURCE, "orders-retry", "orders-dlq", "calls-retry"):
        site.topic(role)
    for role in (PASSED, "orders", "calls"):
        site.target(role)
    site.policies(POLICIES)
    tokens, given = tokens_file(Path(tmp_path_factory.mktemp("tokens")) / "tokens.yaml")
    settings = {"REDRIVE__RAMP": "0ms", "REDRIVE__WATCH": "100ms", "SCHEDULES__LOOK_AHEAD": "2s"}
    sidecar = site.sidecar("one", API__TOKENS_FILE=str(tokens), CHANGES__APPROVAL="other", **settings).start()
    with launched() as browser:
        console = Console(sidecar.url, browser)
        acts, approves = (console.open(token=given[role]) for role in (Role.ADMIN, Role.WRITE))
        yield Desk(site, f"{sidecar.url}/ui", acts, approves), console
        console.close()


def test_every_action_has_its_effect_looked_at() -> None:
    assert set(EFFECTS) == set(ACTIONS), "say in EFFECTS what comes of a new action, in Kafka"


@pytest.mark.parametrize("flow", dict.fromkeys(EFFECTS.values()), ids=lambda flow: flow.__name__)
def test_an_action_has_its_effect_in_kafka(flow: Flow, console: tuple[Desk, Console]) -> None:
    desk, browsed = console
    desk.posted.clear()
    browsed.problems.clear()

    flow(desk)

    for name in (name for name, of_it in EFFECTS.items() if of_it is flow):
        form = re.compile(re.sub(r"{\w+}", "[^/]+", name))
        assert any(form.fullmatch(path) for path in desk.posted), f"{name} was not pressed: {desk.posted}"
    assert browsed.problems == []
