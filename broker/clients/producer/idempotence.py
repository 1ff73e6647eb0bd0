"""A producer's id, epoch and sequences: what lets a broker take each batch once and in order.

Batches of a partition are numbered when they are first sent, and keep their number through retries. A retried one
may only go when all before it are answered for good. When a batch is given up nobody knows whether it was appended, and
the sequence has a hole: the epoch is raised, and the partition's other batches are numbered anew.
"""

from dataclasses import dataclass, field
from typing import Final

from broker.clients.producer.record_accumulator import ProducerBatch
from broker.records.record_batch import NO_PRODUCER_ID, increment_sequence
from broker.records.records import Producer
from purgatory.log_offsets import TopicPartition

EPOCH_MAX: Final = (1 << 15) - 1
REMEMBERED: Final = 5  # batches of a producer, by a broker


@dataclass(slots=True)
class PartitionState:
    """Of one partition: the epoch its sequences count in, the next one, and what is sent and not done."""

    epoch: int = -1
    next_sequence: int = 0
    in_flight: list[ProducerBatch] = field(default_factory=list)


class Idempotence:
    """Has no producer id until `begin`."""

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1
        self._partitions: dict[TopicPartition, PartitionState] = {}

    @property
    def needs_id(self) -> bool:
        """Whether a producer id must be asked for: at first, and when its epochs are used up."""
        return self.producer_id == NO_PRODUCER_ID

    def begin(self, producer_id: int, epoch: int) -> None:
        """The brokers gave this id."""
        self.producer_id, self.epoch = producer_id, epoch

    def may_send(self, batch: ProducerBatch) -> bool:
        """Whether it keeps order: the first of those on their way, or a new one while nothing is sent again and all on
        their way are of this epoch. (Java sends new ones beside a retried one, which may then have left the five
        batches that a broker remembers when it comes once more.)"""
        state = self._state(batch.partition)
        if batch.by is not None:
            return state.in_flight[0] is batch
        is_quiet = len(state.in_flight) < REMEMBERED and all(one.attempts == 1 for one in state.in_flight)
        return not state.in_flight or (state.epoch == self.epoch and is_quiet)

    def number(self, batch: ProducerBatch) -> None:
        """Give it its sequence, if it is sent for the first time."""
        if batch.by is not None:
            return
        state = self._state(batch.partition)
        if state.epoch != self.epoch:
            state.epoch, state.next_sequence = self.epoch, 0
        self._assign(state, batch)
        state.in_flight.append(batch)

    def out_of_order(self, batch: ProducerBatch) -> bool:
        """Decide whether a batch that came out of order may be sent again. It may while one before it is on its way,
        and if it was numbered anew meanwhile. Else the broker has a hole: a batch before this one was lost, or this one
        was refused by a broker that didn't have the partition yet, and then took a later one, for it takes any sequence
        from a producer it has nothing of. As in Java the epoch is raised then.
        """
        state = self._state(batch.partition)
        if state.in_flight[0] is not batch or batch.sent_by != batch.by:
            return True
        if self.epoch == EPOCH_MAX:
            return False
        self._raise_epoch(state)
        return True

    def done(self, batch: ProducerBatch) -> None:
        """Note that a batch was taken."""
        in_flight = self._state(batch.partition).in_flight
        if batch in in_flight:
            in_flight.remove(batch)

    def given_up(self, batch: ProducerBatch) -> None:
        """Note that a batch failed. If it was sent, the epoch is raised; after the last epoch a new id is needed."""
        if batch.by is None:
            return
        state = self._state(batch.partition)
        self.done(batch)
        if self.epoch == EPOCH_MAX:
            self.producer_id = NO_PRODUCER_ID
            return
        self._raise_epoch(state)

    def _raise_epoch(self, state: PartitionState) -> None:
        self.epoch += 1
        state.epoch, state.next_sequence = self.epoch, 0
        for batch in state.in_flight:
            self._assign(state, batch)

    def _assign(self, state: PartitionState, batch: ProducerBatch) -> None:
        batch.by = Producer(self.producer_id, state.epoch, state.next_sequence)
        state.next_sequence = increment_sequence(state.next_sequence, len(batch.records))

    def _state(self, partition: TopicPartition) -> PartitionState:
        return self._partitions.setdefault(partition, PartitionState())
