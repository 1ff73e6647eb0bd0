"""Records and shorthands for the overflow's tests."""

from collections.abc import Iterable

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.interface import Overflow

NOW_MS = 1_700_000_000_000
LANE = TopicPartition("reminders", 3)
START = Position(NOW_MS, -1)


def held(offset: int, delay_ms: int, value: bytes = b"v") -> Held:
    """A record that falls due so long after NOW_MS."""
    return Held(
        NOW_MS + delay_ms, offset, "mail", -1, None, value, [("n", b"%d" % offset)], "p@1", None, 0, -1, [], -1,
        "dlq", 1 + len(value),
    )  # fmt: skip


def at(delay_ms: int) -> Position:
    """The position behind everything that is due so long after NOW_MS."""
    return Position(NOW_MS + delay_ms, OFFSET_MAX)


def in_order(records: Iterable[Held]) -> list[Held]:
    """Sorted by position."""
    return sorted(records, key=lambda record: record.position)


def promote_all(
    overflow: Overflow, after: Position, until: Position, records_max: int = 1_000, lane: TopicPartition = LANE
) -> list[Held]:
    """Promote step by step up to `until`."""
    records: list[Held] = []
    while after < until:
        step = overflow.promote(lane, after, until, records_max, 0)
        assert after < step.cursor <= until
        assert len(step.records) <= records_max
        records += step.records
        after = step.cursor
    return records
