"""Partitions of targets that don't acknowledge: what is for them waits, and is tried after a while, longer each time.

    suspended --until--> tried, one of a topic's at a time, with one record --> acknowledged: the next one at once
        ^                             |
        +-------- for longer ---------+

The other partitions of such a topic get their records. Pure: time is an argument, epoch milliseconds.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from sidecar.model.partitioner import partition_of
from sidecar.model.ports import is_over
from sidecar.model.record import ANY_PARTITION, Diverted, Held, TargetPartition

log = logging.getLogger(__name__)

SUSPENDED_MS: Final = 5_000  # what did not acknowledge is tried again after this time, then after twice it ...
SUSPENDED_MAX_MS: Final = 60_000
FOR_EVER: Final = 1 << 62
UNNEEDED_MS: Final = 60_000  # one for which nothing waits is forgotten so long after it could have been tried
TRY_MAX_MS: Final = 30_000  # after it the next one: what became of the last one nobody says any more


@dataclass(slots=True)
class _Topic:
    until_ms: int = 0
    pause_ms: int = SUSPENDED_MS // 2
    partitions: set[int] = field(default_factory=set)
    tried: int = ANY_PARTITION  # the one of them that is tried just now, as long as `try_until_ms` ...
    trial: object = None  # ... with this record ...
    of_lane: object = None  # ... of this lane
    try_until_ms: int = 0
    needed_ms: int = 0  # a record waited for one of them then

    def rested(self, now_ms: int) -> bool:
        """Nothing keeps it from being tried."""
        return self.until_ms != FOR_EVER and is_over(now_ms, self.until_ms, SUSPENDED_MAX_MS)

    def is_tried(self, now_ms: int) -> bool:
        """Whether the record that a partition is tried with may still be acknowledged."""
        return not is_over(now_ms, self.try_until_ms, TRY_MAX_MS)

    def no_trial(self) -> None:
        """End the trial."""
        self.tried, self.trial, self.of_lane = ANY_PARTITION, None, None


_WELL: Final = _Topic()


class PartitionHealth:
    """Owned by `Targets`."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    @property
    def topics(self) -> Iterable[str]:
        """Topics of which some partition doesn't acknowledge."""
        return self._topics.keys()

    def __contains__(self, place: TargetPartition) -> bool:
        return (topic := self._topics.get(place.topic)) is not None and place.partition in topic.partitions

    def count(self, name: str) -> int:
        """How many partitions of a topic don't acknowledge."""
        return len(self._topics.get(name, _WELL).partitions)

    def waits(self, place: TargetPartition, parcel: object) -> bool:
        """Whether a partition doesn't acknowledge, and isn't tried just now with this record."""
        return place in self and self._topics[place.topic].trial is not parcel

    def suspend(self, name: str, partitions: Iterable[int], now_ms: int) -> None:
        """Suspend partitions that don't acknowledge."""
        topic = self._topics.setdefault(name, _Topic())
        topic.partitions.update(partitions)
        topic.no_trial()
        if topic.rested(now_ms):
            topic.pause_ms = min(topic.pause_ms * 2, SUSPENDED_MAX_MS)
            topic.until_ms = now_ms + topic.pause_ms
            about = {"topic": name, "partitions": sorted(topic.partitions), "wait_s": topic.pause_ms // 1_000}
            log.warning("a target does not acknowledge: its records wait, others go on", extra=about)

    def await_answers(self, name: str, partitions: Collection[int]) -> None:
        """Suspend partitions until what is under way to them is acknowledged: nothing more is tried."""
        topic = self._topics.setdefault(name, _Topic())
        topic.until_ms = FOR_EVER
        if topic.partitions.issuperset(partitions):
            return
        topic.partitions.update(partitions)
        about = {"topic": name, "partitions": sorted(topic.partitions)}
        log.warning("a target does not acknowledge: its records wait, others go on", extra=about)

    def acknowledged(self, name: str, partitions: Iterable[int], now_ms: int) -> bool:
        """Of these some acknowledge again. False: nobody had doubted it."""
        topic = self._topics.get(name)
        if topic is None or topic.partitions.isdisjoint(partitions):
            return False
        topic.partitions.difference_update(partitions)
        topic.no_trial()
        if topic.until_ms != FOR_EVER:
            topic.until_ms = now_ms  # as good as over for the others
        if not topic.partitions:
            del self._topics[name]
        log.info("a target acknowledges again", extra={"topic": name, "waiting": sorted(topic.partitions)})
        return True

    def forget(self, name: str) -> None:
        """There is no such topic any more."""
        self._topics.pop(name, None)

    def drop(self, lanes: Collection[object]) -> None:
        """End trials with records of these lanes, which are nobody's any more: others may be tried at once."""
        for topic in self._topics.values():
            if topic.of_lane in lanes:
                topic.no_trial()

    def forget_unneeded(self, waited_for: Collection[TargetPartition], now_ms: int) -> None:
        """Forget those for which nothing has waited for a while: their records went to somebody else, or are cancelled,
        and nothing would ever try them. If need be they are found again.
        """
        needed = {place.topic for place in waited_for}
        for name, topic in list(self._topics.items()):
            if name in needed or not topic.rested(now_ms) or (topic.trial is not None and topic.is_tried(now_ms)):
                topic.needed_ms = now_ms
            elif is_over(now_ms, topic.needed_ms + UNNEEDED_MS, UNNEEDED_MS):
                del self._topics[name]
                about = {"topic": name, "partitions": sorted(topic.partitions)}
                log.info("nothing waits any more for a target that did not acknowledge", extra=about)

    def tries(self, place: TargetPartition, lane: object, parcel: object, now_ms: int) -> bool:
        """Whether one that doesn't acknowledge is to be tried now, with this record of this lane."""
        topic = self._topics[place.topic]
        if not topic.rested(now_ms) or (topic.trial is not None and topic.is_tried(now_ms)):
            return False
        topic.tried, topic.trial, topic.of_lane = place.partition, parcel, lane
        topic.try_until_ms = now_ms + TRY_MAX_MS
        return True

    def place_of(self, name: str, parcel: Held | Diverted, partitions: int) -> TargetPartition:
        """Where a record is to go in a topic of so many partitions: what has no key goes where it is acknowledged."""
        topic = self._topics.get(name, _WELL)
        if parcel.key is not None:
            return TargetPartition(name, partition_of(parcel.key, partitions))
        well = [partition for partition in range(partitions) if partition not in topic.partitions]
        if well:
            return TargetPartition(name, well[parcel.offset % len(well)])
        return TargetPartition(name, topic.tried if topic.tried in topic.partitions else min(topic.partitions))

    def suspended(self, now_ms: int) -> set[str]:
        """Topics of which something may wait, or is tried just now."""
        return {name for name, topic in self._topics.items() if not topic.rested(now_ms) or topic.is_tried(now_ms)}
