"""Digests of dead letters, by which groups are counted: kept in memory, so that each letter is read from Kafka once.

    a partition:   [start ......................... end)      offsets that were looked at
                    offset, time and kind of each letter       20 bytes

What a letter died of never changes. What people do with it does, and isn't kept here (`redrive_marks.Fates`). Letters
that retention takes are forgotten when somebody looks again; those that compaction takes are counted until the process
ends: topics of dead letters aren't compacted.
"""

import threading
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.masking import Masking

LETTERS_MAX: Final = 1_000_000  # of all partitions: 20 MB; letters past them are read again by whoever asks
KINDS_MAX: Final = 5_000  # of all partitions: what is remembered of one may be 5 kB
RUN_MAX: Final = 10_000


class Kind(NamedTuple):
    """Words that letters which died alike have in common. `error`: the name of their group, as it may be shown."""

    reason: str
    error_class: str
    policy: str
    fingerprint: str
    error: str


class Run(NamedTuple):
    """Letters of a partition in order, of which each has a place in all three; `kinds` are places in `known`.

    All before offset `end` was looked at.
    """

    offsets: Sequence[int]
    times_ms: Sequence[int]
    kinds: Sequence[int]
    known: Sequence[Kind]
    end: int


class PartitionDigests:
    """Digests of the letters from `start` to before `end`. Grows and never changes otherwise."""

    def __init__(self, topic_id: str, start: int) -> None:
        self.topic_id = topic_id
        self.start = self.end = start
        self.known: list[Kind] = []
        self._numbers: dict[Kind, int] = {}
        self._offsets, self._times_ms, self._kinds = array("q"), array("q"), array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, letters: Iterable[tuple[int, int, Kind]], end: int) -> Run:
        """Offsets, times and kinds of letters behind all others; before `end` there are no more of them."""
        first = len(self)
        for offset, time_ms, kind in letters:
            number = self._numbers.setdefault(kind, len(self.known))
            if number == len(self.known):
                self.known.append(kind)
            self._offsets.append(offset)
            self._times_ms.append(time_ms)
            self._kinds.append(number)
        self.end = end
        return self._run(first, len(self), end)

    def run(self, begin: int, end: int) -> Run | None:
        """The first letters from `begin` to before `end`; None: nobody has looked there."""
        end = min(end, self.end)
        if not self.start <= begin < end:
            return None
        first = bisect_left(self._offsets, begin)
        last = min(bisect_left(self._offsets, end), first + RUN_MAX)
        return self._run(first, last, end if last - first < RUN_MAX else self._offsets[last - 1] + 1)

    def since(self, start: int) -> "PartitionDigests":
        """A copy of what is left from `start` on."""
        left = PartitionDigests(self.topic_id, start)
        first = bisect_left(self._offsets, start)
        kinds = map(self.known.__getitem__, self._kinds[first:])
        left.add(zip(self._offsets[first:], self._times_ms[first:], kinds, strict=True), self.end)
        return left

    def _run(self, first: int, last: int, end: int) -> Run:
        places = slice(first, last)
        return Run(self._offsets[places], self._times_ms[places], self._kinds[places], self.known, end)


class Digests:
    """Digests of all partitions that somebody has asked about; for any thread. `masking`: rules of what is shown."""

    def __init__(self, masking: Masking) -> None:
        self.masking = masking
        self._partitions: dict[tuple[str, int], PartitionDigests] = {}
        self._changing = threading.Lock()

    def of(self, topic: str, partition: int, topic_id: str, low: int, high: int) -> PartitionDigests:
        """Digests of the letters from `low` to before `high`, all that the partition has now, as far as known."""
        with self._changing:
            known = self._partitions.get((topic, partition))
            if known is None or known.topic_id != topic_id or not low <= known.end <= high:
                known = PartitionDigests(topic_id, low)
            elif known.start < low:
                known = known.since(low)
            self._partitions[topic, partition] = known
            return known

    def keep(self, digests: PartitionDigests, begin: int, letters: Iterable[DeadLetter], end: int) -> Run:
        """Digests of all letters from `begin` to before `end`, kept where they follow what is known, and have room."""
        found = [self.of_letter(letter) for letter in letters]
        with self._changing:
            kept = digests if digests.end == begin and self._has_room(len(found)) else PartitionDigests("", begin)
            return kept.add(found, end)

    def of_letter(self, letter: DeadLetter) -> tuple[int, int, Kind]:
        """Offset, time and kind of a letter."""
        error = self.masking.group_name(letter)
        kind = Kind(letter.reason, letter.error_class, letter.policy, letter.fingerprint, error)
        return letter.place.offset, letter.timestamp_ms, kind

    def forget_others(self, topics: Collection[str]) -> None:
        """Forget all but these: there are no such topics any more."""
        with self._changing:
            for topic, partition in [place for place in self._partitions if place[0] not in topics]:
                del self._partitions[topic, partition]

    def _has_room(self, letters: int) -> bool:
        known = self._partitions.values()
        return sum(map(len, known)) + letters <= LETTERS_MAX and sum(len(one.known) for one in known) <= KINDS_MAX
