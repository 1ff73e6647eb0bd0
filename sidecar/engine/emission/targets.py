"""Topics that can be emitted to: asked about once, remembered, and asked about again when an emission says otherwise.

A record for an unknown topic waits here until the cluster has answered, which never takes the engine's time; one for a
partition that doesn't acknowledge, until that is tried again.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from sidecar.engine.emission.batch_limits import BatchLimits
from sidecar.engine.emission.target_health import PartitionHealth
from sidecar.engine.partition.exits import CLOSED
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.record_queue import KeyedQueues, PendingRecord, RecordQueue, earliest, is_early, topic_of
from sidecar.model.ports import NO_ANSWER, is_over
from sidecar.model.record import ANY_PARTITION, AwaitingTarget, Diverted, Held, TargetPartition

Ask = Callable[[str], int]  # topic -> its partitions; 0: there is no such topic, or we may not see it; or NO_ANSWER
Answer = tuple[int, int]  # as of `Ask`, and the topic's limit for a batch in bytes
ANSWER_AGE_MAX_MS: Final = 5_000  # a "no such topic", or no such partition, is asked again after this time
ABSENT_MAX: Final = 1_000  # topics remembered that there aren't; of more, old answers are forgotten
ASK_AGAIN_MS: Final = 500  # brokers that are back are asked again within a second


class Targets:
    """Partition counts of target topics, and which of these acknowledge. Owned by the engine's thread; only `ask` runs
    in another.

    `partitions` has no topic that is `reserved`, so whatever looks there before it emits is right about these, too.
    """

    def __init__(
        self,
        ask: Ask,
        executor: Executor | None = None,
        reserved: Container[str] = (),
        limits: BatchLimits | None = None,
    ) -> None:
        self.partitions: dict[str, int] = {}
        self.limits = limits or BatchLimits()
        self._reserved = reserved
        self._own: dict[str, int] = {}  # partitions of the quarantine, to which records leave and none is emitted
        self._absent_ms: dict[str, int] = {}
        self._counted_ms: dict[str, int] = {}
        self._ask = ask
        self._executor = executor or ThreadPoolExecutor(1, "targets")
        self._asking: dict[str, Future[Answer]] = {}
        self._doubted: set[str] = set()  # what is known of them may be of yesterday
        self._unanswered: set[str] = set()
        self._suspensions = PartitionHealth()
        self.watched: Collection[str] = ()  # topics: where each record goes is known here
        self._now_ms = 0
        self._again_ms = 0  # not before: brokers did not answer
        self._waiting: KeyedQueues[str] = KeyedQueues()  # for an answer
        self._held_up: KeyedQueues[TargetPartition] = KeyedQueues()  # until their partition acknowledges

    def count_for(self, held: Held, now_ms: int) -> int | None:
        """How many partitions this record's target has; None: not known, or it may have more by now than it had.
        CLOSED: it is reserved. A record that Redis has kept may name any topic.
        """
        count = self.partitions.get(held.target)
        if count is None:
            return CLOSED if held.target in self._reserved else None
        if held.target_partition < count:
            return count
        if _is_fresh(self._counted_ms, held.target, now_ms):
            return count
        self.forget(held.target)
        return None

    def knows(self, topic: str) -> bool:
        """The cluster has said that there is this topic."""
        return topic in self.partitions or topic in self._own

    def is_reserved(self, topic: str) -> bool:
        """No record may be emitted there."""
        return topic not in self.partitions and topic in self._reserved

    def absent(self, topic: str, now_ms: int) -> bool:
        """True when the cluster said a moment ago that there is no such topic."""
        return _is_fresh(self._absent_ms, topic, now_ms)

    def wait(self, lane: SourcePartition, parcel: PendingRecord) -> None:
        """Keep one record until the cluster has said what it knows of its topic."""
        self._waiting.append(topic_of(parcel), lane, parcel)

    def forget(self, topic: str) -> None:
        """An emission was refused as if the topic were gone: ask again at the next record."""
        self._counts(topic).pop(topic, None)

    def doubt(self, topic: str) -> None:
        """Ask about it again; what is known holds until there is an answer."""
        self._doubted.add(topic)

    def refused(self, topic: str) -> None:
        """Note that a topic takes nothing from us: for a while no record is tried, as if there were no such topic."""
        self.forget(topic)
        self._no_longer(topic)

    def _counts(self, topic: str) -> dict[str, int]:
        """Where its count of partitions is."""
        return self._own if topic in self._reserved else self.partitions

    def _no_longer(self, topic: str) -> None:
        """Remember that there is no such topic: records may name any number of them."""
        if len(self._absent_ms) >= ABSENT_MAX:
            self._absent_ms = {name: ms for name, ms in self._absent_ms.items() if self.absent(name, self._now_ms)}
        self._absent_ms[topic] = self._now_ms

    # --- those that don't acknowledge -------------------------------------------------------------------------------

    def place_of(self, parcel: Held | Diverted) -> TargetPartition:
        """Where a record is to go: in the partition that it asks for, else where the client sends it. In a topic that
        is watched, or of which some partition doesn't acknowledge, that is known here.
        """
        topic, asked = topic_of(parcel), self.asked_partition(parcel)
        count = self.partitions.get(topic, self._own.get(topic))
        known = topic in self._suspensions.topics or topic in self.watched
        if asked != ANY_PARTITION or count is None or not known:
            return TargetPartition(topic, asked)
        return self._suspensions.place_of(topic, parcel, count)

    @staticmethod
    def asked_partition(parcel: Held | Diverted) -> int:
        """The one that a record asks for, -1: the client chooses by the key."""
        return parcel.target_partition if isinstance(parcel, Held) else ANY_PARTITION

    def suspend(self, topic: str, partitions: Iterable[int]) -> None:
        """Suspend partitions that don't acknowledge: their records wait, longer each time. ANY_PARTITION: all."""
        known, counts = set(partitions), self._counts(topic)
        if ANY_PARTITION in known:
            known = set(range(counts.get(topic, 1)))
        if topic in counts:  # it may have grown
            counts[topic] = max(counts[topic], *(partition + 1 for partition in known))
        self._suspensions.suspend(topic, known, self._now_ms)

    def await_answers(self, places: Collection[TargetPartition]) -> None:
        """Suspend partitions until they acknowledge what they have got: what is for them waits."""
        for topic, partitions in by_topic(places).items():
            self._suspensions.await_answers(topic, partitions)

    def acknowledged(self, places: Iterable[TargetPartition]) -> set[str]:
        """Note that partitions took what was tried there; returns the topics of which that is news."""
        told = self._suspensions.acknowledged
        return {topic for topic, those in by_topic(places).items() if told(topic, those, self._now_ms)}

    def is_suspended(self, place: TargetPartition) -> bool:
        """Whether a partition did not acknowledge, and is to be tried apart from others."""
        return place in self._suspensions

    def holds_up(self, place: TargetPartition, lane: SourcePartition, parcel: PendingRecord) -> bool:
        """Keep a record whose partition isn't to be tried with it now; False: it may go."""
        if not self._suspensions.waits(place, parcel):
            return False
        self._held_up.append(place, lane, parcel)
        return True

    def is_silent(self, topic: str) -> bool:
        """No partition acknowledges."""
        return self._suspensions.count(topic) >= self._counts(topic).get(topic, 1)

    @property
    def suspended_topics(self) -> Iterable[str]:
        """Topics of which some partition did not acknowledge."""
        return self._suspensions.topics

    def suspended(self, now_ms: int) -> set[str]:
        """Topics whose records wait, or are tried just now: nobody acknowledges, or answers."""
        unanswered = self._unanswered.intersection(self._waiting.names)
        return self._suspensions.suspended(now_ms).union(unanswered, (place.topic for place in self._held_up.names))

    # --- for the emitter --------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> RecordQueue:
        """Records whose question was answered, or whose partition acknowledges again. Each is emitted again."""
        self._now_ms = now_ms
        released = RecordQueue()
        for place in [place for place in self._held_up.names if place not in self._suspensions]:
            released.take_all(self._held_up.pop(place))
        self._suspensions.forget_unneeded(self._held_up.names, now_ms)
        for topic in [*self._waiting.names, *self._doubted.difference(self._waiting.names)]:
            rests = not is_over(now_ms, self._again_ms, ASK_AGAIN_MS)
            if topic not in self._asking and not rests and not self.absent(topic, now_ms):
                self._asking[topic] = self._executor.submit(self._answer, topic)
        for topic in [topic for topic, future in self._asking.items() if future.done()]:
            count, bytes_max = self._asking.pop(topic).result()
            if count == NO_ANSWER:
                self._again_ms = now_ms + ASK_AGAIN_MS
                self._unanswered.add(topic)
                continue
            self._unanswered.discard(topic)
            self._doubted.discard(topic)
            if count:
                self._counts(topic)[topic] = count
                self._counted_ms[topic] = now_ms
                self._absent_ms.pop(topic, None)
                self.limits.tell(topic, bytes_max)
            else:
                self.forget(topic)
                self.limits.forget(topic)
                self._suspensions.forget(topic)
                self._no_longer(topic)
            released.take_all(self._waiting.pop(topic))
        return released

    def _answer(self, topic: str) -> Answer:
        """In the executor's thread."""
        count = self._ask(topic)
        return count, self.limits.ask(topic) if count > 0 else 0

    def trials(self) -> RecordQueue:
        """Records with which partitions that don't acknowledge are to be tried now, and those that aren't due any more
        or need not wait: they would be no trial. After `step`.
        """
        trials = RecordQueue()
        for place in [place for place in self._held_up.names if place in self._suspensions]:
            lane, parcel = self._held_up.first(place)
            if is_early(parcel, self._now_ms):
                self._let_go_of_early(place, trials)
            elif self._is_free(parcel):
                self._let_go_of_free(place, trials)
            elif self._suspensions.tries(place, lane, parcel, self._now_ms):
                queue = self._held_up.pop(place)
                queue.popleft()
                self._held_up.put_back(place, queue)  # the others come before it the next time
                trials.append(lane, parcel)
        return trials

    def _let_go_of_early(self, place: TargetPartition, released: RecordQueue) -> None:
        """The clock was set back since the next ones of a partition fired: they are no trial, they fire again."""
        queue = self._held_up.pop(place)
        while queue and is_early(queue.first[1], self._now_ms):
            released.append(*queue.popleft())
        self._held_up.put_back(place, queue)

    def _is_free(self, parcel: PendingRecord) -> bool:
        """Whether a record has no key, and another partition than the one it waited for acknowledges by now."""
        if isinstance(parcel, AwaitingTarget):
            return False
        place = self.place_of(parcel)
        return place.partition != ANY_PARTITION and place not in self._suspensions

    def _let_go_of_free(self, place: TargetPartition, released: RecordQueue) -> None:
        """All of a partition's: each would be taken for its trial, go elsewhere, and nobody would say how that went."""
        kept = RecordQueue()
        for lane, parcel in self._held_up.pop(place):
            (released if self._is_free(parcel) else kept).append(lane, parcel)
        self._held_up.put_back(place, kept)

    def take_held_up(self, wanted: Callable[[Held], bool]) -> RecordQueue:
        """Take out the records of which this is true among those whose partition doesn't acknowledge."""
        taken = RecordQueue()
        for place in [*self._held_up.names]:
            kept = RecordQueue()
            for lane, parcel in self._held_up.pop(place):
                (taken if isinstance(parcel, Held) and wanted(parcel) else kept).append(lane, parcel)
            self._held_up.put_back(place, kept)
        return taken

    def drop(self, lanes: set[SourcePartition]) -> None:
        """Forget the records of lanes that were revoked."""
        self._waiting.drop(lanes)
        self._held_up.drop(lanes)
        self._suspensions.drop(lanes)

    def has_waiting(self, topic: str) -> bool:
        """Whether a record waits here for this topic."""
        return topic in self._waiting or any(place.topic == topic for place in self._held_up.names)

    @property
    def count(self) -> int:
        """How many records wait here."""
        return len(self._waiting) + len(self._held_up)

    @property
    def bytes(self) -> int:
        """Bytes of the records that wait here."""
        return self._waiting.bytes + self._held_up.bytes

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest, -1 when none that is due waits."""
        return earliest((self._waiting.oldest_due_ms(), self._held_up.oldest_due_ms()))

    def stop(self) -> None:
        """End the asking thread. Twice is harmless."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _is_fresh(answers_ms: Mapping[str, int], topic: str, now_ms: int) -> bool:
    at_ms = answers_ms.get(topic)
    return at_ms is not None and not is_over(now_ms, at_ms + ANSWER_AGE_MAX_MS, ANSWER_AGE_MAX_MS)


def by_topic(places: Iterable[TargetPartition]) -> dict[str, set[int]]:
    """The partitions of each topic, topics by name."""
    partitions: dict[str, set[int]] = {}
    for place in sorted(places):
        partitions.setdefault(place.topic, set()).add(place.partition)
    return partitions
