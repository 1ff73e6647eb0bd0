"""Calling a running sidecar's REST interface: the options of commands that do, and refusals as a line and a status."""

import inspect
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from sidecar.cli.output import Failure, Status
from sidecar.model.foreign_text import visible
from sidecar.settings.api import is_loopback, url_of
from sidecar.settings.settings import load_settings

TIMEOUT_S: Final = 30.0
SILENCE_S: Final = 45.0  # of an answer that goes on: three of its heartbeats
PASSING: Final = (429, 503)
TOKEN_CHARACTERS_MAX: Final = 16_384  # signed tokens with many claims are long
PAGES_MAX: Final = 1_000
PAGE_LIMIT: Final = 500
ANY_ADDRESS: Final = ("0.0.0.0", "::")  # who listens there listens on this one, too:
LOOPBACK: Final = "127.0.0.1"
STATUSES: Final = {404: Status.NOT_FOUND, 409: Status.CONFLICT, 412: Status.CONFLICT}
CLIENT_HEADERS: Final = {
    "Tickover-Client": "cli",  # without a token the API wants a header that no page in a browser sends
    "Accept-Encoding": "identity",  # a proxy that compresses changes the ETag, by which a write says what it replaces
}
HINTS: Final = {
    401: "give a token: --token-file FILE, TICKOVER_TOKEN or TICKOVER_TOKEN_FILE",
    403: "use a token whose role allows this",
    429: "call less often, or raise api.rate_limit",
    412: "somebody else changed it meanwhile; look again, then repeat",
    503: "try again; `tickover doctor` finds the cause",
}

HINTS_BY_PROBLEM: Final = {"in-the-past": "say --past if that time is meant"}

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="TICKOVER_URL",
        help="Address of the sidecar. Default: api.host and api.port of the settings. "
        "For https TICKOVER_CA_FILE may name a file with the certificates to trust.",
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="TICKOVER_TOKEN_FILE", help="File with the bearer token (or TICKOVER_TOKEN)."),
]


Options = Mapping[str, Any]  # of a command: parameters by name, each with its type as typer wants it
Command = Callable[..., None]


def taking(parameter: str, options: Options, **defaults: Any) -> Callable[[Command], Command]:
    """Offer `options` where a command has `parameter`, which gets those that have a value, by name.

    Typer asks for the signature and knows no groups of options: commands that take the same ones would repeat them.
    """

    offered = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(name), annotation=kind)
        for name, kind in options.items()
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def called(**values: Any) -> None:
            command(**{parameter: given({name: values.pop(name) for name in options})}, **values)

        signature = inspect.signature(command)
        told: list[Parameter] = []
        for one in signature.parameters.values():
            if one.name == parameter:
                told += offered
            else:
                told.append(one)
        called.__signature__ = signature.replace(parameters=told)  # type: ignore[attr-defined]
        return called

    return decorate


def step_of(name: str) -> str:
    """A name as one step of a path. Bytes of the command line that are no text stay what they are."""
    return quote(name, safe="", errors="surrogateescape")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in options.items() if value is not None}


class Lost(Failure):
    """The sidecar doesn't answer, or not now: it may later."""


class Sidecar:
    """One sidecar's REST interface. Refusals and lost connections are `Failure`s."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send one request; returns the answer when it is a success."""
        with self._failures():
            response = self._client.request(method, path, headers=headers, json=body)
        if not response.is_success:
            raise refusal(response)
        return response

    @contextmanager
    def lines(self, path: str, query: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[Iterator[str]]:
        """Lines of an answer that goes on, as they come. Raises `Lost` where asking again may help."""
        timeout = httpx.Timeout(TIMEOUT_S, read=SILENCE_S)
        with (
            self._failures(),
            self._client.stream("GET", path, params=query, headers=headers, timeout=timeout) as response,
        ):
            if not response.is_success:
                response.read()
                failure = refusal(response)
                raise Lost(str(failure)) if response.status_code in PASSING else failure
            yield response.iter_lines()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Failures of the client, in words."""
        try:
            yield
        except UnicodeEncodeError:  # bytes of the command line reach Python as lone surrogates
            text = "an argument is not UTF-8 text (a key for the header: not ASCII); bytes go into a --value-file"
            raise Failure(text, Status.USAGE) from None
        except httpx.ConnectError as error:
            if "Hostname mismatch" in str(error) or "IP address mismatch" in str(error):
                raise Failure(f"{self._client.base_url}: {error}; ask it by a name that its certificate has") from None
            if "CERTIFICATE" in str(error):
                raise Failure(
                    f"{self._client.base_url} can't be trusted: {error}; name the file with the "
                    "certificates that signed its own in TICKOVER_CA_FILE"
                ) from None
            raise Lost(
                f"nobody answers at {self._client.base_url}: start the sidecar with `tickover run`, "
                "or name it with --url or TICKOVER_URL"
            ) from None
        except httpx.TimeoutException:
            raise Lost(f"{self._client.base_url} has not answered within {TIMEOUT_S:.0f} s") from None
        except httpx.RemoteProtocolError as error:
            hint = "; does it speak https?" if self._client.base_url.scheme == "http" else ""
            raise Lost(f"{self._client.base_url}: {str(error).rstrip('.')}{hint}") from None
        except httpx.HTTPError as error:
            raise Lost(f"{self._client.base_url}: {str(error) or type(error).__name__}") from None

    def document(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send one request whose answer is a JSON object."""
        return read_object(self.call(method, path, body, headers))

    def items(self, path: str, asked: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Every item of a paged list; `asked` are parameters of each page."""
        cursor = None
        for _ in range(PAGES_MAX):
            query = httpx.QueryParams({**(asked or {}), "limit": PAGE_LIMIT} | ({"cursor": cursor} if cursor else {}))
            page = self.document("GET", f"{path}?{query}")
            yield from page.get("items", ())
            cursor = page.get("next")
            if not cursor:
                return
        raise Failure(f"{path} has more than {PAGES_MAX * PAGE_LIMIT} items")


def read_object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Failure(f"{response.request.url} is not a tickover sidecar: its answer is no JSON object")
    return document


def refusal(response: httpx.Response) -> Failure:
    """A problem document (RFC 9457), or whatever a proxy in between has sent, as a failure."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    text = visible(str(problem.get("detail") or problem.get("title") or response.reason_phrase or "refused"))
    for error in problem.get("errors") or ():
        if isinstance(error, dict):
            text += "\n  " + visible(f"{error.get('at', '')}: {error.get('message', '')}")
    type = str(problem.get("type")).rpartition("/")[2]
    hint = HINTS_BY_PROBLEM.get(type, HINTS.get(response.status_code))
    line = f"{text} ({response.status_code})" + (f"; {hint}" if hint else "")
    return Failure(line, STATUSES.get(response.status_code, Status.FAILED))


@contextmanager
def connect(context: typer.Context, url: str, token_file: Path | None) -> Iterator[Sidecar]:
    """The sidecar at `url`. Tests put an httpx transport into the context instead of a network."""
    address = url or _default_url()
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise Failure(f"--url {address}: {error}", Status.USAGE) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Failure(f"--url {address}: must be http://host:port or https://host:port", Status.USAGE)
    token = _token(token_file)
    with httpx.Client(
        base_url=parsed,
        timeout=TIMEOUT_S,
        headers=CLIENT_HEADERS | ({"Authorization": f"Bearer {token}"} if token else {}),
        transport=context.obj if isinstance(context.obj, httpx.BaseTransport) else None,
        trust_env=not is_loopback(parsed.host),  # a proxy of the environment does not know our loopback
        verify=_trusted(),
    ) as client:
        yield Sidecar(client)


def _default_url() -> str:
    api = load_settings(None, {}, os.environ).api
    return url_of(api.scheme, LOOPBACK if api.host in ANY_ADDRESS else api.host, api.port)


def _trusted() -> ssl.SSLContext | bool:
    """Authorities that may sign the certificate of an https address: the file's, else those that httpx knows."""
    file = os.environ.get("TICKOVER_CA_FILE", "")
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # also what ssl says of a file that holds no certificate
        reason = error.strerror or type(error).__name__
        raise Failure(f"TICKOVER_CA_FILE {file}: {reason}", Status.USAGE) from None


def _token(token_file: Path | None) -> str:
    token = os.environ.get("TICKOVER_TOKEN", "")
    if token_file is not None:
        try:
            with token_file.open(encoding="utf-8", errors="replace") as stream:
                token = stream.read(TOKEN_CHARACTERS_MAX)
        except OSError as error:
            raise Failure(f"{token_file}: no token can be read: {error.strerror}", Status.USAGE) from None
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise Failure(f"{token_file or 'TICKOVER_TOKEN'} holds no token: it is not plain text", Status.USAGE)
    return token
