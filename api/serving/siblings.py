"""Processes of one supervisor, which listen at one port: what is about all of them, the one that is asked asks of all.

    /metrics   the samples of each, with the label `process`, and `tickover_process_up`
    /readyz    ready when all are
    /livez     alive unless one of them says otherwise, or says nothing; one that is replaced is nobody's fault

All else a process answers by itself, as any replica does. They reach each other by Unix sockets in a directory that
only their user may open. A request goes on with the caller's headers and address, so that each decides for itself whom
it tells what. The address is believed at that socket and nowhere else.
"""

import asyncio
import json
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.answer_headers import REQUEST_ID_HEADER, SafeHeaders, current_request_id
from api.problems import Problem, problem_response
from api.serving.listener import BACKLOG, PROBES
from api.serving.sockets import Sockets

METRICS: Final = "/metrics"
UP: Final = "tickover_process_up"
UP_TEXT: Final = "With --processes only: 1 for each process that has answered the scrape"
ANSWER_S: Final = 4.0  # the chart's probes wait for 5
ASKING_MAX: Final = 8  # requests at a time that ask all: each opens a file for each process
REFUSALS: Final = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.TOO_MANY_REQUESTS})
CALLER: Final = b"tickover-caller"
STRANGER: Final = b"tickover-stranger"
REQUEST_ID: Final = REQUEST_ID_HEADER.lower().encode()
# Of the connection, not of the request; and what only a sibling may say.
NOT_PASSED_ON: Final = frozenset(
    {b"connection", b"content-length", b"expect", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {CALLER, STRANGER, REQUEST_ID}
)
NOT_THERE: Final = "it is not there"
SILENT: Final = "it does not answer"

# An answer, or why there is none.
Told = httpx.Response | str


@dataclass(frozen=True, slots=True)
class Siblings:
    """A `SharedPort`. This process is `number`, one of 1 to `count`; `sockets` are those of all, which one process more
    keeps; their own ones are in `directory`; `path` may be before all paths.
    """

    number: int
    count: int
    sockets: Sockets
    directory: Path
    path: str = ""

    @property
    def numbers(self) -> range:
        """Of all processes."""
        return range(1, self.count + 1)

    def place(self, number: int) -> str:
        """The socket at which one is asked by the others."""
        return str(self.directory / f"{number}.socket")

    def listen(self) -> Sockets:
        """The sockets of this process; its own one in the place of its predecessor's. Raises OSError."""
        place = self.place(self.number)
        Path(place).unlink(missing_ok=True)
        own = socket.socket(socket.AF_UNIX)
        own.setblocking(False)
        own.bind(place)
        own.listen(BACKLOG)
        return replace(self.sockets, siblings=own, probe_file="")  # the file goes with the last of them

    def together(self, app: ASGIApp) -> ASGIApp:
        """`app`, but for what is about all."""
        return Together(app, self)

    def for_siblings(self, app: ASGIApp) -> ASGIApp:
        """`app` for those who name the caller."""
        return FromSibling(app)


class FromSibling:
    """Application for requests of siblings: the caller is the one that they name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = {name: value for name, value in scope["headers"] if name in (CALLER, STRANGER)}
        client = said.get(CALLER, b"").decode("ascii"), 0
        state = {**scope.get("state", {}), **({"nobody_is_known": True} if STRANGER in said else {})}
        await self.app({**scope, "client": client, "state": state}, receive, send)


class Together:
    """Application that asks all processes what is about all of them, itself among them, by the same way."""

    def __init__(self, app: ASGIApp, siblings: Siblings) -> None:
        self.app = app
        self._siblings = siblings
        self._room = asyncio.Semaphore(ASKING_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(self._siblings.path)
        if scope["method"] not in ("GET", "HEAD") or path not in (METRICS, *PROBES):
            await self.app(scope, receive, send)
            return
        async with self._room:
            told = await self._ask_all(scope, path)
        if (refusal := refusal_of(told[self._siblings.number])) is not None:
            await SafeHeaders(refusal)(scope, receive, send)
            return
        match path:
            case "/metrics":
                response = await asyncio.to_thread(metrics_of_all, told, self._siblings.number)
            case "/readyz":
                response = readiness_of_all(told)
            case _:
                response = liveness_of_all(told, is_start=scope["query_string"] == b"started=true")
        await SafeHeaders(response)(scope, receive, send)

    async def _ask_all(self, scope: Scope, path: str) -> dict[int, Told]:
        headers = [(name, value) for name, value in scope["headers"] if name not in NOT_PASSED_ON]
        headers.append((REQUEST_ID, current_request_id().encode()))
        headers.append((CALLER, (scope["client"][0] if scope["client"] else "").encode("ascii", "replace")))
        if scope.get("state", {}).get("nobody_is_known"):
            headers.append((STRANGER, b"1"))
        if not any(name == b"host" for name, _ in headers):
            headers.append((b"host", b""))  # as it was: else the client makes one up
        url = httpx.URL("http://process", path=path, query=scope["query_string"])
        own = self._siblings.number
        here = await self._ask(own, url, headers)
        if refusal_of(here) is not None:  # who is refused costs no more than here
            return {own: here}
        others = [number for number in self._siblings.numbers if number != own]
        answers = await asyncio.gather(*(self._ask(number, url, headers) for number in others))
        return dict(sorted({own: here, **dict(zip(others, answers, strict=True))}.items()))

    async def _ask(self, number: int, url: httpx.URL, headers: Sequence[tuple[bytes, bytes]]) -> Told:
        transport = httpx.AsyncHTTPTransport(uds=self._siblings.place(number), verify=False)  # no TLS: no certificates
        try:
            async with asyncio.timeout(ANSWER_S), transport:
                response = await transport.handle_async_request(httpx.Request("GET", url, headers=headers))
                await response.aread()
        except httpx.ConnectError:
            return NOT_THERE
        except (httpx.TransportError, TimeoutError):
            return SILENT
        return response


def refusal_of(told: Told) -> Response | None:
    """The answer of a process that refuses the caller; None where it doesn't."""
    if isinstance(told, str) or told.status_code not in REFUSALS:
        return None
    headers = {name: value for name, value in told.headers.items() if name in ("retry-after", "www-authenticate")}
    return Response(told.content, told.status_code, headers, told.headers.get("content-type"))


def liveness_of_all(told: Mapping[int, Told], *, is_start: bool) -> Response:
    """200 while all that answer say so; at the start all have to be there. One that has ended is being replaced."""
    found = _problems({number: one for number, one in told.items() if is_start or one != NOT_THERE})
    if found:
        return _problem("not-alive", found, "/livez")
    statuses = {_document(one)["status"] for one in told.values() if isinstance(one, httpx.Response)}
    return _json({"status": "starting" if "starting" in statuses else "alive"})


def readiness_of_all(told: Mapping[int, Told]) -> Response:
    """200 when all are ready, with the warnings of all; else 503 with what is wrong with which."""
    found = _problems(told)
    if found:
        return _problem("not-ready", found, "/readyz", problems=found)
    warnings = {number: _document(one)["warnings"] for number, one in told.items() if isinstance(one, httpx.Response)}
    return _json({"status": "ready", "warnings": _by_text(warnings)})


def metrics_of_all(told: Mapping[int, Told], own: int) -> Response:
    """The samples of all that answer."""
    here = told[own]
    if isinstance(here, str):
        return _problem("not-ready", _problems({own: here}), METRICS)
    if here.status_code != httpx.codes.OK:
        return Response(here.content, here.status_code, media_type=here.headers.get("content-type"))
    texts = {
        number: one.text
        for number, one in told.items()
        if isinstance(one, httpx.Response) and one.status_code == httpx.codes.OK
    }
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfAll(texts, tuple(told)))
    return Response(generate_latest(registry), media_type=here.headers["content-type"])


class _OfAll(Collector):
    """Samples of several processes, by their texts."""

    def __init__(self, texts: Mapping[int, str], numbers: Sequence[int]) -> None:
        self._texts = texts
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                of_all = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                of_all.samples += [
                    sample._replace(labels={**sample.labels, "process": str(number)}) for sample in family.samples
                ]
        yield from families.values()
        yield processes_up(self._numbers, self._texts)


def processes_up(numbers: Iterable[int], answered: Collection[int]) -> Metric:
    """The family that says of each process whether it has answered a scrape."""
    up = GaugeMetricFamily(UP, UP_TEXT, labels=["process"])
    for number in numbers:
        up.add_metric([str(number)], number in answered)
    return up


def _problems(told: Mapping[int, Told]) -> list[str]:
    """Faults of all processes, each with the numbers of those that have it."""
    found: dict[int, list[str]] = {}
    for number, one in told.items():
        if isinstance(one, str):
            found[number] = [one]
        elif one.status_code != httpx.codes.OK:
            document = _document(one)
            found[number] = document.get("problems") or [document["detail"]]
    return _by_text(found)


def _by_text(texts: Mapping[int, Sequence[str]]) -> list[str]:
    """Each text once, with the processes that say so before it."""
    by_text: dict[str, list[str]] = {}
    for number, of_one in texts.items():
        for text in of_one:
            by_text.setdefault(text, []).append(str(number))
    return [f"process {', '.join(numbers)}: {text}" for text, numbers in by_text.items()]


def _document(response: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = response.json()
    return document


def _json(document: Mapping[str, Any]) -> Response:
    return Response(json.dumps(document), media_type="application/json")


def _problem(type: str, found: Sequence[str], path: str, **extra: Any) -> Response:
    return problem_response(Problem(503, type, "; ".join(found), {"Retry-After": "1"}, **extra), path)
