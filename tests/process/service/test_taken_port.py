"""A process beside another one that has its port."""

import socket

import pytest

from api.serving.sockets import BindError
from sidecar.service import process as module
from sidecar.service.process import Process
from sidecar.settings.settings import Settings


def test_a_port_that_is_taken_is_noticed_before_anything_else_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that leaves its group at once would make all others stop for a rebalance."""
    started: list[Settings] = []
    monkeypatch.setattr(module, "start_services", lambda settings, _: started.append(settings))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = Process(Settings.model_validate({"api": {"port": taken.getsockname()[1]}}))
        with pytest.raises(BindError, match="TICKOVER_API__PORT"):
            process.start()
        process.stop()
    assert started == []
