"""Screens of audit, settings and doctor, and quarantine: how they look, what they say, and what an action does."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from api.access.auth import Role
from policies.headers import TARGET
from sidecar.doctor.facts import Finding, Severity
from sidecar.settings.settings import load_settings
from tests.process.api.console.browsing import OPTIONS, Console, look_at, served
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api.routes.about.test_api_audit_list import add
from tests.unit.api.routes.about.test_api_quarantine import aside
from tests.unit.api_world import REMINDERS, World

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
WRONG = [
    Finding(Severity.OK, "brokers", "3 brokers answer"),
    Finding(Severity.ERROR, "redis", "no answer from redis:6379", "redis-cli -h redis ping"),
    Finding(Severity.WARNING, "topic orders-retry", "keeps its records for 7 days", "kafka-configs.sh --alter ..."),
]


@pytest.fixture
def full(api: World) -> World:
    api.add(REMINDERS)
    api.sender.topics["push"] = 1
    api.findings = WRONG
    api.about.settings = load_settings(None, {"group": "payments", "redis.password": "geheim"}, {})
    for second in range(5):
        outcome = ("done", "refused", "failed")[second % 3]
        add(api, second, actor="ann", outcome=outcome, status=200, subject={"name": "orders"}, client="10.0.0.7")
    for reason in ("bad_header", "no_policy"):
        aside(api, reason=reason, value=b'{"secret": "geheim", "n": 1}')
    return api


def test_audit(full: World, console: Console) -> None:
    look_at(console, "/audit", "audit")
    page = console.open("/audit?outcome=refused")
    assert page.locator("tbody tr").count() == 2
    page.click("text=Add a filter")
    page.fill("input[name=action]", "put_*")
    page.select_option("select[name=outcome]", "done")
    page.click("details[open] button.first")
    page.wait_for_url("**outcome=done**")
    assert "tickover audit --action 'put_*' --outcome done" in page.inner_text("main")
    assert page.locator("tbody tr").count() == 2
    page.goto(f"{console.url}/ui/audit?caller=nobody")
    assert "No record fits" in page.inner_text("main")


def test_settings_and_doctor(full: World, console: Console) -> None:
    look_at(console, "/settings", "settings")
    page = console.open("/settings")
    said = page.inner_text("main")
    assert "no answer from redis:6379" in said
    assert "option redis.password" in said
    assert "geheim" not in page.content()
    page.click("text=Show all")
    assert page.locator("td:text-is('horizon')").is_visible()
    look_at(console, "/settings?all=true", "settings-all")


def test_nothing_wrong_is_one_quiet_line(full: World, console: Console) -> None:
    full.findings = WRONG[:1]
    page = console.open("/settings")
    assert "Nothing is wrong" in page.inner_text("main .well")
    assert page.locator(".problem").count() == 0


def test_a_quarantined_record_is_sent_corrected(full: World, console: Console) -> None:
    look_at(console, "/quarantine", "quarantine")
    look_at(console, "/quarantine/0/0?payload=true", "quarantined")
    page = console.open("/quarantine?reason=bad_header")
    page.click("tbody a >> nth=0")
    assert "geheim" not in page.content()
    page.click("text=Show them")
    page.wait_for_url("**payload=true**")
    assert "***" in page.inner_text("pre")
    assert "geheim" not in page.content()
    page.fill("input[name=name] >> nth=0", "tickover-delay")
    page.fill("input[name=header] >> nth=0", "in a while")
    page.click("text=Send to reminders")
    assert "would be quarantined again" in page.inner_text(".problem")
    assert page.input_value("input[name=header] >> nth=0") == "in a while", "what was written is kept"
    assert full.resent == []
    page.fill("input[name=header] >> nth=0", "10m")
    page.fill("input[name=without]", "trace")
    page.click("text=Another key or value")
    page.check("input[name=change_value]")
    page.fill("textarea[name=value]", "mended")
    page.click("text=Send to reminders")
    page.wait_for_selector("text=was sent to its source")
    [record] = full.resent
    assert (record.target, record.key, record.value) == ("reminders", b"k", b"mended")
    assert dict(record.headers)["tickover-delay"] == b"10m"
    assert "trace" not in dict(record.headers)
    assert page.locator("text=Send to reminders").count() == 0
    assert "sent again" in page.inner_text("main .well")


def test_without_a_script_it_is_read_and_sent(full: World, console: Console) -> None:
    page = console.open("/quarantine/0/0", script=False)
    page.fill("input[name=name] >> nth=0", "tickover-delay")
    page.fill("input[name=header] >> nth=0", "10m")
    page.click("text=Send to reminders")
    assert "by-hand-0-0" in page.inner_text("main")
    assert len(full.resent) == 1


def test_what_others_wrote_stays_text(api: World, console: Console) -> None:
    api.findings = [Finding(Severity.ERROR, HOSTILE, HOSTILE, HOSTILE)]
    add(api, 0, actor=HOSTILE, action=HOSTILE, subject={HOSTILE: HOSTILE}, notes={HOSTILE: HOSTILE}, client=HOSTILE)
    api.about.settings = load_settings(None, {"policies.file": HOSTILE}, {})
    hostile = HOSTILE.encode()
    aside(
        api, [("tickover-id", hostile), (HOSTILE, hostile), (TARGET, hostile)], HOSTILE, f"{HOSTILE}/0/1", key=hostile
    )
    for path in ("/audit", "/settings", "/quarantine", "/quarantine/0/0?payload=true"):
        page = console.open(path)
        page.wait_for_load_state("networkidle")
        assert page.title() != "taken", path
        assert HOSTILE in page.inner_text("main"), path
    assert console.problems == []


@pytest.mark.parametrize("role", Role)
def test_what_a_role_can_not_do_is_not_there(browser: Browser, tmp_path: Path, role: Role) -> None:
    api = World(console=OPTIONS._replace(authenticates=True), tokens=tokens(str(tmp_path)))
    api.add(REMINDERS)
    aside(api)
    with served(api) as url:
        console = Console(url, browser)
        page = console.open("/settings", token=token_of(role))
        assert (page.locator("nav >> text=Audit").count() == 1) == (role is Role.ADMIN)
        assert (page.locator("#settings").count() == 1) == (role is Role.ADMIN)
        page.goto(f"{url}/ui/audit")
        assert ("needs the role admin" in page.inner_text("main")) == (role is not Role.ADMIN)
        page.goto(f"{url}/ui/quarantine/0/0")
        assert (page.locator("text=Send to reminders").count() == 1) == (role >= Role.WRITE)
        assert (page.locator("text=Show them").count() == 1) == (role >= Role.WRITE)
        page.goto(f"{url}/ui/quarantine/0/0?payload=true")
        assert ("7f3a" in page.inner_text("main")) == (role >= Role.WRITE)
        console.close()
