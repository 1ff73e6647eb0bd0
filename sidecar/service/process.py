"""The process: every part made, started in order, and stopped in the opposite one.

    probes -> services -> policy store -> own topics -> engine -> REST -> housekeeping

`Process.run` blocks until SIGTERM, SIGINT or a failure of engine or API, and ends the process with the exit status.
"""

import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException
from fastapi import FastAPI

from api.access.auth import AccessConfigError
from api.access.gate import Gate, open_gate
from api.serving.listener import Starting
from api.serving.server import Server, SharedPort
from api.serving.sockets import BindError, listening_of
from policies.errors import PolicyError
from policies.kafka_clients import AdminClient
from policies.topic.store import PolicyStore
from sidecar.conditions.recorder import WRITE_S, ConditionRecorder
from sidecar.conditions.store import RedisSpanLog
from sidecar.doctor.about import About
from sidecar.doctor.at_start import tell_rights, tell_unreachable, told_early
from sidecar.doctor.other_groups import NewGroupError
from sidecar.embedded.kafka import KafkaUnavailable
from sidecar.embedded.valkey import ValkeyUnavailableError
from sidecar.engine.clock import Timekeeper
from sidecar.engine.commit.settlement import Traces
from sidecar.engine.engine import Engine, EngineError
from sidecar.kafka.background import abandon, in_background
from sidecar.kafka.client_settings import client_log
from sidecar.kafka.lost_clients import LOOK_S as LOST_LOOK_S
from sidecar.kafka.lost_clients import LostClients
from sidecar.kafka.topics import MissingTopicError
from sidecar.ledger.topic import LedgerTopic
from sidecar.lookup.local import LocalLookUp, Seldom
from sidecar.model.condition import SAMPLE_MS
from sidecar.operations.dead_letters.reading import Reading
from sidecar.operations.jobs.transactional_sender import LOOK_AGAIN_S, TransactionWatch, why_none
from sidecar.operations.schedules.firing import Firing
from sidecar.overflow.interface import OverflowFailure
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, TimedOverflow, open_overflow
from sidecar.overflow.signing import UNSIGNED, SigningKeyError, read_signing_keys
from sidecar.overview.minutes import STEP_S
from sidecar.overview.of_process import ProcessOverview
from sidecar.service import rest
from sidecar.service.assembly import Brokers, Machinery, Policies, Storage, build
from sidecar.service.embedded_services import Progress, RedisWatch, Services, start_services
from sidecar.service.housekeeping import Housekeeping, Interval, Memory
from sidecar.service.kafka_start import ensure_topics, once_brokers_answer, open_pauses, open_policies
from sidecar.service.leftovers import Leftovers
from sidecar.service.metrics import Recorder
from sidecar.service.rest import Made
from sidecar.service.sources import Sources
from sidecar.service.watched_files import LOOK_S, Live, PublishedFile, WatchedFiles, files_of, has_terminal
from sidecar.settings.api import url_of
from sidecar.settings.settings import Settings
from sidecar.settings.settings_file import SettingsFile
from sidecar.settings.watched_file import known

Result = TypeVar("Result")

log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
Answer = TypeVar("Answer")
WATCH_S: Final = 0.2
SWITCH_S: Final = 0.0005  # how long the committer waits for a busy engine, after each of its calls of the client
START_GRACE_S: Final = 3.0  # when asked to stop while starting: nothing is at stake yet
EXIT_S: Final = 0.5  # kept back for the end itself
ANSWER_S: Final = 10.0  # how long housekeeping waits for the engine
EXPECTED: Final = (
    AccessConfigError, BindError, KafkaException, KafkaUnavailable, MissingTopicError, NewGroupError, OSError,
    OverflowFailure, PolicyError, SigningKeyError, ValkeyUnavailableError,
)  # fmt: skip


class Process:
    """One sidecar. `start` and `stop` may also be called without `run`, as the demo and tests do.

    `settings` are those of the start; the ones that may change, and where they are read again, are in `source`.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Progress | None = None,
        source: SettingsFile | None = None,
        shared: SharedPort | None = None,
    ) -> None:
        self.settings = settings
        self._source = source
        self._shared = shared
        self._files = WatchedFiles({}, lambda *_: None)
        self._has_terminal = False
        self.services: Services
        self.server: Server
        self.store: PolicyStore
        self.machinery: Machinery
        self._transactions: TransactionWatch
        self._lost: LostClients
        self._conditions: ConditionRecorder
        self._overview: ProcessOverview
        self._housekeeping: Housekeeping
        self._progress = progress or log.info
        self._signing = UNSIGNED
        self._front = Starting()
        self._about = About(settings)
        self._stack = ExitStack()
        self._asked = threading.Event()

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return self.machinery.engine

    def run(self, when_started: Callable[[], object] = lambda: None) -> int:
        """Start, wait for a signal or a failure of engine or API, stop. Ends the process with the exit status.

        Starting and stopping run in threads: a call of a client can't be interrupted, a thread can be left behind.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()  # not by nohup
        signal.signal(signal.SIGHUP, self._on_hangup)
        starting, deadline_s = in_background(self.start), time.monotonic() + self.settings.start_timeout_ms / 1_000
        while not self._asked.is_set() and not wait((starting,), WATCH_S).done:
            if time.monotonic() > deadline_s:
                log.critical("can't start", extra={"error": f"start_timeout is over, and {self._front.reason}"})
                return abandon(EXIT_FAILED)
        if not wait((starting,), START_GRACE_S).done:
            log.warning("stopped before everything was started")
            return abandon(EXIT_OK)
        if (error := self._cause(starting.exception())) is not None:
            unforeseen = None if isinstance(error, EXPECTED) else error
            tell_rights(self.settings, error)
            log.critical("can't start", extra={"error": str(error) or type(error).__name__}, exc_info=unforeseen)
            return self._end(EXIT_FAILED)
        when_started()
        while not self._asked.is_set() and not self.engine.finished.wait(WATCH_S) and self.server.failure is None:
            pass
        return self._end(EXIT_OK)

    def _cause(self, error: BaseException | None) -> BaseException | None:
        """The error, or the engine's failure in place of an EngineError, which says only that the engine has ended."""
        return (self.engine.failure or error) if isinstance(error, EngineError) else error

    def _end(self, status: int) -> int:
        """Stop everything, at most for as long as the settings allow; what hangs is left behind."""
        deadline_s = time.monotonic() + self.settings.shutdown_timeout_ms / 1_000 - EXIT_S
        stopping = in_background(self.stop)
        in_time = bool(wait((stopping,), max(deadline_s - time.monotonic(), 0.0)).done)
        if status == EXIT_OK and (failure := self.engine.failure) is not None:
            tell_rights(self.settings, failure)
            log.critical("ended because the engine failed", extra={"error": f"{type(failure).__name__}: {failure}"})
            status = EXIT_FAILED
        elif status == EXIT_OK and not self.engine.finished.is_set():
            log.error("ended before everything in flight was settled: some records may fire again")
            status = EXIT_FAILED
        elif status == EXIT_OK and self.server.failure is not None:
            log.critical("ended because the API failed", extra={"error": type(self.server.failure).__name__})
            status = EXIT_FAILED
        elif in_time:
            log.info("stopped")
        return abandon(status)  # destructors of clients may wait for brokers for ever

    def start(self) -> None:
        """Everything, in order. What fails is raised after what was started has been stopped by `stop`."""
        settings = self.settings
        gate = open_gate(settings.api, time.monotonic)
        listening = listening_of(settings.api)
        self.server = Server(self._front, settings.api.host, settings.api.port, listening, self._shared)
        self.server.start()  # brokers may be away for long: meanwhile the probes have an answer
        self._stack.callback(self.server.stop)
        self.services = start_services(settings, self._progress)
        self._stack.callback(self.services.stop)
        # With the logger what the clients say is logged as everything else is; without it they write to stderr.
        client: dict[str, Any] = {
            **settings.kafka.client_properties(), "bootstrap.servers": self.services.bootstrap, "logger": client_log,
            "allow.auto.create.topics": "false",  # else a broker makes what we only ask about, by its own defaults
        }  # fmt: skip
        recorder = Recorder()
        self._signing = read_signing_keys(settings.redis.signing_key_file)
        options = settings.redis.client_options()
        overflow = open_overflow(self.services.redis_url, settings.group, options, self._signing)
        self._stack.callback(overflow.close)
        redis_watch = RedisWatch(overflow, recorder, settings.redis)
        redis_watch.start()
        self._front.reason = "it waits for Kafka"
        policies_at_start = known(Path(settings.policies.file))
        admin = AdminClient(dict(client))
        ledger = self._open_topics(client, admin)
        self._front.reason = "its parts are being started"
        timekeeper, policies = Timekeeper(), Policies(self.store.table, self.store.table_at)
        rebuild = RedisRebuildStore(overflow.client, settings.group, self._signing)
        storage = Storage(TimedOverflow(overflow, recorder.observe), rebuild)
        self._lost = LostClients(client, settings.ledger_topic, time.monotonic)
        self.machinery = build(settings, Brokers(client, admin, self._lost), storage, ledger, policies, timekeeper)
        engine = self.machinery.engine
        self._stack.callback(self.machinery.close)
        if self.machinery.traces is not None:
            self._start_tracing(self.machinery.traces, recorder)
        self._tell(engine)
        self._transactions = TransactionWatch(partial(why_none, client, settings.group), settings.guarantee)
        spans = RedisSpanLog(overflow.client, settings.group, self._signing)
        self._conditions = ConditionRecorder(lambda: engine.stats, spans, time.monotonic)
        self._overview = ProcessOverview(settings, lambda: engine.stats, self.store, spans, self._conditions)
        self._stack.callback(self._conditions.stop)  # when the engine has ended: until then it has its partitions
        engine.start(timekeeper, time.sleep)
        sampling, writing = self._conditions.sample, self._conditions.write  # at once: the first recovery is recorded
        jobs = {"conditions": Interval(sampling, SAMPLE_MS / 1_000), "conditions-kept": Interval(writing, WRITE_S)}
        self._housekeeping = Housekeeping(jobs)
        self._housekeeping.start()
        self._stack.callback(self._housekeeping.stop)
        self._stack.callback(engine.stop, settings.shutdown_timeout_ms / 1_000)
        sources = Sources(settings, admin, self.machinery, lambda: self.store.table, Leftovers(client, settings.group))
        self._ask(sources.look, admin)
        app, firing, letters = self._start_rest(client, overflow, recorder, sources, gate)
        published, live = PublishedFile(self.store, policies_at_start), Live(letters, self._about)
        files = files_of(settings, self._source, published, gate, listening.certificate, live)
        self._files = WatchedFiles(files, recorder.watched_file)
        self._start_housekeeping(sources, overflow, recorder, (firing, letters, redis_watch))
        self._stack.callback(engine.stop, 0.0)  # first of all: it settles while the rest is stopped
        gc.collect()
        gc.freeze()
        gc.disable()  # see Memory
        self._front.app = app  # from now on it may say that it is ready: nothing is made for the first time behind this
        sys.setswitchinterval(SWITCH_S)
        self._progress(f"REST at {url_of(settings.api.scheme, settings.api.host, self.server.port)}")

    def stop(self) -> None:
        """Stop in the opposite order. Twice is harmless."""
        self._stack.close()

    # --- parts ----------------------------------------------------------------------------------------------------

    def _open_topics(self, client: dict[str, Any], admin: AdminClient) -> LedgerTopic:
        """Policies and pauses are read, and all topics of tickover's own exist, once brokers answer."""
        with told_early(self._tell_unreachable):
            self.store = self._ask(partial(open_policies, self.settings, client), admin)
        self._stack.callback(self.store.stop)
        ledger = self._ask(partial(ensure_topics, self.settings, client, admin, self.store.table), admin)
        self._reader, self._pauses = self._ask(partial(open_pauses, self.settings, client), admin)
        self._stack.callback(self._pauses.stop)
        return ledger

    def _ask(self, ask: Callable[[], Answer], admin: AdminClient) -> Answer:
        """The answer of brokers, once there is one. Until then nobody looks for clients that have lost them for good
        (`LostClients`): the one that lasts is made anew for each try.
        """

        def tell(error: str) -> None:
            self._tell_unreachable(error)
            admin.renew()

        return once_brokers_answer(ask, tell)

    def _tell(self, engine: Engine) -> None:
        """Let the engine know what users say in topics: policies, pauses, breakers switched by hand."""
        self.store.on_change(lambda table: setattr(engine, "table", table))
        engine.table = self.store.table
        self._pauses.on_change(lambda pauses: setattr(engine, "pauses", pauses))
        self._pauses.on_switch(lambda switches: setattr(engine, "switches", switches))

    def _start_tracing(self, traces: Traces, recorder: Recorder) -> None:
        from sidecar.service.tracing import tracing_of  # of an extra

        tracing = tracing_of(self.settings, traces, recorder)
        tracing.start()
        self._stack.callback(tracing.stop)

    def _tell_unreachable(self, error: str = "") -> None:
        if cause := tell_unreachable(self.settings, error):  # which names no host: everybody may ask a probe
            self._front.reason = f"it waits for Kafka: {cause}"

    def _start_rest(
        self, client: dict[str, str], overflow: RedisOverflow, recorder: Recorder, sources: Sources, gate: Gate
    ) -> tuple[FastAPI, Firing, Reading]:
        made = Made(
            self.settings, client, self.machinery, self.store, overflow, self._conditions, recorder, sources, gate,
            self._signing, partial(self._look_up_here, overflow), self._about, self._overview, self._reader,
            self._pauses,
        )  # fmt: skip
        return rest.start(made, self.server.stop, self._stack)

    def _look_up_here(self, overflow: RedisOverflow) -> LocalLookUp:
        viewer = self.machinery.viewer
        return LocalLookUp(self.engine.submit, viewer, overflow.client, self.settings.group, self._signing)

    def _start_housekeeping(
        self,
        sources: Sources,
        overflow: RedisOverflow,
        recorder: Recorder,
        made: tuple[Firing, Reading, RedisWatch],
    ) -> None:
        firing, letters, redis_watch = made
        publisher, engine = self.machinery.publisher, self.engine
        next_due_ms = Seldom(self._look_up_here(overflow).next_due_ms)

        def survey() -> None:
            engine.submit(lambda _: publisher.survey()).result(ANSWER_S)
            publisher.far_due_ms = next_due_ms(engine.stats.at_ms) if publisher.near_due_ms < 0 else -1

        jobs = {
            "sources": Interval(partial(self._look_at_sources, sources, recorder), 2),
            "survey": Interval(survey, 5),
            "last-hour": Interval(self._overview.step, STEP_S, at_once=True),
            "schedules": Interval(firing.step, 1),
            "transactions": Interval(self._look_for_transactions, LOOK_AGAIN_S, at_once=True),
            "overflow": Interval(lambda: engine.submit(Engine.tidy).result(ANSWER_S), 10),
            "redis-state": Interval(lambda: redis_watch.look(publisher.note_redis), 10),
            "retention": Interval(lambda: recorder.set_short_retentions(sources.check_retention()), 600, at_once=True),
            "letters": Interval(lambda: recorder.set_open_letters(letters.open_letters()), 60, at_once=True),
            "memory": Interval(Memory(lambda: engine.stats).step, 30),
            "idle-clients": Interval(self.store.rest, 30),
            "lost-clients": Interval(self._lost.look, LOST_LOOK_S),
            # One for each: brokers that are away hold up the policies, and no token that is taken back.
            **{f"{name} file": Interval(partial(self._files.look, name), LOOK_S) for name in self._files.names},
        }
        if self.settings.instance_id:
            jobs["unowned"] = Interval(sources.unowned.look, 10)
        self._housekeeping.add(jobs)
        self._stack.callback(self._housekeeping.remove, tuple(jobs))

    def _look_for_transactions(self) -> None:
        self._transactions.step()
        self.machinery.publisher.lacks = self._transactions.warnings

    def _look_at_sources(self, sources: Sources, recorder: Recorder) -> None:
        sources.look()
        recorder.set_left(sources.left)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        log.info("asked to stop", extra={"signal": signal.Signals(number).name})
        self._asked.set()

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        """Read files again; but stop where it was said because the terminal is gone from which the process came."""
        if self._has_terminal and not has_terminal():
            self._on_signal(number, frame)
            return
        log.info("asked to read files again", extra={"signal": signal.Signals(number).name, "files": self._files.names})
        self._files.ask()
