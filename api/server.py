"""Serves an ASGI application from a thread of its own, so that the engine never waits for a request."""

import asyncio
import socket
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

STOP_S: Final = 10.0
GRACE_S: Final = 5
BACKLOG: Final = 512
CONCURRENT_MAX: Final = 1_024
KEEP_ALIVE_S: Final = 30


class BindError(OSError):
    """The address can't be listened on; the text says which and why."""


class Server:
    """`start` returns when requests are answered, `stop` when the last one was; both may be called twice."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here trusts a client address
                ws="none",
                lifespan="off",
                limit_concurrency=CONCURRENT_MAX,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    @property
    def port(self) -> int:
        """The port that is listened on: with 0 asked for, the one the system chose."""
        return self._port

    def start(self) -> None:
        """Raises `BindError`."""
        if self._thread is not None:
            return
        self._socket = _listening(self._host, self._port)
        self._port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise RuntimeError("the API could not be started") from self._failure

    def stop(self) -> None:
        if self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(STOP_S)
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - uvicorn leaves with SystemExit, too; `start` raises it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        assert self._socket is not None
        # The socket listens already: who connects from now on waits in its backlog until the loop takes it.
        asyncio.get_running_loop().call_soon(self._ready.set)
        await self._server.serve([self._socket])


def _listening(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = addresses[0][0], addresses[0][4]
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BindError(f"the API can't listen on {host} port {port}: {error.strerror or error}") from error
