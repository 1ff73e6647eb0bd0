"""Policies and schedules in the console: each page, and each action to what it writes."""

from typing import Any, Final

import pytest

from policies.model import policy_document
from sidecar.operations.schedules.schedule import MissedRuns, Progress, Run
from sidecar.operations.schedules.store import progress_parcel
from tests.process.api.console.browsing import Console, look_at
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World
from tests.unit.schedule_world import TOPIC, schedule

HOSTILE: Final = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def rules(api: World) -> None:
    """Policies in several versions, and schedules with runs."""
    api.sender.topics |= {"push": 1, "reports": 1}
    api.add(REMINDERS)
    api.add({**REMINDERS, "delay": {"default": "20m", "max": "400d"}})
    api.add({**RETRY, "retry": {**RETRY["retry"], "give_up_on": [HOSTILE]}})
    api.schedules.store.put(schedule(name="tick", cron="0 9 * * *", end=NOW_MS + 10**10), "reminders", 0, "me")
    api.schedules.store.put(schedule(name="odd", value=HOSTILE), "reminders", 0, "me")
    runs, missed = (Run(NOW_MS, NOW_MS + 5),), (MissedRuns(NOW_MS - 9_000_000, NOW_MS - 60_000, 3, 1, NOW_MS),)
    progress = Progress(NOW_MS, began=1, runs=runs, missed=missed)
    api.schedules.topic.records.append(progress_parcel(TOPIC, "tick", progress))
    api.schedules.topic.records.append(progress_parcel(TOPIC, "odd", Progress(problem=HOSTILE, began=1)))
    api.schedules.store.catch_up()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/policies", "policies"), ("/policies/reminders", "policy"),
        ("/policies/_edit?name=reminders", "policy-editor"),
        ("/schedules", "schedules"), ("/schedules/tick", "schedule"), ("/schedules/_edit?name=odd", "schedule-editor"),
        ("/policies/orders-retry", "policy-hostile"), ("/schedules/odd", "schedule-hostile"),
    ],
)  # fmt: skip
def test_how_it_looks(console: Console, path: str, name: str) -> None:
    look_at(console, path, name)


def test_a_policy_is_checked_while_it_is_written_and_saved(api: World, console: Console) -> None:
    page = console.open("/policies/_edit?name=reminders")
    text = page.input_value("textarea[name=text]")
    assert "20m" in text
    page.fill("textarea[name=text]", text.replace("20m", "20 moons"))
    page.wait_for_selector("#check .problem.bad >> text=policy:")
    page.fill("textarea[name=text]", text.replace("20m", "25m"))
    page.wait_for_selector("#check .well")
    page.fill("textarea[name=headers]", "tickover-target: push\ntickover-delay: 90s")
    page.wait_for_selector("#check dl >> text=push")
    assert [row.split()[0] for row in page.locator("#check tbody tr").all_inner_texts()] == ["–"]
    assert page.locator("#check tbody time").count() == 1
    page.click("button:has-text('Save')")
    page.wait_for_selector("text=Saved.")
    stored = api.policies.table.policies["reminders"]
    assert (stored.version, policy_document(stored.policy)["delay"]["default"]) == (3, "25m")
    assert "-  default: 20m" in page.inner_text("pre >> nth=1")
    assert console.problems == []


def test_who_was_slower_is_told_and_keeps_the_text(api: World, console: Console) -> None:
    page = console.open("/policies/_edit?name=reminders", script=False)
    text = page.input_value("textarea[name=text]").replace("20m", "26m")
    page.fill("textarea[name=text]", text)
    api.add({**REMINDERS, "delay": {"default": "30m", "max": "400d"}})
    page.click("button:has-text('Save')")
    assert "no longer, the one" in page.inner_text(".problem.bad")
    assert page.input_value("textarea[name=text]").strip() == text.strip()
    assert api.policies.table.policies["reminders"].version == 3


def test_a_policy_is_rolled_back_deleted_and_taken_up_again(api: World, console: Console) -> None:
    page = console.open("/policies/reminders")
    page.click("text=Roll back to 1")
    page.wait_for_selector("text=Rolled back")
    assert policy_document(api.policies.table.policies["reminders"].policy)["delay"]["default"] == "15m"
    page.click("summary:has-text('Delete')")
    page.click("button:has-text('Delete reminders')")
    page.wait_for_selector("text=Deleted. Its versions stay.")
    assert "reminders" not in api.policies.table.policies
    page.click("text=Roll back to 2")
    page.wait_for_selector("text=Rolled back")
    assert api.policies.table.policies["reminders"].version == 5


def test_a_schedule_is_run_once_from_one_page(api: World, console: Console) -> None:
    page = console.open("/schedules/tick")
    assert "3 after" in page.inner_text("main")
    key = page.get_attribute("input[name=idempotency_key]", "value")
    for _ in range(2):
        page.goto(f"{console.url}/ui/schedules/tick")
        page.eval_on_selector("input[name=idempotency_key]", "(field, key) => { field.value = key }", key)
        page.click("text=Run now")
        page.wait_for_load_state()
    [sent] = api.sender.sent
    assert (sent.topic, dict(sent.headers)["tickover-target"]) == ("reminders", b"push")


def test_a_schedule_is_made_changed_and_deleted(api: World, console: Console) -> None:
    page = console.open("/schedules/_edit", script=False)
    page.fill("textarea[name=text]", "name: report\ncron: soon\ntarget: push\n")
    page.click("button:has-text('Save')")
    assert "schedule:2:1: cron" in page.inner_text(".problem.bad")
    page.fill("textarea[name=text]", "name: report\ncron: 0 9 * * *\ntarget: push\nend: 2100-01-01T00:00:00Z\n")
    page.click("button:has-text('Save')")
    entry = api.schedules.store.get("report").entry
    assert entry is not None
    assert (entry.version, entry.schedule.end) == (1, 4_102_444_800_000)
    page.goto(f"{console.url}/ui/schedules/_edit?name=report")
    page.fill("textarea[name=text]", page.input_value("textarea[name=text]").replace("0 9", "0 10"))
    page.click("button:has-text('Save')")
    changed = api.schedules.store.get("report").entry
    assert changed is not None
    assert changed.schedule.cron == "0 10 * * *"
    page.click("summary:has-text('Delete')")
    page.click("button:has-text('Delete report')")
    assert api.schedules.store.get("report").entry is None


def test_without_anything_a_page_says_what_would_fill_it(api: World, console: Console) -> None:
    for name in ("tick", "odd"):
        api.schedules.store.delete(name, 1, "me")
    told: Any = console.open("/schedules").inner_text(".empty")
    assert "tickover schedules apply" in told
