"""How a command ends: data on stdout as a table, JSON or YAML, words on stderr, and a status.

One that does not succeed ends with one line on stderr, never with a traceback.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Final

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.model.foreign_text import LINES, visible, visible_json

CELL_MAX: Final = 200
PIPE_WIDTH: Final = 200  # of a table that no terminal limits


class Status(IntEnum):
    """Exit statuses, as the contract has them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4


class Failure(Exception):
    """An expected end. The text says what is wrong and, where one can, what to do."""

    def __init__(self, text: str, status: Status = Status.FAILED) -> None:
        super().__init__(text)
        self.status = status


class Form(StrEnum):
    """How data is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


HOW: Final = typer.Option("--output", "-o", help="How data is written to stdout.")
OutputOption = Annotated[Form, HOW]
OutputDefault = Annotated[Form | None, HOW]


def output_before(context: typer.Context, form: OutputDefault = None) -> None:
    """The callback of a group of commands: `-o` before a command is the same as after it, where it has one."""
    if form is not None:
        context.default_map = _defaults(context.command, form)


def _defaults(command: Any, form: Form) -> dict[str, Any]:
    """Defaults of a command and of all below it: the `form` that each takes if it isn't told one."""
    below = getattr(command, "commands", {})
    return {"form": form.value, **{name: _defaults(child, form) for name, child in below.items()}}


def say(text: str) -> None:
    """Words for the user: on stderr, so that stdout stays data. What others said in them does nothing to a terminal."""
    print(visible(text, LINES), file=sys.stderr)


def show(data: Any, form: Form, columns: Sequence[str] | None = None, full: bool = False) -> None:
    """Write plain data to stdout. In a table, `columns` picks and orders the fields of a list of mappings, and long
    texts are cut unless it is `full`.
    """
    match form:
        case Form.JSON:
            print(visible_json(json.dumps(data, indent=2, ensure_ascii=False)))
        case Form.YAML:
            print(_yaml(data), end="")
        case Form.TABLE if isinstance(data, Mapping):
            _print(_pairs(data, full))
        case Form.TABLE:
            _print(_rows(data, columns or _all_columns(data), full))


def show_items(
    items: Sequence[dict[str, Any]],
    line: Callable[[dict[str, Any]], dict[str, Any]],
    form: Form,
    columns: Sequence[str] | None = None,
) -> None:
    """Write a list of documents: each as its `line` for people, whole for programs that ask for a form."""
    show([line(item) for item in items] if form is Form.TABLE else items, form, columns)


def show_result(data: Any, form: Form) -> None:
    """Write what came of a command to programs that ask for a form; people have read it in words on stderr."""
    if form is not Form.TABLE:
        show(data, form)


def utc_text(time_ms: object) -> object:
    """Epoch milliseconds as a time that people read; anything else as it is."""
    if not isinstance(time_ms, int):
        return time_ms
    try:
        time = datetime.fromtimestamp(time_ms / 1_000, UTC)
    except (OverflowError, ValueError):
        return time_ms
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Dumper(yaml.SafeDumper):
    """Puts text that can't be seen whole between double quotes, where it may have escapes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = text.replace("\n", "").isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _text)


def _yaml(data: Any) -> str:
    """YAML with escapes where its writer has none; all that needs them stands between double quotes."""
    return visible(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True), "\n")


def _print(table: Table) -> None:
    terminal = Console(file=sys.stdout, soft_wrap=False)
    width = None if terminal.is_terminal else PIPE_WIDTH
    Console(file=sys.stdout, width=width, highlight=False).print(table)


def _all_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], full: bool) -> Table:
    table = Table(*(name.replace("_", " ").upper() for name in columns), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name), full)) for name in columns))
    return table


def _pairs(data: Mapping[str, Any], full: bool) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _flat(data).items():
        table.add_row(Text(_cell(name), style="bold"), Text(_cell(value, full)))
    return table


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _cell(value: Any, full: bool = False) -> str:
    """A value in one line, cut unless it is `full`. Control characters are escaped: it may come from anybody."""
    match value:
        case None:
            text = "-"
        case str():
            text = value
        case list() | tuple() if all(isinstance(item, str | int | float) for item in value):
            text = ", ".join(str(item) for item in value)
        case _:
            text = json.dumps(value, ensure_ascii=False)
    text = visible(text)
    return text if full or len(text) <= CELL_MAX else text[: CELL_MAX - 3] + "..."
