"""The process as a whole, but for what needs Kafka and Redis."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, KafkaException

from api.serving.listener import Starting
from policies.errors import PolicyStoreUnavailable
from policies.topic.store import PolicyStore
from sidecar.engine.engine import EngineError
from sidecar.service import kafka_start
from sidecar.service import process as process_module
from sidecar.service.process import Process
from sidecar.settings.settings import Settings
from tests.unit.api_world import BASE_URL, problem, world


def test_what_has_ended_the_engine_is_named_and_not_that_it_has_ended() -> None:
    process: Any = Process(Settings())
    other, ended = ValueError("no right"), EngineError("the engine has ended")
    assert process._cause(other) is other, "before there is an engine"
    process.machinery = SimpleNamespace(engine=SimpleNamespace(failure=None))
    assert process._cause(ended) is ended
    process.machinery.engine.failure = other
    assert process._cause(ended) is other
    assert process._cause(None) is None


def ask(app: Starting, path: str) -> httpx.Response:
    async def request() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE_URL) as client:
            return await client.get(path)

    return asyncio.run(request())


def test_while_it_starts_a_process_lives_and_is_not_ready_and_says_why() -> None:
    front = Starting()
    front.reason = "it waits for Kafka"
    assert (ask(front, "/livez").status_code, ask(front, "/livez").json()) == (200, {"status": "starting"})
    assert problem(ask(front, "/readyz"), 503, "not-ready")["problems"] == ["it waits for Kafka"]
    problem(ask(front, "/livez?started=true"), 503, "starting")
    early = ask(front, "/v1/policies")
    problem(early, 503, "starting")
    assert early.headers["retry-after"] == "1"
    assert early.headers["x-content-type-options"] == "nosniff"
    with world() as api:
        front.app = api.app
        for path in ("/livez", "/livez?started=true"):
            assert ask(front, path).json() == {"status": "alive"}


def unavailable(cause: Exception) -> PolicyStoreUnavailable:
    error = PolicyStoreUnavailable("the topic can't be read")
    error.__cause__ = cause
    return error


def kafka(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


def test_a_start_outlasts_brokers_that_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_start, "AGAIN_S", 0.0)
    away = [kafka(KafkaError._TRANSPORT), unavailable(kafka(KafkaError.LEADER_NOT_AVAILABLE))]
    told: list[str] = []
    assert kafka_start.once_brokers_answer(failing(*away, unavailable(TimeoutError())), told.append) == "done"
    assert told == [*map(str, away), "the topic can't be read"]


@pytest.mark.parametrize(
    "error",
    [
        PolicyStoreUnavailable("it lost its first records"),
        unavailable(kafka(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
        kafka(KafkaError.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_what_waiting_does_not_mend_ends_the_start(error: Exception) -> None:
    with pytest.raises(type(error)):
        kafka_start.once_brokers_answer(failing(error), pytest.fail)


@pytest.mark.slow
def test_the_policy_topic_of_brokers_that_are_away_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store says by its error's cause that nobody has answered; what it had begun is stopped."""
    monkeypatch.setattr(kafka_start, "AGAIN_S", 0.0)
    monkeypatch.setattr(PolicyStore.start, "__defaults__", (0.5,))
    tried: list[PolicyStore] = []
    stopped: list[PolicyStore] = []
    begin = PolicyStore.start

    def start(store: PolicyStore) -> None:
        tried.append(store)
        if len(tried) < 3:
            begin(store)

    def stop(store: PolicyStore) -> None:
        stopped.append(store)

    monkeypatch.setattr(PolicyStore, "start", start)
    monkeypatch.setattr(PolicyStore, "stop", stop)
    client = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
    store = kafka_start.once_brokers_answer(lambda: kafka_start.open_policies(Settings(), client), lambda _: None)
    assert store is tried[2]
    assert stopped == tried[:2]


def test_a_start_of_which_nothing_comes_ends_the_process_at_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process: Any = Process(Settings().model_copy(update={"start_timeout_ms": 0}))
    process._front.reason = "it waits for Kafka"
    ended = threading.Event()
    process.start = ended.wait
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(process_module, "abandon", lambda status: status)
    monkeypatch.setattr(process_module, "WATCH_S", 0.01)
    with caplog.at_level(logging.CRITICAL, "sidecar.service.process"):
        assert process.run() == 1
    ended.set()
    assert [record.__dict__["error"] for record in caplog.records] == ["start_timeout is over, and it waits for Kafka"]
