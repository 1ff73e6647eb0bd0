"""Transactions in memory: what is written shows at the commit, all of it or nothing, and zombies are fenced.

A transaction keeps the partitions' last stable offset from moving while it is open; one that nobody ends is aborted
by the broker after its timeout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Any, NamedTuple

from sidecar.engine.commit.transaction import PUSH_S
from sidecar.model.ports import Member
from sidecar.model.record import TopicPartition
from tests.simulation.fake_group import NOBODY, Group
from tests.simulation.fake_kafka import Broker, FakeError, FakeOutput, FakeRecord, Fate

TIMEOUT_MS = 10_000
MARKS_SHARE = 0.3  # of those that are missing: how many come at a time
AT_ONCE_SHARE = 0.5  # of short flushes: those that everything is acknowledged within


class TransactionError(NamedTuple):
    """The client's error."""

    word: str
    aborts: bool = False
    dies: bool = False

    def name(self) -> str:
        return self.word

    def fatal(self) -> bool:
        return self.dies

    def txn_requires_abort(self) -> bool:
        return self.aborts

    def str(self) -> "str":
        return self.word


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A transaction not yet decided; or committed, without the marks that tell the ledger's readers of it."""

    began_ms: int
    records: list[FakeRecord] = field(default_factory=list)
    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)


class Coordinator:
    """All transactional ids: who may write under each, and what is open.

    With `late_marks`, a commit's marks in the ledger and in the group's offsets come one by one, some time after it was
    decided; at the latest before the next transaction of the same id begins.
    """

    def __init__(self, broker: Broker, group: Group, rng: Random, late_marks: bool) -> None:
        self.broker = broker
        self.group = group
        self.epochs: dict[str, int] = {}
        self.open: dict[str, OpenTransaction] = {}
        self._rng = rng
        self._late_marks = late_marks
        self._completing: dict[str, OpenTransaction] = {}  # in the order of their commits
        self.stuck: set[str] = set()  # their last transaction is decided; a topic that is short lacks its mark
        self.committed = 0
        self.aborted = 0
        self.fenced = 0
        self.succeeded = 0  # ids that took the place of a stuck one
        broker.clock.passing.append(self._time_out)
        broker.clock.passing.append(self._mark_some)

    def usable(self, name: str) -> bool:
        """Whether the last transaction of this id is complete."""
        if not self.broker.short:
            self.stuck.clear()
        return name not in self.stuck

    def init(self, name: str) -> int:
        self.end(name, commit=False)
        self._complete(name)
        self.epochs[name] = self.epochs.get(name, -1) + 1
        return self.epochs[name]

    def transaction(self, name: str) -> OpenTransaction:
        if name not in self.open:
            self._complete(name)
        return self.open.setdefault(name, OpenTransaction(self.broker.clock.now_ms))

    def end(self, name: str, commit: bool, by_ms: float = inf) -> None:
        """Decide it, all of it at once. A commit hands its records over `by_ms` at the latest, not when they were."""
        transaction = self.open.pop(name, None)
        if transaction is None:
            return
        self.committed += commit
        self.aborted += not commit
        late = [record for record in transaction.records if commit and self._late_marks and _is_block(record)]
        for record in transaction.records:
            if record not in late:
                self.broker.decide(record, commit)
        if commit:
            for record in sorted(transaction.records, key=_is_block):
                self.broker.announce(replace(record, handed_over_ms=int(min(record.handed_over_ms, by_ms))))
            self._completing[name] = OpenTransaction(transaction.began_ms, late, transaction.offsets)
            if not self._late_marks:
                self._complete(name)

    def _complete(self, name: str) -> None:
        """All its marks are there."""
        if (transaction := self._completing.get(name)) is not None:
            for earlier in list(self._completing.values()):
                self._mark_offsets(earlier)  # the group's log keeps the order in which offsets were written
                if earlier is transaction:
                    break
            for record in transaction.records:
                self.broker.decide(record, True)
            del self._completing[name]

    def _mark_offsets(self, transaction: OpenTransaction) -> None:
        for lane, (offset, metadata) in transaction.offsets.items():
            self.group.commit(lane, offset, metadata)
        transaction.offsets = {}

    def _mark_some(self) -> None:
        behind = False  # offsets of an earlier one wait
        for name, transaction in list(self._completing.items()):
            if transaction.offsets and not behind and self._rng.random() < MARKS_SHARE:
                self._mark_offsets(transaction)
            behind = behind or bool(transaction.offsets)
            for record in [one for one in transaction.records if self._rng.random() < MARKS_SHARE]:
                self.broker.decide(record, True)
                transaction.records.remove(record)
            if not transaction.offsets and not transaction.records:
                del self._completing[name]

    def unstable(self) -> set[TopicPartition]:
        """Partitions whose committed offset is undecided, or not marked yet."""
        pending = (*self.open.values(), *self._completing.values())
        return {lane for transaction in pending for lane in transaction.offsets}

    def complete_all(self) -> None:
        """As after a long time."""
        for name in list(self._completing):
            self._complete(name)

    def _time_out(self) -> None:
        for name, transaction in list(self.open.items()):
            if self.broker.clock.now_ms - transaction.began_ms > TIMEOUT_MS:
                self.end(name, commit=False)
                self.epochs[name] += 1


def _is_block(record: FakeRecord) -> bool:
    return record.topic().endswith(".ledger")


class FakeTransactions(FakeOutput):
    """`TransactionalOutput`. `trouble` draws what goes wrong in a call: "", "abort" or "unknown"."""

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        rng: Random,
        delay_ms: Callable[[], int],
        queue_max: int,
        fate: Fate,
        trouble: Callable[[], str],
    ) -> None:  # tidy: a fake of a client with many faults
        super().__init__(coordinator.broker, rng, delay_ms, queue_max, fate)
        self.lone = name.endswith(".alone")
        self._coordinator = coordinator
        self._name = name
        self._epoch = -1
        self._failed = False
        self._fatal = False
        self._marks_wait = False
        self._trouble = trouble
        self.broker_ms_max: Callable[[], float] = lambda: inf  # as far as its process can know

    def init(self, seconds: float) -> None:
        self._fate.strike()
        if self._trouble() == "unknown":
            raise self.refused(TransactionError("_TIMED_OUT"))
        if not self._coordinator.usable(self._name):
            raise self.refused(TransactionError("CONCURRENT_TRANSACTIONS"))
        self._epoch = self._coordinator.init(self._name)

    def begin(self) -> None:
        self._failed = self._marks_wait = False

    def _takes(self, place: tuple[str, int]) -> bool:
        takes = super()._takes(place)
        self._marks_wait |= not takes  # the partition is in the transaction before its records are
        return takes and self._coordinator.usable(self._name)

    def produce(self, *record: Any) -> None:
        """See `Output.produce`: after a failure nothing more is taken."""
        if self._failed:
            raise self.refused(TransactionError("_FATAL" if self._fatal else "_STATE"))
        super().produce(*record)

    def flush(self, seconds: float) -> int:
        """Everything is acknowledged at once: how long that takes shows where reports are polled for. Answers
        to a short one may come later.
        """
        self._fate.strike()
        if seconds <= PUSH_S and self._rng.random() >= AT_ONCE_SHARE:
            self.poll(seconds)
            return self.under_way
        self.deliver(1 << 60)
        self._serve(1 << 60)
        if self.under_way and seconds <= PUSH_S:  # the engine's thread waits in vain: time passes for everybody
            self._broker.clock.advance(1)
        return self.under_way

    def purge(self) -> None:
        for queue in self._sending.values():
            while queue:
                sending = queue.popleft()
                self.under_way -= 1
                sending.report(FakeError("_PURGE_INFLIGHT"), sending.record)

    def give_up(self) -> None:
        """See the port."""
        self.purge()

    def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], member: Member, seconds: float) -> None:
        self._fate.strike()
        self._check()
        intake, epoch = member.metadata
        former = epoch != intake.epoch or intake not in self._coordinator.group.members
        if former and epoch != NOBODY:  # as brokers do: who doesn't say which member it is may be an older producer
            self._failed = True
            self._coordinator.fenced += 1
            raise self.refused(TransactionError("ILLEGAL_GENERATION", aborts=True))
        if any(lane.topic in self._coordinator.group.refused for lane in offsets):
            self._failed = True
            raise self.refused(TransactionError("TOPIC_AUTHORIZATION_FAILED", aborts=True))
        self._stumble()
        if offsets:
            self._coordinator.transaction(self._name).offsets.update(offsets)

    def commit(self, seconds: float) -> None:
        self._fate.strike()
        self._check()
        self._stumble()
        self._end(commit=True)
        if self._trouble() == "unknown":
            raise self.refused(TransactionError("_TIMED_OUT"))

    def abort(self, seconds: float) -> None:
        self._fate.strike()
        self._fence()
        self._end(commit=False)
        for queue in self._sending.values():
            self.under_way -= len(queue)
            queue.clear()
        if self._trouble() == "unknown":
            raise self.refused(TransactionError("_TIMED_OUT"))

    def _end(self, commit: bool) -> None:
        if not self._coordinator.usable(self._name):
            raise self.refused(TransactionError("_TIMED_OUT"))
        self._coordinator.end(self._name, commit, self.broker_ms_max())
        if self._marks_wait and self._broker.short:
            self._coordinator.stuck.add(self._name)

    def _stumble(self) -> None:
        trouble = self._trouble()
        if trouble:
            self._failed = trouble == "abort"
            raise self.refused(
                TransactionError("REBALANCE_IN_PROGRESS" if self._failed else "_TIMED_OUT", self._failed)
            )

    def _check(self) -> None:
        self._fence()
        if self._failed:
            raise self.refused(TransactionError("MSG_SIZE_TOO_LARGE", aborts=True))

    def _fence(self) -> None:
        if self._epoch != self._coordinator.epochs[self._name]:
            self._coordinator.fenced += 1
            raise self.refused(TransactionError("_FENCED", dies=True))

    def _append(self, topic: str, partition: int, record: FakeRecord) -> FakeRecord | None:
        if self._epoch != self._coordinator.epochs[self._name]:
            self._failed = self._fatal = True
            return None
        placed = self._broker.append(topic, partition, record, undecided=True)
        self._coordinator.transaction(self._name).records.append(placed)
        return placed

    def _store(self, record: FakeRecord) -> FakeRecord | None:
        stored = super()._store(record)
        if stored is None:
            self._failed = True
        return stored
