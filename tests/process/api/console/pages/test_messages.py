"""Screens of held messages, of one message, of sending, and of changes of many: how they look, and what they do."""

import csv
import tempfile
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from api.access.auth import Role
from api.console.page import ROOT
from sidecar.lookup.query import row_of
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.record import Headers, Outcome, TopicPartition
from tests.process.api.console.browsing import LONGEST_MS, OPTIONS, Console, look_at, served
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api_world import NOW_MS, REMINDERS, World
from tests.unit.change_world import LANES, held
from tests.unit.lookup.test_receipts import block, settled

HERE = TopicPartition("reminders", 3)
HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


def hold(api: World, count: int = 30, **other: Any) -> None:
    """Messages of which some are due and some far, with what a hostile sender may write."""
    ids = [HOSTILE if number == 1 else f"invoice/{number}" for number in range(count)]
    headers: Headers = [("tenant", b"acme"), ("my-secret", b"s3cr3t")]
    for number, id in enumerate(ids):
        record = held(number, NOW_MS + number * 60_000, id, headers=headers, policy="reminders@1", **other)
        api.held.rows.append(row_of(HERE, record, "overflow" if number > 20 else "wheel"))
        told: Headers = [("tickover-id", id.encode()), ("tickover-delay", b"1h"), *headers]
        api.letters.add("reminders", told, partition=3, key=b"cust-1", value=b'{"n": 1, "secret": "x"}')
    api.held.minutes = {-1: 1_204_331}


@pytest.fixture
def filled(api: World) -> World:
    api.add(REMINDERS)
    hold(api)
    return api


def test_the_list_looks_as_it_should(filled: World, console: Console) -> None:
    look_at(console, "/messages", "messages", lambda page: page.wait_for_selector("text=1,204,331 in all"))
    look_at(console, "/messages?target=mail&header=tenant%3Dacme", "messages-filtered")
    filled.held.rows = []
    look_at(console, "/messages?target=nobody", "messages-empty")


def test_filters_are_in_the_address_and_a_cross_takes_one_away(filled: World, console: Console) -> None:
    page = console.open("/messages?target=mail")
    page.select_option("select[name=add]", "policy")
    page.fill("input[name=value]", "reminders@1")
    page.click("text=Add filter")
    page.wait_for_url("**policy=reminders%401*")
    assert "target=mail" in page.url
    assert ("mail", "reminders@1") in {(asked.target, asked.policy) for asked in filled.held.asked}
    page.click("a.filter[aria-label^='Without target']")
    assert "target" not in page.url
    assert "policy" in page.url
    assert "tickover messages list --policy reminders@1" in page.inner_text("main")


def test_nothing_that_a_sender_wrote_is_run(filled: World, console: Console) -> None:
    page = console.open("/messages")
    page.click(f"text={HOSTILE}")
    expect(page.locator("h1")).to_have_text(HOSTILE)
    page.click("text=Show the content")
    assert "49" not in page.inner_text("h1")
    assert console.problems == []


def test_a_retry_tells_of_its_deliveries_before_as_text_only(filled: World, console: Console) -> None:
    for offset, outcome, attempt in ((2, Outcome.DEAD, 2), (4, Outcome.EMITTED, 3)):
        told = settled({offset: outcome}, {offset: HOSTILE})._replace(attempts=[attempt], targets=[HOSTILE])
        told = told._replace(reasons={offset: HOSTILE} if outcome is Outcome.DEAD else {})
        filled.receipts.add(LedgerPlace(1, offset), block({}, settled=told))
    filled.held.rows[1] |= {"attempt": 6, "first_failure": NOW_MS - 9_000}
    page = console.open("/messages")
    page.click(f"text={HOSTILE}")
    page.wait_for_url("**/messages/*")
    before = f"A message with this id was given up before, and sent to {HOSTILE}: it had come as reminders/3/2"
    unknown = "More is not known here: the ledger isn't remembered that far, or the id was another"
    assert page.locator(".steps li > div").all_inner_texts()[:6] == [
        f"{before} ({HOSTILE}) · ledger 1/2",
        "Delivery 1 failed",
        f"Delivery 2 failed. {unknown}",
        f"Delivery 3 went to {HOSTILE} and failed; its record had come as reminders/3/4 · ledger 1/4",
        f"Deliveries 4 to 5 failed. {unknown}",
        "Arrived in its source reminders/3/1",
    ]
    look_at(console, page.url.partition("/ui")[2], "message-retry")
    page.click("text=Dead letters with this id")
    assert page.locator("a.filter b").all_inner_texts() == [HOSTILE]
    assert console.problems == []


def test_the_list_as_csv_has_no_formulas(filled: World, console: Console) -> None:
    filled.held.rows[0]["target"] = "=1+1"
    page = console.open("/messages")
    answer = page.request.get(f"{console.url}/ui/export/messages.csv")
    rows = list(csv.DictReader(answer.text().splitlines()))
    assert [row["id"] for row in rows][:3] == ["invoice/0", HOSTILE, "invoice/2"]
    assert (rows[0]["target"], rows[0]["partition"], rows[0]["offset"]) == ("'=1+1", "3", "0")
    assert "attachment" in answer.headers["content-disposition"]


def test_one_message_looks_as_it_should_and_shows_its_content_on_demand(filled: World, console: Console) -> None:
    look_at(console, "/messages/invoice%2F2?source=reminders", "message")
    page = console.open("/messages/invoice%2F2")
    assert "acme" not in page.inner_text("main")
    page.click("text=Show the content")
    assert '"n": 1' in page.inner_text("pre")
    assert "s3cr3t" not in page.content()
    assert "tickover messages why invoice/2" in page.inner_text("main")


def test_a_message_is_sent_by_the_form_once(filled: World, console: Console) -> None:
    page = console.open("/send")
    fill(page, target="push", key="42", delay="15m", headers="tenant=acme\nempty=", value="one\ntwo")
    page.click("main >> button.first")
    page.wait_for_selector("text=accepted")
    [record] = filled.sender.sent
    assert (record.key, record.value) == (b"42", b"one\ntwo")
    assert record.headers[:2] == [("tenant", b"acme"), ("empty", b"")]
    page.reload()  # the browser sends the form again
    assert len(filled.sender.sent) == 1
    look_at(console, "/send?target=push", "send")


def fill(page: Page, **fields: str) -> None:
    for name, text in fields.items():
        page.fill(f"[name={name}]", text)


def test_what_the_api_refuses_is_said_and_the_form_kept(filled: World, console: Console) -> None:
    page = console.open("/send")
    fill(page, target="push", key="42", delay="401d")
    page.click("main >> button.first")
    page.wait_for_selector("text=not sent")
    assert page.input_value("[name=key]") == "42"
    fill(page, delay="1m")
    page.click("main >> button.first")
    page.wait_for_selector("text=accepted")
    assert len(filled.sender.sent) == 1


def test_a_replacement_has_the_id_and_says_what_is_masked(filled: World, console: Console) -> None:
    page = console.open("/messages/invoice%2F2")
    page.click("text=Replace …")
    assert page.input_value("[name=id]") == "invoice/2"
    assert page.input_value("[name=headers]") == "tenant=acme\nmy-secret=***"
    assert page.is_visible("text=it has to be written anew")
    page = console.open("/messages/invoice%2F2")
    page.click("text=Send another like it …")
    assert page.input_value("[name=id]") == ""
    assert page.input_value("[name=key]") == "cust-1"


def test_many_are_tried_first_and_sent_by_their_count(filled: World, console: Console) -> None:
    page = console.open("/send/many")
    page.fill("textarea", 'target,id,value\npush,a,"x\ny"\nnowhere,b,\npush,c,')
    page.click("text=Dry run >> nth=-1")
    page.wait_for_selector("text=2 would be sent, 1 refused")
    assert filled.sender.sent == []
    page.click("text=Send 3 …")
    page.fill("input[name=count]", "3")
    page.click("details[open] button")
    page.wait_for_selector("text=2 sent, 1 refused")
    assert [record.value for record in filled.sender.sent] == [b"x\ny", None]
    look_at(console, "/send/many", "send-many")


def change_world(api: World) -> None:
    api.add({**REMINDERS, "name": "a", "match": {"topics": ["a", "b"]}, "target": {"allow": ["*"]}})
    for number in range(12):
        api.changing.group.accept(LANES[number % 3], NOW_MS + 60_000 * number, f"id-{number}", target="mail")


def test_a_change_is_counted_confirmed_by_its_count_and_has_receipts(api: World, console: Console) -> None:
    change_world(api)
    page = console.open("/changes/new?action=cancel&source=a")
    page.click("text=Count them")
    page.wait_for_selector("text=Cancel 8 …")
    address = page.url
    look_at(console, address.removeprefix(f"{console.url}/ui"), "change-planned")
    page.click("text=Cancel 8 …")
    page.fill("input[name=count]", "8")
    page.click("details[open] button")
    page.wait_for_selector("text=8 cancelled")
    assert len(api.changing.group.sent) == 8
    answer = page.request.get(f"{address}/receipts.csv")
    rows = list(csv.DictReader(answer.text().splitlines()))
    assert {row["outcome"] for row in rows} == {"cancelled"}
    assert len(rows) == 8
    look_at(console, address.removeprefix(f"{console.url}/ui"), "change-done")
    look_at(console, "/changes", "changes")
    look_at(console, "/changes/new?source=a", "change-new")


def test_a_count_that_is_not_the_plan_s_changes_nothing(api: World, console: Console) -> None:
    change_world(api)
    page = console.open("/changes/new?action=cancel&source=a", script=False)
    page.click("text=Count them")
    deadline_s = time.monotonic() + LONGEST_MS / 1_000
    while page.locator("text=Cancel 8 …").count() == 0 and time.monotonic() < deadline_s:
        page.reload()  # by hand, as there is no script that does
    page.click("text=Cancel 8 …")
    page.evaluate("document.querySelector('input[name=count]').removeAttribute('pattern')")
    page.fill("input[name=count]", "7")
    page.click("details[open] button")
    assert "Nothing was changed" in page.inner_text("main")
    assert api.changing.group.sent == []


def test_selected_rows_are_what_is_meant(filled: World, console: Console) -> None:
    page = console.open("/messages")
    page.check("input[value='invoice/2']")
    page.check("input[value='invoice/3']")
    page.click("button[name=action][value=fire]")
    assert "2 selected: invoice/2, invoice/3" in page.inner_text("main")
    assert page.is_checked("input[name=action][value=fire]")
    page.click("text=Count them")
    page.wait_for_selector("h1:has-text('Fire')")
    [change] = filled.changing.jobs.changes.values()
    assert change.plan.selection.ids == ("invoice/2", "invoice/3")


def test_a_message_that_is_not_there_and_one_that_is_overtaken(filled: World, console: Console) -> None:
    page = console.open("/messages/nobody")
    assert "No message with this id is held" in page.inner_text("main")
    page = console.open("/messages/invoice%2F2")
    filled.held.rows = []
    page.click("text=Fire now")
    assert "No message with this id is held" in page.inner_text("main")


def test_who_only_reads_sees_no_action_and_is_refused_each(browser: Browser) -> None:
    """The API decides; what it would refuse isn't shown."""
    with tempfile.TemporaryDirectory() as directory:
        api = World(tokens=tokens(directory), console=OPTIONS._replace(authenticates=True))
        hold(api, 3)
        with served(api) as url:
            console = Console(url, browser)
            page = console.open("/messages", token=token_of(Role.READ))
            text = page.inner_text("body")
            assert "invoice/2" in text
            assert not {"Cancel", "Reschedule", "Send", "Fire"} & set(text.replace("\n", " ").split())
            assert page.locator("input[type=checkbox]").count() == 0
            page.goto(f"{url}/ui/messages/invoice%2F2?payload=1")
            assert "Show the content" not in page.inner_text("body")
            assert "cust-1" not in page.content()
            csrf = page.locator("input[name=csrf]").first.input_value()
            for path in ("/act/fire", "/act/cancel", "/act/reschedule", "/send", "/send/many", "/changes/plan"):
                form: dict[str, Any] = {
                    "csrf": csrf,
                    "id": "invoice/2",
                    "target": "push",
                    "action": "cancel",
                    "text": "target\nx\n",
                }
                answer = page.request.post(f"{url}/ui{path}", form=form, headers={"Origin": url})
                assert answer.status == 403, path
            assert page.request.get(f"{url}/ui/messages?key_prefix=c").status == 403
            assert api.sender.sent == []
            console.close()


def test_a_change_that_somebody_else_must_approve_says_so_and_is_run_then(browser: Browser) -> None:
    with tempfile.TemporaryDirectory() as directory:
        api = World(tokens=tokens(directory), console=OPTIONS._replace(authenticates=True), approval="other")
        change_world(api)
        with served(api) as url:
            console = Console(url, browser)
            author = console.open("/changes/new?action=cancel&source=a", token=token_of(Role.WRITE))
            author.click("text=Count them")
            author.wait_for_selector("text=Somebody else has to approve it")
            assert author.locator(f"form[action$='{ROOT}/changes/run']").count() == 0
            other = console.open(author.url.removeprefix(f"{url}/ui"), token=token_of(Role.ADMIN))
            other.click("main >> text=Approve")
            other.wait_for_selector("text=Cancel 8 …")
            console.close()
