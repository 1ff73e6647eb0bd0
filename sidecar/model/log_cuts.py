"""Cuts of a source partition's log: what the log was when it was read, and what a cut since then means.

A log that loses its end (an unclean election, a lost disk), or is made anew on a cluster without topic ids, gives its
next records offsets that were read before. So a lane counts on: its own offsets never come twice.

    log      0 ............ 89 | 90 ... 99              read up to 100, then cut back to 90
             0 ............ 89 | 90 ... 109             20 records more
    lane     0 ............ 89 | 90 ... 99 | 100 ... 119
                                 lost        log offset 90 is lane offset 100

Everything that is known of a record goes by its lane offset: done marks, Redis, the ledger. What was read before the
cut, and is held somewhere, still fires. Only who talks to Kafka about an offset translates (`Cuts`). Without a cut
both are the same.

Whether a log was cut shows by the records themselves: the leader epoch and the timestamp of some that were read
(`ReadMark`) are kept, and looked at again (`find_cut`). A new leader has a new epoch, and epochs only grow along a log.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

CUTS_MAX: Final = 64  # of one partition: so many fit into a commit's metadata
MARKS_SPAN: Final = 1_000  # offsets between the marks that are kept

_lane_from: Final = itemgetter(0)
_log_from: Final = itemgetter(1)


class ReadMark(NamedTuple):
    """A record that was read, by its offset in the log. `epoch`: its leader's, -1 where it has none."""

    offset: int
    epoch: int
    timestamp_ms: int


Marks = tuple[ReadMark, ...]  # in the order of their offsets; the last one read is the last


class TooManyCuts(Exception):
    """A partition's log was cut back more often than can be told."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where the log was cut back: pairs of (lane offset, log offset), both growing, from which on it goes by another
    difference.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def then(self, log_offset: int, lane_offset: int) -> "Cuts":
        """The log was cut back to `log_offset`; what comes there counts from `lane_offset` on. Raises TooManyCuts.

        Where nothing is known of what was lost, as a commit may know more of what was read than the ledger, it is as if
        nobody had read it.
        """
        if self.lane_offset(log_offset) >= lane_offset:
            return self
        left = [pair for pair in self.pairs if pair[1] < log_offset]
        if len(left) >= CUTS_MAX:
            raise TooManyCuts(f"its log was cut back more than {CUTS_MAX} times")
        return Cuts((*left, (lane_offset, log_offset)))

    def lane_offset(self, log_offset: int) -> int:
        """The lane's own offset of the record that the log has at this one."""
        index = bisect_right(self.pairs, log_offset, key=_log_from)
        lane_from, log_from = self.pairs[index - 1] if index else (0, 0)
        return lane_from + log_offset - log_from

    def log_offset(self, lane_offset: int) -> int:
        """Where in the log this one is; of one that was lost, where the next one is."""
        index = bisect_right(self.pairs, lane_offset, key=_lane_from)
        lane_from, log_from = self.pairs[index - 1] if index else (0, 0)
        offset = log_from + lane_offset - lane_from
        return min(offset, self.pairs[index][1]) if index < len(self.pairs) else offset

    def is_lost(self, lane_offset: int) -> bool:
        """The log has nothing at this lane offset any more."""
        return self.lane_offset(self.log_offset(lane_offset)) != lane_offset

    def lost(self) -> list[tuple[int, int]]:
        """Lane offsets that the log has no more: the first of each range, and the first behind it."""
        return [
            (lane_from + log_next - log_from, lane_next)
            for (lane_from, log_from), (lane_next, log_next) in pairwise(((0, 0), *self.pairs))
        ]


NO_CUTS: Final = Cuts()


def noted(marks: Marks, mark: ReadMark) -> Marks:
    """With the record that was read last. Some older ones stay: where the log's end was lost, they tell the rest."""
    if marks and mark.offset <= marks[-1].offset:
        return marks
    if len(marks) < 2:
        return (*marks, mark)
    *older, last = marks
    if last.offset - older[-1].offset >= MARKS_SPAN:
        older = [older[-1], last]
    return (*older, mark)


def below(marks: Marks, log_offset: int) -> Marks:
    """The marks that a log still has that was cut back to `log_offset`."""
    return marks[: bisect_left(marks, log_offset, key=itemgetter(0))]


Look = Callable[[int], ReadMark | None]
"""The first record at or behind an offset of the log, as it is there now; None: it has none."""


def find_cut(marks: Sequence[ReadMark], bounds: tuple[int, int], same_topic: bool, look: Look) -> int | None:
    """To which offset the log was cut back since these marks were read; None: it wasn't.

    `bounds`: the first offset that the log has, and its end. `same_topic`: by Kafka's id it is the topic that was read;
    else it may be another one of this name. Where nobody can tell what is new, all is taken as new that may be: no new
    record is passed over, and some former ones may be read twice.
    """
    first, end = bounds
    kept, wrong = first, -1
    for mark in reversed(marks):
        if mark.offset < first:
            break  # retention took it
        if mark.offset < end and (found := look(mark.offset)) is not None:
            if found == mark:
                kept = mark.offset + 1
                break
            if found.offset > mark.offset and found.epoch <= mark.epoch:
                break  # compaction took it
        wrong = mark.offset
    if wrong < 0:
        return None
    if kept == first and not same_topic:
        return first
    newest, stop = marks[-1].epoch, min(end, wrong + 1)
    at = bisect_left(range(kept, stop), True, key=lambda offset: _is_newer(look(offset), newest)) + kept
    if at < stop or end <= wrong:
        return at
    return kept


def _is_newer(found: ReadMark | None, epoch: int) -> bool:
    return found is None or found.epoch > epoch
