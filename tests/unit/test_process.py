"""The process as a whole, but for what needs Kafka and Redis."""

from types import SimpleNamespace
from typing import Any

from sidecar.config import Settings
from sidecar.mailbox import EngineError
from sidecar.process import Process


def test_what_has_ended_the_engine_is_named_and_not_that_it_has_ended() -> None:
    process: Any = Process(Settings())
    other, ended = ValueError("no right"), EngineError("the engine has ended")
    assert process._cause(other) is other, "before there is an engine"
    process.machinery = SimpleNamespace(engine=SimpleNamespace(failure=None))
    assert process._cause(ended) is ended
    process.machinery.engine.failure = other
    assert process._cause(ended) is other
    assert process._cause(None) is None
