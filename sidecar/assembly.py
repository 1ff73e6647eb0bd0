"""Making the engine of its parts. What is made here is owned by the engine's thread once it runs."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from policies.table import PolicyTable
from sidecar.assignment import Assignment
from sidecar.config import Settings
from sidecar.deciding import Decider, HeaderLimits
from sidecar.emission import Emitter
from sidecar.engine import Engine, EngineSettings, Parts
from sidecar.kafka import (
    KafkaOutput,
    LoneOutput,
    consumer_settings,
    lone_producer_settings,
    producer_settings,
)
from sidecar.kafka_intake import KafkaIntake
from sidecar.kafka_starts import KafkaStarts
from sidecar.ledger import LedgerTopic
from sidecar.overflow import Overflow
from sidecar.overflow_worker import OverflowWorker
from sidecar.ports import Time
from sidecar.recovery_reader import RecoveryWorker
from sidecar.settlement import AtLeastOnce
from sidecar.snapshot import Publisher
from sidecar.tally import Tally
from sidecar.targets import Targets
from sidecar.topics import KafkaLedgerLog


@dataclass(frozen=True, slots=True)
class Policies:
    """The rulebook as the engine sees it: the table now, and as it was at a version."""

    table: PolicyTable
    table_at: Callable[[int], PolicyTable]


@dataclass(frozen=True, slots=True)
class Machinery:
    """The engine, and those of its parts that the process speaks to."""

    engine: Engine
    intake: KafkaIntake
    publisher: Publisher
    close: Callable[[], None]


def replica_name(settings: Settings) -> str:
    """How this process is called in stats: its static membership, else host and process id."""
    return settings.instance_id or f"{socket.gethostname()}-{os.getpid()}"


def build(
    settings: Settings,
    client: dict[str, str],
    overflow: Overflow,
    ledger: LedgerTopic,
    policies: Policies,
    time: Time,
) -> Machinery:
    """All parts of the engine over real clients; nothing is started."""
    problem = _Problem()
    tally = Tally()
    output = KafkaOutput(producer_settings(client), problem)
    intake = KafkaIntake(consumer_settings(client, settings.group, settings.instance_id), problem)
    targets = Targets(output.partition_count)
    lone_output = LoneOutput(lone_producer_settings(client), problem)
    emitter = Emitter(output, lone_output, targets, tally, settings.quarantine.topic)
    settlement = AtLeastOnce(output, intake, ledger, emitter, tally, time)
    emitter.settlement = settlement
    worker = OverflowWorker(overflow, settings.horizon_ms, emitter.to_wheel)
    ledger_log = KafkaLedgerLog(client, ledger.name)
    starts = KafkaStarts(client, settings.group, settings.start == "latest")
    recovery = RecoveryWorker(starts, ledger, ledger_log, overflow, settings.tick_ms)
    assignment = Assignment(intake, emitter, settlement, (worker, recovery), time.now_ms)
    intake.events = assignment
    publisher = Publisher(replica_name(settings), tally, emitter, assignment, worker, time)
    problem.publisher = publisher
    limits = HeaderLimits(settings.intake.headers_max, settings.intake.header_bytes_max, settings.quarantine.topic)
    decider = Decider(limits, targets.partitions, policies.table_at)
    engine = Engine(
        engine_settings(settings),
        Parts(intake, emitter, settlement, decider, worker, assignment, publisher, tally),
        policies.table,
    )

    def close() -> None:
        worker.stop()
        recovery.stop()
        targets.stop()
        ledger_log.close()
        starts.close()

    return Machinery(engine, intake, publisher, close)


def engine_settings(settings: Settings) -> EngineSettings:
    """The part of the settings that the engine's own code decides by."""
    return EngineSettings(
        settle_interval_ms=settings.settle_interval_ms,
        intake_batch=settings.intake.batch,
        wheel_records_max=settings.wheel.records_max,
        wheel_bytes_max=settings.wheel.bytes_max,
    )


class _Problem:
    """What the clients' error callbacks report; it is shown by the publisher, which is made after them."""

    publisher: Publisher | None = None

    def __call__(self, text: str) -> None:
        if self.publisher is not None:
            self.publisher.kafka_problem = text
