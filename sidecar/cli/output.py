"""How a command ends: data on stdout as a table, JSON or YAML, words on stderr, and a status.

A table is for people where stdout is a terminal; in a pipe it is lines of cells between tabs, of which nothing is cut.
JSON is what REST says, with each time twice; tables and YAML have it in RFC 3339. A command that does not succeed ends
with one line on stderr, never with a traceback.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from textwrap import indent
from types import TracebackType
from typing import Annotated, Any, Final, Self

import typer
import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sidecar.model.foreign_text import LINES, visible, visible_json
from sidecar.model.times import for_people

CELL_MAX: Final = 200  # characters that a terminal shows of one
PROGRESS_S: Final = 5.0  # between two lines of progress where none can be written over


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
    JSONL = "jsonl"  # a line for each item
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


def is_terminal() -> bool:
    """Whether somebody sees what is written to stdout, rather than a program."""
    return sys.stdout.isatty()


class ProgressLine:
    """How far something is, on stderr: on a terminal one line that is written over, and gone at the end; elsewhere a
    line at most every `PROGRESS_S`, the first after as long.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        console = Console(file=sys.stderr, force_terminal=True)
        can_write_over = sys.stderr.isatty() and not console.is_dumb_terminal
        self._line = (
            Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) if can_write_over else None
        )
        self._monotonic_s = monotonic_s
        self._said_s = monotonic_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()

    def tell(self, text: str) -> None:
        """Say how far it is now."""
        if self._line is not None:
            self._line.start()  # once it has begun this does nothing
            self._line.update(Text(visible(text), no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._monotonic_s() >= self._said_s + PROGRESS_S:
            say(text)
            self._said_s = self._monotonic_s()


def show(data: Any, form: Form, columns: Sequence[str] | None = None, full: bool = False) -> None:
    """Write plain data to stdout. In a table, `columns` picks and orders the fields of a list of mappings; on a
    terminal long texts are cut unless it is `full`.
    """
    match form:
        case Form.JSON:
            print(_json(data))
        case Form.JSONL:
            for item in [data] if isinstance(data, Mapping) else data:
                print(visible_json(json.dumps(item, ensure_ascii=False)))
        case Form.YAML:
            print(_yaml(for_people(data)), end="")
        case Form.TABLE if isinstance(data, Mapping):
            _show_pairs(for_people(data), full)
        case Form.TABLE:
            rows = for_people(data)
            _show_rows(rows, columns or _all_columns(rows), full)


def show_items(
    items: Sequence[dict[str, Any]],
    line: Callable[[dict[str, Any]], dict[str, Any]],
    form: Form,
    columns: Sequence[str] | None = None,
    full: bool = False,
) -> None:
    """Write a list of documents: each as its `line` for people, whole for programs that ask for a form."""
    show([line(for_people(item)) for item in items] if form is Form.TABLE else items, form, columns, full)


def show_pages(
    pages: Iterable[Sequence[dict[str, Any]]],
    line: Callable[[dict[str, Any]], dict[str, Any]],
    form: Form,
    columns: Sequence[str],
) -> None:
    """Write a list as `show_items` does, but page by page as it comes: a long one is never in memory as a whole."""
    written = 0
    for page in filter(None, pages):
        if form is Form.JSON:
            for number, item in enumerate(page, written):
                print(",\n" if number else "[\n", indent(_json(item), "  "), sep="", end="")
        elif form is Form.TABLE and not is_terminal():
            _show_plain((line(for_people(item)) for item in page), columns, heading=not written)
        else:
            show_items(page, line, form, columns)
        written += len(page)
    if form is Form.JSON:
        print("\n]" if written else "[]")
    elif not written:
        show([], form, columns)


def show_result(data: Any, form: Form) -> None:
    """Write what came of a command to programs that ask for a form; people have read it in words on stderr."""
    if form is not Form.TABLE:
        show(data, form)


def _json(data: Any) -> str:
    return visible_json(json.dumps(data, indent=2, ensure_ascii=False))


class _Dumper(yaml.SafeDumper):
    """Puts text that can't be seen whole between double quotes, where it may have escapes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = text.replace("\n", "").isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _text)


def _yaml(data: Any) -> str:
    """YAML with escapes where its writer has none; all that needs them stands between double quotes."""
    return visible(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True), "\n")


def _all_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], full: bool) -> None:
    if not is_terminal():
        _show_plain(rows, columns)
        return
    table = Table(*map(_heading, columns), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_shown(row.get(name), full)) for name in columns))
    _print(table)


def _show_plain(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], heading: bool = True) -> None:
    """Lines of whole cells between tabs, for programs: no cell has one."""
    if heading and columns:
        print("\t".join(map(_heading, columns)))
    for row in rows:
        print("\t".join(_cell(row.get(name)) for name in columns))


def _show_pairs(data: Mapping[str, Any], full: bool) -> None:
    pairs = _flat(data)
    if not is_terminal():
        for name, value in pairs.items():
            print(f"{_cell(name)}\t{_cell(value)}")
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in pairs.items():
        table.add_row(Text(_cell(name), style="bold"), Text(_shown(value, full)))
    _print(table)


def _print(table: Table) -> None:
    Console(file=sys.stdout, highlight=False).print(table)


def _heading(column: str) -> str:
    return column.replace("_", " ").upper()


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _cell(value: Any) -> str:
    """A value in one line. Control characters are escaped: it may come from anybody."""
    match value:
        case None:
            text = "-"
        case str():
            text = value
        case list() | tuple() if all(isinstance(item, str | int | float) for item in value):
            text = ", ".join(str(item) for item in value)
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return visible(text)


def _shown(value: Any, full: bool) -> str:
    """A value as a terminal shows it."""
    text = _cell(value)
    return text if full or len(text) <= CELL_MAX else text[: CELL_MAX - 3] + "..."
