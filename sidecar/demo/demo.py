"""`tickover demo`: everything on this machine, live, with a judge.

    Kafka -> topics and policies -> the sidecar in this process -> traffic -> summary

Kafka and Redis are those of the settings, or embedded ones with their data in a temporary directory. One thread
sends, consumes, judges and shows; the sidecar runs in its own. What the sidecar logs goes to a file.

With `--report DIRECTORY` the jobs of the pipeline tell what happened, while Kafka is still there:

    ingest -> reconcile -> report, each in a process of its own, as `tickover pipeline` runs them

Below the directory comes one of the run's name: the pages, the tables, and what the jobs have said (`jobs.log`).
"""

import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from sidecar.demo.messages import DELAY_MAX_MS
from sidecar.demo.operator import Operator
from sidecar.demo.oracle import LOST_AFTER_MS
from sidecar.demo.screen import Moment, Screen, View, can_be_operated, invitation, view
from sidecar.demo.setup import POLICIES_FILE, create_topics, demo_settings, demo_topics, policies_text, remove_traces
from sidecar.demo.traffic import Traffic
from sidecar.embedded.kafka import embedded_kafka
from sidecar.embedded.valkey import ValkeyUnavailableError
from sidecar.kafka.client_settings import client_log
from sidecar.service.logs import configure_logs
from sidecar.service.process import EXIT_FAILED, EXIT_OK, EXPECTED, Process
from sidecar.settings.api import url_of
from sidecar.settings.settings import Settings

READY_TIMEOUT_S: Final = 60.0
SETTLED_S: Final = 2.0  # from the last arrival until the sidecar's figures say that nothing is held
LEFT_S: Final = 20.0  # from the last arrival until the operator has taken back what would be held for long
LOG_FILE: Final = "sidecar.log"
EXIT_INTERRUPTED: Final = 130
# What arrives last is an order that fails each time: its back-offs, and a second for the ways between.
LAST_WORDS_S: Final = max(DELAY_MAX_MS / 1_000, 3.5) + 1
JOBS_LOG: Final = "jobs.log"
WORDS_MAX: Final = 500  # of a job that failed, on the screen

Say = Callable[[str], None]


class NotReadyError(Exception):
    """The sidecar has not become ready; the text says why."""


class Interruption:
    """SIGINT and SIGTERM: they end the set-up at once, and later are a wish that is looked at."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        if self.at_once:
            raise KeyboardInterrupt


def run_demo(settings: Settings, seconds: float | None, rate: int, report: Path | None = None) -> int:
    """Run for `seconds`, or until Ctrl-C, with `rate` delayed messages a second; returns the exit status.

    1 when anything was lost, early, wrong or repeated, or when the sidecar or the report failed. `report`: below which
    directory the pages of the pipeline's reports go.
    """
    directory = Path(tempfile.mkdtemp(prefix="tickover-demo-"))
    screen = Screen()
    interruption = Interruption()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interruption)
    status = EXIT_FAILED
    try:
        # Left open until the end of the program: clients' threads may log to the very last.
        configure_logs(settings.log, (directory / LOG_FILE).open("w", encoding="utf-8"))
        status = _Demo(settings, directory, screen, interruption).run(seconds, rate, report)
    except KeyboardInterrupt:
        screen.say("interrupted before everything was set up")
        status = EXIT_INTERRUPTED
    except (*EXPECTED, ValkeyUnavailableError, NotReadyError) as error:
        screen.say(f"the demo can't go on: {error}")
    finally:
        screen.stop()
        if status == EXIT_FAILED:
            shutil.rmtree(directory / "data", ignore_errors=True)
            screen.say(f"the sidecar's log: {directory / LOG_FILE}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return status


class _Demo:
    """One run. What was started is stopped in the opposite order."""

    def __init__(self, settings: Settings, directory: Path, screen: Screen, interruption: Interruption) -> None:
        run = secrets.token_hex(3)
        self._group = f"tickover-demo-{run}"
        # Where others are, or an earlier demo has been, everything has names of its own.
        is_fresh = settings.kafka.embedded and settings.redis.embedded and "data_dir" not in settings.model_fields_set
        self._prefix = "" if is_fresh else f"demo-{run}-"
        self._topics = demo_topics(self._prefix)
        self._given = settings
        self._settings = settings
        self._directory = directory
        self._policies = directory / POLICIES_FILE
        self._screen = screen
        self._interruption = interruption
        self._stack = ExitStack()
        self._process: Process
        self._traffic: Traffic
        self._operator: Operator | None = None

    def run(self, seconds: float | None, rate: int, report: Path | None) -> int:
        with self._stack:
            bootstrap = self._start_kafka()
            self._start_sidecar(bootstrap)
            self._start_traffic(seconds is None)
            for text in invitation(self._settings, self._process.server.port, bootstrap, self._topics.push):
                self._screen.say(text)
            self._start_operator()
            self._interruption.at_once = False
            last = self._observe(seconds, rate)
            self._screen.stop()
            faults = self._traffic.oracle.examples(_now_ms())
            told = report is None or write_report(report, bootstrap, self._group, self._topics.read, self._screen.say)
            self._screen.say("stopping")
            began_s = time.monotonic()
        self._screen.say(f"stopped in {time.monotonic() - began_s:.1f} s")
        self._screen.summarise(last, faults)
        failure = self._process.engine.failure
        if failure is not None:
            self._screen.say(f"the engine failed: {type(failure).__name__}: {failure}")
        return EXIT_FAILED if last.faults or failure is not None or not told else EXIT_OK

    # --- set up ---------------------------------------------------------------------------------------------------

    def _start_kafka(self) -> str:
        given = self._given
        bootstrap = given.kafka.bootstrap_servers
        if given.kafka.embedded:
            data_dir = given.data_dir if "data_dir" in given.model_fields_set else self._directory / "data"
            kafka = embedded_kafka(data_dir / "kafka", is_java=given.kafka.embedded_java, progress=self._screen.say)
            self._stack.callback(kafka.stop)
            kafka.start()
            bootstrap = kafka.bootstrap
        self._screen.say(f"Kafka: at {bootstrap}")
        self._settings = demo_settings(given, self._group, self._topics, bootstrap, self._directory)
        self._policies.write_text(policies_text(self._topics, self._prefix), encoding="utf-8")
        create_topics(AdminClient(self._client), self._topics, given.ledger.replication_factor)
        if self._prefix:
            self._stack.callback(self._remove_traces)
        return bootstrap

    def _start_sidecar(self, bootstrap: str) -> None:
        self._process = Process(self._settings, self._screen.say)
        self._stack.callback(self._process.stop)
        self._process.start()
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        engine = self._process.engine
        while engine.stats.problems or not engine.stats.partitions_assigned:
            if time.monotonic() > deadline_s or engine.finished.wait(0.05):
                raise NotReadyError(f"not ready: {engine.failure or ', '.join(engine.stats.problems)}")

    def _start_traffic(self, with_long: bool) -> None:
        self._traffic = Traffic(self._client, self._topics, self._prefix, with_long, _now_ms)
        self._stack.callback(self._traffic.stop)
        self._traffic.start()

    def _start_operator(self) -> None:
        if not can_be_operated(self._settings):
            return
        url = url_of("http", self._settings.api.host, self._process.server.port)
        place = (self._topics, self._prefix)
        self._operator = Operator(url, place, self._policies, self._traffic.announced)
        self._stack.callback(self._operator.stop)
        self._operator.start()

    @property
    def _client(self) -> dict[str, Any]:
        kafka = self._settings.kafka
        return {**kafka.client_properties(), "bootstrap.servers": kafka.bootstrap_servers, "logger": client_log}

    def _remove_traces(self) -> None:
        for text in remove_traces(self._client, self._topics, self._settings):
            self._screen.say(f"not deleted: {text}")

    # --- run ------------------------------------------------------------------------------------------------------

    def _observe(self, seconds: float | None, rate: int) -> View:
        """Send until it is time, take what comes until all is there or lost; the figures at the end."""
        screen, traffic, engine = self._screen, self._traffic, self._process.engine
        screen.start()
        began_s = time.monotonic()
        until_s = None if seconds is None else max(seconds - LAST_WORDS_S, seconds / 2)

        def look(phase: str) -> View:
            moment = Moment(time.monotonic() - began_s, _now_ms(), phase)
            return view(moment, engine.stats, traffic.oracle, traffic.sent, traffic.not_sent)

        def turn(phase: str) -> bool:
            """One step; False when the demo must end now."""
            traffic.take()
            if screen.due(time.monotonic() - began_s):
                screen.show(look(phase))
            return not (self._interruption.asked or engine.finished.is_set())

        going_on = True
        while going_on and (until_s is None or time.monotonic() - began_s < until_s):
            traffic.send(int((time.monotonic() - began_s) * rate) + 1)
            going_on = turn("sending")
        if going_on:
            self._drain(turn, lambda: look("").held)
        return look("ended")

    def _drain(self, turn: Callable[[str], bool], held: Callable[[], int]) -> None:
        """Take what is still to come. What is overdue for long is lost, and nothing is waited for beyond that."""
        oracle, operator, phase = self._traffic.oracle, self._operator, "waiting for the last"
        if operator is not None:
            operator.leave()
        while oracle.outstanding and _now_ms() <= oracle.latest_due_ms + LOST_AFTER_MS and turn(phase):
            pass
        until_s = time.monotonic() + LEFT_S
        while operator is not None and operator.is_there and time.monotonic() < until_s and turn(phase):
            pass
        until_s = time.monotonic() + SETTLED_S
        while held() and time.monotonic() < until_s and turn(phase):
            pass


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class JobFailed(Exception):
    """A job ended with another status than 0; the text has its last words."""


def write_report(directory: Path, bootstrap: str, group: str, topics: Sequence[str], say: Say) -> bool:
    """Take ledger and topics into tables, prove that nothing is missing, write the pages; False if that failed."""
    place = directory / group
    place.mkdir(parents=True, exist_ok=True)
    say("taking what happened into tables, by three jobs on Spark: a minute or two")
    warehouse = ("--warehouse", str(place / "tables"))
    sources = [word for topic in topics for word in ("--topic", topic)]
    try:
        taken = _run(place, "ingest", *warehouse, "--bootstrap-servers", bootstrap, "--group", group, *sources)
        say(f"ingest: {_counts(taken['settled'])} in {place / 'tables'}")
        judged = _run(place, "reconcile", *warehouse)
        say(f"reconcile: {_counts(judged['records'])}; no faults")
        for name, page in _run(place, "report", *warehouse, "--out", str(place)).items():
            say(f"{name}: {page['page']}")
    except JobFailed as error:
        say(f"{error}; all of its words: {place / JOBS_LOG}")
        return False
    return True


def _run(place: Path, job: str, *options: str) -> dict[str, Any]:
    """Run a job and read what it says in JSON. Raises JobFailed."""
    with (place / JOBS_LOG).open("a", encoding="utf-8") as words:
        command = [sys.executable, "-m", "sidecar", "pipeline", job, *options]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=words, text=True, check=False)
    if ended.returncode:
        last = (place / JOBS_LOG).read_text(encoding="utf-8").strip().rpartition("\n")[2]
        raise JobFailed(f"{job} ended with status {ended.returncode}: {last[:WORDS_MAX]}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def _counts(by_name: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(by_name.items())) or "nothing"
