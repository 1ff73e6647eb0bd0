"""The bundled Valkey: keeps its data, dies with its parent, shares its directory with nobody."""

import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from sidecar.embedded import valkey as module
from sidecar.embedded.valkey import EmbeddedValkey, ValkeyUnavailableError
from tests.contract.redis_servers import valkey_fixture
from tests.services.waiting import wait_until

__all__ = ["valkey_fixture"]


def test_data_outlives_a_kill(valkey: EmbeddedValkey) -> None:
    with Redis.from_url(valkey.url, protocol=2) as client:
        client.set("a", "1")
    valkey.kill()
    valkey.kill()
    valkey.start()
    with Redis.from_url(valkey.url, protocol=2) as client:
        assert client.get("a") == b"1"
    valkey.stop()
    valkey.stop()
    assert valkey.process_id == 0


def test_a_directory_in_use_is_refused(valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.05)
    with pytest.raises(
        ValkeyUnavailableError, match=r"another process keeps .* in /.*TICKOVER_DATA_DIR.*TICKOVER_REDIS__URL"
    ):
        EmbeddedValkey(tmp_path / "valkey").start()


def test_the_reason_of_a_failed_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValkeyUnavailableError, match="ended while starting"):
        EmbeddedValkey(tmp_path, settings={"maxmemory": "nonsense"}).start()


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / ("long" * 30))
    server.start()
    server.stop()


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from sidecar.embedded.valkey import EmbeddedValkey; "
        "server = EmbeddedValkey(pathlib.Path(sys.argv[1])); server.start(); print(server.process_id, flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: _ended(server))


def _ended(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"
