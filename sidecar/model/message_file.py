"""Files of messages as bodies of `POST /v1/messages`: CSV, or JSON lines.

    target,key,value,delay,header.tenant        {"target": "mail", "key": "42", "value": "hi", "delay": "15m"}
    mail,42,hi,15m,gold                         {"target": "mail", "key": "43", "value": "hi", "delay": "15m"}

Columns are the fields of a message, and `header.NAME` for each header; an empty cell is left out. What a message may be
is not known here: who sends it is told.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

FIELDS: Final = (
    "target", "source", "key", "value", "id", "delay", "deliver_at", "spread", "expires_at", "target_partition",
)  # fmt: skip
HEADER: Final = "header."
BATCH_MAX: Final = 500  # messages of one request, as REST takes them
BATCH_BYTES_MAX: Final = 900_000
BATCH_VALUES_MAX: Final = 15_000

Message = dict[str, Any]


class MessageFileError(Exception):
    """A file that isn't one of messages; the text says where and why."""


class Line(NamedTuple):
    """A message, and the number of the line on which it ends."""

    number: int
    message: Message


def messages_in(lines: Iterable[str]) -> Iterator[Line]:
    """Messages of a text, line by line: JSON lines where it begins with a brace, else CSV. Raises MessageFileError."""
    rest = iter(lines)
    first = next(rest, "").removeprefix("\ufeff")
    text = chain([first], rest)
    return _of_json(text) if first.lstrip().startswith("{") else _of_csv(text)


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """As many messages as one request may have, at least one."""
    batch: list[Line] = []
    size = values = 0
    for line in lines:
        text = json.dumps(line.message)
        size, values = size + len(text) + 2, values + sum(map(text.count, ",[{")) + 1
        if batch and (len(batch) == BATCH_MAX or size > BATCH_BYTES_MAX or values > BATCH_VALUES_MAX):
            yield batch
            batch, size, values = [], len(text) + 2, sum(map(text.count, ",[{")) + 1
        batch.append(line)
    if batch:
        yield batch


def _of_json(lines: Iterable[str]) -> Iterator[Line]:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MessageFileError(f"line {number}: not JSON") from error
        if not isinstance(message, dict):
            raise MessageFileError(f"line {number}: not a JSON object")
        yield Line(number, message)


def _of_csv(lines: Iterable[str]) -> Iterator[Line]:
    rows = csv.reader(lines, strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        _check_heading(names)
        for cells in rows:
            if not any(cells):
                continue
            if len(cells) != len(names):
                raise MessageFileError(f"line {rows.line_num}: {len(cells)} cells, and {len(names)} in the heading")
            yield Line(rows.line_num, _message(names, cells, rows.line_num))
    except csv.Error as error:
        raise MessageFileError(f"line {rows.line_num}: {error}") from None


def _check_heading(names: list[str]) -> None:
    for name in names:
        if name not in FIELDS and not (name.startswith(HEADER) and name != HEADER):
            known = ", ".join((*FIELDS, f"{HEADER}NAME"))
            raise MessageFileError(f"line 1: there is no column {name[:100]!r}; there are {known}")
    if len(set(names)) != len(names):
        raise MessageFileError("line 1: a column stands twice in the heading")
    if not names:
        raise MessageFileError("line 1: there is no heading")


def _message(names: list[str], cells: list[str], number: int) -> Message:
    given = {name: cell for name, cell in zip(names, cells, strict=True) if cell}
    message: Message = {name: cell for name, cell in given.items() if name in FIELDS}
    headers = [[name.removeprefix(HEADER), cell] for name, cell in given.items() if name not in FIELDS]
    if headers:
        message["headers"] = headers
    if partition := message.get("target_partition"):
        if not (partition.isascii() and partition.isdigit() and len(partition) <= 10):
            raise MessageFileError(f"line {number}: target_partition is no number")
        message["target_partition"] = int(partition)
    return message
