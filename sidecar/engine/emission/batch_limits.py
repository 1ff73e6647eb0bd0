"""Targets by the batches that they take: the usual ones, only small ones, or only single records.

Kafka's limit (`max.message.bytes`) is for a batch, and the client's largest batch is a setting of a whole producer. So
there are three producers, and each target has the one whose batches it takes:

    usual    `batch.size`, 1 MB: targets with at least this limit, and those that don't say theirs
    small    SMALL_BATCH_BYTES: targets with a lower limit, and those that have refused a batch and don't say theirs
    alone    one record in a batch: targets that refuse small batches, and any record that is above its target's limit

A record whose batch was refused goes one step down: to the next smaller batch, in the end alone, and then it is the
record that is too large. Owned by the engine's thread; only `ask` runs in another.
"""

from collections.abc import Callable, Collection
from typing import Final

from sidecar.engine.partition.record_queue import PendingRecord, size_of
from sidecar.model.ports import SMALL_BATCH_BYTES

USUAL_BATCH_BYTES: Final = 1_000_000
OWN_BYTES_MAX: Final = 1_024  # what an emission adds to a record: headers of ours, and a batch's own header


class BatchLimits:
    """By topic. `ask` tells a topic's limit in bytes, 0 where it isn't known; `usual_bytes`: the largest usual one."""

    def __init__(self, ask: Callable[[str], int] = lambda _: 0, usual_bytes: int = USUAL_BATCH_BYTES) -> None:
        self.ask = ask
        self._usual_bytes = usual_bytes
        self._told: dict[str, int] = {}
        self._small: set[str] = set()
        self._lone: set[str] = set()
        self._doubted: set[str] = set()  # refused a small batch and, so far, no single record

    @property
    def topics(self) -> set[str]:
        """Topics that don't get the usual batches."""
        return self._small | self._lone

    @property
    def small_topics(self) -> set[str]:
        """Topics that get small batches."""
        return self._small - self._lone

    def tell(self, topic: str, bytes_max: int) -> None:
        """Take in the limit in bytes that `ask` has told; 0, not known: what was learnt from refusals counts on."""
        if bytes_max <= 0:
            self._told.pop(topic, None)
            return
        if self._told.get(topic) == bytes_max:
            return  # what refusals have taught since counts on
        self._told[topic] = bytes_max
        for topics in (self._small, self._lone):
            topics.discard(topic)
        if bytes_max >= self._usual_bytes:
            return
        (self._lone if bytes_max < SMALL_BATCH_BYTES else self._small).add(topic)

    def forget(self, topic: str) -> None:
        """There is no such topic any more."""
        self._told.pop(topic, None)
        for topics in (self._small, self._lone, self._doubted):
            topics.discard(topic)

    def takes_single(self, topic: str) -> bool:
        """Whether the records of a topic are sent one by one."""
        return topic in self._lone

    def takes_small(self, topic: str) -> bool:
        """Whether the records of a topic are sent in small batches."""
        return topic in self._small and topic not in self._lone

    def exceeds(self, topic: str, parcel: PendingRecord) -> bool:
        """A record that its target takes at best compressed: with it, all of its batch would be refused."""
        told = self._told.get(topic)
        return told is not None and size_of(parcel) + OWN_BYTES_MAX > told

    def refused(self, topic: str, small: bool) -> bool:
        """A topic has refused a batch for its size, a `small` one or a usual one. True: small ones may be taken."""
        if small:
            self._doubted.add(topic)
            return False
        if topic not in self._lone:
            self._small.add(topic)
        return self.takes_small(topic)

    def refused_single(self, topic: str) -> None:
        """A topic has refused a single record for its size: that says nothing of its batches."""
        self._doubted.discard(topic)
        if self._told.get(topic, self._usual_bytes) >= self._usual_bytes:
            self._small.discard(topic)

    def passed_single(self, topics: Collection[str], waiting: Collection[str]) -> None:
        """Single records for these topics were taken, and for `waiting` there are more to try.

        A topic that refuses small batches, and took each of their records one by one, gets single ones from now on.
        """
        proven = self._doubted.intersection(topics).difference(waiting)
        self._lone |= proven
        self._doubted -= proven

    @property
    def doubted(self) -> set[str]:
        """Topics of which it isn't known whether they take small batches."""
        return self._doubted
