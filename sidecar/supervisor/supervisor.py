"""`tickover run --processes N`: N processes of one group, which share their port and nothing else.

    supervisor   opens the sockets, starts embedded services, forks, waits for signals; no thread, no client, no HTTP
    process 1..N each a whole sidecar, with its own engine and clients: a member of the group as any replica is

They are forked when everything is imported, so that they share what imports take of memory. SIGTERM and SIGINT end all
in order, also while embedded services start. SIGHUP is passed on, a process that ends is replaced (`replacing.py`).
When the supervisor itself is gone, the processes end in order.
"""

import gc
import logging
import os
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final, NoReturn

from pydantic import SecretStr

from api.serving.siblings import Siblings
from api.serving.sockets import Sockets, listening_of, open_sockets
from sidecar.kafka.background import in_background
from sidecar.service.embedded_services import Services, start_services
from sidecar.service.logs import configure_logs
from sidecar.service.process import EXIT_FAILED, EXIT_OK, EXPECTED, START_GRACE_S, Process
from sidecar.service.watched_files import has_terminal
from sidecar.settings.settings import Settings
from sidecar.settings.settings_file import SettingsFile
from sidecar.settings.watched_file import FileSecret
from sidecar.supervisor.replacing import BACKOFF_MAX_S, Ending, GiveUp, Place, after

ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
SIGNALS: Final = ENDING | {signal.SIGHUP, signal.SIGCHLD}
QUIET_S: Final = 3_600.0  # how long a wait for a signal lasts when there is nothing to do

log = logging.getLogger(__name__)


def supervise(settings: Settings, source: SettingsFile | None) -> int:
    """Run `settings.processes` processes until SIGTERM or SIGINT, or until one can't start; returns the exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started this may have ignored it: then no end is ever told
    stop_starting = StopStarting()
    handlers = {number: signal.signal(number, stop_starting) for number in ENDING}
    with ExitStack() as stack:
        try:
            listening = listening_of(settings.api)
            sockets = open_sockets(settings.api.host, settings.api.port, listening)
            stack.callback(sockets.close)
            services = start_services(settings, log.info)
            stack.callback(services.stop)
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="tickover-")))
            gc.collect()
            gc.freeze()  # a collection would write to what all share
            # From now on signals wait until they are asked for: nothing is interrupted, and none is lost.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            if stop_starting.is_asked:
                raise KeyboardInterrupt
        except EXPECTED as error:
            log.critical("can't start", extra={"error": str(error) or type(error).__name__})
            return EXIT_FAILED
        except KeyboardInterrupt:
            log.info("stopped before everything was started")
            return EXIT_OK
        for number, handler in handlers.items():  # the processes begin with them
            signal.signal(number, handler)
        return Supervisor(settings, source, sockets, services, directory).run()


class StopStarting:
    """Asked to stop while services start: what was started is stopped, and nobody interrupts that.

    What it raises is lost where Python says no more of an exception than that it was ignored, in a finalizer that a
    collection runs for instance: so whoever has started all looks at `is_asked`.
    """

    def __init__(self) -> None:
        self.is_asked = False

    def __call__(self, _number: int, _frame: FrameType | None) -> NoReturn:
        self.is_asked = True
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt


def settings_for(settings: Settings, number: int, services: Services) -> Settings:
    """Settings of process `number`, 1 ...: a member's name of its own, where the supervisor's own services are, and
    Kafka's secrets as their files have them now, since a process that starts late was told of no change.
    """
    client = {name: _as_of_now(value) for name, value in settings.kafka.client.items()}
    kafka: dict[str, object] = {"client": client}
    redis: dict[str, object] = {}
    if services.kafka is not None:
        kafka["bootstrap_servers"] = services.bootstrap
    if services.redis is not None:
        redis["url"] = services.redis_url
    return settings.model_copy(
        update={
            "instance_id": settings.instance_id and f"{settings.instance_id}-{number}",
            "kafka": settings.kafka.model_copy(update=kafka),
            "redis": settings.redis.model_copy(update=redis),
        }
    )


def _as_of_now(value: str | SecretStr) -> str | SecretStr:
    if not isinstance(value, FileSecret):
        return value
    try:
        return FileSecret(value.now(), value.path)
    except (OSError, ValueError) as error:  # somebody is just writing it: the process looks at it again
        log.warning("a secret can't be read again", extra={"file": str(value.path), "error": type(error).__name__})
        return value


@dataclass(frozen=True, slots=True)
class Running:
    """A process that runs, and the supervisor's end of a pair of sockets: it says whether the process has started, and
    tells the process that the supervisor is gone.
    """

    pid: int
    link: socket.socket
    since_s: float


class Supervisor:
    """`run` returns when all processes have ended. To be called with `SIGNALS` blocked."""

    def __init__(
        self,
        settings: Settings,
        source: SettingsFile | None,
        sockets: Sockets,
        services: Services,
        directory: Path,
    ) -> None:
        self._settings = settings
        self._source = source
        self._sockets = sockets
        self._services = services
        self._directory = directory
        numbers = range(1, settings.processes + 1)
        self._places = dict.fromkeys(numbers, Place())
        self._running: dict[int, Running] = {}
        self._due_s = dict.fromkeys(numbers, 0.0)  # when a place without a process has one again, monotonic
        self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()  # not by nohup

    def run(self) -> int:
        """Start the processes, and replace those that end, until a signal or one that can't start ends all."""
        while True:
            now_s = time.monotonic()
            for number in [number for number, due_s in self._due_s.items() if due_s <= now_s]:
                self._start(number)
            wait_s = min((due_s - now_s for due_s in self._due_s.values()), default=QUIET_S)
            came = signal.sigtimedwait(SIGNALS, max(wait_s, 0.0))
            if came is not None and self._says_stop(came.si_signo):
                return self._stop(EXIT_OK)
            if (status := self._replace()) is not None:
                return self._stop(status)

    def _start(self, number: int) -> None:
        pair: tuple[socket.socket, ...] = ()
        try:
            link, theirs = pair = socket.socketpair()
            pid = os.fork()
        except OSError as error:  # without memory or files, or too many processes: the others go on
            log.error("no process can be made", extra={"number": number, "error": error.strerror})
            self._due_s[number] = time.monotonic() + BACKOFF_MAX_S
            for end in pair:
                end.close()
            return
        if pid == 0:
            for one in (link, *(other.link for other in self._running.values())):
                one.close()  # else no process would see the supervisor's end
            self._be(number, theirs)
        theirs.close()
        del self._due_s[number]
        self._running[number] = Running(pid, link, time.monotonic())
        log.info("started a process", extra={"number": number, "pid": pid})

    def _be(self, number: int, link: socket.socket) -> NoReturn:
        """Process `number`, from its first moment to its last."""
        try:
            signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))  # until it has its own
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            configure_logs(self._settings.log, process=number)

            def end_with_supervisor() -> None:
                while link.recv(1):
                    pass
                os.kill(os.getpid(), signal.SIGTERM)

            in_background(end_with_supervisor)
            settings, source = self._told(number)
            shared = Siblings(number, settings.processes, self._sockets, self._directory, settings.api.path)
            Process(settings, source=source, shared=shared).run(lambda: link.send(b"s"))
        except BaseException:  # no way out of here may lead into the supervisor's code
            log.critical("a process failed", exc_info=True)
        finally:
            os._exit(EXIT_FAILED)

    def _told(self, number: int) -> tuple[Settings, SettingsFile | None]:
        """The settings of a process, and how it reads them again."""
        told, source = partial(settings_for, number=number, services=self._services), self._source
        if source is None:
            return told(self._settings), None
        load = source.load
        return told(self._settings), source._replace(load=lambda: told(load()))

    def _says_stop(self, number: int) -> bool:
        """Pass SIGHUP on, unless it says that the terminal is gone; True: all are to end."""
        match number:
            case signal.SIGTERM | signal.SIGINT:
                pass
            case signal.SIGHUP if not self._has_terminal or has_terminal():
                self._signal(signal.SIGHUP)
                return False
            case signal.SIGHUP:
                pass
            case _:
                return False
        log.info("asked to stop", extra={"signal": signal.Signals(number).name})
        return True

    def _signal(self, which: signal.Signals) -> None:
        for running in self._running.values():
            os.kill(running.pid, which)  # one that has ended is a zombie until it was waited for

    def _ended(self) -> dict[int, Ending]:
        """The places whose processes have ended since the last time, and how."""
        endings = {}
        for number, running in tuple(self._running.items()):
            pid, status = os.waitpid(running.pid, os.WNOHANG)
            if not pid:
                continue
            has_started = bool(running.link.recv(1))  # the other end is closed: it doesn't wait
            running.link.close()
            del self._running[number]
            ran_s = time.monotonic() - running.since_s
            endings[number] = Ending(os.waitstatus_to_exitcode(status), has_started, ran_s)
        return endings

    def _replace(self) -> int | None:
        """Look who has ended, and when others take their places; a status: end with it."""
        for number, ending in self._ended().items():
            self._places[number], verdict = after(self._places[number], ending)
            told = {"number": number, "ending": ending.words, "ran_s": round(ending.ran_s, 1)}
            if isinstance(verdict, GiveUp):
                log.critical("a process can't start: all end", extra=told)
                return verdict.status
            log.error("a process has ended, and is replaced", extra={**told, "wait_s": verdict.wait_s})
            self._due_s[number] = time.monotonic() + verdict.wait_s
        return None

    def _stop(self, status: int) -> int:
        """End all in order, in the time that one process has; the status, or the first one that isn't 0."""
        self._sockets.close()  # who connects from now on is refused as soon as the processes let go of them
        self._signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self._settings.shutdown_timeout_ms / 1_000 + START_GRACE_S
        while self._running and (left_s := deadline_s - time.monotonic()) > 0:
            signal.sigtimedwait({signal.SIGCHLD}, left_s)
            for number, ending in self._ended().items():
                if ending.status:
                    log.error("a process did not stop in order", extra={"number": number, "ending": ending.words})
                status = status or ending.exit_status
        for number, running in self._running.items():
            log.error("a process did not stop in time, and is killed", extra={"number": number})
            os.kill(running.pid, signal.SIGKILL)
            os.waitpid(running.pid, 0)
            status = status or EXIT_FAILED
        log.info("stopped")
        return status
