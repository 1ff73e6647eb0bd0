"""The REST API, asked within the process as the viewer of a page: through all its layers, without a socket."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answer_headers import REQUEST_ID_FIELD

CLIENT: Final = "console"  # of the header that no page of another site can send
_STEP: Final = re.compile(r"\{(\w+)(:path)?\}")
_OF_ADDRESSES: Final = "/?%:@!$&'()*+,;="  # quote leaves letters, digits and -._~, too

Query = Mapping[str, object]


class Refusal(Exception):
    """An answer other than 2xx: `status`, and the problem document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('title', '')}")
        self.status = status
        self.problem = problem

    def is_of(self, type: str) -> bool:
        """Whether it is a problem of this type."""
        return bool(self.problem.get("type") == f"/problems/{type}")

    @property
    def detail(self) -> str:
        """Words for people: the detail, and its faults one by one."""
        faults = [f"{one['at']}: {one['message']}" for one in self.problem.get("errors", ())]
        return "\n".join((str(self.problem.get("detail") or self), *faults))


class LogInEnded(Exception):
    """The API knows the token no more: no screen has words for that."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.detail = refusal.detail


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx answer. Names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The JSON of its body; None: it has none."""
        return json.loads(self.body) if self.body else None


def path_of(template: str, /, **steps: object) -> str:
    """Fill a path's `{name}` with a quoted step, and its `{name:path}` with several, whose slashes stay."""
    return address_of(template, steps)[0]


def address_of(template: str, values: Query) -> tuple[str, Query]:
    """A path filled like `path_of`, and the values that it didn't take: they are the query."""
    taken = {name for name, _ in _STEP.findall(template)}
    path = _STEP.sub(lambda step: quote(str(values[step[1]]), safe="/" if step[2] else ""), template)
    return path, {name: value for name, value in values.items() if name not in taken}


def as_sent(address: str | bytes) -> str:
    """A path, perhaps with its query, that is quoted already; what no address may have is quoted after all."""
    return quote(address, safe=_OF_ADDRESSES)


def query_of(query: Query | None) -> str:
    """A query string without what is empty; a list is repeated."""
    pairs = [(name, one) for name, value in (query or {}).items() for one in _values(value)]
    return urlencode([(name, str(one)) for name, one in pairs if one not in ("", None)])


def _values(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Rest:
    """Calls of the API in the name of who sent `request`. `token` is of the viewer's session, empty where the API asks
    for none.
    """

    def __init__(self, api: ASGIApp, request: Request, token: str) -> None:
        self.api = api
        self._request = request
        self._token = token

    async def get(self, path: str, **query: object) -> Any:
        """Ask for a document. Raises `Refusal`."""
        return (await self.call("GET", path, query)).document

    async def post(self, path: str, body: object = None, **headers: str) -> Any:
        """Send a document; `If_Match` is the header If-Match. Raises `Refusal`."""
        return (await self.call("POST", path, None, body, headers)).document

    async def call(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Any call. `body` becomes JSON, None is no body. Raises `Refusal`, and `LogInEnded` for a 401."""
        content = b"" if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-").lower(): value for name, value in (headers or {}).items()}
        answer = await self._exchange(method, path, query_of(query), content, sent)
        if not 200 <= answer.status < 300:
            self._request.state.trail.is_recorded = True  # by the call: the page that tells of it is no second refusal
            refusal = Refusal(answer.status, _problem_of(answer))
            raise LogInEnded(refusal) if answer.status == 401 else refusal
        return answer

    def passed_on(self, path: str, query: str, headers: Mapping[str, str]) -> ASGIApp:
        """An answer of the API as it comes, part by part: one that goes on, which `call` would wait for."""

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            await self.api(self._scope("GET", path, query, b"", headers), receive, send)

        return pass_on

    async def _exchange(self, method: str, path: str, query: str, content: bytes, headers: Mapping[str, str]) -> Answer:
        messages = [{"type": "http.request", "body": content}]
        started: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self.api(self._scope(method, path, query, content, headers), receive, send)
        had = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in started.get("headers", ())}
        return Answer(started["status"], had, b"".join(parts))

    def _scope(self, method: str, path: str, query: str, content: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        outer = self._request.scope
        sent = {"host": self._request.headers.get("host", ""), "tickover-client": CLIENT, **headers}
        if self._token:
            sent["authorization"] = f"Bearer {self._token}"
        if content:
            sent |= {"content-type": "application/json", "content-length": str(len(content))}
        return {
            "type": "http",
            "asgi": outer.get("asgi", {"version": "3.0"}),
            "http_version": "1.1",
            "method": method,
            "scheme": outer.get("scheme", "http"),
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
            "client": outer.get("client"),
            "server": outer.get("server"),
            "state": {
                name: id for name, id in outer.get("state", {}).items() if name == REQUEST_ID_FIELD
            },  # one name of all
        }


def _problem_of(answer: Answer) -> Mapping[str, Any]:
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = None
    return problem if isinstance(problem, dict) else {"title": "No answer", "detail": "The API gave no answer."}
