"""The ledger's block: what one settle interval did to one source partition, as bytes.

    frame    magic, version and packing of the body: frame.py
    body     fixed part, little endian
             +------------+------+---------+-----------+--------------+---------------+-----------+
             | written_ms |  L   | W: due  | W: offset | acknowledged | overflow_held |  number   |
             |    i64     | i64  |   i64   |    i64    |     i64      |      i64      |    i64    |
             +------------+------+---------+-----------+--------------+---------------+-----------+
             | partition  | runs | settled |  its ids  | its reasons  |    entries    | their ids |
             |    i32     | u32  |   u32   |    u32    |     u32      |      u32      |    u32    |
             +------------+------+---------+-----------+--------------+---------------+-----------+
             |  related   |    sources     | carried | their ids | their sources |   from version 2 on
             |    u32     |      u32       |   u32   |    u32    |     u32       |
             +------------+----------------+---------+-----------+---------------+
             |    cuts    |  read: offset  |  epoch  | timestamp |                   from version 3 on
             |    u32     |      i64       |   i64   |    i64    |
             +------------+----------------+---------+-----------+
             then the columns, in this order (how each is packed: column.py)
             group, topic, topic_id                                    words, one each
             runs      from_offset, version                            numbers
             settled   offset                                          offsets
                       due_ms, outcome, in_overflow, attempt           numbers
                       policy, target                                  words
                       ids: offset (offsets), id (texts)               only records that have one
                       reasons: offset (offsets), reason (words)       only the dead and the quarantined
             entries   offset                                          offsets
                       due_ms, target_partition, attempt,
                       first_failure_ms, expires_ms                    numbers
                       policy, target, dead_letter                     words
                       ids: offset (offsets), id (texts)
                       sources: offset (offsets), source offset (numbers)
             carried   as entries: records held from here on under the offset of the control record that moved them
             related   offset (offsets), related offset (numbers)
             cuts      lane offset, log offset                         numbers

Columns, not rows: neighbours in a column are alike, so two thousand settled records cost 2 to 5 bytes each,
and every step of the work is one call into C for a whole column (figures: docs/ledger-format.md).
Numbers are 64 bits signed. A change of this layout is a new version; a reader knows all versions up to its own.
This module needs nothing of Kafka, so that the pipeline's executors can read the ledger with it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from sidecar.ledger.columns import RECORDS_MAX, ColumnReader, pack_numbers, pack_offsets, pack_texts, pack_words
from sidecar.ledger.frame import LedgerFormatError, NewerLedgerFormatError, pack_frame, unpack_frame
from sidecar.model.log_cuts import NO_CUTS, Cuts, ReadMark
from sidecar.model.record import Outcome, Position

# Values of `Settled.in_overflow`.
PROMOTED: Final = 1  # taken from the overflow, or on its way there when it fell due
STRUCK: Final = 2  # ahead of the cursor: the overflow strikes its copy out, with this block's change

__all__ = [
    "NOTHING_SETTLED",
    "NO_ENTRIES",
    "PROMOTED",
    "RECORDS_MAX",
    "STRUCK",
    "Block",
    "Entries",
    "LedgerFormatError",
    "NewerLedgerFormatError",
    "Settled",
    "body_of",
    "decode",
    "encode",
    "lane_key",
    "ledger_partition",
    "pack_frame",
]

_NONE: Final[Mapping[int, int]] = {}
_FIXED: Final = struct.Struct("<7qi12I3q")
_NO_MARK: Final = (-1, -1, -1)
# Of earlier versions, and what they don't say.
_EARLIER: Final = {
    1: (struct.Struct("<7qi6I"), (0,) * 6 + _NO_MARK),
    2: (struct.Struct("<7qi11I"), (0, *_NO_MARK)),
}
_OUTCOMES: Final = tuple(Outcome)


class Settled(NamedTuple):
    """Parallel columns: one place per record settled in this block, sorted by offset.

    `in_overflow` is PROMOTED or STRUCK where the overflow has an entry for the record. `ids`, `reasons` and `related`
    are by offset, and only for records that have one. The time of settling is the block's `written_ms`, one for all.

    `related`, by outcome: APPLIED: the record that the control record hit, none when it hit nothing; MOVED: the control
    record under whose offset the record goes on; CANCELLED and REPLACED: what did it; others: the offset under which
    the record came, when it was moved since.
    """

    offsets: Sequence[int]
    dues_ms: Sequence[int]
    outcomes: Sequence[int]
    in_overflow: Sequence[int]
    policies: Sequence[str]
    targets: Sequence[str]
    attempts: Sequence[int]
    ids: Mapping[int, str]
    reasons: Mapping[int, str]
    related: Mapping[int, int] = _NONE


class Entries(NamedTuple):
    """Parallel columns: one place per record that this block moves to the overflow, or holds anew, sorted by offset.

    Enough to redo the decision of a `Held` without deciding again; `ids` by offset, where there is one. `sources`:
    the offset where the record with the payload is, for one that was moved and goes by its control record's offset.
    """

    offsets: Sequence[int]
    dues_ms: Sequence[int]
    policies: Sequence[str]
    targets: Sequence[str]
    target_partitions: Sequence[int]
    attempts: Sequence[int]
    first_failures_ms: Sequence[int]
    expires_ms: Sequence[int]
    dead_letters: Sequence[str]
    ids: Mapping[int, str]
    sources: Mapping[int, int] = _NONE


NOTHING_SETTLED: Final = Settled((), (), (), (), (), (), (), {}, {})
NO_ENTRIES: Final = Entries((), (), (), (), (), (), (), (), (), {})


@dataclass(frozen=True, slots=True)
class Block:
    """One ledger record. `low`, `watermark`, `acknowledged`: L, W and A of the lane when it was written.

    `topic_id`: Kafka's, "" where brokers have none. `number` counts the blocks of a lane that change the overflow, 0
    for others. `carried`: records that a control record has moved, whose offset stays open for them. `runs` are
    (from_offset, version of the policy table that decided from there on). `read`: the record of the source that was
    read last, by then. All offsets but that one are the lane's own; `cuts` say which of the log's these are.
    """

    group: str
    topic: str
    topic_id: str
    partition: int
    written_ms: int
    low: int
    watermark: Position
    acknowledged: int
    overflow_held: int
    runs: tuple[tuple[int, int], ...]
    number: int
    settled: Settled
    entries: Entries
    carried: Entries = NO_ENTRIES
    read: ReadMark | None = None
    cuts: Cuts = NO_CUTS


def encode(block: Block) -> bytes:
    """The block as a ledger record's value.

    Raises ValueError for what could not be read back: columns of unequal length, offsets out of order,
    numbers over 64 bits, more than RECORDS_MAX records or 16 MiB unpacked. These are bugs of the caller.
    """
    return pack_frame(body_of(block))


def body_of(block: Block) -> bytes:
    """The block before it is compressed, without its frame (`pack_frame`). Raises ValueError as `encode`."""
    try:
        body = b"".join((_fixed_part(block), *_head_columns(block), *_settled_columns(block.settled)))
        for entries in (block.entries, block.carried):
            if entries.offsets:
                body += b"".join(_entry_columns(entries))
        body += _pack_sparse(block.settled.related, pack_numbers)
        if block.cuts:
            body += b"".join(map(pack_numbers, zip(*block.cuts.pairs, strict=True)))
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a number out of range: {error}") from error
    return body


def _fixed_part(block: Block) -> bytes:
    settled, entries, carried = block.settled, block.entries, block.carried
    counts = (
        len(block.runs),
        len(settled.offsets),
        len(settled.ids),
        len(settled.reasons),
        len(entries.offsets),
        len(entries.ids),
        len(settled.related),
        len(entries.sources),
        len(carried.offsets),
        len(carried.ids),
        len(carried.sources),
        len(block.cuts.pairs),
    )
    if max(counts) > RECORDS_MAX:
        raise ValueError(f"a block of {max(counts)} records, more than {RECORDS_MAX}")
    lengths = ({*map(len, settled[:7])}, {*map(len, entries[:9])}, {*map(len, carried[:9])})
    if lengths != ({counts[1]}, {counts[4]}, {counts[8]}):
        raise ValueError("columns of unequal length")
    return _FIXED.pack(
        block.written_ms,
        block.low,
        *block.watermark,
        block.acknowledged,
        block.overflow_held,
        block.number,
        block.partition,
        *counts,
        *(block.read or _NO_MARK),
    )


def _head_columns(block: Block) -> tuple[bytes, ...]:
    return (
        pack_words((block.group,)),
        pack_words((block.topic,)),
        pack_words((block.topic_id,)),
        pack_numbers([start for start, _ in block.runs]),
        pack_numbers([version for _, version in block.runs]),
    )


def _settled_columns(settled: Settled) -> tuple[bytes, ...]:
    return (
        pack_offsets(settled.offsets),
        pack_numbers(settled.dues_ms),
        pack_numbers(settled.outcomes),
        pack_numbers(settled.in_overflow),
        pack_numbers(settled.attempts),
        pack_words(settled.policies),
        pack_words(settled.targets),
        _pack_sparse(settled.ids, pack_texts),
        _pack_sparse(settled.reasons, pack_words),
    )


def _entry_columns(entries: Entries) -> tuple[bytes, ...]:
    return (
        pack_offsets(entries.offsets),
        pack_numbers(entries.dues_ms),
        pack_numbers(entries.target_partitions),
        pack_numbers(entries.attempts),
        pack_numbers(entries.first_failures_ms),
        pack_numbers(entries.expires_ms),
        pack_words(entries.policies),
        pack_words(entries.targets),
        pack_words(entries.dead_letters),
        _pack_sparse(entries.ids, pack_texts),
        _pack_sparse(entries.sources, pack_numbers),
    )


def _pack_sparse(values: Mapping[int, Any], pack: Callable[[Sequence[Any]], bytes]) -> bytes:
    if not values:
        return b""
    offsets = sorted(values)
    return pack_offsets(offsets) + pack(list(map(values.__getitem__, offsets)))


def decode(data: bytes | None) -> Block:
    """The block that `encode` was given, columns as lists. Raises LedgerFormatError for anything else, only that."""
    version, body = unpack_frame(data)
    layout, unsaid = _EARLIER.get(version, (_FIXED, ()))
    if len(body) < layout.size:
        raise LedgerFormatError("cut short")
    fixed = (*layout.unpack_from(body), *unsaid)
    counts, read = fixed[8:20], ReadMark(*fixed[20:])
    runs, settled, settled_ids, reasons, entries, entry_ids, related, sources, carried, carried_ids, origins, cuts = (
        counts
    )
    if max(counts) > RECORDS_MAX or max(settled_ids, reasons, related) > settled:
        raise LedgerFormatError("counts out of range")
    if max(entry_ids, sources) > entries or max(carried_ids, origins) > carried:
        raise LedgerFormatError("counts out of range")
    reader = ColumnReader(body, layout.size)
    group, topic, topic_id = (reader.words(1)[0] for _ in range(3))
    table_runs = tuple(zip(reader.numbers(runs), reader.numbers(runs), strict=True))
    settled_part = _read_settled(reader, settled, settled_ids, reasons)
    entries_part = _read_entries(reader, entries, entry_ids, sources)
    carried_part = _read_entries(reader, carried, carried_ids, origins)
    if related:
        settled_part = settled_part._replace(related=_read_sparse(reader, related, reader.numbers))
    pairs = tuple(zip(reader.numbers(cuts), reader.numbers(cuts), strict=True))
    reader.end()
    return Block(
        group=group,
        topic=topic,
        topic_id=topic_id,
        partition=fixed[7],
        written_ms=fixed[0],
        low=fixed[1],
        watermark=Position(fixed[2], fixed[3]),
        acknowledged=fixed[4],
        overflow_held=fixed[5],
        runs=table_runs,
        number=fixed[6],
        settled=settled_part,
        entries=entries_part,
        carried=carried_part,
        read=read if read.offset >= 0 else None,
        cuts=Cuts(pairs) if pairs else NO_CUTS,
    )


def _read_settled(reader: ColumnReader, count: int, ids: int, reasons: int) -> Settled:
    if not count:
        return NOTHING_SETTLED
    offsets, dues_ms = reader.offsets(count), reader.numbers(count)
    codes, in_overflow, attempts = reader.numbers(count), reader.numbers(count), reader.numbers(count)
    if not 0 <= min(codes) <= max(codes) < len(_OUTCOMES):
        raise LedgerFormatError("unknown outcome")
    return Settled(
        offsets=offsets,
        dues_ms=dues_ms,
        outcomes=list(map(_OUTCOMES.__getitem__, codes)),
        in_overflow=in_overflow,
        attempts=attempts,
        policies=reader.words(count),
        targets=reader.words(count),
        ids=_read_sparse(reader, ids, reader.texts),
        reasons=_read_sparse(reader, reasons, reader.words),
    )


def _read_entries(reader: ColumnReader, count: int, ids: int, sources: int) -> Entries:
    if not count:
        return NO_ENTRIES
    return Entries(
        offsets=reader.offsets(count),
        dues_ms=reader.numbers(count),
        target_partitions=reader.numbers(count),
        attempts=reader.numbers(count),
        first_failures_ms=reader.numbers(count),
        expires_ms=reader.numbers(count),
        policies=reader.words(count),
        targets=reader.words(count),
        dead_letters=reader.words(count),
        ids=_read_sparse(reader, ids, reader.texts),
        sources=_read_sparse(reader, sources, reader.numbers),
    )


def _read_sparse(reader: ColumnReader, count: int, read: Callable[[int], list[Any]]) -> dict[int, Any]:
    return dict(zip(reader.offsets(count), read(count), strict=True)) if count else {}


def lane_key(topic: str, partition: int) -> bytes:
    """The key of a lane's ledger records."""
    return f"{topic}/{partition}".encode()


def ledger_partition(topic: str, partition: int, partitions: int) -> int:
    """Where a lane's blocks are: CRC-32 (zlib's) of the key, modulo the ledger's partitions.

    That is librdkafka's `consistent` partitioner, so a client that only has the key finds the same place.
    """
    return crc32(lane_key(topic, partition)) % partitions
