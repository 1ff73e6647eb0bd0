"""Which topics can be emitted to: asked once, remembered, and asked again when an emission says otherwise.

A record for an unknown topic waits here until the cluster has answered; the answer never takes the engine's time.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from sidecar.lane import Lane
from sidecar.parcels import ByTopic, Parcel, Parcels
from sidecar.ports import NO_ANSWER
from sidecar.record import Held

log = logging.getLogger(__name__)

Ask = Callable[[str], int]  # topic -> its partitions; 0: there is no such topic, or we may not see it; or NO_ANSWER
ANSWER_AGE_MAX_MS: Final = 5_000  # a "no such topic", or no such partition, is asked again after this time
SUSPENDED_MS: Final = 5_000  # a topic that did not acknowledge is tried again after this time, then after twice it ...
SUSPENDED_MAX_MS: Final = 60_000
TRY_MAX_MS: Final = 30_000  # after it: by then it acknowledged, was suspended again, or nothing waits for it any more
ASK_AGAIN_MS: Final = 500  # brokers that are back are asked again within a second


class Targets:
    """Partition counts of target topics. Owned by the engine's thread; only `ask` runs in another.

    `partitions` has those that can be emitted to now; `known` also those that don't acknowledge for now: what is read
    for them can be held.
    """

    def __init__(self, ask: Ask, executor: Executor | None = None) -> None:
        self.partitions: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self._absent_ms: dict[str, int] = {}
        self._counted_ms: dict[str, int] = {}
        self._ask = ask
        self._executor = executor or ThreadPoolExecutor(1, "targets")
        self._asking: dict[str, Future[int]] = {}
        self._suspended: dict[str, tuple[int, int]] = {}  # until when, and for how long
        self._now_ms = 0
        self._again_ms = 0  # not before: brokers did not answer
        self._waiting = ByTopic()

    def count_for(self, held: Held, now_ms: int) -> int | None:
        """How many partitions this record's target has; None: not known, or it may have more by now than it had."""
        count = self.partitions.get(held.target)
        if count is None or held.target_partition < count:
            return count
        if now_ms - self._counted_ms.get(held.target, -ANSWER_AGE_MAX_MS) < ANSWER_AGE_MAX_MS:
            return count
        self.forget(held.target)
        return None

    def absent(self, topic: str, now_ms: int) -> bool:
        """True when the cluster said a moment ago that there is no such topic."""
        return now_ms - self._absent_ms.get(topic, -ANSWER_AGE_MAX_MS) < ANSWER_AGE_MAX_MS

    def wait(self, lane: Lane, parcel: Parcel) -> None:
        """Keep one record until the cluster has said what it knows of its topic."""
        self._waiting.append(lane, parcel)

    def forget(self, topic: str) -> None:
        """An emission was refused as if the topic were gone: ask again at the next record."""
        self.partitions.pop(topic, None)
        self.known.pop(topic, None)

    def refused(self, topic: str) -> None:
        """It takes nothing from us: for a while no record is tried, as if there were no such topic."""
        self.forget(topic)
        self._absent_ms[topic] = self._now_ms

    def suspend(self, topic: str) -> None:
        """It has partitions, and does not acknowledge: its records wait, longer each time."""
        until_ms, pause_ms = self._suspended.get(topic, (0, SUSPENDED_MS // 2))
        if until_ms <= self._now_ms:
            pause_ms = min(pause_ms * 2, SUSPENDED_MAX_MS)
            self._suspended[topic] = (self._now_ms + pause_ms, pause_ms)
            about = {"topic": topic, "wait_s": pause_ms // 1_000}
            log.warning("a target does not acknowledge: its records wait, others go on", extra=about)
        self.partitions.pop(topic, None)

    def recovered(self, topic: str) -> None:
        """It acknowledges again."""
        if self._suspended.pop(topic, None) is not None:
            log.info("a target acknowledges again", extra={"topic": topic})

    def suspended(self, now_ms: int) -> list[str]:
        """Topics that don't acknowledge, by name: their records wait, or are tried just now."""
        return sorted(topic for topic, (until_ms, _) in self._suspended.items() if now_ms < until_ms + TRY_MAX_MS)

    def step(self, now_ms: int) -> Parcels:
        """Records whose question was answered. Each is emitted again, which now finds the answer."""
        self._now_ms = now_ms
        answered = Parcels()
        for topic in self._waiting.topics:
            if now_ms < self._suspended.get(topic, (0, 0))[0]:
                continue
            if topic not in self._asking and now_ms >= self._again_ms and not self.absent(topic, now_ms):
                self._asking[topic] = self._executor.submit(self._ask, topic)
        for topic in [topic for topic, future in self._asking.items() if future.done()]:
            count = self._asking.pop(topic).result()
            if count == NO_ANSWER:
                self._again_ms = now_ms + ASK_AGAIN_MS
                continue
            if count:
                self.partitions[topic] = self.known[topic] = count
                self._counted_ms[topic] = now_ms
                self._absent_ms.pop(topic, None)
            else:
                self.forget(topic)
                self._absent_ms[topic] = now_ms
            answered.take_all(self._waiting.pop(topic))
        return answered

    def drop(self, lanes: set[Lane]) -> None:
        """Forget the records of lanes that were revoked."""
        self._waiting.drop(lanes)

    def has_waiting(self, topic: str) -> bool:
        """Whether a record waits for what the cluster knows of this topic."""
        return topic in self._waiting

    @property
    def count(self) -> int:
        """How many records wait for an answer."""
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """What these take."""
        return self._waiting.bytes

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest, -1 when none that is due waits."""
        return self._waiting.oldest_due_ms()

    def stop(self) -> None:
        """End the asking thread. Twice is harmless."""
        self._executor.shutdown(wait=False, cancel_futures=True)
