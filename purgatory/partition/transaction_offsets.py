"""Where transactions stand in a log: the last stable offset, and which were aborted.

A transaction is unstable from its first record until its end marker is *replicated*: as long as the high watermark
has not passed the marker, a reader of committed records stops before the first record.

    offset   0      1      2      3      4      5
             a1     b1     a2     A!     b2     c1      A! = end marker of a

    ongoing b: first unstable offset 1. Had b ended too, a would hold it at 0 until the high watermark is above 3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """An ended transaction, whose records lie from `first_offset` to its marker at `last_offset`, among others'."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int  # what was stable below all other transactions when this one ended


class TransactionOffsets:
    """Transactions of one partition."""

    def __init__(self) -> None:
        self._ongoing: dict[int, int] = {}  # producer id -> first offset
        self._unreplicated: list[EndedTransaction] = []
        self._aborted: list[EndedTransaction] = []

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open, or whose end is not replicated. None if all are stable."""
        first_offsets = [*self._ongoing.values(), *(ended.first_offset for ended in self._unreplicated)]
        return min(first_offsets, default=None)

    @property
    def ongoing(self) -> dict[int, int]:
        """First offset by producer id, of those that have no end marker."""
        return dict(self._ongoing)

    @property
    def aborted(self) -> list[EndedTransaction]:
        """All that are still in the log, by their ends."""
        return list(self._aborted)

    def restore(self, ongoing: Mapping[int, int], aborted: Iterable[EndedTransaction]) -> None:
        """Begin from what was written down: all that had ended then is taken for replicated."""
        self._ongoing = dict(ongoing)
        self._unreplicated = []
        self._aborted = list(aborted)

    def add_records(self, producer_id: int, first_offset: int) -> None:
        """A transactional batch of this producer was appended."""
        self._ongoing.setdefault(producer_id, first_offset)

    def add_marker(self, producer_id: int, offset: int, *, is_aborted: bool) -> None:
        """The end marker of this producer's transaction was appended. Without records there is nothing to end."""
        first_offset = self._ongoing.pop(producer_id, None)
        if first_offset is None:
            return
        others = [*self._ongoing.values(), offset + 1]
        ended = EndedTransaction(producer_id, first_offset, offset, is_aborted, min(others))
        self._unreplicated.append(ended)
        if is_aborted:
            self._aborted.append(ended)

    def replicated_to(self, high_watermark: int) -> None:
        """Markers below the high watermark are replicated."""
        self._unreplicated = [ended for ended in self._unreplicated if ended.last_offset >= high_watermark]

    def aborted_between(self, fetch_offset: int, upper_bound_offset: int) -> list[EndedTransaction]:
        """The aborted transactions that a reader of this range must know to leave their records out."""
        found = []
        for ended in self._aborted:
            if ended.last_offset >= fetch_offset and ended.first_offset < upper_bound_offset:
                found.append(ended)
            if ended.last_stable_offset >= upper_bound_offset:
                break  # later ones begin at or after this
        return found

    def truncate_to(self, end_offset: int) -> None:
        """The log ends here: later transactions never were, and those that ended later are open again.

        What was committed below the high watermark is forgotten once it is replicated, so a truncation below the
        high watermark (after an unclean election) needs the log to be read again.
        """
        self._ongoing = {producer: first for producer, first in self._ongoing.items() if first < end_offset}
        for ended in _each_once([*self._unreplicated, *self._aborted]):
            if ended.last_offset >= end_offset > ended.first_offset:
                self._ongoing[ended.producer_id] = ended.first_offset
        self._unreplicated = [ended for ended in self._unreplicated if ended.last_offset < end_offset]
        self._aborted = [ended for ended in self._aborted if ended.last_offset < end_offset]

    def truncate_from_start(self, start_offset: int) -> None:
        """The log starts here."""
        self._aborted = [ended for ended in self._aborted if ended.last_offset >= start_offset]


def _each_once(transactions: Iterable[EndedTransaction]) -> list[EndedTransaction]:
    """Latest first: of one producer the earliest that is cut is the one that is open again."""
    return sorted(set(transactions), key=lambda ended: -ended.first_offset)
