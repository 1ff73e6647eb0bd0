"""Callers, the settings in force, and the doctor's findings."""

import asyncio
import threading
from pathlib import Path

import pytest

from api.access.auth import Role
from sidecar.doctor.about import FRESH_S, About
from sidecar.doctor.facts import Finding, Severity
from sidecar.model.version import VERSION
from sidecar.settings.settings import Settings, load_settings
from tests.unit.api.access.role_world import CALLS, ask, token_of, tokens
from tests.unit.api.access.test_api_auth import bearer
from tests.unit.api_world import NOW_MS, problem, world

# Of a role more than the one before, and of none before that.
FIRST = {Role.READ: "GET /v1/stats", Role.WRITE: "POST /v1/messages", Role.ADMIN: "GET /v1/settings"}


@pytest.mark.parametrize("role", Role)
def test_a_caller_is_told_name_role_and_all_that_it_allows(tmp_path: Path, role: Role) -> None:
    with world(tokens=tokens(str(tmp_path))) as api:
        told = api.call("GET", "/v1/whoami", headers=bearer(token_of(role))).json()
    assert (told["name"], told["role"], told["is_anonymous"]) == (role.name.lower(), role.name.lower(), False)
    assert (told["group"], told["guarantee"], told["tickover"]) == ("g", "exactly_once", VERSION)
    assert {needed for needed, call in FIRST.items() if call in told["may"]} == {one for one in Role if one <= role}
    assert "GET /livez" not in told["may"], "what is open to everybody says nothing of a caller"


@pytest.mark.slow
@pytest.mark.parametrize("role", Role)
def test_what_a_caller_may_is_what_the_api_lets_it(role: Role) -> None:
    may = set(ask("GET /v1/whoami", CALLS["GET /v1/whoami"][0], role).document["may"])
    for name, calls in CALLS.items():
        if name.split(" ")[1].startswith("/v1/"):
            assert (name in may) == (ask(name, calls[0], role).status != 403), name


def test_without_tokens_the_role_is_that_of_the_request() -> None:
    with world() as api:
        assert api.call("GET", "/v1/whoami").json()["role"] == "admin"
        api.client_headers = {}
        told = api.call("GET", "/v1/whoami").json()
    assert (told["name"], told["is_anonymous"], told["role"]) == ("anonymous", True, "read")


def test_settings_have_values_and_origins_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "tickover.yaml"
    file.write_text("{log: {level: debug}}")
    password = tmp_path / "password"
    password.write_text("geheim-1")
    environ = {
        "TICKOVER_REDIS__URL": "redis://user:geheim-2@redis.internal:6379/0",
        "TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE": str(password),
    }
    with world() as api:
        api.about.settings = load_settings(file, {"group": "payments"}, environ)
        answer = api.call("GET", "/v1/settings")
        recorded = api.audited
    items = {item["setting"]: item for item in answer.json()["items"]}
    assert "geheim" not in answer.text + str(recorded)
    told = {name: (items[name]["value"], items[name]["from"]) for name in items}
    assert told["group"] == ("payments", "option group")
    assert told["log.level"] == ("debug", f"{file}: log.level")
    assert told["redis.url"] == ("redis://redis.internal:6379/0", "environment variable TICKOVER_REDIS__URL")
    assert told["redis.username"] == ("user", None), "it came with the URL, and nothing says so"
    assert told["horizon"] == ("30s", "default")
    given = "environment variable TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE"
    assert told["kafka.client.sasl.password"] == ("**********", given)
    assert (items["log.level"]["section"], items["log.level"]["default"]) == ("log", "info")
    assert items["log.level"]["while_running"] == "yes"
    assert items["log.level"]["meaning"]
    assert [one["action"] for one in recorded] == ["get_settings"]


def test_every_setting_is_listed_once() -> None:
    with world() as api:
        names = [item["setting"] for item in api.call("GET", "/v1/settings").json()["items"]]
    assert len(names) == len(set(names))
    assert {"group", "kafka.client", "api.oidc.issuer", "redis.password"} <= set(names)


def test_findings_with_their_fixes_and_their_count() -> None:
    with world() as api:
        api.findings = [
            Finding(Severity.OK, "brokers", "3 brokers"),
            Finding(Severity.WARNING, "audit", "keeps an hour", "kafka-configs.sh"),
            Finding(Severity.ERROR, "redis", "no answer"),
        ]
        told = api.call("GET", "/v1/doctor").json()
    assert (told["at"], told["errors"], told["warnings"]) == (NOW_MS, 1, 1)
    assert told["items"][1] == {
        "severity": "warning", "part": "audit", "what": "keeps an hour", "fix": "kafka-configs.sh"
    }  # fmt: skip
    assert told["at_utc"].startswith("2027")


def test_findings_are_told_again_for_half_a_minute() -> None:
    with world() as api:
        before = api.call("GET", "/v1/doctor").json()
        api.findings = []
        api.monotonic_s += FRESH_S - 1
        assert api.call("GET", "/v1/doctor").json() == before
        api.monotonic_s += 1
        assert api.call("GET", "/v1/doctor").json()["items"] == []


def test_only_one_looks_at_a_time_whoever_gives_up() -> None:
    looks: list[int] = []
    may_end = threading.Event()

    def look(_: Settings) -> list[Finding]:
        looks.append(1)
        may_end.wait(30)
        return []

    async def ask_thrice() -> list[object]:
        about = About(Settings(), look)
        first, *others = [asyncio.create_task(about.examine()) for _ in range(3)]
        await asyncio.wait([first], timeout=0)  # all have asked by then
        first.cancel()
        await asyncio.wait([first])
        others.append(asyncio.create_task(about.examine()))
        may_end.set()
        return [first.cancelled(), *{id(await other) for other in others}]

    told = asyncio.run(ask_thrice())
    assert (told[0], len(told), looks) == (True, 2, [1])


def test_a_look_that_broke_is_not_told_again() -> None:
    results: list[object] = [RuntimeError("broken"), []]

    def look(_: Settings) -> list[Finding]:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return []

    async def ask_twice() -> int:
        about = About(Settings(), look)
        with pytest.raises(RuntimeError):
            await about.examine()
        return len((await about.examine()).findings)

    assert asyncio.run(ask_twice()) == 0


def test_the_role_admin_is_needed_for_settings(tmp_path: Path) -> None:
    with world(tokens=tokens(str(tmp_path))) as api:
        problem(api.call("GET", "/v1/settings", headers=bearer(token_of(Role.WRITE))), 403, "forbidden")
        assert api.call("GET", "/v1/settings", headers=bearer(token_of(Role.ADMIN))).status_code == 200
