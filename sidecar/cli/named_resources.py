"""Things that have a name and stand in files, policies and schedules: reading them, and bringing a sidecar to them."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic
from urllib.parse import quote

import typer
from pydantic import ValidationError

from policies.errors import PolicyFileError
from policies.file import Item, parse_items, read_text
from sidecar.cli.failure import Failure, Status
from sidecar.cli.rest_client import Sidecar, read_object

INPUT_CHARACTERS_MAX: Final = 4 << 20

BareFile = Annotated[str | None, typer.Argument(metavar="[FILE]", help="The same without -f.")]


@dataclass(frozen=True, slots=True)
class NamedResource(Generic[Item]):
    """One kind of them: in words, as model, and in the form in which equal ones are equal."""

    noun: str
    nouns: str  # also of the path
    model: type[Item]
    document: Callable[[Item], dict[str, Any]]
    whole: str = ""  # the query that asks for all of one

    def path(self, name: str) -> str:
        """Where the one of this name is."""
        return f"/v1/{self.nouns}/{quote(name, safe='', errors='surrogateescape')}"

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
