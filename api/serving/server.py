"""Serves an ASGI application from a thread of its own, so that the engine never waits for a request."""

import asyncio
import errno
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from api.serving.certificate import Certificate
from api.serving.connection import Deadlines, log
from api.serving.connection_limit import ConnectionLimit
from api.serving.listener import (
    BACKLOG,
    PROBE_CONNECTIONS_MAX,
    UNDER_WAY_MAX,
    Listener,
    OnlyProbes,
    Stopping,
    UnderWay,
    connections_max,
)
from sidecar.settings.api import ApiSettings

STOP_S: Final = 10.0
EVERYWHERE: Final = "::"
EVERYWHERE_IPV4: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"
PORT_SETTING: Final = "api.port (TICKOVER_API__PORT)"


class BindError(OSError):
    """The address can't be listened on; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Listening:
    """How the API is listened for. Without a `probe_port` there is no listener for probes only."""

    probe_host: str = "127.0.0.1"
    probe_port: int | None = None
    probe_file: str = ""
    connections_per_address: int = 256
    certificate: Certificate | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    under_way_max: int = UNDER_WAY_MAX


def listening_of(settings: ApiSettings) -> Listening:
    """Read from the settings how the API is listened for. Raises `AccessConfigError`."""
    tls = settings.tls
    return Listening(
        settings.probe_host,
        settings.probe_port or (0 if settings.probe_file else None),
        settings.probe_file,
        settings.connections_per_address,
        Certificate(tls.certificate_file, tls.key_file) if tls.certificate_file else None,
    )


class Server:
    """`start` returns when requests are answered, `stop` when the last one was; both may be called twice."""

    def __init__(self, app: ASGIApp, host: str, port: int, listening: Listening | None = None) -> None:
        self._listening = listening or Listening()
        self._host = host
        self._port = port
        self._probe_port = 0
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._listeners = [self._listener(app)]
        if self._listening.probe_port is not None:
            limit = ConnectionLimit(PROBE_CONNECTIONS_MAX, PROBE_CONNECTIONS_MAX)
            self._listeners.append(Listener(OnlyProbes(app), limit, self._listening.deadlines))

    def _listener(self, app: ASGIApp) -> Listener:
        given = self._listening
        limit = ConnectionLimit(connections_max(), given.connections_per_address)
        under_way = UnderWay(app, given.under_way_max, given.connections_per_address)
        return Listener(Stopping(under_way), limit, given.deadlines, given.certificate)

    @property
    def port(self) -> int:
        """The port that is listened on: with 0 asked for, the one the system chose."""
        return self._port

    @property
    def probe_port(self) -> int:
        """The port of the probes; 0 where there is none."""
        return self._probe_port

    @property
    def failure(self) -> BaseException | None:
        """For what it doesn't answer any more; None: it does, or was stopped."""
        return self._failure

    def start(self) -> None:
        """Raises `BindError`."""
        if self._thread is not None:
            return
        self._sockets.append(_listening(self._host, self._port))
        self._port = self._sockets[0].getsockname()[1]
        if self._listening.probe_port is not None:
            self._sockets.append(_probes_listening(self._listening, self._sockets))
            self._probe_port = self._sockets[1].getsockname()[1]
            _write_place(self._listening.probe_file, self._listening.probe_host, self._probe_port)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise RuntimeError("the API could not be started") from self._failure

    def stop(self) -> None:
        if self._thread is None:
            return
        for listener in self._listeners:
            listener.should_exit = True
        self._thread.join(STOP_S)
        _close(self._sockets)
        if self._listening.probe_file:
            with suppress(OSError):
                Path(self._listening.probe_file).unlink()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - uvicorn leaves with SystemExit, too; `start` raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        # The sockets listen already: who connects from now on waits in a backlog until the loop takes it.
        asyncio.get_running_loop().call_soon(self._ready.set)
        serving = zip(self._listeners, self._sockets, strict=True)
        await asyncio.gather(*(self._listen(listener, listening) for listener, listening in serving))

    async def _listen(self, listener: Listener, listening: socket.socket) -> None:
        await listener.serve([listening])
        if listener.failure is not None:
            self._failure = listener.failure
            for one in self._listeners:  # the probes would else call this process healthy
                one.should_exit = True


def _probes_listening(listening: Listening, opened: list[socket.socket]) -> socket.socket:
    assert listening.probe_port is not None
    try:
        return _listening(listening.probe_host, listening.probe_port, "api.probe_port (TICKOVER_API__PROBE_PORT)")
    except BindError:
        _close(opened)
        raise


def _write_place(file: str, host: str, port: int) -> None:
    """Where a health check asks, whatever the settings said and whoever said it: `127.0.0.1 8231`."""
    if not file:
        return
    host = LOOPBACK if host in (EVERYWHERE, EVERYWHERE_IPV4) else host
    try:
        Path(file).write_text(f"{host} {port}\n", encoding="ascii")
    except OSError as error:
        log.warning(
            "api.probe_file can't be written: no health check finds this process",
            extra={"file": file, "error": error.strerror},
        )


def _close(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()


def _listening(host: str, port: int, setting: str = PORT_SETTING) -> socket.socket:
    try:
        if host == EVERYWHERE:
            return _listening_everywhere(port)
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = addresses[0][0], addresses[0][4]
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        way_out = f"; name another port by {setting}" if error.errno == errno.EADDRINUSE else ""
        raise BindError(f"the API can't listen on {host} port {port}: {error.strerror or error}{way_out}") from error


def _listening_everywhere(port: int) -> socket.socket:
    """On IPv6 and IPv4; on IPv4 alone where the kernel has no IPv6, so that one setting does for every cluster."""
    if socket.has_dualstack_ipv6():
        return socket.create_server((EVERYWHERE, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)
