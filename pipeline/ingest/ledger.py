"""The ledger's blocks as rows: three tables from one topic, decoded by the sidecar's own codec.

    settlements   one row per record that was settled: offset, due, outcome, policy, attempt, target
    entries       one row per record that went to the overflow: what is held, and until when
    blocks        one row per ledger record: its lane's marks; or why it could not be decoded, with its bytes

Each is DataFrame -> DataFrame and takes `LEDGER_RECORD` rows. Decoding is per block and column; a row costs a few
microseconds of Arrow, and never a Python object per record and column that is the same in a whole block.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from sidecar.ledger.block import Block, Entries, LedgerFormatError, NewerLedgerFormatError, decode
from sidecar.model.record import Outcome

LEDGER_RECORD: Final = "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary"
"""What the three take: a record of the ledger topic as Kafka has it."""

_HEAD: Final = (
    ("ledger_partition", "int"),
    ("ledger_offset", "bigint"),
    ("settled_ms", "bigint"),
    ("written_ms", "bigint"),
    ("group", "string"),
    ("topic", "string"),
    ("topic_id", "string"),
    ("partition", "int"),
)
_SETTLED: Final = (
    ("offset", "bigint"),
    ("due_ms", "bigint"),
    ("outcome", "string"),
    ("reason", "string"),
    ("attempt", "bigint"),
    ("policy", "string"),
    ("target", "string"),
    ("in_overflow", "bigint"),
    ("message_id", "string"),
    ("related", "bigint"),
)
_ENTRIES: Final = (
    ("offset", "bigint"),
    ("due_ms", "bigint"),
    ("policy", "string"),
    ("target", "string"),
    ("target_partition", "bigint"),
    ("attempt", "bigint"),
    ("first_failure_ms", "bigint"),
    ("expires_ms", "bigint"),
    ("dead_letter", "string"),
    ("message_id", "string"),
    ("source_offset", "bigint"),
    ("carried", "boolean"),
)
_MARKS: Final = (
    ("low", "bigint"),
    ("watermark_due_ms", "bigint"),
    ("watermark_offset", "bigint"),
    ("acknowledged", "bigint"),
    ("overflow_held", "bigint"),
    ("number", "bigint"),
    ("read_until", "bigint"),
    ("decided_from", "bigint"),
    ("settled", "bigint"),
    ("entries", "bigint"),
    ("bytes", "bigint"),
    ("problem", "string"),
    ("newer", "boolean"),
    ("value", "binary"),
)

Fields = Sequence[tuple[str, str]]
_ARROW: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}
ROWS_PER_BATCH: Final = 32_768
OUTCOMES: Final = tuple(outcome.name.lower() for outcome in Outcome)


def ddl(fields: Fields) -> str:
    """The schema as Spark writes it."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields)


SETTLEMENTS: Final = ddl((*_HEAD, *_SETTLED))
ENTRIES: Final = ddl((*_HEAD, *_ENTRIES))
BLOCKS: Final = ddl((*_HEAD, *_MARKS))


def settlements(records: DataFrame) -> DataFrame:
    """One row per settled record. `settled_ms` is the ledger's append time: the broker's word, and after emission.

    `in_overflow` is not 0 for what waited in Redis; `related` as in the block (docs/ledger-format.md). Blocks that
    can't be decoded give no rows here, but one in `blocks`.
    """
    return _decoded(records, SETTLEMENTS, _settled_batches)


def entries(records: DataFrame) -> DataFrame:
    """One row per record put to the overflow; -1 in `first_failure_ms`, `expires_ms`, `target_partition`: none.

    `source_offset` is where the payload is: another offset than its own for a record that was moved. `carried`: it is
    held in memory, under the offset of the control record that moved it.
    """
    return _decoded(records, ENTRIES, _entry_batches)


def blocks(records: DataFrame) -> DataFrame:
    """One row per ledger record. Undecodable: `problem` says why and `value` has the bytes; else both are null.

    `newer`: written by a later version of tickover than this one: its settlements are missing until an upgrade.
    `read_until`: below this source offset everything was read when the block was written. `decided_from`: where
    the first of its runs begins; in a lane's very first block that is where the lane began.
    """
    return _decoded(records, BLOCKS, _block_batches)


def _decoded(
    records: DataFrame, schema: str, batches: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> DataFrame:
    return records.select("partition", "offset", "timestamp_ms", "value").mapInArrow(batches, schema)


class _Rows:
    """Gathers rows of many blocks into batches: heads once per block, the rest as columns."""

    def __init__(self, head: Fields, fields: Fields) -> None:
        self._schema = pa.schema([(name, _ARROW[kind]) for name, kind in (*head, *fields)])
        self._head_width = len(head)
        self._width = len(fields)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._heads: list[tuple[Any, ...]] = []
        self._counts: list[int] = []
        self._columns: list[list[Any]] = [[] for _ in range(self._width)]

    def add(self, head: tuple[Any, ...], columns: Sequence[Sequence[Any]]) -> None:
        """Rows that share a head."""
        count = len(columns[0])
        self._heads.append(head)
        self._counts.append(count)
        self.count += count
        for gathered, column in zip(self._columns, columns, strict=True):
            gathered.extend(column)

    def take(self) -> pa.RecordBatch:
        """All rows since the last call."""
        types = self._schema.types
        rows = pa.array(np.repeat(np.arange(len(self._heads), dtype=np.int32), self._counts))
        heads = zip(*self._heads, strict=True) if self._heads else [()] * self._head_width
        arrays = [pa.array(column, kind).take(rows) for column, kind in zip(heads, types, strict=False)]
        tails = zip(self._columns, types[self._head_width :], strict=True)
        arrays += [pa.array(column, kind) for column, kind in tails]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _settled_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = _Rows(_HEAD, _SETTLED)
    for place, block in _decodable(batches):
        settled = block.settled
        offsets = settled.offsets
        if not offsets:
            continue
        rows.add(
            _head(place, block),
            (
                offsets,
                settled.dues_ms,
                [OUTCOMES[outcome] for outcome in settled.outcomes],
                _sparse(settled.reasons, offsets),
                settled.attempts,
                settled.policies,
                settled.targets,
                settled.in_overflow,
                _sparse(settled.ids, offsets),
                _sparse(settled.related, offsets),
            ),
        )
        if rows.count >= ROWS_PER_BATCH:
            yield rows.take()
    yield rows.take()


def _entry_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = _Rows(_HEAD, _ENTRIES)
    for place, block in _decodable(batches):
        for held, carried in ((block.entries, False), (block.carried, True)):
            if held.offsets:
                rows.add(_head(place, block), _entry_columns(held, carried))
        if rows.count >= ROWS_PER_BATCH:
            yield rows.take()
    yield rows.take()


def _entry_columns(held: Entries, carried: bool) -> tuple[Sequence[Any], ...]:
    offsets = held.offsets
    sources = [held.sources.get(offset, offset) for offset in offsets] if held.sources else offsets
    return (
        offsets,
        held.dues_ms,
        held.policies,
        held.targets,
        held.target_partitions,
        held.attempts,
        held.first_failures_ms,
        held.expires_ms,
        held.dead_letters,
        _sparse(held.ids, offsets),
        sources,
        [carried] * len(offsets),
    )


def _block_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = _Rows((), (*_HEAD, *_MARKS))
    for place in _places(batches):
        try:
            row = _marks(place, decode(place[3]))
        except LedgerFormatError as error:
            row = _kept_aside(place, error)
        rows.add((), [(value,) for value in row])
        if rows.count >= ROWS_PER_BATCH:
            yield rows.take()
    yield rows.take()


Place = tuple[int, int, int, bytes | None]


def _places(batches: Iterable[pa.RecordBatch]) -> Iterator[Place]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _decodable(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Place, Block]]:
    for place in _places(batches):
        try:
            block = decode(place[3])
        except LedgerFormatError:
            continue  # counted by `blocks`, which has its bytes and the reason
        yield place, block


def _head(place: Place, block: Block) -> tuple[Any, ...]:
    partition, offset, timestamp_ms, _ = place
    lane = (block.group, block.topic, block.topic_id, block.partition)
    return (partition, offset, timestamp_ms, block.written_ms, *lane)


def _marks(place: Place, block: Block) -> tuple[Any, ...]:
    decided_from, read_until = (block.runs[0][0], block.runs[-1][0]) if block.runs else (None, None)
    state = (block.low, *block.watermark, block.acknowledged, block.overflow_held, block.number)
    marks = (*state, read_until, decided_from)
    counts = (len(block.settled.offsets), len(block.entries.offsets), len(place[3] or b""))
    return (*_head(place, block), *marks, *counts, None, False, None)


def _kept_aside(place: Place, error: LedgerFormatError) -> tuple[Any, ...]:
    partition, offset, timestamp_ms, value = place
    nothing = (None,) * (len(_HEAD) - 3 + 8)
    newer = isinstance(error, NewerLedgerFormatError)
    return (partition, offset, timestamp_ms, *nothing, 0, 0, len(value or b""), error.reason, newer, value)


def _sparse(values: Any, offsets: Sequence[int]) -> list[Any]:
    return list(map(values.get, offsets)) if values else [None] * len(offsets)
