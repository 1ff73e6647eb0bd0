"""REST made of the process's parts: what it asks, what users start through it, and the console."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from fastapi import FastAPI

from api.access.gate import Gate
from api.app import create_app
from api.console.page import ConsoleOptions, SignOn
from api.idempotency import RedisIdempotency
from api.lookup import LookUp
from api.ports import Limits, Ports
from api.sender import KafkaSender
from api.sources import SourceSender
from policies.topic.store import PolicyStore
from sidecar.conditions.recorder import ConditionRecorder
from sidecar.doctor.about import About
from sidecar.kafka.backlog import Backlog
from sidecar.kafka.topic_follower import TopicReader
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.ledger_reader import LedgerReader
from sidecar.lookup.local import LocalLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.receipts import Receipts
from sidecar.operations.dead_letters.reading import Reading
from sidecar.operations.pauses.store import PauseStore
from sidecar.operations.schedules.firing import Firing
from sidecar.overflow.redis_overflow import RedisOverflow
from sidecar.overflow.signing import Signing
from sidecar.overview.of_process import ProcessOverview
from sidecar.overview.reporting import Reporter
from sidecar.service.assembly import Machinery
from sidecar.service.metrics import Exposition, Recorder
from sidecar.service.operations.bulk_changes import changes_of
from sidecar.service.operations.dead_letters import governor_of, reading_of, redriven_of, redrives_of, resending_of
from sidecar.service.operations.schedules import firing_of, limits_of, schedule_store_of
from sidecar.service.sources import Sources
from sidecar.settings.settings import Settings


class Made(NamedTuple):
    """The parts that are there before REST is. `client`: settings of Kafka clients; `here` makes a look-up of this
    replica alone.
    """

    settings: Settings
    client: dict[str, str]
    machinery: Machinery
    store: PolicyStore
    overflow: RedisOverflow
    conditions: ConditionRecorder
    recorder: Recorder
    sources: Sources
    gate: Gate
    signing: Signing
    here: Callable[[], LocalLookUp]
    about: About
    overview: ProcessOverview
    reader: TopicReader  # of topics that are followed
    pauses: PauseStore


def start(made: Made, stop_server: Callable[[], None], stack: ExitStack) -> tuple[FastAPI, Firing, Reading]:
    """Start REST's parts; `stack` stops it, after the server. The application, and parts that housekeeping
    needs.
    """
    settings, client, store, engine = made.settings, made.client, made.store, made.machinery.engine
    sender = KafkaSender(client)
    sender.start()
    stack.callback(sender.stop)
    idempotency = RedisIdempotency(made.overflow.client, settings.group)
    stack.callback(idempotency.stop)
    receipts = Receipts(settings.api.receipts_bytes_max)
    ledger_reader = LedgerReader(client, settings.ledger_topic, receipts, settings.api.receipts_look_back_ms)
    reader = made.reader
    schedules = schedule_store_of(settings, reader)
    stack.callback(schedules.stop)
    backlog = Backlog(client, settings.group)
    replicas = _look_up(made, backlog, made.overview.reporter(schedules), stack)
    lookup = LookUp(replicas)
    stack.callback(lookup.stop)
    redriven = redriven_of(settings, reader)
    stack.callback(redriven.stop)
    letters = reading_of(settings, client, lambda: store.table, redriven)
    stack.callback(letters.stop)
    redrives, redrive_log = redrives_of(settings, reader, store, letters, redriven)
    stack.callback(redrive_log.stop)
    stack.callback(redrives.crew.stop)
    changes, change_log = changes_of(settings, reader, lambda: store.table, replicas, receipts)
    stack.callback(change_log.stop)
    stack.callback(changes.crew.stop)
    ports = Ports(
        policies=store,
        stats=lambda: engine.stats,
        sender=SourceSender(sender, settings.reserved_topics),
        audit_sender=sender,
        audit_topic=settings.audit_topic,
        idempotency=idempotency,
        receipts=receipts,
        lookup=lookup,
        conditions=made.conditions,
        letters=letters,
        redrives=redrives,
        governor=governor_of(settings),
        changes=changes,
        change_rate=settings.changes.rate,
        schedules=schedules,
        schedule_limits=limits_of(settings),
        pauses=made.pauses,
        metrics=Exposition(lambda: engine.stats, lambda: store.table, made.recorder, made.pauses.ages_s),
        gate=made.gate,
        now_ms=lambda: time.time_ns() // 1_000_000,
        monotonic_s=time.monotonic,
        sources=made.sources,
        about=made.about,
        resending=resending_of(settings, client, redriven, redrives),
        limits=Limits(headers=settings.intake.headers_max, header_bytes=settings.intake.header_bytes_max),
        path=settings.api.path,
        group=made.overview.group(replicas, backlog, made.pauses),
    )
    for part in (redriven, redrive_log, redrives.crew, change_log, changes.crew, schedules):
        part.start()
    app = create_app(ports, console_of(settings))
    stack.callback(stop_server)  # while what it asks is still there
    stack.callback(app.state.events.stop)  # before the server, which would wait for streams
    ledger_reader.start()
    stack.callback(ledger_reader.stop)  # before the server, so that no request waits for a receipt any more
    firing = firing_of(settings, (client, schedules, made.pauses), made.machinery, made.sources, made.recorder)
    stack.callback(firing.stop)
    return app, firing, letters


def console_of(settings: Settings) -> ConsoleOptions | None:
    """How the console is set up; None: there is none."""
    api = settings.api
    if api.console == "off":
        return None
    return ConsoleOptions(
        group=settings.group,
        path=api.path,
        authenticates=api.authenticates,
        parts=api.console == "parts",
        idle_s=api.console_idle_ms // 1_000,
        longest_s=api.console_longest_ms // 1_000,
        sign_on=_sign_on(settings) if api.oidc.client_id else None,
        url=api.console_url,
    )


def _sign_on(settings: Settings) -> SignOn:
    from api.access.sign_on import SignOn  # an HTTP client, as in `api.access.gate`

    return SignOn(settings.api.oidc)


def _look_up(made: Made, backlog: Backlog, reporter: Reporter, stack: ExitStack) -> GroupLookUp:
    meeting = Meeting(made.overflow.client, made.settings.group, made.recorder.leave_out, made.signing)
    replicas = GroupLookUp(made.here, meeting, lambda: made.sources.group_partitions, backlog, reporter)
    replicas.start()
    stack.callback(replicas.stop)
    return replicas
