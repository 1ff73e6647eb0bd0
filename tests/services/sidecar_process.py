"""The sidecar as its users run it: `tickover run` as a child process with TICKOVER_ variables."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final
from weakref import WeakSet

import httpx

from tests.services.waiting import wait_until
from tests.source import ROOT

START_S = 120.0
STOP_S = 90.0  # more than a site gives its sidecars for it
ANSWER_S = 60.0
LAST_WORDS_BYTES = 8_000
# One for all questions: each client reads the system's certificates, which takes 20 ms of a processor's time.
CLIENT: Final = httpx.Client(timeout=ANSWER_S, limits=httpx.Limits(max_keepalive_connections=0))


class Sidecar:
    """One process; `start` may be called again after it has ended: it is then the next life of the same member.

    Started by one life, everything durable outlives it: Kafka and Redis are not its children.
    """

    known: ClassVar["WeakSet[Sidecar]"] = WeakSet()  # all: a failed test's report shows what those in it have said

    def __init__(self, settings: Mapping[str, str], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.failpoint = ""  # `name:n`: where the next life ends, see tests/faults/failpoints.py
        self.module = "sidecar"  # the program that the next life runs
        self.prefix: tuple[str, ...] = ()  # what the next life is run by, as `faketime`
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TICKOVER_")},
            **{f"TICKOVER_{name}": value for name, value in settings.items()},
            "TICKOVER_API__PORT": str(port),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._output: BinaryIO | None = None
        self._log_began_at = 0
        Sidecar.known.add(self)

    @property
    def settings(self) -> dict[str, str]:
        """The variables by which it is told its settings."""
        return {name: value for name, value in self._environment.items() if name.startswith("TICKOVER_")}

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> "Sidecar":
        """Start it and return when it is ready."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting for anything."""
        assert self._process is None, "it runs already"
        self._output = self.log.open("ab")
        self._log_began_at = self.log.stat().st_size
        module, environment = self.module, self._environment
        if self.failpoint:
            module, environment = "tests.faults.failpoints", {**environment, "TICKOVER_TEST_FAILPOINT": self.failpoint}
        self.readiness = ""  # what /readyz said last
        command = [*self.prefix, sys.executable, "-m", module, "run"]
        self._process = subprocess.Popen(command, env=environment, stdout=self._output, stderr=self._output, cwd=ROOT)

    def wait_until_ready(self) -> None:
        """Until /readyz says that partitions are recovered and all services answer."""
        wait_until(self.is_ready, START_S, lambda: f"not ready: {self.readiness} {self.last_words()}")

    def is_ready(self) -> bool:
        """Whether /readyz answers 200; AssertionError when the sidecar has ended."""
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"the sidecar ended with {status} while starting: {self.last_words()}"
        try:
            answer = CLIENT.get(f"{self.url}/readyz")
        except httpx.TransportError as error:
            self.readiness = repr(error)
            return False
        self.readiness = answer.text
        return answer.status_code == httpx.codes.OK

    def stop(self) -> int:
        """SIGTERM, as an orchestrator does; returns the exit status.

        0 also where the signal came before the command had begun: it ends the interpreter, and nothing was started.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        status = self.wait_until_ended()
        unheard = status == -signal.SIGTERM and self.log.stat().st_size == self._log_began_at
        return 0 if unheard else status

    def interrupt(self) -> None:
        """SIGTERM, without waiting for the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def hang_up(self) -> None:
        """SIGHUP: it is to look at its files again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL, at whatever it is doing; twice is harmless."""
        if self._process is not None:
            self._process.kill()
            self.wait_until_ended()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, and nobody is told."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        """False when it has ended, or was never started."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> bool:
        """True when it was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def wait_until_ended(self, timeout_s: float = STOP_S) -> int:
        """Exit status of the process; 0 when none runs. AssertionError after `timeout_s`: then it is killed."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the sidecar did not end within {timeout_s} s: {self.last_words()}") from None
        finally:
            if self._output is not None:
                self._output.close()

    # --- what it says ---------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request to its API."""
        headers = {"Tickover-Client": "tests", **options.pop("headers", {})}
        return CLIENT.request(method, self.url + path, headers=headers, **options)

    def answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """As `call`, asked again while it says that what it needs doesn't answer for now, as a client would."""
        answers = [self.call(method, path, **options)]

        def told() -> bool:
            if answers[-1].status_code == httpx.codes.SERVICE_UNAVAILABLE:
                answers.append(self.call(method, path, **options))
            return answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

        wait_until(told, START_S, lambda: answers[-1].text)
        return answers[-1]

    def stats(self) -> dict[str, Any]:
        """GET /v1/stats."""
        document: dict[str, Any] = self.call("GET", "/v1/stats").json()
        return document

    def partitions(self) -> int:
        """How many source partitions it has and has recovered."""
        return int(self.stats()["partitions"]["assigned"])

    def messages(self, level: str) -> list[dict[str, Any]]:
        """Log records of one level so far."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record.get("level") == level]

    def peak_memory_bytes(self) -> int:
        """The most physical memory that it has had."""
        return self._memory_bytes("VmHWM")

    def memory_bytes(self) -> int:
        """Physical memory that it has now."""
        return self._memory_bytes("VmRSS")

    def _memory_bytes(self, name: str) -> int:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace")


def now_ms() -> int:
    """Wall clock of this machine, which is the brokers' too; epoch ms."""
    return time.time_ns() // 1_000_000
