"""Named resources, policies and schedules: reading their files, bringing a sidecar to them, their common commands."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic, NamedTuple

import typer
from pydantic import ValidationError

from policies.errors import PolicyFileError
from policies.file import Item, parse_items, read_text
from sidecar.cli.output import Failure, Form, OutputOption, Status, say, show, show_items, show_result
from sidecar.cli.rest_client import Sidecar, TokenOption, UrlOption, connect, read_object, step_of, taking

INPUT_CHARACTERS_MAX: Final = 4 << 20

BareFile = Annotated[str | None, typer.Argument(metavar="[FILE]", help="The same without -f.")]
Force = Annotated[
    bool | None, typer.Option("--force", help="Also where messages of a topic that is no source then are held.")
]
Payload = Annotated[bool | None, typer.Option("--payload", help="With key, value, headers, masked; it is recorded.")]


@dataclass(frozen=True, slots=True)
class NamedResource(Generic[Item]):
    """One kind of them: in words, as model, and in the form in which equal ones are equal."""

    noun: str
    nouns: str  # also of the path
    model: type[Item]
    document: Callable[[Item], dict[str, Any]]
    whole: str = ""  # the query that asks for all of one; empty: there is nothing else to see
    can_force: bool = False  # whether a write may be forced

    def path(self, name: str) -> str:
        """Where the one of this name is."""
        return f"/v1/{self.nouns}/{step_of(name)}"

    def given(self, bare_file: str | None, file: str | None) -> str:
        """The one file that was named, with -f or without. Raises Failure."""
        name = bare_file if file is None else file
        if name is None or (bare_file is not None and file is not None):
            raise Failure(f"give one file of {self.nouns}, as FILE or with -f", Status.USAGE)
        return name

    def read(self, file: str) -> tuple[Item, ...]:
        """Items of a file; `-` is stdin. Raises Failure."""
        try:
            if file == "-":
                return parse_items(sys.stdin.read(INPUT_CHARACTERS_MAX), "stdin", self.model, self.noun)
            return parse_items(read_text(Path(file)), str(Path(file)), self.model, self.noun)
        except PolicyFileError as error:
            unreadable = isinstance(error.__cause__, OSError)
            raise Failure(str(error), Status.USAGE if unreadable else Status.FAILED) from None
        except UnicodeDecodeError:
            raise Failure("stdin: not UTF-8") from None

    def apply(
        self, sidecar: Sidecar, items: Iterable[Item], results: list[dict[str, str]], force: bool = False
    ) -> None:
        """Create or replace each. `results` grows with what became of it, so that it is known when one is refused."""
        for item in items:
            results.append({"name": item.name, "result": self._apply_one(sidecar, item, force)})

    def _apply_one(self, sidecar: Sidecar, item: Item, force: bool) -> str:
        """Compare and set: replace exactly what was looked at, or create only what is not there."""
        wanted, path = self.document(item), self.path(item.name) + ("?force=true" if force else "")
        try:
            response = sidecar.call("GET", self.path(item.name) + self.whole)
        except Failure as failure:
            if failure.status is not Status.NOT_FOUND:
                raise
            sidecar.call("PUT", path, wanted, {"If-None-Match": "*"})
            return "created"
        if self._written(read_object(response)) == wanted:
            return "unchanged"
        sidecar.call("PUT", path, wanted, {"If-Match": response.headers.get("ETag", "")})
        return "replaced"

    def _written(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        """The sidecar's item, as `document` says it; None: of a newer program, or something of it is masked."""
        try:
            return self.document(self.model.model_validate(answer))
        except ValidationError:
            return None

    def delete(self, sidecar: Sidecar, name: str, force: bool = False) -> None:
        """Delete the one that is there now, and no other."""
        path = self.path(name) + ("?force=true" if force else "")
        sidecar.call("DELETE", path, headers=self.as_it_is(sidecar, name))

    def as_it_is(self, sidecar: Sidecar, name: str) -> dict[str, str]:
        """The header by which a write means the one that is there now."""
        return {"If-Match": sidecar.call("GET", self.path(name)).headers.get("ETag", "")}


class Words(NamedTuple):
    """Help of the commands that are told differently of each kind."""

    list: str
    get: str
    delete: str


def add_common(
    app: typer.Typer, kind: NamedResource[Any], words: Words, line: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """The commands `list`, `get`, `apply` and `delete`; `line` is one line of the list."""

    @app.command("list", help=words.list)
    def list_all(
        context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
    ) -> None:
        with connect(context, url, token) as sidecar:
            items = list(sidecar.items(f"/v1/{kind.nouns}"))
        show_items(items, line, form)

    @app.command(help=words.get)
    @taking("flags", {"payload": Payload} if kind.whole else {})
    def get(
        context: typer.Context,
        name: Annotated[str, name_argument(kind)],
        flags: dict[str, Any],
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.YAML,
    ) -> None:
        with connect(context, url, token) as sidecar:
            show(sidecar.document("GET", kind.path(name) + (kind.whole if flags else "")), form)

    @app.command(help=f"Create or replace every {kind.noun} of a file. What is as wanted already stays untouched.")
    @taking("flags", {"force": Force} if kind.can_force else {})
    def apply(
        context: typer.Context,
        bare_file: BareFile = None,
        file: Annotated[str | None, file_option(kind)] = None,
        *,
        flags: dict[str, Any],
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        wanted = kind.read(kind.given(bare_file, file))
        results: list[dict[str, str]] = []
        try:
            with connect(context, url, token) as sidecar:
                kind.apply(sidecar, wanted, results, bool(flags))
        finally:
            show(results, form)  # also when one is refused: those before it are applied

    @app.command(help=words.delete)
    @taking("flags", {"force": Force} if kind.can_force else {})
    def delete(
        context: typer.Context,
        name: Annotated[str, name_argument(kind)],
        flags: dict[str, Any],
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        with connect(context, url, token) as sidecar:
            kind.delete(sidecar, name, bool(flags))
        say(f"{kind.noun} {name} deleted")
        show_result({"name": name, "result": "deleted"}, form)


def name_argument(kind: NamedResource[Any]) -> Any:
    """The argument that names one of them."""
    return typer.Argument(help=f"Name of the {kind.noun}.")


def file_option(kind: NamedResource[Any]) -> Any:
    """The option that names a file of them."""
    return typer.Option("--file", "-f", help=f"YAML file of {kind.nouns} (`---` between); - is stdin.")
