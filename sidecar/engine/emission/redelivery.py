"""Records that came back: refused by the producer or by Kafka, in an aborted transaction, or to be tried one by one.

refused, of a batch ----> in small batches ----> one by one ----> taken
                                                     |
                                                     +-- refused alone: emitted again, asked about again, or quarantined
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

from policies.decision import UNKNOWN_TARGET
from policies.headers import BY_REFERENCE
from sidecar.engine.commit.interval import CommitInterval, Failure
from sidecar.engine.emission.due_queue import Batch
from sidecar.engine.emission.queues import InOrder, Ready
from sidecar.engine.emission.targets import Targets
from sidecar.engine.partition import exits
from sidecar.engine.partition.exits import EmissionError, quarantined
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.record_queue import KeyedQueues, RecordQueue, earliest, topic_of
from sidecar.engine.partition.wheel import Load
from sidecar.model.record import AwaitingTarget, Diverted, Held, TargetPartition

Content = tuple[str, bytes | None, bytes | None]
Found = tuple[SourcePartition, Held | Diverted]
ISOLATED_MAX: Final = 500  # records sent one by one at a time, where the brokers acknowledge as many in time
ROOM_MAX: Final = 1_000  # of one target in one turn
SMALL_MAX: Final = 10_000  # records sent in small batches at a time, where the brokers acknowledge as many in time ...
RUN_MAX: Final = 500
SMALL_BYTES_MAX: Final = 4 << 20  # ... and their bytes: some hundred requests

log = logging.getLogger(__name__)


def take_failed(interval: CommitInterval) -> list[tuple[Failure, list[Found]]]:
    """Take the records that failed out of a complete interval: one failure for each content, with its records.

    A delivery report carries topic, key and value, but neither headers nor a mark of ours, and keeping a closure per
    message would cost more than all of emission's own work. Failures are rare, so the records are found by content.
    Where only some of several records with the same content failed, nobody can say which: all of them are emitted
    again, which repeats a record rather than lose one.
    """
    failures: dict[Content, Failure] = {}
    for failure in interval.failures:
        failures.setdefault(_produced(failure.message), failure)
    found: dict[Content, list[Found]] = defaultdict(list)
    for lane, batch, _ in interval.batches:
        for held in batch:
            if (content := (held.target, held.key, held.value)) in failures:
                found[content].append((lane, held))
    for lane, departure in interval.departures:
        if (content := (departure.topic, departure.key, departure.value)) in failures:
            found[content].append((lane, departure))
    assert len(found) == len(failures), "a delivery report for a record that was not sent in this interval"
    interval.batches = [
        (lane, [held for held in batch if (held.target, held.key, held.value) not in failures], at_ms)
        for lane, batch, at_ms in interval.batches
    ]
    interval.departures = [
        (lane, departure)
        for lane, departure in interval.departures
        if (departure.topic, departure.key, departure.value) not in failures
    ]
    return [(failure, found[content]) for content, failure in failures.items()]


def _produced(message: Any) -> Content:
    return message.topic(), message.key(), message.value()


class Redelivery:
    """Queues of what is due and not handed over: what came back waits beside what has just fired. The emitter takes
    records from here; the settlement gives them back, for which this is its `Refusals`.
    """

    def __init__(self, targets: Targets, quarantine: str, transactional: bool) -> None:
        self.load = Load()  # of all wheels, and of what has left them and is not handed over
        self.ready = Ready(self.load)
        self.in_order = InOrder(self.load)
        self.again = RecordQueue()
        self.isolated: KeyedQueues[str] = KeyedQueues()  # by topic, each to be sent in a batch of its own
        self.small = RecordQueue()  # to be sent in small batches: see `BatchLimits`
        self._small_fits = SMALL_MAX
        self._isolated_max: dict[str, int] = {}  # by topic, halved while one of several spoils a transaction, unnamed
        self._isolated_fits = ISOLATED_MAX  # acknowledged in time lately: slow brokers need a request for each
        self._unauthorized: set[str] = set()  # topics that refuse us: tried apart from others until they don't
        self._targets = targets
        self._limits = targets.limits
        self._transactional = transactional
        self._quarantine = quarantine

    @property
    def one_by_one(self) -> set[str]:
        """Topics whose records aren't simply handed over: `place_for` says what becomes of each."""
        return self._limits.topics.union(self._unauthorized, self._targets.suspended_topics, self._targets.watched)

    @property
    def in_small_batches(self) -> set[str]:
        """Topics whose records are simply handed over, to the producer of small batches."""
        if not (small := self._limits.small_topics):
            return small
        return small.difference(self._unauthorized, self._targets.suspended_topics, self._targets.watched)

    def refused(self, interval: CommitInterval) -> None:
        """Take the records that Kafka refused out of a complete interval, and see to each by its error."""
        for failure, found in take_failed(interval):
            name = failure.error.name()
            for lane, parcel in found:
                if self._transactional and name not in exits.OF_RECORDS | exits.GIVEN_UP:
                    self._again(lane, parcel)  # the transaction's fault, which is over
                elif name in exits.SIZE_ERRORS and not failure.isolated:
                    self._too_large(lane, parcel, failure.small)
                elif name in exits.TRIED_ISOLATED and not failure.isolated:
                    self._isolate(lane, parcel)
                else:
                    if name in exits.SIZE_ERRORS:
                        self._limits.refused_single(topic_of(parcel))
                    self.refuse(lane, parcel, failure.error, failure.isolated)

    def _too_large(self, lane: SourcePartition, parcel: Held | Diverted, small: bool) -> None:
        """Move a record from a batch refused for its size to a smaller one; its topic is asked about that again."""
        topic = topic_of(parcel)
        self._targets.doubt(topic)
        fits = self._limits.refused(topic, small) and not self._limits.exceeds(topic, parcel)
        if not fits:
            self._isolate(lane, parcel)
        elif not self.in_order.came_back(lane, parcel):  # who needs order is handed over again, and goes this way then
            self.small.append(lane, parcel)

    def refuse(self, lane: SourcePartition, parcel: Held | Diverted, error: Any, isolated: bool) -> None:
        """Decide on one refused record: emit it again, ask about its topic again, or quarantine it."""
        name, topic = error.name(), topic_of(parcel)
        if self._transactional and name in exits.TRANSACTION_FAILED:
            lane.touch()  # one with nothing in it would never end, and nobody would ask its producer
            raise BufferError("the open transaction has failed: nothing more goes into it")
        if name in exits.GIVEN_UP:
            self._again(lane, parcel)
            return
        if name in exits.NO_TARGET:
            self._targets.forget(topic)
            self._again(lane, parcel)
            return
        if name == exits.REFUSED_TOPIC and self._transactional:  # each try spoils a transaction: apart from others
            self._unauthorized.add(topic)
        if name == exits.REFUSED_TOPIC and (self._transactional or topic == self._quarantine):
            self._targets.refused(topic)
        if name == exits.REFUSED_TOPIC and topic == self._quarantine:
            self._again(lane, parcel)  # it waits as if there were no such topic
            return
        if name in exits.UNFIT and topic != self._quarantine:
            detail = f"refused by {topic}: {error.str()}"
            self.again.append(lane, quarantined(self._quarantine, lane, parcel, UNKNOWN_TARGET, detail))
            return
        if error.fatal() or name not in exits.SIZE_ERRORS | exits.PASSING:
            raise EmissionError(f"the producer refused a record of {lane.id}: {error.str()}")
        if name in exits.PASSING:
            log.warning("emitting again", extra={"error": name, "source_partition": str(lane.id)})
            if isolated:
                self._isolate(lane, parcel)
            else:
                self._again(lane, parcel)
            return
        if isinstance(parcel, Diverted) and parcel.value is None and parcel.key is None:
            raise EmissionError(f"not even a reference to {lane.id}/{parcel.offset} can be quarantined: {error.str()}")
        detail = f"{BY_REFERENCE}: {error.str()}"
        self.again.append(lane, exits.by_reference(self._quarantine, lane, parcel, detail))

    def _again(self, lane: SourcePartition, parcel: Held | Diverted) -> None:
        if not self.in_order.came_back(lane, parcel):
            self.again.append(lane, parcel)

    def _isolate(self, lane: SourcePartition, parcel: Held | Diverted) -> None:
        if not self.in_order.came_back(lane, parcel, isolated=True):
            self.isolated.append(topic_of(parcel), lane, parcel)

    def given_up(self, interval: CommitInterval) -> None:
        """See `Refusals`."""
        given_up = [failure for failure in interval.failures if failure.error.name() in exits.GIVEN_UP]
        if any(failure.small for failure in given_up):
            self._small_fits = max((interval.acknowledged - len(interval.failures)) // 2, 1)
        if any(failure.isolated for failure in given_up):  # fewer are tried next, else never any pass
            self._isolated_fits = max((interval.acknowledged - len(interval.failures)) // 2, 1)
        partitions: dict[str, set[int]] = {}
        for failure in given_up:
            partitions.setdefault(failure.message.topic(), set()).add(failure.message.partition())
        for topic, those in partitions.items():
            self._targets.suspend(topic, those)

    def place_for(self, lane: SourcePartition, parcel: Held | Diverted, isolated: bool) -> TargetPartition | None:
        """Where a record that may be handed over will be. None: it waits, to be sent alone or until its partition
        acknowledges.
        """
        place = self._targets.place_of(parcel)
        if self._targets.holds_up(place, lane, parcel):
            return None
        if not isolated and (self._goes_isolated(place.topic, parcel) or self._targets.is_suspended(place)):
            self.isolated.append(place.topic, lane, parcel)
            return None
        return place

    def _goes_isolated(self, topic: str, parcel: Held | Diverted) -> bool:
        return topic in self._unauthorized or self._limits.takes_single(topic) or self._limits.exceeds(topic, parcel)

    def goes_small(self, topic: str) -> bool:
        """Whether records for a topic are sent in small batches."""
        return self._limits.takes_small(topic)

    def next_fits(self, room: int) -> bool:
        """Whether there is a next record, and room for it: one that only asks for its target needs none."""
        return bool(self.again) and (room > 0 or isinstance(self.again.first[1], AwaitingTarget))

    def take_isolated(self) -> tuple[str, RecordQueue, int]:
        """Take the records of one topic that are sent one by one: the topic, all of them, and how many may go now."""
        topic = next(iter(self.isolated.names))
        queue = self.isolated.pop(topic)
        return topic, queue, min(self._isolated_max.get(topic, ISOLATED_MAX), self._isolated_fits, len(queue))

    @property
    def small_fits(self) -> int:
        """How many records may go in small batches at a time."""
        return min(self._small_fits, len(self.small))

    def passed_small(self) -> None:
        """See `Refusals`."""
        self._small_fits = min(2 * self._small_fits, SMALL_MAX)

    def suspect(self, interval: CommitInterval, cause: Any, careful: bool) -> None:
        """Nobody says which record spoilt a transaction. By halves, and one topic at a time, it is found: these come
        before what arrives meanwhile, else a half would never get smaller.
        """
        suspects: list[tuple[SourcePartition, Held | Diverted]] = [*interval.departures]
        suspects += [(lane, held) for lane, batch, _ in interval.batches for held in batch]
        interval.batches, interval.departures = [], []
        topics = {topic_of(parcel) for _, parcel in suspects}  # several where one of them has expired
        found = careful and (len(suspects) == 1 or (len(topics) == 1 and cause.name() == exits.REFUSED_TOPIC))
        most = max(len(suspects) // 2, 1) if careful and not found else ISOLATED_MAX
        self._isolated_max.update(dict.fromkeys(topics, most))
        back: KeyedQueues[str] = KeyedQueues()
        for lane, parcel in suspects:
            if lane.dropped:
                continue
            if found:
                self.refuse(lane, parcel, cause, isolated=True)
            elif not self.in_order.came_back(lane, parcel, isolated=True):
                back.append(topic_of(parcel), lane, parcel)
        for topic in [*back.names]:
            self.isolated.put_back(topic, back.pop(topic))

    def take_back(self, interval: CommitInterval, careful: bool) -> None:
        """Emit all of an aborted interval again."""
        for lane, departure in interval.departures:
            if lane.dropped or lane.leaving:
                continue
            if careful:
                self._isolate(lane, departure)
            else:
                self.again.append(lane, departure)
        for lane, batch, _ in interval.batches:
            if lane.dropped or lane.leaving:
                continue
            if careful:
                for held in batch:
                    self._isolate(lane, held)
            elif plain := [held for held in batch if not self.in_order.came_back(lane, held)]:
                self.ready.batches.appendleft(Batch(lane, plain))  # due, and not handed over
                self.load.add(plain)

    def passed_isolated(self, interval: CommitInterval) -> None:
        """A topic that refuses batches and takes their records one by one gets them so from now on."""
        if not (interval.batches or interval.departures):
            return  # all of them wait for their targets: nothing has passed
        waiting = {*self.isolated.names, *self.in_order.topics_isolated()}
        places = set(map(self._targets.place_of, interval.parcels()))
        topics = {place.topic for place in places}
        recovered = self._targets.acknowledged(places) | (topics & self._unauthorized)
        self._unauthorized -= topics
        self._no_longer_isolated(
            {topic for topic in recovered - self._limits.doubted if not self._limits.takes_single(topic)}
        )
        self._limits.passed_single(topics, waiting)
        for topic in topics:
            self._isolated_max.pop(topic, None)
        self._isolated_fits = min(2 * self._isolated_fits, ISOLATED_MAX)

    def watch(self, topics: Collection[str]) -> None:
        """See `Refusals`."""
        self._targets.watched = frozenset(topics)

    def silent(self, places: Collection[TargetPartition]) -> None:
        """See `Refusals`."""
        self._targets.await_answers(places)

    def answering(self, places: Collection[TargetPartition]) -> None:
        """See `Refusals`."""
        self._targets.acknowledged(places)

    def _no_longer_isolated(self, topics: set[str]) -> None:
        """Send what waits for these topics in batches again, which cost slow brokers far less."""
        for topic in sorted(topics):
            self.again.take_all(self.isolated.pop(topic))

    def goes_at_once(self, held: Held, now_ms: int) -> bool:
        """Whether a record would be handed over now, with others of its target."""
        return (
            held.target_partition < self._targets.partitions.get(held.target, -1)
            and not 0 <= held.expires_ms < now_ms
            and held.target not in self.one_by_one
        )

    def release(self, now_ms: int) -> None:
        """Take records whose target answers again, and those that try one that is silent.

        Those of a limited target queue for it again: else all that waited for a partition would go at once.
        """
        for lane, parcel in self._targets.step(now_ms):
            if not (isinstance(parcel, Held) and self.ready.waits_at_gate(lane, parcel)):
                self.again.append(lane, parcel)
        self.again.take_all(self._targets.trials())

    def room_of(self, topic: str) -> int:
        """How many more records to let through to a target: one, to try, if it is unknown or no partition of it
        acknowledges.
        """
        is_silent = topic in self._unauthorized or self._targets.is_silent(topic)
        if topic in self._targets.partitions and not is_silent:
            return ROOM_MAX
        if self._targets.has_waiting(topic) or topic in self.isolated:
            return 0
        returned = (parcel for _, parcel in self.again if not isinstance(parcel, AwaitingTarget))
        return 0 if topic in map(topic_of, returned) else 1

    @property
    def count(self) -> int:
        """How many records wait here, or for what the cluster knows of their targets: no wheel has them."""
        return len(self.again) + len(self.small) + len(self.isolated) + self._targets.count

    @property
    def bytes(self) -> int:
        """Bytes of the records that wait here."""
        return self.again.bytes + self.small.bytes + self.isolated.bytes + self._targets.bytes

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest, -1 when none that is due waits."""
        queues = (self.again, self.small, self.isolated, self._targets)
        return earliest(queue.oldest_due_ms() for queue in queues)

    def suspended(self, now_ms: int) -> list[str]:
        """Topics that don't acknowledge, by name: their records wait, or are tried just now."""
        tried = set(self.isolated.names).intersection(self._targets.suspended_topics)
        return sorted(self._targets.suspended(now_ms) | tried)

    def drop(self, lanes: set[SourcePartition]) -> None:
        """Forget the records of lanes that were revoked."""
        self.again, self.small = self.again.without(lanes), self.small.without(lanes)
        self.isolated.drop(lanes)
