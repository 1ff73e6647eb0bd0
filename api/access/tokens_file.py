"""The tokens file as text: one entry more, or one less, and every other character as it was.

The file belongs to people, who write comments into it and set it out as they like. So it is changed where its YAML says
that an entry begins and ends, and what comes of it is read again: where that isn't exactly what was wanted, the file is
left alone (`AccessConfigError`). Pure but for `rewrite`, which replaces the file.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from api.access.auth import AccessConfigError, Role, Token, parse_tokens
from policies.file import NOT_PLAIN

NEW_MODE: Final = 0o600
BY_HAND: Final = "its form is one that only people can change: do it by hand"

_OPENING: Final = (
    yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken, yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken
)  # fmt: skip
_CLOSING: Final = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)


class NewEntry(NamedTuple):
    """A new token as it is to be written; `expires` is a time of ISO 8601, or empty."""

    name: str
    role: Role
    digest: str
    expires: str = ""


class UnknownToken(AccessConfigError):
    """No entry has this name."""


class TokenExists(AccessConfigError):
    """An entry has this name already."""


class _Entry(NamedTuple):
    """Where an entry stands in the text. `begin` is its dash in a block, `end` is behind its last character."""

    begin: int
    end: int


class _Layout(NamedTuple):
    entries: list[_Entry]
    column: int  # of the dashes
    is_flow: bool  # [{...}, {...}], as in JSON


def with_token(text: str, entry: NewEntry, where: str) -> str:
    """Text of the file with one entry more, after the last. Raises `AccessConfigError`, TokenExists for its name."""
    before = () if _is_empty(text) else parse_tokens(text, where)
    if any(token.caller.name == entry.name for token in before):
        raise TokenExists(f"{where} has a token of the name {entry.name}: revoke it first, or take another name")
    written = _written(entry)
    if not before:
        own_line = "\n" if text and not text.endswith("\n") else ""
        changed = f"{text}{own_line}- {written}\n"
    else:
        layout = _layout(text, where)
        end = layout.entries[-1].end
        if layout.is_flow:
            changed = f"{text[:end]}, {written}{text[end:]}"
        else:
            end = _end_of_line(text, end)
            own_line = "" if text[:end].endswith("\n") else "\n"
            changed = f"{text[:end]}{own_line}{' ' * layout.column}- {written}\n{text[end:]}"
    after = parse_tokens(changed, where)  # also says what is wrong with the entry
    if after[:-1] != before:
        raise AccessConfigError(f"{where}: {BY_HAND}")
    return changed


def without_token(text: str, name: str, where: str) -> str:
    """Text of the file without the entry of this name. Raises `AccessConfigError`, UnknownToken where there is none."""
    before = parse_tokens(text, where)
    kept = tuple(token for token in before if token.caller.name != name)
    if len(kept) == len(before):
        raise UnknownToken(f"{where} has no token of the name {name}")
    if not kept:
        # A process that finds no tokens takes the file for one that is being written, and goes on with the former ones.
        raise AccessConfigError(f"{where}: {name} is its last token, and a file without any is not read: add one first")
    layout = _layout(text, where)
    at = next(i for i, token in enumerate(before) if token.caller.name == name)
    begin, end = layout.entries[at]
    if layout.is_flow:
        span = _with_comma(text, layout.entries, at)
    else:
        span = text.rfind("\n", 0, begin) + 1, _end_of_line(text, end)
    if span is None or _read(changed := text[: span[0]] + text[span[1] :], where) != kept:
        raise AccessConfigError(f"{where}: {BY_HAND}")
    return changed


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file by what `change` makes of its text, at once and durably; a new one is its user's alone.

    An existing file keeps mode, owner and group: whoever reads it goes on reading it. Who changes it at the same time
    waits. Raises OSError, UnicodeDecodeError and what `change` raises; then the file is as it was.
    """
    path = path.resolve()  # a link stays one
    with _alone(path.parent):
        try:
            text, former = path.read_bytes().decode(), path.stat()  # ends of lines as they are
        except FileNotFoundError:
            text, former = "", None
        data = change(text).encode()
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its mode is 0600
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if former is not None:
                    if (former.st_uid, former.st_gid) != (os.getuid(), os.getgid()):
                        os.fchown(descriptor, former.st_uid, former.st_gid)
                    os.fchmod(descriptor, former.st_mode & 0o777)
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory, so that of two changes at once none is lost; it is durable when this ends."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(entry: NewEntry) -> str:
    """The entry in one line, which is good in a block and in a list of JSON alike, but for JSON's quotes."""
    fields = {"name": entry.name, "role": entry.role.name.lower(), "hash": entry.digest}
    if entry.expires:
        fields["expires"] = entry.expires
    return yaml.safe_dump(
        fields, default_flow_style=True, default_style='"', sort_keys=False, allow_unicode=True, width=1 << 20
    ).strip()


def _is_empty(text: str) -> bool:
    """Whether there is nothing but comments."""
    try:
        return yaml.safe_load(text) is None
    except (yaml.YAMLError, *NOT_PLAIN, RecursionError):
        return False


def _read(text: str, where: str) -> tuple[Token, ...] | None:
    try:
        return parse_tokens(text, where)
    except AccessConfigError:
        return None


def _layout(text: str, where: str) -> _Layout:
    """Where the entries of the outermost list stand."""
    entries: list[_Entry] = []
    depth, column, is_flow, begin, end = 0, 0, False, -1, -1
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, _CLOSING):
            depth -= 1
        if depth == 0 and isinstance(token, yaml.FlowSequenceStartToken):
            is_flow = True
        elif depth == 0 and isinstance(token, yaml.BlockSequenceStartToken):
            column = token.start_mark.column
        begins = isinstance(token, yaml.FlowEntryToken if is_flow else yaml.BlockEntryToken) and depth == 1
        if begins or (depth == 0 and isinstance(token, _CLOSING)):
            if begin >= 0:
                entries.append(_Entry(begin, end))
            begin = -1 if is_flow or depth == 0 else token.start_mark.index
        elif depth >= 1 and not isinstance(token, yaml.BlockEndToken):
            if is_flow and begin < 0:
                begin = token.start_mark.index
            end = token.end_mark.index
        if isinstance(token, _OPENING):
            depth += 1
    if not entries:
        raise AccessConfigError(f"{where}: {BY_HAND}")
    return _Layout(entries, column, is_flow)


def _end_of_line(text: str, at: int) -> int:
    """Behind the line that `at` is in; `at` itself where that is the beginning of a line."""
    if text[:at].endswith("\n"):
        return at
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _with_comma(text: str, entries: list[_Entry], at: int) -> tuple[int, int] | None:
    """The entry of a flow list with the comma to its neighbour; None where more than the comma stands between them."""
    is_last = at + 1 == len(entries)
    before, after = (entries[at - 1], entries[at]) if is_last else (entries[at], entries[at + 1])
    if text[before.end : after.begin].strip() != ",":
        return None
    return (before.end, after.end) if is_last else (before.begin, after.begin)
