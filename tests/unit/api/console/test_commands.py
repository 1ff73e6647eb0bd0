"""Pages as commands: what is copied runs as it stands, whatever is in a filter."""

import shlex

from api.console.commands import curl, tickover
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import world


def test_options_that_are_empty_are_left_out_and_words_are_quoted() -> None:
    command = tickover("messages list", {"target": "mail", "due_from": "", "again": True, "key": None}, "a b")
    assert command == "tickover messages list --target mail --again 'a b'"


def test_nothing_in_a_filter_becomes_a_command() -> None:
    hostile = "$(reboot); `id` 'x' \"y\""
    assert shlex.split(tickover("messages list", {"key": hostile}))[-1] == hostile
    url = shlex.split(curl("http://localhost", "GET", "/v1/messages", {"key": hostile}))[-1]
    assert url.startswith("http://localhost/v1/messages?key=%24%28reboot%29")


def test_a_call_that_changes_something_says_who_asks() -> None:
    command = curl("http://localhost", "POST", "/v1/messages", None, {"id": "it's"})
    parts = shlex.split(command)
    assert parts[parts.index("-X") + 1] == "POST"
    assert parts[parts.index("--json") + 1] == '{"id": "it\'s"}'
    assert "Tickover-Client: curl" in parts


def test_words_of_a_command_are_no_other_command() -> None:
    assert tickover("changes plan $(reboot)") == "tickover changes plan '$(reboot)'"


def test_a_name_that_looks_like_an_option_is_an_argument() -> None:
    assert tickover("messages get", {"source": "x"}, "--help") == "tickover messages get --source x -- --help"


def test_a_path_is_filled_with_quoted_steps() -> None:
    command = curl("http://localhost", "GET", "/v1/messages/{id}", {"id": "a/b?c", "source": "x y"})
    assert shlex.split(command)[-1] == "http://localhost/v1/messages/a%2Fb%3Fc?source=x+y"


def test_an_address_puts_no_word_into_a_command() -> None:
    with world(console=OPTIONS) as api:
        page = api.call("GET", "/ui/changes/new", params={"action": "cancel;reboot"})
    assert page.status_code == 200
    assert "reboot" not in page.text.partition('<div class="command">')[2]
    assert "tickover changes plan cancel" in page.text
