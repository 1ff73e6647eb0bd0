"""One real engine between fakes, where nothing goes wrong unless a test says so."""

from collections.abc import Callable
from random import Random

from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.record import Headers, TopicPartition
from tests.simulation.fake_group import Group
from tests.simulation.fake_kafka import CREATE_TIME, Broker, FakeRecord
from tests.simulation.fake_overflow import FakeOverflow
from tests.simulation.fake_time import VirtualClock
from tests.simulation.fake_transactions import Coordinator
from tests.simulation.replica import LEDGER, Replica, Shape, Surroundings
from tests.simulation.workload import QUARANTINE

SOURCE = "reminders"
LANE = TopicPartition(SOURCE, 0)
ROUND_TRIP_MS = 2


def rulebook(version: int, default: str) -> PolicyTable:
    policy = Policy.model_validate(
        {
            "name": "reminders",
            "match": {"topics": [SOURCE]},
            "delay": {"default": default, "max": "10d"},
            "target": {"topic": "mail", "allow": ["*"]},
            "dead_letter": {"topic": "dead"},
        }
    )
    return PolicyTable(version, {"reminders": Versioned(policy, version, "me", 0, "api")})


class Unmoved(Random):
    """Chance that never surprises: reads all there is, refuses nothing, moves no partition."""

    def randint(self, a: int, b: int) -> int:
        return b

    def random(self) -> float:
        return 0.4

    def shuffle(self, x: object) -> None:
        """As it is."""


class Bench:
    """A broker with a source, an overflow, and one replica."""

    source_partitions = 1

    def __init__(
        self,
        wheel_records_max: int = 1_000,
        queue_max: int = 1_000,
        rebuild_rate: int = 0,
        trouble: Callable[[], str] | None = None,  # in transactions; without it: at least once
    ) -> None:
        self.clock = VirtualClock()
        self.broker = Broker(self.clock)
        self.broker.create(SOURCE, self.source_partitions)
        for topic in ("mail", "other", "dead", QUARANTINE):
            self.broker.create(topic, 1)
        self.broker.create(LEDGER.name, LEDGER.partitions)
        self.delay_ms = ROUND_TRIP_MS // 2
        self.overflow = FakeOverflow()
        self.tables = {1: rulebook(1, "1s")}
        rng = Unmoved(1)
        self.group = Group(self.broker, [SOURCE], rng)
        self.shape = Shape(2_000, 1, 50, wheel_records_max, queue_max, rebuild_rate)
        self.coordinator = Coordinator(self.broker, self.group, rng, late_marks=False) if trouble is not None else None
        self.shared = Surroundings(
            self.broker, self.group, self.overflow, self.tables.__getitem__, lambda: self.delay_ms, rng,
            self.coordinator, trouble or str,
        )  # fmt: skip
        self.replica = self.new_replica()
        self.run(80)  # assigned, recovered, sure of the time, reading
        self.replica.targets.partitions.update(dict.fromkeys(("mail", "other"), 1))  # asked about before

    def new_replica(self) -> Replica:
        replica = Replica(self.shared, self.shape, self.tables[max(self.tables)])
        self.group.join(replica.intake)
        self.group.wanted.update(dict.fromkeys(self.group.lanes, replica.intake))
        return replica

    def restart(self) -> None:
        """Kill the replica and start another."""
        self.replica.crash()
        self.replica = self.new_replica()

    def send(
        self,
        value: bytes | None,
        delay_ms: int | None = None,
        headers: Headers | None = None,
        key: bytes | None = b"k",
        partition: int = 0,
    ) -> int:
        """A record with this delay; returns its offset."""
        named = list(headers or [])
        if delay_ms is not None:
            named.append(("tickover-delay", b"%d" % delay_ms))
        stamp = (CREATE_TIME, self.clock.now_ms)
        return self.broker.append(
            SOURCE, partition, FakeRecord((SOURCE, partition, -1), stamp, (key, value), named)
        ).offset()

    def step(self, ms: int = 1) -> None:
        self.clock.advance(ms)
        self.replica.deliver()
        for executor in self.replica.executors:
            executor.run()
        self.replica.turn()

    def run(self, ms: int) -> None:
        """Let time pass."""
        for _ in range(max(ms // 5, 1)):
            self.step(5)

    def wait_until(self, condition: Callable[[], object], limit_ms: int = 60_000) -> None:
        """Let virtual time pass until something holds."""
        end_ms = self.clock.now_ms + limit_ms
        while not condition():
            assert self.clock.now_ms < end_ms, "it never happened"
            self.step(5)

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value() for record in self.records(topic)]

    def records(self, topic: str) -> list[FakeRecord]:
        return self.broker.logs[topic][0].records

    @property
    def lane(self) -> SourcePartition:
        return self.replica.assignment.lanes[LANE]

    @property
    def ledger(self) -> list[FakeRecord]:
        return self.broker.logs[LEDGER.name][ledger_partition(LEDGER)].records


def ledger_partition(ledger: LedgerTopic) -> int:
    return ledger.partition_of(LANE)
