"""A real Kafka node in a child process, from jars: Maven copies what `pom.xml` names into a cache, once per machine.

Broker and controller in one JVM, reachable only on the loopback interface. It is for trying out and for tests: one
replica, no security.
"""

import base64
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

from sidecar.embedded.child import Child, free_port

FETCH_TIMEOUT_S = 600
JARS_MB = 45
PROGRESS_INTERVAL_S = 5.0
MAVEN_LINES_MAX = 50  # kept for when it fails
JAVA_MAJOR_MIN = 17
START_TIMEOUT_S = 120.0  # three of them at once on a busy machine of two cores need a part of it
STOP_TIMEOUT_S = 20.0

Progress = Callable[[str], None]

_POM = Path(__file__).with_name("pom.xml")
_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}
_POLL_S = 0.05
_STARTED = b"Kafka Server started"
# A line of Maven's for each file: its name and size. Files of its own tools are among them.
_FETCHED = re.compile(r"Downloaded from \S+ \S*/(\S+\.jar) \(([\d.]+) (B|kB|MB)\b")
_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6}

_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "default.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # A broker stopped for a while must not lose what it holds for us the moment it is back.
    "log.retention.ms": "-1",
    "offsets.retention.minutes": "5256000",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

_LOG4J = """\
status = error
appender.file.type = File
appender.file.name = FILE
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = FILE
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
"""


class KafkaUnavailable(Exception):
    """No real Kafka can be started here; the text says what is missing."""


def silent(_text: str) -> None:
    """A progress callback that says nothing."""


def kafka_version() -> str:
    """The broker version that `pom.xml` names: written there and nowhere else."""
    version = ElementTree.parse(_POM).find("m:dependencies/m:dependency/m:version", _NAMESPACE)
    assert version is not None
    assert version.text is not None
    return version.text


def missing_tools() -> str | None:
    """Reason why a real broker can't run here, in words; None when it can."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    major = _java_major()
    if major is None:
        return "the version of java could not be read"
    if major < JAVA_MAJOR_MIN:
        return f"java {major} is too old, Kafka {kafka_version()} needs {JAVA_MAJOR_MIN}"
    return None


def fetch_jars(progress: Progress = silent) -> Path:
    """The directory with the broker's jars, fetched if this machine has not got them yet.

    Raises KafkaUnavailable when they could not be run here, or when Maven fails.
    """
    reason = missing_tools()
    if reason is not None:
        raise KafkaUnavailable(reason)
    directory = _cache_directory()
    marker = directory / ".complete"
    if marker.exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_suffix(".lock")):
        # Another process may have fetched them while this one waited for the lock.
        if not marker.exists():
            progress(f"Fetching Kafka {kafka_version()} by Maven (about {JARS_MB} MB, once)")
            _copy_dependencies(directory, progress)
            marker.touch()
    return directory


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with all its words in `stdout`. Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _copy_dependencies(directory: Path, progress: Progress) -> None:
    command = ["mvn", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    try:
        status, last_words = _follow(command, progress)
    except OSError as error:
        raise KafkaUnavailable(f"Maven could not fetch Kafka: {error}") from error
    if status != 0:
        words = " ".join(" ".join(last_words).split())[:500]
        raise KafkaUnavailable(f"Maven could not fetch Kafka: {words}")


def _follow(command: list[str], progress: Progress) -> tuple[int, list[str]]:
    """Run Maven, and tell every few seconds what it has fetched. Returns its status and the errors, or the last lines,
    of what it said. Ended by force after `FETCH_TIMEOUT_S`. Raises OSError."""
    said: deque[str] = deque(maxlen=MAVEN_LINES_MAX)
    fetched_bytes, next_s = 0.0, time.monotonic() + PROGRESS_INTERVAL_S
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as maven:
        limit = threading.Timer(FETCH_TIMEOUT_S, maven.kill)
        limit.start()
        assert maven.stdout is not None
        for line in maven.stdout:
            said.append(line)
            if found := _FETCHED.search(line):
                fetched_bytes += float(found[2]) * _UNITS[found[3]]
                if time.monotonic() >= next_s:
                    next_s = time.monotonic() + PROGRESS_INTERVAL_S
                    progress(f"Fetching Kafka: {fetched_bytes / 1e6:.0f} of about {JARS_MB} MB, now {found[1]}")
        is_over = not limit.is_alive()
        limit.cancel()
    if is_over:
        return maven.returncode, [f"it took longer than {FETCH_TIMEOUT_S} s"]
    return maven.returncode, [line for line in said if line.startswith("[ERROR]")] or list(said)


def _cache_directory() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # The digest keeps an older checkout's jars apart from this one's.
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]
    return root / "tickover" / f"kafka-{kafka_version()}-{digest}"


def _java_major() -> int | None:
    """The major version of the `java` on the path: 17 for `version "17.0.15"`, 1 for the old `1.8`."""
    try:
        result = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=30)
        return int(result.stderr.split('"')[1].split(".")[0].split("-")[0])
    except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class MavenKafka:
    """One real Kafka node in a child process that dies with this one.

    Keeps its ports and its data over `stop()` or `kill()` and `start()`. `properties` and `java_options` go over the
    defaults.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        progress: Progress = silent,
        properties: Mapping[str, str] = MappingProxyType({}),
        java_options: Sequence[str] = (),
    ) -> None:
        self._directory = data_dir.absolute()
        self._progress = progress
        self._port = port or free_port()
        self._controller_port = free_port()
        self._properties = dict(properties)
        self._java_options = tuple(java_options)
        self._child: Child | None = None

    @property
    def description(self) -> str:
        """Kind of broker, in words for the user."""
        return f"Kafka {kafka_version()}, a real broker from Maven jars"

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        """The broker's own log file: warnings and errors."""
        return self._directory / "broker.log"

    def start(self) -> None:
        """Fetch the jars and format the storage if need be, start, and return when clients can be served.

        Raises KafkaUnavailable with the broker's last words.
        """
        if self._child is not None:
            return
        jars = fetch_jars(self._progress)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        self._format(jars)
        seen = self.log.stat().st_size if self.log.exists() else 0
        self._child = self._launch(jars)
        try:
            self._wait_until_started(self._child, seen)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in order, or by force when it takes too long; twice is harmless."""
        child, self._child = self._child, None
        if child is not None and not child.stop(STOP_TIMEOUT_S):
            self._progress("Kafka did not stop in time and is killed")

    def kill(self) -> None:
        """SIGKILL, as a crash would; twice is harmless."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _write_settings(self) -> None:
        controller = f"127.0.0.1:{self._controller_port}"
        properties = {
            **_PROPERTIES,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._directory / "log"),
            **self._properties,
        }
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        (self._directory / "server.properties").write_text("".join(lines))
        (self._directory / "log4j2.properties").write_text(_LOG4J.format(log=self.log))

    def _format(self, jars: Path) -> None:
        if (self._directory / "log" / "meta.properties").exists():
            return
        self._progress("Formatting Kafka's storage")
        command = [
            *self._java(jars),
            "-XX:TieredStopAtLevel=1",
            *self._java_options,
            "kafka.tools.StorageTool",
            "format",
        ]
        command += [
            "-t",
            _cluster_id(),
            "-c",
            str(self._directory / "server.properties"),
        ]
        result = _run(command, START_TIMEOUT_S)
        if result.returncode != 0:
            raise KafkaUnavailable(f"Kafka's storage could not be formatted: {_cause(result.stdout)}")

    def _launch(self, jars: Path) -> Child:
        self._progress("Starting Kafka")
        command = [*self._java(jars), "-Xms128m", "-Xmx512m", *self._java_options, "kafka.Kafka"]
        command.append(str(self._directory / "server.properties"))
        with (self._directory / "broker.out").open("wb") as output:
            return Child(command, output)

    def _wait_until_started(self, child: Child, seen: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if _STARTED in _tail(self.log, seen):
                return
            if child.has_ended:
                raise KafkaUnavailable(f"Kafka ended while starting: {self._last_words(seen)}")
            time.sleep(_POLL_S)
        raise KafkaUnavailable(f"Kafka did not start within {START_TIMEOUT_S:.0f} s: {self._last_words(seen)}")

    def _last_words(self, seen: int) -> str:
        words = _tail(self._directory / "broker.out", 0) + _tail(self.log, seen)
        return _cause(words.decode(errors="replace"))

    def _java(self, jars: Path) -> list[str]:
        settings = f"-Dlog4j2.configurationFile=file:{self._directory / 'log4j2.properties'}"
        return ["java", settings, "-cp", f"{jars}/*"]


def _cause(output: str) -> str:
    """The end of what a Java program said, without the frames of its stack traces."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("\tat "))[-1000:]


def _cluster_id() -> str:
    """Kafka's form of a UUID: 22 characters of base64; a leading `-` would be read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _tail(path: Path, start: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read()
