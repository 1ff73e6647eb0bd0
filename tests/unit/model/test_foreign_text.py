"""Text of others: nothing of it does anything to a terminal or a log, and addresses in it can be hidden."""

import io
import json
import logging
import time

import pytest
import yaml

from sidecar.cli.output import Form, say, show
from sidecar.model.foreign_text import ADDRESS, visible, visible_json, without_addresses
from sidecar.service.logs import configure_logs
from sidecar.settings.settings import LogSettings

# C0, DEL, C1 (which some terminals take for ESC [), separators, turns of direction, a half of a surrogate pair.
HOSTILE = (
    "\x00",
    "\x07",
    "\x1b",
    "\r",
    "\x7f",
    "\x85",
    "\x9b",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\u200f",
    "\ud800",
)
TEXT = "a" + "x".join(HOSTILE) + "b\u00e9\U0001f600"
FORGED = "well\n2026-01-01 [error] everything is lost"


def hostile_in(text: str) -> list[str]:
    return [char for char in HOSTILE if char in text]


def test_whatever_can_not_be_seen_is_an_escape() -> None:
    assert visible("\x1b[2J\u202e\x9b\ud800\U000e0001") == "\\x1b[2J\\u202e\\x9b\\ud800\\U000e0001"
    assert visible("a\u00e9\U0001f600 b") == "a\u00e9\U0001f600 b"
    assert visible("a\nb\tc\rd", "\n\t") == "a\nb\tc\\rd"
    assert not any(hostile_in(visible(chr(code))) for code in (*range(0x20), *range(0x7F, 0xA0)))
    assert all(not visible(chr(code)).isspace() or code == 0x20 for code in range(0x3000))


def test_json_says_the_same_without_them() -> None:
    document = {"x": TEXT, "n": ["\n", "\U000e0001"]}
    shown = visible_json(json.dumps(document, ensure_ascii=False, indent=2))
    assert not hostile_in(shown)
    assert json.loads(shown) == document
    assert "\u00e9\U0001f600" in shown


@pytest.mark.parametrize("form", list(Form))
def test_data_on_a_terminal_has_none_of_them(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    for document in ([{"topic": TEXT}], {TEXT: [TEXT, {"deep": TEXT}]}):
        show(document, form)
        shown = capsys.readouterr().out
        assert not hostile_in(shown)
        if form is Form.JSON:
            assert json.loads(shown) == document
        if form is Form.YAML:
            assert yaml.safe_load(shown) == document


def test_yaml_of_plain_text_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"name": "caf\u00e9", "text": "two\nlines", "n": 1, "none": None}
    show(document, Form.YAML)
    shown = capsys.readouterr().out
    assert shown == yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def test_words_on_a_terminal_have_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"tickover: {TEXT}\n  the second line")
    shown = capsys.readouterr().err
    assert not hostile_in(shown)
    assert shown.endswith("\n  the second line\n")


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_log_has_none_of_them_and_no_forged_line(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        logging.root, "handlers", []
    )  # pytest's keep the texts as they are, and reports take no surrogate
    stream = io.StringIO()
    configure_logs(LogSettings(level="info", format=form), stream)
    log = logging.getLogger("tickover.test")
    log.info("an id: %s", TEXT, extra={"topic": TEXT, "deep": {TEXT: [TEXT]}})
    log.info("an id: %s", FORGED, extra={"topic": FORGED})
    log.info(TEXT)
    try:
        raise ValueError(TEXT + FORGED)
    except ValueError:
        log.exception("it failed")
    lines = stream.getvalue().splitlines()
    assert not hostile_in(stream.getvalue())
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert [line for line in lines if "Traceback" in line]
    if form == "json":
        assert json.loads(lines[0])["topic"] == TEXT
        assert len(lines) == 4


@pytest.mark.parametrize(
    "text",
    [
        "db-1.internal:5432", "10.0.0.3", "10.0.0.3:5432", "[2001:db8::1]:80", "fe80::1", "alice@corp.example",
        "root@db", "kafka:9092", "localhost:8080", "db.prod.corp.example.com", "shop.example", "postgres://u:p@h/x",
        "sasl_ssl://broker:9092/1", "ipv4#10.0.0.1:9092", "redis.svc",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "connect to {}: refused", "({})", "no answer from {}.", "[{}]", "host={},"])
def test_addresses_are_hidden(text: str, around: str) -> None:
    shown = without_addresses(around.format(text))
    assert ADDRESS in shown
    for part in ("db", "alice", "10", "kafka", "corp", "2001", "shop", "broker", "fe80", "localhost", "redis"):
        assert part not in shown


@pytest.mark.parametrize(
    "text",
    [
        "java.net.ConnectException: Connection refused", "at OrderService.java:123", "main.py:1204", "status:503",
        "com.acme.Order@6d06d69c", "order 4711 is too late", "std::vector", "took 12:34:56", "12:30",
        "no such key: a.b", "version 1.2", "psycopg2.errors.UniqueViolation", "e.g. this", "...", "id: x-1",
        "a,b;c", "", "not allowed by policy reminders@12",
    ],
)  # fmt: skip
def test_other_words_stay(text: str) -> None:
    assert without_addresses(text) == text


def test_hiding_is_quick_whatever_somebody_writes() -> None:
    begun_s = time.monotonic()
    for text in ("a." * 4_000, "a@" * 4_000, ":" * 8_000, "a:1" * 3_000, "x" * 8_000, "[" * 8_000, "a://" * 2_000):
        without_addresses(text)
    assert time.monotonic() - begun_s < 2
