"""Failure groups, dead letters and redrives in a browser: how they look, and what each action does."""

import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from api.access.auth import Role
from api.console.pages.failures import groups
from sidecar.model.record import Place
from sidecar.operations.dead_letters.browse import Limits
from sidecar.operations.dead_letters.groups import digests
from sidecar.operations.dead_letters.redrive_plan import Action
from sidecar.operations.jobs.job import State
from tests.process.api.console.browsing import LONGEST_MS, OPTIONS, Console, client_of, look_at, served
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api_world import NOW_MS, World
from tests.unit.letter_world import dead

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
VALUE = b'{"amount": -3, "secret": "4711", "inner": {"secret": 5, "note": "n"}}'


def fill(api: World) -> None:
    for n in range(30):
        headers = [*dead(error_class="app.PaymentError", error_message=f"card {n} was declined"), ("trace", b"t-7")]
        api.letters.add("orders-dlq", headers, partition=n % 2, value=VALUE)
    for _ in range(5):
        api.letters.add("orders-dlq", dead("expired", origin="orders-retry/0/1", redrive_source="orders-dlq/0/0"))
    api.letters.add("tickover.quarantine", dead("no_policy", detail="no policy matches 'orders-7'"))
    api.letters.add("orders", [])
    lanes = api.letters.partitions
    for place, lane in lanes.items():
        aged = [(one, n) for n, one in enumerate(lane) if one is not None]
        lanes[place] = [one._replace(timestamp_ms=NOW_MS - 90_000 * n) for one, n in aged]
    api.redriven.write("3f9a0c1d22ab", [Place("orders-dlq", 0, 1)], NOW_MS)
    api.redriven.write("77aa0c1d22ab", [Place("orders-dlq", 0, 2)], NOW_MS, discards=True)


@pytest.fixture
def api() -> World:
    world = World(console=OPTIONS)
    fill(world)
    return world


def plan_of(api: World) -> Any:
    [redrive] = api.redriving.plans.redrives.values()
    return redrive.plan


def group_of(console: Console) -> str:
    with client_of(console.url) as client:
        found = client.get("/v1/dead-letters/groups?topic=orders-dlq").json()["items"]
    return str(max(found, key=lambda group: group["count"])["fingerprint"])


def plan_a_redrive(console: Console) -> str:
    body = {"topic": "orders-dlq", "filter": {"reason": "attempts_exhausted"}}
    with client_of(console.url) as client:
        answer = client.post("/v1/redrives", json=body, headers={"Tickover-Client": "tests"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def has_chart(page: Page) -> None:
    page.wait_for_selector(".plot canvas")


def test_failure_groups_look_as_they_should(console: Console) -> None:
    look_at(console, "/failures", "failures", has_chart)
    look_at(console, f"/failures/orders-dlq/{group_of(console)}", "failure", has_chart)


def read_slowly(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three records are read each time that somebody asks."""
    reading = api.app.state.ports.letters
    reading.rules = reading.rules._replace(limits=Limits(3, 60.0))
    monkeypatch.setattr(groups, "PATIENCE_S", 0.0)


def test_groups_are_counted_while_somebody_looks_and_each_letter_is_read_once(
    console: Console, api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_slowly(api, monkeypatch)
    page = console.open("/failures?topic=orders-dlq")
    page.wait_for_selector(".problem:has-text('still to be read')")
    expect(page.locator(".problem", has_text="still to be read")).to_have_count(0, timeout=LONGEST_MS)
    counts = page.locator("#groups tbody tr td:nth-child(5)")
    assert sorted(counts.all_inner_texts()) == ["30", "5"]
    assert api.letters.reads == 7 + 5, "batches of three of 20 letters and of 15, each once"
    page = console.open(f"/failures/orders-dlq/{group_of(console)}")
    expect(page.locator("#figures .figure .value").nth(0)).to_have_text("28", timeout=LONGEST_MS)
    assert console.problems == []


def test_groups_of_more_letters_than_are_kept_say_so_once(
    console: Console, api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_slowly(api, monkeypatch)
    monkeypatch.setattr(digests, "LETTERS_MAX", 10)
    page = console.open("/failures?topic=orders-dlq")
    expect(page.locator(".problem", has_text="more than the sidecar keeps counts of")).to_be_visible(timeout=LONGEST_MS)
    assert page.locator("[hx-trigger^=load]").count() == 0
    assert console.problems == []


def test_a_group_is_looked_for_until_all_is_read(console: Console, api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read_slowly(api, monkeypatch)
    late = api.letters.add("orders-dlq", dead(error_class="app.Late", error_message="too late"), partition=1)
    page = console.open(f"/failures/orders-dlq/{late.fingerprint}")
    expect(page.locator("#figures .figure .value").nth(0)).to_have_text("1", timeout=LONGEST_MS)
    has_chart(page)
    page = console.open("/failures/orders-dlq/0123456789abcdef")
    expect(page.locator("main")).to_contain_text("retention has taken the last", timeout=LONGEST_MS)
    assert not [problem for problem in console.problems if "404" not in problem]


def test_dead_letters_look_as_they_should(console: Console) -> None:
    look_at(console, "/dead-letters?topic=orders-dlq", "dead-letters")
    look_at(console, "/dead-letters/orders-dlq/0/1?payload=true", "dead-letter")
    look_at(console, "/dead-letters/orders-dlq/0/0/edit", "dead-letter-edit")
    look_at(console, "/dead-letters?topic=orders-dlq&reason=nothing", "dead-letters-empty")


def test_letters_are_searched_by_a_part_of_their_error(console: Console, api: World) -> None:
    api.letters.add("orders-dlq", dead(error_class="app.XssError", error_message=f"can't print {HOSTILE} here"))
    page = console.open("/dead-letters?topic=orders-dlq")
    page.fill("input[name=error]", HOSTILE.upper())
    page.click("text=Filter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert HOSTILE in page.inner_text("tbody")
    assert page.input_value("input[name=error]") == HOSTILE.upper()
    chip = page.locator("a.filter", has_text="error")
    expect(chip).to_contain_text(HOSTILE.upper())
    told = shlex.split(page.inner_text(".command code >> nth=0"))
    assert told == ["tickover", "dead-letters", "list", "--topic", "orders-dlq", "--error", HOSTILE.upper()]
    page.click("text=as a call of the API")
    asked = httpx.URL(shlex.split(page.inner_text(".command-more code"))[-1]).params
    assert (asked["error"], asked["topic"]) == (HOSTILE.upper(), "orders-dlq")
    chip.click()
    expect(page.locator("a.filter", has_text="error")).to_have_count(0)
    expect(page.locator("a.filter", has_text="topic")).to_have_count(1)
    assert page.locator("tbody tr").count() > 1
    page.goto(f"{console.url}/ui/dead-letters?error=card 1 was&key_prefix=k")
    page.wait_for_selector("tbody tr")
    assert [row.split()[0] for row in page.locator("tbody tr td.mono >> nth=0").all_inner_texts()] == ["orders-dlq/1/0"]
    assert console.problems == []


def test_what_a_search_found_is_redriven_by_its_words(console: Console, api: World) -> None:
    page = console.open("/dead-letters?topic=orders-dlq&error=CARD 1 was&header=trace=t-7&open=true")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.click("text=Redrive all that fit")
    assert page.input_value("input[name=error]") == "CARD 1 was"
    words = ["--error", "CARD 1 was", "--header", "trace=t-7"]
    command = ["tickover", "redrive", "plan", "--topic", "orders-dlq", *words]
    assert shlex.split(page.inner_text(".command code >> nth=0")) == command
    page.click("text=as a call of the API")
    call = shlex.split(page.inner_text(".command-more code"))
    chosen = {"error": "CARD 1 was", "header": "trace=t-7"}
    assert json.loads(call[call.index("--json") + 1]) == {"topic": "orders-dlq", "filter": chosen}
    page.click("text=Plan it")
    expect(page.locator("li[aria-current=step]")).to_have_text("2 Plan")
    assert plan_of(api).selection.model_dump(exclude_none=True) == chosen
    told = shlex.split(page.inner_text(".command code >> nth=0"))
    assert told[: len(command)] == [*command[:-1], "***"], "who may only read sees this page, too"
    page.click("text=Show key and header")
    expect(page.locator("dd", has_text="trace=t-7")).to_be_visible()
    assert shlex.split(page.inner_text(".command code >> nth=0"))[: len(command)] == command
    assert api.audited[-1]["notes"]["payload"]
    assert console.problems == []


def test_redrives_look_as_they_should(console: Console, api: World) -> None:
    look_at(console, "/redrives/new", "redrive-new")
    look_at(console, "/redrives", "redrives-empty")
    id = plan_a_redrive(console)
    look_at(console, "/redrives", "redrives")
    look_at(console, f"/redrives/{id}", "redrive-planned")
    api.redriving.plans.set(id, state=State.STOPPED, reason="3 of 9 failed again", failed_again=3)
    look_at(console, f"/redrives/{id}", "redrive-stopped")


def test_somebody_says_where_they_stand_with_a_group(console: Console, api: World) -> None:
    fingerprint = group_of(console)
    page = console.open("/failures?topic=orders-dlq")
    page.click("text=was declined")
    page.select_option("select[name=state]", "resolved")
    page.fill("textarea[name=note]", "mended in 4.2")
    page.click("text=Write it down")
    expect(page.locator(".toast")).to_have_text("Written down; every replica shows it.")
    note = api.redriven.note_of("orders-dlq", fingerprint)
    assert note is not None
    assert (note.state, note.note) == ("resolved", "mended in 4.2")
    api.letters.add("orders-dlq", dead(error_class="app.PaymentError", error_message="card 9 was declined"))
    page.goto(f"{console.url}/ui/failures")
    assert "letters have come since" in page.inner_text("#groups")


def test_letters_that_are_selected_become_a_plan(console: Console, api: World) -> None:
    page = console.open("/dead-letters?topic=orders-dlq")
    page.check("input[value='orders-dlq/0/0']")
    page.check("input[value='orders-dlq/0/3']")
    page.click("text=Discard selected")
    expect(page.locator("h1")).to_contain_text("Discard")
    assert (plan_of(api).action, plan_of(api).letters) == (Action.DISCARD, {0: (0, 3)})
    assert "Planned. Nothing has been sent." in page.inner_text(".toast")
    assert "--discard" in page.inner_text(".command")


def test_letters_of_two_topics_are_no_plan(console: Console, api: World) -> None:
    page = console.open("/dead-letters")
    page.check("input[value='orders-dlq/0/0']")
    page.check("input[value='tickover.quarantine/0/0']")
    page.click("text=Redrive selected")
    assert "all of one topic" in page.inner_text("main")
    assert api.redriving.plans.redrives == {}


def test_an_edit_is_a_patch_without_what_is_masked(console: Console, api: World) -> None:
    page = console.open("/dead-letters/orders-dlq/0/0/edit")
    shown = page.input_value("textarea[name=value]")
    assert '"secret": "***"' in shown
    assert "4711" not in page.content()
    page.fill("textarea[name=value]", shown.replace("-3", "3").replace('"note": "n"', '"note": "better"'))
    page.fill("textarea[name=headers]", "trace: t-8\nnew: x")
    page.click("text=Plan it")
    expect(page.locator("h1")).to_contain_text("letters of orders-dlq")
    edit = plan_of(api).edit
    assert edit.merge == {"amount": 3, "inner": {"note": "better"}}
    assert (edit.headers, edit.key, edit.value) == ({"trace": b"t-8", "new": b"x"}, None, None)
    assert plan_of(api).letters == {0: (0,)}


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("value", "{", "can't be patched"),
        ("value", '{"amount": null}', "null removes"),
        (
            "value",
            '{"amount": "***", "secret": "***", "inner": {"secret": "***", "note": "n"}}',
            "stands for what is masked",
        ),
        ("headers", "no colon", "name: value"),
        ("headers", "tickover-redrive-count: 0", "tickover's own"),
        ("key", "k", "Nothing was changed"),
    ],
)
def test_edits_that_are_refused_say_why(console: Console, api: World, field: str, text: str, says: str) -> None:
    page = console.open("/dead-letters/orders-dlq/0/0/edit")
    page.fill(f"[name={field}]", text)
    page.click("text=Plan it")
    assert says in page.inner_text("main")
    assert api.redriving.plans.redrives == {}


def test_the_payload_is_shown_when_it_is_asked_for_and_masked(console: Console, api: World) -> None:
    page = console.open("/dead-letters/orders-dlq/0/0")
    assert "amount" not in page.inner_text("main")
    assert api.audited == []
    page.click("text=Show them")
    assert '"secret": "***"' in page.inner_text("pre")
    assert api.audited[-1]["notes"]["payload"]


def test_a_letter_says_where_it_went_before(console: Console) -> None:
    page = console.open("/dead-letters/orders-dlq/0/15")
    story = page.inner_text(".steps")
    assert "Met first as orders-retry/0/1." in story
    assert "orders-dlq/0/0" in story
    assert "Given up after delivery 6: expired." in story
    page.goto(f"{console.url}/ui/dead-letters/orders-dlq/0/2")
    assert "Discarded by the plan 77aa0c1d22ab" in page.inner_text(".steps")
    assert "open no more" in page.inner_text("main")


def test_from_selection_to_result(console: Console, api: World) -> None:
    page = console.open(f"/failures/orders-dlq/{group_of(console)}")
    page.click("text=/Redrive \\d+/")
    page.fill("input[name=rate]", "5")
    page.click("text=Plan it")
    expect(page.locator("li[aria-current=step]")).to_have_text("2 Plan")
    plan = plan_of(api)
    assert (plan.governor.rate, plan.selection.fingerprint) == (5, group_of(console))
    page.fill("input[name=letters]", "2")
    page.click("text=Send these first")
    expect(page.locator("li[aria-current=step]")).to_have_text("3 Canary")
    api.redriving.plans.set(plan.id, failed_again=1)
    expect(page.locator("#progress")).to_contain_text("1 failed again")  # by itself
    sent = api.redriving.plans.redrives[plan.id].progress.planned.model_copy(update={"targets": {"orders": 2}})
    api.redriving.finish(state=State.CANARIED, tally=sent.model_copy(update={"skipped": {}}))
    page.click("summary:has-text('Send 1')")
    page.fill("input[name=count]", "1")
    page.click("form.panel button:has-text('Send 1')")
    expect(page.locator("li[aria-current=step]")).to_have_text("4 Run")
    page.click("text=Abort")
    assert api.redriving.plans.redrives[plan.id].aborted_by
    api.redriving.finish(state=State.ABORTED)
    page.reload()
    expect(page.locator("li[aria-current=step]")).to_have_text("5 Result")
    assert console.problems == []


def test_a_run_wants_its_number_typed(console: Console, api: World) -> None:
    id = plan_a_redrive(console)
    with client_of(console.url) as client:
        form = re.search(r'name="csrf" value="([^"]+)"', client.get(f"/ui/redrives/{id}").text)
        assert form is not None
        answer = client.post(f"/ui/redrives/{id}/run", data={"csrf": form[1], "count": "2"})
    assert (answer.status_code, "Type 3 to go on" in answer.text) == (403, True)
    assert api.redriving.plans.redrives[id].state is State.PLANNED


def test_hostile_letters_are_only_text(console: Console, api: World) -> None:
    headers = dead(error_class=HOSTILE, error_message=HOSTILE, id=HOSTILE, origin=HOSTILE, redrive_source=HOSTILE)
    letter = api.letters.add("orders-dlq", [*headers, (HOSTILE, HOSTILE.encode())], key=HOSTILE.encode())
    api.redriven.write(HOSTILE, [letter.place], NOW_MS)
    fingerprint = letter.fingerprint
    note = {"state": "known", "note": HOSTILE}
    place = f"/v1/dead-letters/orders-dlq/groups/{fingerprint}"
    with client_of(console.url) as client:
        assert client.put(place, json=note, headers={"Tickover-Client": "tests"}).status_code == 200
    for path in (
        "/failures", f"/failures/orders-dlq/{fingerprint}", "/dead-letters?topic=orders-dlq&fingerprint=" + fingerprint,
        f"/dead-letters/{letter.place}?payload=true", f"/dead-letters/{letter.place}/edit",
    ):  # fmt: skip
        page = console.open(path)
        assert "<script>alert" not in page.content()
        assert page.locator("img[src=x]").count() == 0
    assert console.problems == []


@pytest.fixture
def waiting() -> Iterator[World]:
    """An API that wants tokens, and another person for each plan."""
    with tempfile.TemporaryDirectory() as directory:
        console = OPTIONS._replace(authenticates=True)
        world = World(tokens=tokens(directory), console=console, approval="other")
        fill(world)
        yield world


@pytest.fixture
def guarded(waiting: World) -> Iterator[httpx.Client]:
    """A client of its console."""
    with served(waiting) as url, client_of(url) as client:
        yield client


def csrf(text: str) -> str:
    return text.partition('name="csrf" value="')[2].partition('"')[0]


def log_in(client: httpx.Client, role: Role) -> None:
    client.cookies.clear()
    form = {"csrf": csrf(client.get("/ui/log-in").text), "token": token_of(role), "next": ""}
    assert client.post("/ui/log-in", data=form).status_code == 303


def test_who_may_only_read_searches_neither_keys_nor_headers(guarded: httpx.Client) -> None:
    for role, count in ((Role.READ, 0), (Role.WRITE, 1)):
        log_in(guarded, role)
        text = guarded.get("/ui/dead-letters").text
        assert [text.count(f'<input name="{name}"') for name in ("key_prefix", "header", "error", "id")] == [
            count, count, 1, 1,
        ]  # fmt: skip
        assert guarded.get("/ui/dead-letters?key_prefix=k").status_code == (403, 200)[count]


def test_a_plan_that_waits_for_another_person_is_approved_by_one(guarded: httpx.Client, waiting: World) -> None:
    log_in(guarded, Role.WRITE)
    own = csrf(guarded.get("/ui/redrives/new").text)
    form = {"csrf": own, "topic": "orders-dlq", "reason": "expired"}
    place = guarded.post("/ui/redrives", data=form).headers["location"].partition("?")[0]
    page = guarded.get(place).text
    assert "approval by somebody other than write" in page
    assert (">Approve<" in page, "these first" in page) == (False, False)
    assert guarded.post(f"{place}/approve", data={"csrf": own}).status_code == 403, "not by its author"
    log_in(guarded, Role.ADMIN)
    page = guarded.get(place).text
    assert ">Approve<" in page
    assert guarded.post(f"{place}/approve", data={"csrf": csrf(page)}).status_code == 303
    page = guarded.get(place).text
    assert ("Approved by admin" in page, "these first" in page) == (True, True)
    [redrive] = waiting.redriving.plans.redrives.values()
    assert redrive.approved_by == "admin"


def test_who_may_only_read_sees_no_action_and_can_do_none(guarded: httpx.Client) -> None:
    log_in(guarded, Role.READ)
    own = ""
    for path in ("/ui/failures", "/ui/dead-letters", "/ui/dead-letters/orders-dlq/0/0", "/ui/redrives"):
        answer = guarded.get(path)
        own = csrf(answer.text)
        assert answer.status_code == 200, path
        for word in ("Discard", "Redrive …", "Edit and", "Plan a redrive", "Show them"):
            assert word not in answer.text, (path, word)
    assert guarded.get("/ui/dead-letters/orders-dlq/0/0/edit").status_code == 403
    assert guarded.get("/ui/redrives/new").status_code == 403
    for path in (
        "/dead-letters", "/dead-letters/orders-dlq/0/0/edit", "/redrives", "/redrives/x/run", "/redrives/x/canary",
        "/redrives/x/abort", "/failures/orders-dlq/" + "0" * 16,
    ):  # fmt: skip
        assert guarded.post(f"/ui{path}", data={"csrf": own}).status_code == 403, path
