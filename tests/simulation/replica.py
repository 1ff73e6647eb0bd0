"""One process of the sidecar, its engine real and everything round it fake."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from policies.table import PolicyTable
from sidecar.engine.assignment import Assignment
from sidecar.engine.commit.at_least_once import AtLeastOnce
from sidecar.engine.commit.exactly_once import ExactlyOnce
from sidecar.engine.commit.settlement import Settlement
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.batch_limits import USUAL_BATCH_BYTES, BatchLimits
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.emission.redelivery import Redelivery
from sidecar.engine.emission.targets import Targets
from sidecar.engine.engine import Engine, EngineSettings, Parts
from sidecar.engine.intake.control_records import Actions
from sidecar.engine.intake.decide import Decider, HeaderLimits
from sidecar.engine.intake.holding import Holding
from sidecar.engine.intake.key_order import Ordering
from sidecar.engine.intake.quotas import Quotas
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.recovery_reader import RecoveryWorker
from sidecar.engine.snapshot import Publisher
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.engine.storage.rebuild import Sources
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.ports import SMALL_BATCH_BYTES, TransactionalOutput
from sidecar.model.reserved_topics import ReservedTopics
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_group import FakeIntake, FakeStarts, Group
from tests.simulation.fake_kafka import Broker, FakeLedgerLog, FakeOutput, FakeRecord, FakeSourceLog, Fate, Nowhere
from tests.simulation.fake_overflow import FakeOverflow
from tests.simulation.fake_time import FakeTime, Machine
from tests.simulation.fake_transactions import Coordinator, FakeTransactions
from tests.simulation.workload import QUARANTINE

INTAKE_BATCH = 50  # records
COMMITTER = 4  # of a replica's threads, the last
STATE_REPEAT_MS = 20_000
REST_MS = 10_000  # more than an engine rests
HASTENED = 0.2  # of all turns: those in which the engine would have time
LEDGER = LedgerTopic("tickover.sim.ledger", 2, "sim")
RESERVED = ReservedTopics(frozenset({LEDGER.name, QUARANTINE}))
BATCH_BYTES_MAX = {
    "mail-a": 0,
    "mail-b": SMALL_BATCH_BYTES,
}  # as the cluster tells it; of others more than any batch has


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts that replicas share."""

    broker: Broker
    group: Group
    overflow: FakeOverflow
    table_at: Callable[[int], PolicyTable]
    delay_ms: Callable[[], int]
    rng: Random
    coordinator: Coordinator | None = None  # of transactions; without one: at least once
    trouble: Callable[[], str] = str
    ledger: LedgerTopic = LEDGER


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings of a run."""

    horizon_ms: int
    tick_ms: int
    settle_interval_ms: int
    wheel_records_max: int
    queue_max: int
    rebuild_rate: int = 0

    def settings(self) -> EngineSettings:
        """As the engine gets them."""
        return EngineSettings(self.settle_interval_ms, INTAKE_BATCH, self.wheel_records_max, 1 << 20, STATE_REPEAT_MS)


class Producers:
    """`Outputs` of one replica."""

    # tidy: what one replica's clients share
    def __init__(
        self, shared: Surroundings, root: str, queue_max: int, fate: Fate, executor: StepExecutor, time: FakeTime
    ) -> None:
        self._shared = shared
        self._time = time
        self._root = root
        self._queue_max = queue_max
        self._fate = fate
        self._executor = executor
        self._successors: Counter[str] = Counter()

    def output(self, name: str) -> FakeTransactions:
        shared = self._shared
        assert shared.coordinator is not None
        output = FakeTransactions(
            shared.coordinator, f"{self._root}.{self._successors[name]}.{name}", shared.rng, shared.delay_ms,
            self._queue_max, self._fate, shared.trouble,
        )  # fmt: skip
        output.broker_ms_max = self._time.broker_ms_max
        return output

    def successor(self, name: str) -> FakeTransactions:
        self._successors[name] += 1
        assert self._shared.coordinator is not None
        self._shared.coordinator.succeeded += 1
        return self.output(name)

    def let_go(self, output: TransactionalOutput) -> None:
        pass

    def executor(self) -> StepExecutor:
        return self._executor


class Replica:
    """`turn` is the engine's; `background` is what its other threads would have done meanwhile."""

    def __init__(
        self, shared: Surroundings, shape: Shape, table: PolicyTable, root: str = "", machine: Machine | None = None
    ) -> None:
        self._shared = shared
        self.root = root  # of its transactional ids
        broker, clock, rng = shared.broker, shared.broker.clock, shared.rng
        self.executors = [StepExecutor() for _ in range(5)]
        self.told_ms = 0  # of the last turn
        self.commits_stand = False  # the thread that commits hangs in a call
        self.tally = tally = EngineCounters()
        self.fate = Fate()
        self.output = FakeOutput(broker, rng, shared.delay_ms, shape.queue_max, self.fate)
        self.isolation_output = FakeOutput(broker, rng, shared.delay_ms, shape.queue_max, self.fate)
        self.isolation_output.lone = True
        self.small_output = FakeOutput(broker, rng, shared.delay_ms, shape.queue_max, self.fate)
        self.outputs = (self.output, self.isolation_output, self.small_output)
        self.intake = FakeIntake(shared.group, shared.delay_ms, self.fate)
        self.targets = targets = Targets(broker.partition_count, self.executors[0], RESERVED, BatchLimits(_limit_of))
        transactional = shared.coordinator is not None
        self.time = time = FakeTime(clock, machine)
        self.settlement: Settlement
        redelivery = Redelivery(targets, QUARANTINE, transactional)
        if transactional:
            producers = Producers(shared, root, shape.queue_max, self.fate, self.executors[COMMITTER], time)
            self.settlement = ExactlyOnce(producers, self.intake, shared.ledger, redelivery, tally, time)
        else:
            self.settlement = AtLeastOnce(self.outputs, self.intake, shared.ledger, redelivery, tally, time)
        self.emitter = Emitter(targets, tally, QUARANTINE, redelivery, self.settlement)
        self.emitter.gate.sources = Counter(lane.topic for lane in shared.group.lanes)
        overflow = shared.overflow.connected()
        self.worker = OverflowWorker(overflow, shape.horizon_ms, self.emitter.to_wheel, self.executors[1])
        recovery = RecoveryWorker(
            FakeStarts(shared.group),
            LEDGER,
            FakeLedgerLog(broker, LEDGER.name),
            overflow,
            shape.tick_ms,
            self.executors[2],
        )
        self.assignment = Assignment(
            self.intake, self.emitter, self.settlement, (self.worker, recovery), time.now_ms, tally
        )
        self.intake.events = self.assignment
        sources = Sources(LEDGER, FakeLedgerLog(broker, LEDGER.name), FakeSourceLog(broker), overflow)
        self.rebuild = RebuildWorker(sources, tally, shape.rebuild_rate, self.executors[3])
        self.ordering = Ordering(self.worker, self.rebuild)
        holding = Holding(self.emitter, self.ordering)
        self.actions = Actions(self.emitter, holding, self.worker, self.rebuild, tally)
        self.publisher = Publisher("sim", tally, self.emitter, self.assignment, self.worker, time)
        limits = HeaderLimits(30, 64_000, QUARANTINE, 3_600_000)
        decider = Decider(limits, targets.partitions, shared.table_at, RESERVED, failed=self.emitter.gate.failed)
        self.engine = Engine(
            shape.settings(),
            Parts(
                self.intake,
                self.emitter,
                self.settlement,
                decider,
                holding,
                self.worker,
                self.rebuild,
                self.actions,
                self.ordering,
                Quotas(self.rebuild, QUARANTINE),
                self.assignment,
                self.publisher,
                tally,
            ),
            table,
        )

    @property
    def lanes(self) -> list[SourcePartition]:
        return list(self.assignment.lanes.values())

    @property
    def is_committing(self) -> bool:
        """A transaction is with the thread that ends it, or offsets are on their way to the group."""
        return self.executors[COMMITTER].waits or self.intake.is_committing

    def turn(self) -> None:
        clock = self._shared.broker.clock
        told_ms = self.told_ms = self.time.now_ms()
        clock.turn_ms = min(told_ms, int(self.time.broker_ms_max()))
        self.engine.turn(told_ms)
        self._check_rest(told_ms)
        if isinstance(self.settlement, ExactlyOnce) and self._shared.rng.random() < HASTENED:
            self.settlement.hasten(quiet=True)

    def _check_rest(self, told_ms: int) -> None:
        """Nothing falls due before the engine would awake for it."""
        awake_ms = told_ms + self.assignment.agenda.due_within(told_ms, REST_MS)
        if awake_ms == told_ms:
            return  # it doesn't rest
        overslept = [due_ms for lane in self.lanes if 0 <= (due_ms := lane.wheel.next_due_ms()) < awake_ms]
        assert not overslept, f"due at {overslept}, and it rests until {awake_ms}"

    def background(self, jobs_max: int) -> None:
        """Some of what the other threads have to do."""
        for executor in self.executors[:COMMITTER] if self.commits_stand else self.executors:
            for _ in range(self._shared.rng.randint(0, jobs_max)):
                if not executor.step():
                    break

    def deliver(self) -> None:
        """Let the records arrive that the producers have sent."""
        for output in self.outputs:
            output.deliver(self._shared.broker.clock.now_ms)

    def deliver_all(self) -> None:
        for output in self.outputs:
            output.deliver(1 << 60)

    def refused(self) -> list[FakeRecord]:
        """Records that were refused, or are nowhere, and that the engine has not seen to yet."""
        assert isinstance(self.settlement, AtLeastOnce)
        intervals = [*self.settlement.in_flight]
        heard = [failure.message for interval in intervals for failure in interval.failures]
        return [
            message.record if isinstance(message, Nowhere) else message
            for message in (*heard, *self.output.unheard_of(), *self.small_output.unheard_of())
        ]

    def crash(self) -> None:
        """The process is gone, whatever it was doing; its worker may just have done a little more."""
        self.background(1)
        for output in self.outputs:
            output.crash()
        self.intake.crash()

    def stop(self) -> None:
        """As the engine's thread does at SIGTERM."""
        self.assignment.leave()
        self.intake.close()

    def records_in_wheels(self) -> int:
        return sum(lane.wheel.recount() for lane in self.lanes)


def _limit_of(topic: str) -> int:
    return BATCH_BYTES_MAX.get(topic, USUAL_BATCH_BYTES)
