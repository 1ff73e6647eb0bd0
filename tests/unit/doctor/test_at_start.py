"""A process that can't start says what `doctor` would say."""

import logging
import re
from threading import Event

import pytest
from confluent_kafka import KafkaError, KafkaException

from policies.errors import PolicyStoreUnavailable
from sidecar.doctor import at_start
from sidecar.doctor import kafka as doctor
from sidecar.doctor.facts import Finding, Severity
from sidecar.doctor.kafka import inspect_kafka
from sidecar.kafka.topics import MissingTopicError
from sidecar.ledger.topic import LedgerError
from sidecar.service.process import Process
from sidecar.settings.settings import Settings

NOBODY = Settings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}})
LACK = Finding(Severity.ERROR, "rights", "no Write on topic orders (target)", "kafka-acls.sh --add")


def forbidden() -> KafkaException:
    return KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def caused_by(cause: Exception) -> Exception:
    error = PolicyStoreUnavailable("the topic can't be read")
    error.__cause__ = cause
    return error


def without_times(words: str) -> str:
    """How long a connection took is in what the client says of it."""
    return re.sub(r"\d+ms", "ms", words)


def test_brokers_that_do_not_answer_are_told_of_as_doctor_tells_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doctor, "CONNECT_TIMEOUT_S", 0.5)
    [finding] = inspect_kafka(NOBODY, lambda: 0)
    process = Process(NOBODY)
    with caplog.at_level(logging.WARNING, "sidecar.doctor.at_start"):
        process._tell_unreachable("KafkaError{...}")
    [record] = caplog.records
    told = record.__dict__
    assert (record.message, told["fix"]) == ("the start waits for Kafka", finding.fix)
    assert without_times(told["error"]) == without_times(finding.what)
    assert finding.what.startswith("no answer from 127.0.0.1:1: ")
    assert "TICKOVER_KAFKA__BOOTSTRAP_SERVERS" in finding.fix
    assert process._front.reason == "it waits for Kafka: connection refused", "everybody may read it: no host"


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        (KafkaError._SSL, "ssl://broker-7.intern:9093/bootstrap: SSL handshake failed", "TLS failed"),
        (KafkaError._AUTHENTICATION, "sasl_ssl://broker-7.intern:9093/1: SASL failed", "the login failed"),
        (KafkaError._RESOLVE, "broker-7.intern:9092/bootstrap: Failed to resolve", "the host's name can't be resolved"),
        (KafkaError._TRANSPORT, "Connect to ipv4#10.0.0.7:9092 failed: Connection refused", "connection refused"),
        (KafkaError._TRANSPORT, "broker-7.intern:9092/bootstrap: Disconnected", "no answer"),
        (KafkaError._TIMED_OUT, "broker-7.intern:9092/bootstrap: timed out", "no answer"),
    ],
)
def test_while_it_waits_everybody_is_told_the_kind_of_cause_and_the_log_the_host(
    code: int, text: str, cause: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        at_start, "why_unreachable", lambda settings: doctor._unreachable(settings, KafkaError(code, text))
    )
    process = Process(NOBODY)
    with caplog.at_level(logging.WARNING, "sidecar.doctor.at_start"):
        process._tell_unreachable()
    assert process._front.reason == f"it waits for Kafka: {cause}"
    assert text in caplog.records[0].__dict__["error"]


def test_what_takes_long_is_told_of_meanwhile_and_what_does_not_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Event()
    with at_start.told_early(told.set):
        pass
    assert not told.is_set()
    monkeypatch.setattr(at_start, "EARLY_S", 0.0)
    with at_start.told_early(told.set):
        assert told.wait(10)


@pytest.mark.parametrize(
    "error",
    [
        forbidden(),
        caused_by(forbidden()),
        MissingTopicError(
            "topic t is missing and can't be created (Broker: Topic authorization failed); create it by:"
        ),
        LedgerError("no right to write to the ledger topic t; `tickover doctor` says more"),
        ValueError("the ledger refuses a block: TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_an_end_for_want_of_a_right_is_told_with_what_gives_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(at_start, "missing_rights", lambda _: [LACK])
    with caplog.at_level(logging.ERROR, "sidecar.doctor.at_start"):
        at_start.tell_rights(NOBODY, error)
    [record] = caplog.records
    assert (record.__dict__["finding"], record.__dict__["fix"]) == (LACK.what, LACK.fix)


def test_another_end_asks_nobody_for_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settings] = []
    monkeypatch.setattr(at_start, "missing_rights", asked.append)
    at_start.tell_rights(NOBODY, caused_by(KafkaException(KafkaError(KafkaError._TRANSPORT))))
    assert asked == []
