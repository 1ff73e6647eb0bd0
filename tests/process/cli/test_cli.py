"""The command line without a sidecar: files, settings, statuses, and where words and data go."""

import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner, Result

from policies.file import read_policies_file
from sidecar.cli.app import app
from sidecar.cli.config import settings_of
from sidecar.settings.settings import Settings, load_settings
from sidecar.settings.settings_file import SettingsFile
from tests.source import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)


def tickover(*arguments: str, transport: httpx.BaseTransport | None = None, stdin: str = "") -> Result:
    result = CliRunner().invoke(app, list(arguments), obj=transport, input=stdin, prog_name="tickover")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answering(status: int, content: bytes, media_type: str = "application/problem+json") -> httpx.MockTransport:
    headers = {"content-type": media_type}
    return httpx.MockTransport(lambda request: httpx.Response(status, content=content, headers=headers))


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run"],
        ["demo"],
        ["doctor"],
        ["policies"],
        *(["policies", name] for name in ("list", "get", "apply", "delete", "versions", "rollback")),
        ["policies", "explain"],
        ["policies", "validate"],
        ["messages", "send"],
        ["config", "show"],
        ["config", "schema"],
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    result = tickover(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: tickover" in result.stdout
    assert len(result.stdout.splitlines()) > 4


def all_commands(command: Any) -> Iterator[Any]:
    below = getattr(command, "commands", {})
    yield command
    for child in below.values():
        yield from all_commands(child)


def test_output_has_one_name_in_all_commands() -> None:
    """An option before a command is handed down by this name; a group takes it for those below."""
    with_output = {}
    for command in all_commands(get_command(app)):
        names = {option: parameter.name for parameter in command.params for option in parameter.opts}
        if "-o" in names:
            with_output[command.name] = names["-o"]
        if getattr(command, "commands", {}) and command.name != "pipeline":  # its jobs write reports
            assert "-o" in names, command.name
    assert len(with_output) > 20
    assert set(with_output.values()) == {"form"}


def test_output_before_the_command_is_data() -> None:
    file = str(ROOT / "examples" / "policies.yaml")
    asked = ["policies", "validate", file]
    after = tickover(*asked, "-o", "json")
    assert (
        tickover("-o", "json", *asked).stdout == tickover("policies", "-o", "json", *asked[1:]).stdout == after.stdout
    )
    assert len(json.loads(after.stdout)) == 3
    assert tickover("-o", "xml", *asked).exit_code == 2


def test_unknown_commands_and_options_are_usage() -> None:
    assert tickover("runn").exit_code == 2
    assert tickover("run", "--colour").exit_code == 2
    assert tickover("policies", "list", "-o", "xml").exit_code == 2
    assert tickover("messages", "send").exit_code == 2


def test_completion_is_installed_and_completes_commands(tmp_path: Path) -> None:
    script = """
        tickover --install-completion >&2
        source .bashrc
        for words in "tickover pol" "tickover policies rol"; do
            COMP_WORDS=($words) COMP_CWORD=$(( $(wc -w <<< $words) - 1 ))
            _tickover_completion tickover
            echo "${COMPREPLY[@]}"
        done
    """
    environment = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=True
    )
    assert done.stdout.splitlines() == ["policies", "rollback"], done.stderr


def test_settings_are_shown_with_secrets_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKOVER_REDIS__PASSWORD", "hunter2")
    monkeypatch.setenv("TICKOVER_KAFKA__CLIENT__SASL_PASSWORD", "hunter2")
    for form in ("table", "json", "yaml"):
        result = tickover("config", "show", "--set", "group=g", "-o", form)
        assert result.exit_code == 0
        assert "hunter2" not in result.stdout
        assert "**********" in result.stdout
        assert result.stderr == ""
    assert json.loads(tickover("config", "show", "-o", "json").stdout)["api"]["port"] == 8230


def test_what_is_shown_is_a_file_of_settings(tmp_path: Path) -> None:
    shown = yaml.safe_load(tickover("config", "show", "--set", "horizon=20s").stdout)
    del shown["redis"]["password"]
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(shown))
    assert load_settings(tmp_path / "t.yaml") == Settings.model_validate({"horizon": "20s"})


def test_bad_settings_are_usage_and_name_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKOVER_TICK_MS", "99")
    for command in (["config", "show"], ["run"], ["demo"], ["doctor"], ["policies", "list"]):
        result = tickover(*command)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "environment variable TICKOVER_TICK_MS" in result.stderr
    assert "must be name=value" in tickover("config", "show", "--set", "group").stderr


def test_the_schema_lists_every_setting() -> None:
    schema = json.loads(tickover("config", "schema").stdout)
    assert set(schema["properties"]) >= {"group", "kafka", "horizon", "api"}
    table = tickover("config", "schema", "-o", "table").stdout
    assert "TICKOVER_KAFKA__CLIENT__<LIBRDKAFKA_KEY>" in table
    assert "TICKOVER_LEDGER__RETENTION" in table


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, **names: Any) -> None:
    replaced = types.ModuleType(module)
    vars(replaced).update(names)
    monkeypatch.setitem(sys.modules, module, replaced)


@pytest.mark.parametrize("status", [0, 1])
def test_run_gives_the_settings_to_the_process_and_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch, status: int, tmp_path: Path
) -> None:
    seen: list[Settings] = []
    sources: list[SettingsFile | None] = []

    class Process:
        def __init__(self, settings: Settings, source: SettingsFile | None) -> None:
            seen.append(settings)
            sources.append(source)

        def run(self) -> int:
            return status

    stand_in(monkeypatch, "sidecar.service.process", Process=Process)
    monkeypatch.setattr("sidecar.cli.run.configure_logs", lambda settings: None)
    result = tickover("run", "--group", "g", "--kafka", "k:1", "--redis", "redis://r", "--set", "tick_ms=5")
    assert result.exit_code == status
    [settings] = seen
    assert (settings.group, settings.kafka.bootstrap_servers, settings.tick_ms) == ("g", "k:1", 5)
    assert settings.redis.url == "redis://r"
    assert sources == [None], "there is no file to look at"
    config = tmp_path / "tickover.yaml"
    config.write_text("log: {level: debug}\ngroup: of-the-file\n")
    tickover("run", "--config", str(config), "--group", "g")
    assert sources[1] is not None
    assert sources[1].path == config
    config.write_text("log: {level: error}\ngroup: of-the-file\n")
    again = sources[1].load()
    assert (again.log.level, again.group) == ("error", "g"), "flags win, as at the start"


def test_what_is_set_by_name_counts_where_there_is_a_flag_that_was_not_given() -> None:
    given = ["kafka.bootstrap_servers=k:1", "group=by-name"]
    settings = settings_of(None, given, group="by-flag", kafka__bootstrap_servers=None, redis__url=None)
    assert (settings.group, settings.kafka.bootstrap_servers, settings.redis.url) == ("by-flag", "k:1", "embedded")


def test_demo_passes_its_options_and_status_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_demo(settings: Settings, seconds: float | None, rate: int, report: Path | None) -> int:
        seen.append((settings.kafka.embedded, seconds, rate, report))
        return 1

    stand_in(monkeypatch, "sidecar.demo.demo", run_demo=run_demo)
    assert tickover("demo", "--seconds", "3", "--rate", "50").exit_code == 1
    assert tickover("demo", "--kafka", "k:1").exit_code == 1
    stand_in(monkeypatch, "pipeline.session", check_installed=lambda: None)
    assert tickover("demo", "--report", "pages").exit_code == 1
    assert seen == [(True, 3.0, 50, None), (False, None, 20, None), (True, None, 20, Path("pages"))]
    secret = tickover("demo", "--report", "pages", "--set", "kafka.client.sasl.password=hush")
    assert secret.exit_code == 2
    assert "would show in the jobs' command lines" in secret.stderr
    assert "hush" not in secret.stderr


def test_validate_names_a_policy_with_which_no_process_would_start(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "name: p\nmatch: {topics: [in]}\ndelay: {default: 1s}\ntarget: {topic: tickover.policies}\n"
    )
    refused = tickover("policies", "validate", str(tmp_path / "p.yaml"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "policy p can't name such a topic: target.topic: tickover.policies is one of" in refused.stderr


def test_validate_works_offline_and_names_the_line(tmp_path: Path) -> None:
    good = tickover("policies", "validate", str(ROOT / "examples" / "policies.yaml"))
    assert (good.exit_code, good.stdout) == (0, "")
    assert "3 policies, all valid" in good.stderr
    (tmp_path / "p.yaml").write_text("name: a\nmatch: {topics: [t]}\ndelay: {max: 1 week}\ntarget: {allow: [x]}\n")
    bad = tickover("policies", "validate", str(tmp_path / "p.yaml"))
    assert bad.exit_code == 1
    assert "p.yaml:3:" in bad.stderr
    (tmp_path / "p.yaml").write_text("name: A\nmatch: {topcs: [t]}\ndelay: {}\n---\nname: b\n")
    lines = tickover("policies", "validate", str(tmp_path / "p.yaml")).stderr.splitlines()
    assert [line.partition("p.yaml:")[2] for line in lines] == [
        "2:16: match.topcs: unknown key; did you mean topics?",
        "1:1: name: must be 1 to 63 of a-z 0-9 . - and begin with a letter or digit",
        "5:1: match: is missing",
    ]
    for command in ("validate", "apply"):
        missing = tickover("policies", command, str(tmp_path / "none.yaml"))
        assert missing.exit_code == 2
        assert "none.yaml" in missing.stderr
    assert tickover("policies", "validate", "-", stdin="").exit_code == 1


def test_the_examples_hold() -> None:
    assert len(read_policies_file(ROOT / "examples" / "policies.yaml")) == 3
    assert load_settings(ROOT / "examples" / "tickover.yaml").group == "payments"


def test_nobody_answering_says_how_to_start() -> None:
    result = tickover("policies", "list", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "tickover run" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("status", "content", "exit_code", "says"),
    [
        (401, b'{"detail": "Who are you?"}', 1, "--token-file"),
        (403, b'{"detail": "Not you."}', 1, "role"),
        (404, b'{"detail": "No such policy."}', 3, "No such policy."),
        (409, b'{"detail": "The file manages it."}', 4, "The file manages it."),
        (412, b'{"detail": "Changed."}', 4, "somebody else changed it"),
        (422, b'{"detail": "Bad.", "errors": [{"at": "/delay", "message": "odd"}]}', 1, "/delay: odd"),
        (503, b'{"detail": "Kafka is away."}', 1, "doctor"),
        (502, b"<html>proxy</html>", 1, "502"),
        (500, b"[]", 1, "500"),
        (200, b"<html>", 1, "is not a tickover sidecar"),
    ],
)
def test_refusals_become_a_line_and_a_status(status: int, content: bytes, exit_code: int, says: str) -> None:
    result = tickover("policies", "get", "p", transport=answering(status, content))
    assert result.exit_code == exit_code
    assert says in result.stderr
    assert result.stdout == ""


def test_the_token_comes_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.headers.get("authorization")))
        return httpx.Response(200, json={"items": [], "next": None})

    transport = httpx.MockTransport(handle)
    (tmp_path / "token").write_text("abc\n")
    tickover("policies", "list", transport=transport)
    tickover("policies", "list", "--token-file", str(tmp_path / "token"), transport=transport)
    monkeypatch.setenv("TICKOVER_TOKEN", "def")
    monkeypatch.setenv("TICKOVER_URL", "https://tickover.example")
    tickover("policies", "list", transport=transport)
    assert seen == [
        ("http://127.0.0.1:8230/v1/policies?limit=500", None),
        ("http://127.0.0.1:8230/v1/policies?limit=500", "Bearer abc"),
        ("https://tickover.example/v1/policies?limit=500", "Bearer def"),
    ]
    assert tickover("policies", "list", "--token-file", str(tmp_path / "no")).exit_code == 2
    assert tickover("policies", "list", "--url", "localhost:8230").exit_code == 2


def test_all_pages_are_fetched() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("cursor", "0"))
        following = str(page + 1) if page < 2 else None
        return httpx.Response(200, json={"items": [{"name": f"p{page}"}], "next": following})

    result = tickover("policies", "list", "-o", "json", transport=httpx.MockTransport(handle))
    assert [item["name"] for item in json.loads(result.stdout)] == ["p0", "p1", "p2"]


SIGNALLED_WHILE_IMPORTING = """
import os, signal, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "sidecar.service.process":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
sys.meta_path.insert(0, Hook())
sys.argv = ["tickover", "run"]
from sidecar.__main__ import main
main()
"""


def test_a_signal_that_comes_while_the_sidecar_is_imported_ends_it_in_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IMPORTING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert "stopped before anything was started" in done.stderr
