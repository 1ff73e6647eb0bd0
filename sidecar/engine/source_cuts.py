"""Whether sources lost the end of their logs since they were read: what was read is looked for where it was.

Used by the recovery thread; what that means for a lane is in `log_cuts.py`.
"""

import logging
from collections.abc import Sequence

from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.recovery import Replay
from sidecar.ledger.topic import LedgerError, LedgerUnavailable
from sidecar.model.log_cuts import Marks, ReadMark, TooManyCuts, find_cut, noted
from sidecar.model.ports import Start, Starts
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)


class SourceChangedError(Exception):
    """A source was deleted and created again while this process read it."""


class SourceCuts:
    """Asks Kafka. Blocking."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._seen: dict[
            TopicPartition, int
        ] = {}  # cuts that were seen once: brokers may not agree yet on what a log has

    def find(self, replays: Sequence[tuple[Replay, Start]]) -> set[TopicPartition]:
        """Note the cuts of lanes that are being recovered. Returns those that are known about.

        Raises LedgerUnavailable when that is none, LedgerError where a cut can't be told any more.
        """
        places = {
            replay.id: replay.marks[-1].offset
            for replay, start in replays
            if replay.marks and replay.marks[-1].offset >= start.log_start
        }
        found = self._starts.records(places) if places else {}
        known: set[TopicPartition] = set()
        for replay, start in replays:
            lane, cut = replay.id, None
            if lane in places and lane not in found:
                continue
            if lane not in places or found[lane] != replay.marks[-1]:
                cut = self._cut_of(lane, start, (replay.known_id, replay.marks, end_of(replay)))
            if not self._is_certain(lane, cut):
                continue
            known.add(lane)
            if cut is not None:
                note_cut(replay, cut)
                self._mark_end(replay, cut, start.log_start)
        if replays and not known:
            raise LedgerUnavailable(f"no answer about what the log of {replays[0][0].id} has")
        return known

    def look_at(self, lane: TopicPartition, topic_id: str, marks: Marks, end: int) -> int | None:
        """To where the log was cut back since these marks were read, and it ended at `end`; None: it wasn't.

        Raises LedgerUnavailable, SourceChangedError.
        """
        start = self._starts.starts([lane]).get(lane)
        if start is None:
            raise LedgerUnavailable(f"no answer about the log of {lane}")
        if start.topic_id and topic_id and start.topic_id != topic_id:
            raise SourceChangedError(
                f"the topic of {lane} was deleted and created again: the process starts over with what it has now"
            )
        cut = self._cut_of(lane, start, (topic_id, marks, end))
        if cut is None and marks and start.log_start <= marks[-1].offset + 1 < end:
            behind = marks[-1].offset + 1  # what followed were marks of transactions, and may be records now
            found = self._record(lane, behind)
            is_cut = start.log_end < end or (found is not None and found.offset < end)
            cut = behind if is_cut else None
        if not self._is_certain(lane, cut):
            raise LedgerUnavailable(f"brokers may not agree yet on what the log of {lane} has")
        return cut

    def _is_certain(self, lane: TopicPartition, cut: int | None) -> bool:
        """A cut is believed when it is seen twice: a leader of a moment ago doesn't know yet what all have, or that it
        leads no more. That costs a cut half a second; without it records would be read again for nothing.
        """
        before = self._seen.pop(lane, None)
        if cut is None or cut == before:
            return True
        self._seen[lane] = cut
        return False

    def _mark_end(self, replay: Replay, cut: int, log_start: int) -> None:
        """Mark the last record that the cut log still has: another cut shows by it."""
        if cut > log_start and (found := self._record(replay.id, cut - 1)) is not None and found.offset == cut - 1:
            replay.marks = noted(replay.marks, found)

    def _cut_of(self, lane: TopicPartition, start: Start, known: tuple[str, Marks, int]) -> int | None:
        topic_id, marks, end = known
        if not marks or marks[-1].offset < start.log_start:  # nothing but its end tells
            return start.log_end if 0 <= start.log_end < end else None
        is_same = bool(start.topic_id) and start.topic_id == topic_id
        bounds = (start.log_start, start.log_end)
        return find_cut(marks, bounds, is_same, lambda offset: self._record(lane, offset))

    def _record(self, lane: TopicPartition, offset: int) -> ReadMark | None:
        found = self._starts.records({lane: offset})
        if lane not in found:
            raise LedgerUnavailable(f"no answer about what the log of {lane} has")
        return found[lane]


def end_of(of: Replay | SourcePartition) -> int:
    """Where its log ended when it was read, at least."""
    return of.cuts.log_offset(of.read_until)


def note_cut(of: Replay | SourcePartition, log_offset: int) -> None:
    """The log of a lane was cut back to this offset. Raises LedgerError where that can't be told any more."""
    lost_from, read_until = of.cuts.lane_offset(log_offset), of.read_until
    try:
        of.cut_back(log_offset)
    except TooManyCuts as error:
        raise LedgerError(f"{of.id}: {error}; give the group another name, which begins where `start` says") from error
    if lost_from >= read_until:
        return  # nothing is known of what it lost
    log.error(
        "a source lost the end of its log, which was read already: what it has there now is read as new, and counts on "
        "from another offset; what is held of the lost still fires where Redis or memory has it, the rest is gone",
        extra={"topic": of.id.topic, "partition": of.id.partition, "cut_back_to": log_offset,
               "lost": read_until - lost_from, "counts_from": read_until},
    )  # fmt: skip
