"""A transaction coordinator, and the groups whose offsets its transactions have, over logs in memory."""

from typing import Any

from broker.groups.coordinator_log import Appended
from broker.records.control_records import EndMarker, build_end_marker, read_end_marker
from broker.transactions.coordinator import Begun, ProducerClaim, TransactionCoordinator, TransactionSettings
from broker.transactions.markers import Marker, TransactionMarkers
from broker.transactions.producer_ids import ProducerIds
from broker.transactions.store import TransactionStore
from broker.transactions.transaction import TransactionState
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.timer.system_timer import SystemTimer
from tests.unit.broker.group_world import GroupWorld

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)


class TransactionWorld:
    """One broker. `restart` makes a new one on the same logs; what was on its way in the event loop is lost."""

    def __init__(self, **settings: Any) -> None:
        self.groups = GroupWorld()
        self.clock, self.turns, self.log = self.groups.clock, self.groups.turns, self.groups.log
        self.settings = TransactionSettings(**settings)
        self.next_producer_id = 0
        self.gone: set[TopicPartition] = set()
        self.marker_errors: list[Errors] = []
        self.start()

    def start(self, epoch: int = 0) -> None:
        self.store = TransactionStore(3, self.log, self.clock, self.turns.post)
        self.timer = SystemTimer(self.clock)
        self.groups.also_driven = [self.timer]
        markers = TransactionMarkers(self.store, self.write_marker, self.timer)
        self.coordinator = TransactionCoordinator(self.settings, self.store, markers, ProducerIds(self.allocate))
        for partition in range(3):
            self.store.on_election(partition, epoch, self.coordinator.on_loaded)
        self.pass_time(0)

    def restart(self, epoch: int = 1) -> None:
        self.turns.forget()
        self.groups.start()
        self.start(epoch)

    def allocate(self, count: int) -> int:
        self.next_producer_id += count
        return self.next_producer_id - count

    def write_marker(self, key: TopicPartition, marker: Marker, then: Any) -> None:
        """The first answers are `marker_errors`."""
        if key in self.gone:
            self.turns.post(lambda: then(Errors.UNKNOWN_TOPIC_OR_PARTITION))
            return
        if self.marker_errors:
            error = self.marker_errors.pop(0)
            self.turns.post(lambda: then(error))
            return

        def appended(result: Appended) -> None:
            if result.error is Errors.NONE and key.topic == self.groups.store.ownership.topic:
                self.groups.store.complete_transaction(marker.producer_id, [key.partition], is_commit=marker.is_commit)
            then(result.error)

        end = EndMarker(not marker.is_commit, marker.coordinator_epoch)
        self.log.append(key, build_end_marker(marker.producer_id, marker.producer_epoch, end, 0), appended)

    def pass_time(self, milliseconds: int) -> None:
        self.groups.pass_time(milliseconds)

    # Requests. What is not answered yet is None

    def begin(
        self, transactional_id: str | None = "id", timeout_ms: int = 60_000, expected: tuple[int, int] | None = None
    ) -> Begun | None:
        answers: list[Begun] = []
        self.coordinator.init_producer_id(transactional_id, timeout_ms, expected, answers.append)
        self.pass_time(0)
        return answers[0] if answers else None

    def producer(self, transactional_id: str = "id", timeout_ms: int = 60_000) -> ProducerClaim:
        """One that has begun."""
        begun = self.begin(transactional_id, timeout_ms)
        assert begun is not None
        assert begun.error is Errors.NONE
        return ProducerClaim(transactional_id, begun.producer_id, begun.producer_epoch)

    def add(self, claim: ProducerClaim, *keys: TopicPartition) -> Errors | None:
        answers: list[Errors] = []
        self.coordinator.add_partitions(claim, keys or (ORDERS,), answers.append)
        self.pass_time(0)
        return answers[0] if answers else None

    def end(self, claim: ProducerClaim, *, is_commit: bool = True, turns: bool = True) -> Errors | None:
        answers: list[Errors] = []
        self.coordinator.end(claim, answers.append, is_commit=is_commit)
        if turns:
            self.pass_time(0)
        return answers[0] if answers else None

    # What came of it

    def state(self, transactional_id: str = "id") -> TransactionState:
        return self.store.transactions[transactional_id].now.state

    def markers(self, key: TopicPartition = ORDERS) -> list[tuple[int, int, str]]:
        """Producer id, epoch and end of each marker of a partition."""
        found = []
        for header, data in self.log.batches(key):
            marker = read_end_marker(header, data) if header.is_control else None
            if marker is not None:
                end = "abort" if marker.is_aborted else "commit"
                found.append((header.producer_id, header.producer_epoch, end))
        return found
