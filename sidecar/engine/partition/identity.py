"""Records in memory by their ids: where a lane's actions look first.

Known are the records that can still be acted on: in the wheel, or on their way to the overflow. What has fired is
only leaving, until it is settled, and what the overflow has is in its own index (`overflow/keys.py`).
"""

from collections.abc import Iterable, Sequence

from sidecar.model.record import Held, held_id


class Identities:
    """The latest record of each id."""

    __slots__ = ("_held", "leaving")

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self.leaving: dict[int, Held] = {}  # by offset: fired and not settled, too late to be acted on

    def __len__(self) -> int:
        return len(self._held)

    def get(self, message_id: str) -> Held | None:
        """The latest record with this id; None: there is none in memory."""
        return self._held.get(message_id)

    def know(self, records: Iterable[Held]) -> None:
        """Add records that are in memory now, perhaps again; those without an id don't matter."""
        for held in records:
            if held.trailer and (message_id := held_id(held)) is not None:
                self.leaving.pop(held.offset, None)
                known = self._held.get(message_id)
                if known is None or known.offset <= held.offset:
                    self._held[message_id] = held

    def forget(self, records: Iterable[Held]) -> None:
        """Take out records that can't be acted on in memory any more."""
        for held in records:
            if held.trailer and (message_id := held_id(held)) is not None:
                known = self._held.get(message_id)
                if known is not None and known.offset == held.offset:
                    del self._held[message_id]

    def fired(self, records: Sequence[Held]) -> None:
        """Take out records that have fired: they are leaving, too late to be acted on."""
        self.forget(records)
        for held in records:
            if held.trailer and held_id(held) is not None:
                self.leaving[held.offset] = held

    def settled(self, offsets: Iterable[int]) -> None:
        """Forget records that were leaving and have left, by their offsets."""
        if self.leaving:
            for offset in offsets:
                self.leaving.pop(offset, None)
