"""Refusals of the console in the audit topic: each once, whoever refuses."""

import tempfile
from collections.abc import Iterator

import pytest

from api.access.auth import Role
from api.console.page import ROOT, cookie_name
from api.console.session import Session
from api.console.words import now_ms
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import World, world


def cookie(token: str) -> str:
    """Cookie of a session that begins now."""
    return f"{cookie_name(OPTIONS.group)}={Session.begin(token, now_ms() // 1_000).cookie}"


@pytest.fixture
def api() -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory() as directory,
        world(console=OPTIONS._replace(authenticates=True), tokens=tokens(directory)) as api,
    ):
        yield api


def test_what_the_api_refuses_a_page_is_recorded_once_with_the_caller(api: World) -> None:
    page = api.call("GET", f"{ROOT}/messages?key_prefix=x", headers={"Cookie": cookie(token_of(Role.READ))})
    assert page.status_code == 403
    [record] = api.audited
    assert (record["outcome"], record["path"], record["status"]) == ("refused", "/v1/messages", 403)
    assert record["actor"]


def test_what_the_console_refuses_is_recorded_once_too(api: World) -> None:
    page = api.call("GET", f"{ROOT}/audit", headers={"Cookie": cookie(token_of(Role.READ))})
    assert page.status_code == 403
    [record] = api.audited
    assert (record["outcome"], record["path"]) == ("refused", f"{ROOT}/audit")


def test_a_token_that_counts_no_more_is_recorded_once(api: World) -> None:
    page = api.call("GET", f"{ROOT}/messages", headers={"Cookie": cookie("tickover_gone")})
    assert page.status_code == 303
    assert [record["path"] for record in api.audited] == ["/v1/whoami"]
