"""`compact`: many small batches of a table written together as one span, beside readers.

    batch=0  batch=1  batch=2 ...          each with a few small files a day
    span-0-2-<x>/date=<day>/*.parquet      the same rows, `_WHOLE` once all of it is there

The batches stay for a while, for readers that have begun. Whenever it is killed: a span without `_WHOLE` counts for
nobody, and readers leave out what a span stands for, whether it is deleted already or not. One `compact` at a time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import uuid4

from pipeline.warehouse import delta
from pipeline.warehouse.tables import WHOLE, Piece, Warehouse

FILE_BYTES: Final = 128 << 20
SMALL_BYTES: Final = 16 << 20  # always worth it


@dataclass(frozen=True, slots=True)
class Compacted:
    """Work done on a table: directories (files of Delta) written together into `span`, and directories deleted."""

    merged: int
    span: str
    deleted: int

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def compact(warehouse: Warehouse, table: str, schema: str, now_ms: int, grace_ms: int) -> Compacted:
    """Write together what is worth it, and delete what a span has stood for longer than `grace_ms`."""
    if warehouse.is_delta(table):
        return Compacted(delta.compact(warehouse.spark, warehouse.path(table)), "", 0)
    deleted = tidy(warehouse, table, now_ms - grace_ms)
    pieces = warehouse.pieces(table)
    sizes = [warehouse.bytes_of(table, piece.name) for piece in pieces]
    taken = worth(pieces, sizes)
    if len(taken) < 2:
        return Compacted(0, "", deleted)
    first, last = taken[0].first, taken[-1].last
    span = f"span-{first}-{last}-{uuid4().hex[:8]}"
    rows = warehouse.read(table, schema).where(f"batch BETWEEN {first} AND {last}")
    files = sum(sizes[-len(taken) :]) // FILE_BYTES + 1
    written = rows.repartition(files).sortWithinPartitions("batch").write.partitionBy("date")
    written.parquet(warehouse.path(table, span))
    warehouse.write_text("", table, span, WHOLE)
    return Compacted(len(taken), span, deleted)


def worth(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[Piece]:
    """The last pieces, back to one that is not small and larger than all behind it: so a row is written again only as
    often as the table doubles. Only what is without a gap."""
    taken: list[Piece] = []
    total = 0
    for piece, size in zip(reversed(pieces), reversed(sizes), strict=True):
        if taken and (size > max(total, SMALL_BYTES) or piece.last + 1 != taken[-1].first):
            break
        taken.append(piece)
        total += size
    return taken[::-1]


def tidy(warehouse: Warehouse, table: str, before_ms: int) -> int:
    """Delete what spans stand for, and spans that were never finished, if that was before; returns how many."""
    pieces = warehouse.pieces(table)
    kept = {piece.name for piece in pieces}
    settled = [
        piece for piece in pieces if piece.is_span and warehouse.changed_ms(table, piece.name, WHOLE) < before_ms
    ]
    gone = []
    for name in list(warehouse.names(table)):
        kind, _, numbers = name.partition("=") if name.startswith("batch=") else name.partition("-")
        if name in kept or kind not in ("batch", "span"):
            continue
        first, last = (int(number) for number in (*numbers.split("-"), numbers)[:2])
        stood_for = any(span.first <= first and last <= span.last for span in settled)
        unfinished = kind == "span" and warehouse.changed_ms(table, name) < before_ms
        if stood_for or unfinished:
            gone.append(name)
    for name in gone:
        warehouse.remove(table, name)
    return len(gone)
