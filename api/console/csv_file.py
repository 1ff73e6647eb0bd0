"""Rows as a CSV file that a browser keeps."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

# A table program runs a cell that begins so as a formula.
FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], is_whole: bool) -> Response:
    """Cells of these columns, with a heading; what a row lacks is empty. The file's name says when rows are missing."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    file = f"{name}.csv" if is_whole else f"{name}-not-all.csv"
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:
    """A cell that is a text and nothing else: an apostrophe stands before what would be a formula."""
    if isinstance(value, Mapping):
        value = "/".join(map(str, value.values()))
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
