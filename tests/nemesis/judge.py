"""Timed traffic: the oracle's, which also keeps when each record was accepted and when a reader had it.

Lateness is what a reader with `isolation.level=read_committed` sees: the time at which it has the record, less the time
at which the record was due. A record that Kafka accepted only later than that (its source had no leader) counts from
when it was accepted: before, nobody could know of it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from confluent_kafka import Message

from tests.services.oracle import Traffic
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, headers_of

PARTITIONS: Final = 4  # of the source
# The judge's own clients leave a broker that is silent soon: how long they wait must not look like lateness.
CLIENT: Final = MappingProxyType({"socket_timeout_ms": 2_000, "topic_metadata_refresh_interval_ms": 1_000})
DELAY_MAX_MS: Final = 8_000  # so that records fall due all through a fail-over in which none can be sent
OVERDUE_MS: Final = 1_000
LATE_SHARE: Final = 0.99


class Seen(NamedTuple):
    """An arrival: which record, when the target's log and when a reader had it, and from where in the source
    (`topic/partition/offset`).
    """

    number: int
    written_ms: int
    seen_ms: int
    origin: bytes


@dataclass(frozen=True, slots=True)
class Times:
    """Fate of the records that were due in a while; lateness in ms. `written_late_ms_most` is the longest in the
    target's log: a reader may have to wait for the end of a transaction before it.
    """

    due: int
    lost: int
    repeated: int
    early: int
    late_ms_p99: int
    late_ms_most: int
    written_late_ms_most: int


class TimedTraffic(Traffic):
    """The oracle's traffic over a site, timed."""

    def __init__(self, site: Site, rate: int, seed: int) -> None:
        super().__init__(site, PARTITIONS, rate, seed, DELAY_MAX_MS, CLIENT)
        self._accepted_ms: dict[int, int] = {}
        self._seen: list[Seen] = []
        self._settled = 0  # all records below this number have arrived
        topic = site.name("load")
        self._lanes = frozenset(b"%s/%d" % (topic.encode(), partition) for partition in range(PARTITIONS))

    def _acknowledge(self, number: int, message: Message) -> None:
        if message.offset() is not None:  # else it may be nowhere
            self._accepted_ms[number] = now_ms()
        super()._acknowledge(number, message)

    def _see(self, message: Message) -> None:
        seen_ms = now_ms()
        super()._see(message)
        headers = dict(headers_of(message))
        number, origin = int(headers["n"] or b"-1"), headers["tickover-origin"] or b""
        self._seen.append(Seen(number, message.timestamp()[1], seen_ms, origin))

    # --- while it flows -------------------------------------------------------------------------------------------

    def wanted_ms(self, number: int) -> int:
        """When a record must be there: when it is due, or accepted if that is later; in the future until it is."""
        return max(self.expected[number].due_ms, self._accepted_ms.get(number, 1 << 62))

    def overdue(self) -> int:
        """How many records are late by more than a second and haven't arrived."""
        now, count = now_ms(), len(self.expected)
        while self._settled < count and self._settled in self.counts:
            self._settled += 1
        return sum(
            number not in self.counts and self.wanted_ms(number) < now - OVERDUE_MS
            for number in range(self._settled, count)
        )

    def emits_again_ms(self, since_ms: int) -> int:
        """When, from then on, a record of each of the source's partitions had arrived; -1 until they have."""
        awaited = set(self._lanes)
        for seen in self._since(since_ms):
            awaited.discard(seen.origin.rpartition(b"/")[0])
            if not awaited:
                return seen.seen_ms
        return -1

    def _since(self, since_ms: int) -> Sequence[Seen]:
        first = len(self._seen)
        while first and self._seen[first - 1].seen_ms >= since_ms:
            first -= 1
        return self._seen[first : len(self._seen)]

    # --- at the end -----------------------------------------------------------------------------------------------

    def times(self, fault_ms: int, end_ms: int) -> Times:
        """Of the records that were wanted from a fault to when nothing was overdue any more, both a moment earlier:
        what was not overdue yet may have been late because of the next one.
        """
        from_ms, to_ms = fault_ms - OVERDUE_MS, end_ms - OVERDUE_MS
        numbers = [number for number in list(self.expected) if from_ms <= self.wanted_ms(number) < to_ms]
        arrivals: dict[int, Seen] = {}
        early, repeated = set(), Counter[int]()
        origins: set[bytes] = set()
        for seen in list(self._seen):
            repeated[seen.number] += seen.origin in origins
            origins.add(seen.origin)
            arrivals.setdefault(seen.number, seen)
            if seen.written_ms < self.expected[seen.number].due_ms:
                early.add(seen.number)
        arrived = [(arrivals[each], self.wanted_ms(each)) for each in numbers if each in arrivals]
        late_ms = sorted(max(0, seen.seen_ms - wanted_ms) for seen, wanted_ms in arrived)
        return Times(
            due=len(numbers),
            lost=sum(each not in arrivals for each in numbers),
            repeated=sum(repeated[each] for each in numbers),
            early=sum(each in early for each in numbers),
            late_ms_p99=share_of(late_ms, LATE_SHARE),
            late_ms_most=late_ms[-1] if late_ms else 0,
            written_late_ms_most=max((seen.written_ms - wanted_ms for seen, wanted_ms in arrived), default=0),
        )


def share_of(sorted_ms: Sequence[int], share: float) -> int:
    """The value that this share of them does not exceed; 0 for none."""
    return sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))] if sorted_ms else 0
