"""Serves an ASGI application from a thread of its own, so that the engine never waits for a request."""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from starlette.types import ASGIApp

from api.serving.connection_limit import ConnectionLimit
from api.serving.listener import (
    PROBE_CONNECTIONS_MAX,
    Listener,
    OnlyProbes,
    Starting,
    Stopping,
    UnderWay,
    connections_max,
)
from api.serving.sockets import Listening, Sockets, open_sockets

STOP_S: Final = 10.0


class SharedPort(Protocol):
    """A port that several processes listen on: see `api.serving.siblings`, which a process by itself doesn't import."""

    def listen(self) -> Sockets:
        """The sockets of this process: those of all, and the one at which the others ask it. Raises OSError."""

    def together(self, app: ASGIApp) -> ASGIApp:
        """`app` as all who reach the port see it."""

    def for_siblings(self, app: ASGIApp) -> ASGIApp:
        """`app` as the other processes see it."""


class Server:
    """`start` returns when requests are answered, `stop` when the last one was; both may be called twice.

    With `shared` it listens on what others have opened, and host and port are theirs.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, listening: Listening | None = None, shared: SharedPort | None = None
    ) -> None:
        self._listening = listening or Listening()
        self._host = host
        self._port = port
        self._shared = shared
        self._probe_port = 0
        self._sockets: Sockets | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        of_all = app if shared is None else shared.together(app)
        gives_way = app.is_waiting if shared is not None and isinstance(app, Starting) else None
        self._listeners = [self._listener(of_all, gives_way)]
        deadlines = self._listening.deadlines
        if self._listening.probe_port is not None:
            limit = ConnectionLimit(PROBE_CONNECTIONS_MAX, PROBE_CONNECTIONS_MAX)
            self._listeners.append(Listener(OnlyProbes(of_all), limit, deadlines))
        if shared is not None:
            limit = ConnectionLimit(connections_max(), connections_max())
            self._listeners.append(Listener(shared.for_siblings(app), limit, deadlines))

    def _listener(self, app: ASGIApp, gives_way: Callable[[], bool] | None) -> Listener:
        given = self._listening
        limit = ConnectionLimit(connections_max(), given.connections_per_address)
        under_way = UnderWay(app, given.under_way_max, given.connections_per_address)
        return Listener(Stopping(under_way), limit, given.deadlines, given.certificate, gives_way)

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
        if self._shared is None:
            self._sockets = open_sockets(self._host, self._port, self._listening)
        else:
            self._sockets = self._shared.listen()
        self._port = self._sockets.api.getsockname()[1]
        self._probe_port = self._sockets.probes.getsockname()[1] if self._sockets.probes else 0
        self._thread = threading.Thread(target=self._run, args=(self._sockets.all,), name="api", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise RuntimeError("the API could not be started") from self._failure

    def stop(self) -> None:
        if self._thread is None or self._sockets is None:
            return
        for listener in self._listeners:
            listener.should_exit = True
        self._thread.join(STOP_S)
        self._sockets.close()

    def _run(self, sockets: Sequence[socket.socket]) -> None:
        try:
            asyncio.run(self._serve(sockets))
        except BaseException as error:  # noqa: BLE001 - uvicorn leaves with SystemExit, too; `start` raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self, sockets: Sequence[socket.socket]) -> None:
        # The sockets listen already: who connects from now on waits in a backlog until the loop takes it.
        asyncio.get_running_loop().call_soon(self._ready.set)
        serving = zip(self._listeners, sockets, strict=True)
        await asyncio.gather(*(self._listen(listener, listening) for listener, listening in serving))

    async def _listen(self, listener: Listener, listening: socket.socket) -> None:
        await listener.serve([listening])
        if listener.failure is not None:
            self._failure = listener.failure
            for one in self._listeners:  # the probes would else call this process healthy
                one.should_exit = True
