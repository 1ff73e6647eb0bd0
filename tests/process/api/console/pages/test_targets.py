"""The screen of targets: what is paused, by whom and why; pausing and resuming to their effect; and hostile names."""

import json

import pytest
from playwright.sync_api import Browser

from api.access.auth import Role
from sidecar.model.condition import Pausable, Pause, PauseKind
from sidecar.model.stats import TargetFlow
from tests.process.api.console.browsing import OPTIONS, Console, look_at, served
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api_world import NOW_MS, REMINDERS, World

HOSTILE = "<script>document.title='taken'</script>"
PUSH = Pausable(PauseKind.TARGET, "push")


@pytest.fixture
def full(api: World) -> World:
    api.add({**REMINDERS, "target": {"topic": "push"}})
    api.sender.topics["push"] = 1
    return api


def test_it_looks_as_it_should(full: World, console: Console) -> None:
    full.pauses.store.put(PUSH, Pause("the gateway is moved", "ann", NOW_MS - 60_000, -1))
    look_at(console, "/targets", "targets")


def test_somebody_pauses_a_target_and_resumes_it(full: World, console: Console) -> None:
    page = console.open("/targets")
    assert "Nothing is paused." in page.inner_text("main")
    page.select_option("select[name=kind]", "target")
    page.fill("input[name=name]", "push")
    page.fill("input[name=reason]", "the gateway is moved")
    page.click("button:text('Pause')")
    page.wait_for_selector("text=push is paused by anonymous: the gateway is moved")
    assert full.pauses.store.alive()[PUSH].reason == "the gateway is moved"
    page.click("button:text('Resume')")
    page.wait_for_selector("text=Nothing is paused.")
    assert full.pauses.store.alive() == {}
    assert console.problems == []


def test_somebody_tries_a_target_whose_breaker_is_open(full: World, console: Console) -> None:
    full.change_stats(targets={"push": TargetFlow(3, 0.0, "open")})
    look_at(console, "/targets", "targets-broken")
    page = console.open("/targets")
    assert "tickover targets close-breaker push" in page.inner_text("main")
    page.click("button:text('Try now')")
    page.wait_for_selector("text=A few retries go as probes.")
    assert [key for key, _ in full.pauses.records] == [b"breaker/push"]
    full.change_stats(targets={"push": TargetFlow(3, 0.0, "closed")})
    assert console.open("/targets").locator("button:text('Try now')").count() == 0
    assert console.problems == []


def test_somebody_opens_a_breaker_that_is_not_open(full: World, console: Console) -> None:
    full.change_stats(targets={"push": TargetFlow(0, 0.0, "closed"), "mail": TargetFlow(0, 2.5)})
    look_at(console, "/targets", "targets-well")
    page = console.open("/targets")
    assert "tickover targets open-breaker push" in page.inner_text("main")
    assert "/v1/targets/push/open-breaker" in page.content()
    page.click("button:text('Open breaker')")  # of several it would be refused: `mail` has none
    page.wait_for_selector("text=Retries wait.")
    assert [(key, json.loads(value or b"")["to"]) for key, value in full.pauses.records] == [(b"breaker/push", "open")]
    full.change_stats(targets={"push": TargetFlow(3, 0.0, "open")})
    assert console.open("/targets").locator("button:text('Open breaker')").count() == 0
    assert console.problems == []


def test_what_does_not_exist_is_said_and_pauses_nothing(full: World, console: Console) -> None:
    page = console.open("/targets")
    page.fill("input[name=name]", "<img src=x>")
    page.fill("input[name=reason]", HOSTILE)
    page.click("button:text('Pause')")
    page.wait_for_selector("text=does not exist")
    assert full.pauses.store.alive() == {}


def test_hostile_words_are_only_words(full: World, console: Console) -> None:
    full.pauses.store.put(PUSH, Pause(HOSTILE, HOSTILE, NOW_MS, -1))
    page = console.open("/targets")
    assert HOSTILE in page.inner_text("main")
    assert page.title().startswith("Targets")
    assert console.problems == []


def test_who_may_not_pause_sees_no_button_and_is_refused(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    api = World(tokens=tokens(str(tmp_path_factory.mktemp("tokens"))), console=OPTIONS._replace(authenticates=True))
    api.change_stats(targets={"push": TargetFlow(3, 0.0, "open"), "mail": TargetFlow(3, 0.0, "closed")})
    with served(api) as url:
        console = Console(url, browser)
        page = console.open("/targets", token=token_of(Role.WRITE))
        assert page.locator("button:text('Pause')").count() == 0
        assert page.locator("button:text('Try now')").count() == 0
        assert page.locator("button:text('Open breaker')").count() == 0
        csrf = page.locator("input[name=csrf]").first.input_value()
        form: dict[str, str | float | bool] = {"csrf": csrf, "kind": "target", "name": "push", "reason": "r"}
        answer = page.request.post(f"{url}/ui/targets/pause", form=form, headers={"Origin": url})
        assert answer.status == 403
        for act in ("open", "close"):
            answer = page.request.post(f"{url}/ui/targets/{act}-breaker", form=form, headers={"Origin": url})
            assert answer.status == 403
        assert api.pauses.records == []
        assert api.pauses.store.alive() == {}
        console.close()
