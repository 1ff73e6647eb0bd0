"""Takes connections of one port and serves an application to them: no more of them than the limit allows.

The probes have a listener of their own, so that nothing that callers do to the API makes a healthy process look dead.
"""

import asyncio
import errno
import resource
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.answer_headers import RequestId, SafeHeaders
from api.problems import Answer, Problem, problem_response
from api.serving.certificate import Certificate
from api.serving.connection import Connection, Deadlines, log
from api.serving.connection_limit import Accepted, ConnectionLimit, network_of, plain_address

BACKLOG: Final = 512
CONNECTIONS_MAX: Final = 4_096
UNDER_WAY_MAX: Final = 1_024
PROBES: Final = ("/livez", "/readyz")
PROBE_CONNECTIONS_MAX: Final = 64
GRACE_S: Final = 5
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE_S: Final = 0.1
GIVE_WAY_S: Final = 0.1  # so long a process that is starting leaves a connection to those that have started
TLS_CLOSING_S: Final = 3_600.0  # the connection's own deadlines come first


def connections_max() -> int:
    """At most half of the files that this process may open: Kafka, Redis and its own files need the rest."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else max(min(CONNECTIONS_MAX, files // 2), 1)


class Listener(uvicorn.Server):
    """uvicorn's server, but for how connections come in. While it `gives_way`, other processes that listen on this
    socket come first.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: ConnectionLimit,
        deadlines: Deadlines,
        certificate: Certificate | None = None,
        gives_way: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                RequestId(app),
                http="h11",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here trusts a client address
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._limit = limit
        self._deadlines = deadlines
        self._certificate = certificate
        self._gives_way = gives_way or (lambda: False)
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None  # for which this listener has ended

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        self.servers = []  # of asyncio's there are none
        for listening in sockets or ():
            self._start(self._accept(listening)).add_done_callback(self._end_with)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().shutdown(sockets)

    def _end_with(self, task: asyncio.Task[None]) -> None:
        """Without this task nobody is let in, and that would go unseen."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the API ends: a part of it failed", exc_info=error)
            self.failure = error
            self.should_exit = True

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                if self._gives_way():
                    await _readable(loop, listening)
                    await asyncio.sleep(GIVE_WAY_S)
                    accepted, address = listening.accept()  # unless another one has: a BlockingIOError
                else:
                    accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # else the client has gone already
                if error.errno in OUT_OF_RESOURCES:
                    log.warning(
                        "no connection can be taken: raise the limit of open files", extra={"error": str(error)}
                    )
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._let_in(accepted, plain_address(str(address[0])) if address else "")  # by a Unix socket there is none
            await asyncio.sleep(0)  # where many wait, sock_accept never gives way to requests

    def _let_in(self, accepted: socket.socket, host: str) -> None:
        one = self._limit.enter(network_of(host), accepted.close)
        if one is None:
            log.warning(
                "connection refused: too many requests of one address are under way; api.connections_per_address "
                "limits them",
                extra={"address": host},
            )
            accepted.close()
            return
        task = self._start(self._connect(accepted, one))
        one.close = task.cancel
        task.add_done_callback(partial(_close_cancelled, accepted))  # it may not even have begun

    async def _connect(self, accepted: socket.socket, one: Accepted) -> None:
        tls = self._certificate.context if self._certificate else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self.config, self.server_state, self._limit, one, self._deadlines),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._deadlines.handshake_s if tls else None,
                ssl_shutdown_timeout=TLS_CLOSING_S if tls else None,
            )
        except BaseException as error:
            self._limit.leave(one)
            accepted.close()
            if not isinstance(error, OSError):
                raise
            log.warning("a client did not get through the TLS handshake", extra={"error": type(error).__name__})

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _readable(loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
    """Return when somebody waits to be let in."""
    waiting = asyncio.Event()
    loop.add_reader(listening, waiting.set)
    try:
        await waiting.wait()
    finally:
        loop.remove_reader(listening)


def _close_cancelled(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        accepted.close()


class UnderWay:
    """At most so many requests at once, and of one address `of_address_max`; silent connections don't count.

    An address is limited here, too: a request goes on for a while after its connection was closed.
    """

    def __init__(
        self, app: ASGIApp, requests_max: int = UNDER_WAY_MAX, of_address_max: int = UNDER_WAY_MAX // 4
    ) -> None:
        self.app = app
        detail = "As many requests as may be are under way, in all or of this address. Try again in a second."
        headers = {"Retry-After": "1", "Connection": "close"}
        self._busy = _answering(Problem(503, "too-many-requests-under-way", detail, headers))
        self._requests_max = requests_max
        self._of_address_max = of_address_max
        self._count = 0
        self._count_of: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        network = network_of(scope["client"][0] if scope["client"] else "")
        if self._count >= self._requests_max or self._count_of[network] >= self._of_address_max:
            log.warning(
                "a request is refused: as many as may be are under way, or as many of one address; "
                "api.connections_per_address limits those",
                extra={"requests": self._count, "of_address": self._count_of[network]},
            )
            await self._busy(scope, receive, send)
            return
        self._count += 1
        self._count_of[network] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._count -= 1
            self._count_of[network] -= 1
            if not self._count_of[network]:
                del self._count_of[network]


class OnlyProbes:
    """The application for those who watch over this process. It takes all of them for strangers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._nothing = _answering(Problem(404, "not-found", f"Here only {' and '.join(PROBES)} are answered."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = {**scope.get("state", {}), "nobody_is_known": True}
        await (self.app if scope["path"] in PROBES else self._nothing)({**scope, "state": state}, receive, send)


class Starting:
    """Answers until the application is there: this process lives and isn't ready, and why.

    `/livez?started=true` is for whoever waits until it has started, as the kubelet does with a native sidecar.
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.reason = "it is being started"

    def is_waiting(self) -> bool:
        """Whether the application isn't there yet."""
        return self.app is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app or self._answer(scope["path"], scope["query_string"])
        await answer(scope, receive, send)

    def _answer(self, path: str, query: bytes) -> ASGIApp:
        detail = f"This process has not started yet: {self.reason}."
        again = {"Retry-After": "1"}
        match path:
            case "/livez" if query != b"started=true":
                return SafeHeaders(Response('{"status": "starting"}', media_type="application/json"))
            case "/readyz":
                return _answering(Problem(503, "not-ready", detail, again, problems=[self.reason]))
            case _:
                return _answering(Problem(503, "starting", detail, again))


class Stopping:
    """Answers (503) to requests that are still under way when the server has waited long enough for them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        detail = "This process stops; whether the request was done is not known."
        self._stopped = _answering(Problem(503, "stopping", detail, {"Connection": "close"}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(send)
        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:
            if answer.has_begun:
                raise
            await self._stopped(scope, receive, send)


def _answering(problem: Problem) -> ASGIApp:
    """An application that has this one answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await problem_response(problem, scope["path"])(scope, receive, send)

    return SafeHeaders(answer)
