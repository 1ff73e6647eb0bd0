"""Making the engine of its parts. What is made here is owned by the engine's thread once it runs."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from policies.kafka_clients import AdminClient
from policies.retention import MARGIN_MS
from policies.table import PolicyTable
from sidecar.engine.assignment import Assignment
from sidecar.engine.commit.at_least_once import AtLeastOnce
from sidecar.engine.commit.exactly_once import ExactlyOnce
from sidecar.engine.commit.settlement import Settlement, Traces
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.batch_limits import USUAL_BATCH_BYTES, BatchLimits
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.emission.rate_limit import RateLimiter
from sidecar.engine.emission.redelivery import Redelivery
from sidecar.engine.emission.targets import Targets
from sidecar.engine.engine import Engine, EngineSettings, Parts
from sidecar.engine.intake.control_records import Actions
from sidecar.engine.intake.decide import Decider, HeaderLimits
from sidecar.engine.intake.holding import Holding
from sidecar.engine.intake.key_order import Ordering
from sidecar.engine.intake.quotas import Quotas
from sidecar.engine.recovery_reader import RecoveryWorker
from sidecar.engine.snapshot import Publisher
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.engine.storage.rebuild import Sources
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.kafka.client_settings import (
    batch_bytes_max,
    consumer_settings,
    lone_producer_settings,
    producer_settings,
    small_producer_settings,
)
from sidecar.kafka.committed_offsets import KafkaStarts
from sidecar.kafka.consumer import KafkaIntake
from sidecar.kafka.log_reader import KafkaLedgerLog, KafkaSourceLog
from sidecar.kafka.lost_clients import LostClients
from sidecar.kafka.producers import KafkaOutput, LoneOutput, TargetTopics
from sidecar.kafka.transactions import KafkaOutputs, take_slot
from sidecar.ledger.topic import LedgerTopic
from sidecar.lookup.local import Viewer
from sidecar.model.ports import Time
from sidecar.overflow.interface import Overflow, RebuildStore
from sidecar.settings.settings import Settings

STATE_REPEAT_MS: Final = 6 * 3_600_000


@dataclass(frozen=True, slots=True)
class Policies:
    """The rulebook as the engine sees it: the table now, and as it was at a version."""

    table: PolicyTable
    table_at: Callable[[int], PolicyTable]


@dataclass(frozen=True, slots=True)
class Brokers:
    """Settings of every client of them, the client by which the whole process asks about topics, and who looks whether
    a client has lost them.
    """

    client: dict[str, str]
    admin: AdminClient
    lost: LostClients


@dataclass(frozen=True, slots=True)
class Storage:
    """The overflow as the engine uses it, and as a rebuild of it does."""

    overflow: Overflow
    rebuild: RebuildStore


@dataclass(frozen=True, slots=True)
class Machinery:
    """The engine, and those of its parts that the process speaks to."""

    engine: Engine
    intake: KafkaIntake
    publisher: Publisher
    viewer: Viewer
    traces: Traces | None
    gate: RateLimiter
    time: Time  # to be read on the engine's thread
    close: Callable[[], None]


def replica_name(settings: Settings) -> str:
    """How this process is called in stats: its static membership, else host and process id."""
    return settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"


def build(
    settings: Settings,
    brokers: Brokers,
    storage: Storage,
    ledger: LedgerTopic,
    policies: Policies,
    time: Time,
) -> Machinery:
    """All parts of the engine over real clients; nothing is started."""
    problem, client = _Problem(brokers.lost), brokers.client
    tally = EngineCounters()
    intake = KafkaIntake(consumer_settings(client, settings.group, settings.instance_id), problem)
    topics = TargetTopics(brokers.admin)
    batch_limits = BatchLimits(topics.bytes_max, min(batch_bytes_max(client), USUAL_BATCH_BYTES))
    targets = Targets(topics.partition_count, reserved=settings.reserved_topics, limits=batch_limits)
    transactional = settings.guarantee == "exactly_once"
    redelivery = Redelivery(targets, settings.quarantine.topic, transactional)
    settlement: Settlement
    slot = take_slot(settings.data_dir / "slots" / settings.group)
    if transactional:
        root = f"tickover.{settings.group}:{settings.instance_id or slot.name}"  # no group has a colon
        outputs = KafkaOutputs(client, root, problem)
        settlement = ExactlyOnce(outputs, intake, ledger, redelivery, tally, time)
    else:
        output = KafkaOutput(producer_settings(client), problem)
        isolation_output = LoneOutput(lone_producer_settings(client), problem)
        small_output = KafkaOutput(small_producer_settings(client), problem)  # a burst can't wait for its making
        outputs_of_all = (output, isolation_output, small_output)
        settlement = AtLeastOnce(outputs_of_all, intake, ledger, redelivery, tally, time)
    emitter = Emitter(targets, tally, settings.quarantine.topic, redelivery, settlement)
    settlement.traces = Traces(settings.otel.queue_max) if settings.otel.enabled else None
    worker = OverflowWorker(storage.overflow, settings.horizon_ms, emitter.to_wheel)
    ledger_log = KafkaLedgerLog(client, ledger.name)
    starts = KafkaStarts(client, settings.group, settings.start == "latest")
    recovery = RecoveryWorker(starts, ledger, ledger_log, storage.overflow, settings.tick_ms)
    rebuild_log, source_log = KafkaLedgerLog(client, ledger.name), KafkaSourceLog(client, settings.group)
    sources = Sources(ledger, rebuild_log, source_log, storage.rebuild)
    rebuild = RebuildWorker(sources, tally, settings.redis.rebuild_rate)
    ordering = Ordering(worker, rebuild)
    holding = Holding(emitter, ordering)
    actions = Actions(emitter, holding, worker, rebuild, tally)
    assignment = Assignment(intake, emitter, settlement, (worker, recovery), time.now_ms, tally)
    intake.events = assignment
    publisher = Publisher(replica_name(settings), tally, emitter, assignment, worker, time)
    problem.publisher = publisher
    taken = settings.intake
    limits = HeaderLimits(
        taken.headers_max, taken.header_bytes_max, settings.quarantine.topic, taken.timestamp_age_max_ms
    )
    decider = Decider(limits, targets.partitions, policies.table_at, settings.reserved_topics, emitter.gate.failed)
    quotas = Quotas(rebuild, settings.quarantine.topic)
    parts = Parts(
        intake, emitter, settlement, decider, holding, worker, rebuild, actions, ordering, quotas, assignment,
        publisher, tally,
    )  # fmt: skip
    engine = Engine(engine_settings(settings), parts, policies.table)

    def close() -> None:
        settlement.stop()
        worker.stop()
        recovery.stop()
        rebuild.stop()
        targets.stop()
        for reader in (ledger_log, starts, rebuild_log, source_log):
            reader.close()
        slot.close()

    viewer = Viewer(assignment, emitter, actions)
    return Machinery(engine, intake, publisher, viewer, settlement.traces, emitter.gate, time, close)


def engine_settings(settings: Settings) -> EngineSettings:
    """The part of the settings that the engine's own code decides by."""
    return EngineSettings(
        settle_interval_ms=settings.settle_interval_ms,
        intake_batch=settings.intake.batch,
        wheel_records_max=settings.wheel.records_max,
        wheel_bytes_max=settings.wheel.bytes_max,
        state_repeat_ms=min(STATE_REPEAT_MS, (settings.ledger.retention_ms or MARGIN_MS) // 4),
    )


class _Problem:
    """Error callback of the Kafka clients. The publisher shows the text; it is made after them."""

    def __init__(self, lost: LostClients) -> None:
        self.publisher: Publisher | None = None
        self._lost = lost

    def __call__(self, text: str) -> None:
        self._lost.suspect()
        if self.publisher is not None:
            self.publisher.kafka_problem = text
