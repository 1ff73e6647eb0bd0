"""Ledger blocks for tests: small ones with known answers."""

from collections.abc import Iterable
from dataclasses import replace

from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block, Entries, Settled, encode
from sidecar.model.record import Outcome, Position

NOW_MS = 1_763_720_000_000

EMPTY = Block("g", "orders-retry", "topic-id", 3, NOW_MS, 0, Position(0, 0), 0, 0, (), 0, NOTHING_SETTLED, NO_ENTRIES)
NEWER = b"TL\x09\x00" + b"\x00" * 80


def settled(rows: Iterable[tuple[int, int, Outcome, int]], ids=None, reasons=None) -> Settled:
    """Columns of (offset, due_ms, outcome, attempt); all of one policy and target."""
    offsets, dues, outcomes, attempts = map(list, zip(*rows, strict=True))
    same = len(offsets)
    return NOTHING_SETTLED._replace(
        offsets=offsets,
        dues_ms=dues,
        outcomes=outcomes,
        in_overflow=[0] * same,
        policies=["orders-retry@2"] * same,
        targets=["orders"] * same,
        attempts=attempts,
        ids=ids or {},
        reasons=reasons or {},
    )


def entries(rows: Iterable[tuple[int, int]]) -> Entries:
    """Columns of (offset, due_ms)."""
    offsets, dues = map(list, zip(*rows, strict=True))
    same = len(offsets)
    return NO_ENTRIES._replace(
        offsets=offsets,
        dues_ms=dues,
        policies=["orders-retry@2"] * same,
        targets=["orders"] * same,
        target_partitions=[-1] * same,
        attempts=[2] * same,
        first_failures_ms=[NOW_MS] * same,
        expires_ms=[-1] * same,
        dead_letters=["orders-dlq"] * same,
    )


def block(**fields) -> bytes:
    """An encoded block, empty but for these fields."""
    return encode(replace(EMPTY, **fields))


def emitted(first: int, count: int) -> Settled:
    """Records that were emitted on time."""
    return settled([(first + n, NOW_MS + n, Outcome.EMITTED, 2) for n in range(count)])


def ledger_frame(spark, values: Iterable[bytes | None], first: int = 0):
    """Ledger records with these values, from offset `first` on, a second apart."""
    from pipeline.ingest.ledger import LEDGER_RECORD

    rows = [
        ("ledger", 0, offset, NOW_MS + 1_000 * offset, bytearray(b"orders-retry/3"), value and bytearray(value))
        for offset, value in enumerate(values, first)
    ]
    return spark.createDataFrame(rows, LEDGER_RECORD)
