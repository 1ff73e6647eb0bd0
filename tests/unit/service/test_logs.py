"""Content of logs: what may stand there, and what may not."""

import io
import json
import logging
import sys
from typing import Any

import pytest
import structlog
from pydantic import BaseModel, SecretStr, ValidationError

from sidecar.model.record import Held, TopicPartition
from sidecar.service.logs import clean, configure_logs
from sidecar.settings.settings import LogSettings

pytestmark = pytest.mark.usefixtures("logging_as_before")

SECRET = "card-4711"


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logs(LogSettings(level="debug"), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def held() -> Held:
    return Held._make([SECRET.encode()] * len(Held._fields))


def test_a_standard_logger_writes_one_json_object(stream: io.StringIO) -> None:
    logging.getLogger("sidecar.engine.engine").warning(
        "lane %s paused", TopicPartition("orders", 3), extra={"held": 12}
    )
    (line,) = lines(stream)
    assert line["message"] == "lane orders/3 paused"
    assert (line["level"], line["logger"], line["held"]) == ("warning", "sidecar.engine.engine", 12)
    assert line["time"].endswith("Z")


@pytest.mark.parametrize(("level", "shown"), [("critical", "warning"), ("error", "warning"), ("info", "info")])
def test_what_the_kafka_client_says_is_no_error(stream: io.StringIO, level: str, shown: str) -> None:
    words = "FENCED [rdkafka#producer-4] Producer fenced by newer instance"
    for name in ("librdkafka", "sidecar.engine.engine"):
        logging.getLogger(name).log(logging.getLevelNamesMapping()[level.upper()], words)
    of_client, ours = lines(stream)
    assert (of_client["level"], of_client["message"], ours["level"]) == (shown, words, level)


def test_a_message_is_not_said_again_in_colours(stream: io.StringIO) -> None:
    again = {"color_message": "Started server process [\x1b[36m%d\x1b[0m]"}
    logging.getLogger("uvicorn.error").warning("Started server process [%d]", 7, extra=again)
    (line,) = lines(stream)
    assert line["message"] == "Started server process [7]"
    assert "color_message" not in line


def test_structlog_takes_the_same_way(stream: io.StringIO) -> None:
    structlog.get_logger("sidecar.store").info("policy %s applied", "reminders", version=4)
    (line,) = lines(stream)
    assert (line["message"], line["version"], line["logger"]) == (
        "policy reminders applied",
        4,
        "sidecar.store",
    )


@pytest.mark.parametrize(
    "name",
    [
        "key",
        "key_prefix",
        "value",
        "headers",
        "header",
        "payload",
        "body",
        "password",
        "token",
        "authorization",
        "record_key",
        "sasl.password",
        "X-Token",
        "VALUE",
        "header_values",
        "idempotency-key",
        "cookie",
    ],
)
def test_forbidden_fields_are_replaced(stream: io.StringIO, name: str) -> None:
    logging.getLogger("a").info("seen", extra={name: SECRET, "inner": {name: SECRET}})
    structlog.get_logger("b").info("seen", **{name: SECRET}, inner=[{name: SECRET}])
    assert SECRET not in stream.getvalue()
    assert len(lines(stream)) == 2
    assert stream.getvalue().count("[redacted]") == 4


@pytest.mark.parametrize("number", [0, 17, -1.5, True, None])
@pytest.mark.parametrize("name", ["keys", "values", "value", "token"])
def test_a_number_is_never_replaced(stream: io.StringIO, name: str, number: float | None) -> None:
    logging.getLogger("a").info("seen", extra={name: number, "inner": {name: number}})
    structlog.get_logger("b").info("seen", **{name: number})
    template = f"seen %({name})s"
    logging.getLogger("c").info(template, {name: number})
    first, second, third = lines(stream)
    assert (first[name], first["inner"], second[name]) == (number, {name: number}, number)
    assert third["message"] == f"seen {number}"


@pytest.mark.parametrize("carrier", [SECRET.encode(), bytearray(SECRET.encode()), [SECRET.encode()], held()])
def test_payloads_are_not_formatted_into_messages(stream: io.StringIO, carrier: object) -> None:
    logging.getLogger("a").info("bad record %s", carrier)
    logging.getLogger("a").info("bad record %r at %d", carrier, 7)
    logging.getLogger("a").info("bad record %(record)s", {"record": carrier})
    logging.getLogger("a").info(carrier)
    structlog.get_logger("b").info("bad record %s", carrier, record=carrier)
    assert len(lines(stream)) == 5
    assert SECRET not in stream.getvalue()


def test_a_kafka_message_is_named_not_shown(stream: io.StringIO) -> None:
    class Message:
        def __repr__(self) -> str:
            return SECRET

    logging.getLogger("a").info("got %s and %r", Message(), [Message()], extra={"record": Message()})
    (line,) = lines(stream)
    assert line["message"] == "got <Message> and ['<Message>']"
    assert line["record"] == "<Message>"


def test_a_held_record_shows_no_payload() -> None:
    shown = clean(held())
    assert isinstance(shown, dict)
    assert (shown["key"], shown["value"], shown["headers"]) == ("[redacted]",) * 3
    assert SECRET not in repr(shown)


class Body(BaseModel):
    count: int


def test_a_validation_error_does_not_show_its_input(stream: io.StringIO) -> None:
    try:
        Body.model_validate({"count": SECRET})
    except ValidationError as error:
        logging.getLogger("a").exception("refused: %s", error)
    assert "input_type=str" in stream.getvalue()
    assert "ValidationError" in lines(stream)[0]["exception"]
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_tracebacks_carry_no_local_variables(form: Any) -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format=form), stream)
    local = f"{SECRET}"  # noqa: F841 - what must not be printed
    try:
        raise RuntimeError("engine failed")
    except RuntimeError:
        logging.getLogger("a").exception("stopping")
    assert "RuntimeError: engine failed" in stream.getvalue()
    assert stream.getvalue().count(SECRET) == 0


def test_secrets_stay_masked_and_long_texts_are_cut(stream: io.StringIO) -> None:
    logging.getLogger("a").info("with %s", SecretStr(SECRET), extra={"text": "x" * 20_000})
    (line,) = lines(stream)
    assert SECRET not in line["message"]
    assert len(line["text"]) < 9_000


def test_text_for_people() -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(format="text"), stream)
    logging.getLogger("sidecar.engine.engine").warning("lane paused", extra={"partition": 3, "value": SECRET})
    assert "lane paused" in stream.getvalue()
    assert "partition=3" in stream.getvalue()
    assert SECRET not in stream.getvalue()


def test_the_level_is_kept_and_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logs(LogSettings(), first)
    configure_logs(LogSettings(level="error"), second)
    logging.getLogger("a").warning("not this")
    structlog.get_logger("b").warning("nor this")
    logging.getLogger("a").error("this")
    assert first.getvalue() == ""
    assert [line["message"] for line in lines(second)] == ["this"]


def test_logs_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(), sys.stderr)
    logging.getLogger("a").info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "here" in captured.err
