"""How far a source partition's far records were brought into the wheel, and which of them have left.

due times        W ........ C ........>               watermark, cursor: positions (due, offset)
                 [windows ]                           promoted and not yet all settled
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sidecar.model.record import Held, Position, Window


@dataclass(slots=True)
class PromotionWindows:
    """Each record at or before `cursor` is in the wheel. What the overflow has at or before `watermark` is settled."""

    cursor: Position
    windows: deque[Window] = field(default_factory=deque)
    promised: Position | None = None  # how far a promotion under way will move the cursor
    skip: dict[int, Position] = field(default_factory=dict)  # has an entry, needs no promotion: settled or in the wheel
    struck: set[int] = field(default_factory=set)  # of `skip`: left ahead of their promotion, not settled yet
    overtaken: set[int] = field(default_factory=set)  # of `skip`: taken out on the way to the overflow, not settled yet
    overtaken_sealed: set[int] = field(default_factory=set)  # of these: blocks under way settle them
    passed_over: int = 0  # copies in the overflow that are at an open offset: never promoted

    @property
    def reach(self) -> Position:
        """How far the wheel will have everything: the cursor, or where a promotion under way will move it."""
        return self.promised or self.cursor

    @property
    def watermark(self) -> Position:
        """The watermark: everything in the overflow at or before this position is settled."""
        reached = self.windows[0].start if self.windows else self.cursor
        if self.struck:  # who has left ahead of it stays ahead of it until the ledger says so
            due_ms, offset = min(map(self.skip.__getitem__, self.struck))
            reached = min(reached, Position(due_ms, offset - 1))
        return reached

    @property
    def unsettled(self) -> int:
        """How many promoted records are not settled."""
        return sum(window.unsettled for window in self.windows)

    def without_skipped(self, records: Sequence[Held]) -> list[Held]:
        """Records that a promotion copied, less those that need none."""
        skip = self.skip
        return [held for held in records if held.offset not in skip] if skip else list(records)

    def strike(self, held: Held, is_open: bool) -> None:
        """Note that a record leaves ahead of its promotion. `is_open`: the overflow hasn't acknowledged it."""
        self.skip[held.offset] = held.position
        self.struck.add(held.offset)
        if is_open:
            self.overtaken.add(held.offset)

    def overtake(self, records: Iterable[Held]) -> None:
        """Note that records go into the wheel ahead of their promotion: it passes their copies over."""
        for held in records:
            self.skip[held.offset] = held.position
            self.overtaken.add(held.offset)
