"""Shared by the benchmarks: a real Kafka and a bundled Valkey of their own, the sidecar as a process, the report."""

import contextlib
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition, libversion
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.timed_turns import VARIABLE
from sidecar.embedded.child import free_port
from sidecar.embedded.java_kafka import MavenKafka
from sidecar.embedded.kafka import ReferenceKafka
from sidecar.embedded.valkey import EmbeddedValkey

ROOT: Final = Path(__file__).resolve().parent.parent
PARTITIONS: Final = 4
JAVA_OPTIONS: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch")  # Kafka's own heap
SOURCE: Final = "bench-source"
START_S: Final = 60.0
STOP_S: Final = 20.0
LOOK_S: Final = 0.1
POLICIES: Final = """\
name: bench
match: {topics: ["bench-source*"]}
delay: {max: 30d}
target: {allow: ["bench-target*"]}
"""


class BenchmarkError(Exception):
    """The benchmark has no result: something lost, changed, or too slow to wait for."""


class Bench:
    """Kafka, or the reference broker, and Valkey in a directory of their own, gone at the end."""

    def __init__(self, reference: bool = False) -> None:
        gc.disable()  # millions of results, no cycles
        self._directory = tempfile.TemporaryDirectory(prefix="tickover-bench-")
        self.path = Path(self._directory.name)
        self.kafka: MavenKafka | ReferenceKafka = (
            ReferenceKafka(self.path / "kafka")
            if reference
            else MavenKafka(self.path / "kafka", java_options=JAVA_OPTIONS)
        )
        self.valkey = EmbeddedValkey(self.path / "valkey", free_port())
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Bench":
        self._closing.callback(self._directory.cleanup)
        self._closing.callback(self.valkey.stop)
        self._closing.callback(self.kafka.stop)
        self.kafka.start()
        self.valkey.start()
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        (self.path / "policies.yaml").write_text(POLICIES)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            for log in self.path.glob("*.log"):
                print(f"--- {log.name}\n{log.read_text()[-3_000:]}", file=sys.stderr)
        self._closing.close()

    def topics(self, *names: str, **config: str) -> None:
        """Create topics; the broker stamps what is appended to targets, so that lateness is Kafka's own measure.
        `config` of all of them: `max_message_bytes` is `max.message.bytes`.
        """
        given = {name.replace("_", "."): value for name, value in config.items()}
        wanted = [
            NewTopic(
                name,
                PARTITIONS,
                1,
                config=given | ({} if name.startswith(SOURCE) else {"message.timestamp.type": "LogAppendTime"}),
            )
            for name in names
        ]
        for future in self.admin.create_topics(wanted).values():
            future.result()

    def delete(self, *names: str) -> None:
        """Delete topics: a source that is done with would be read again by the next group."""
        for future in self.admin.delete_topics(list(names)).values():
            future.result()

    def wait_for_group(self, group: str, child: "Child") -> None:
        """Until a child has joined."""
        wait_until(lambda: self._is_stable(group) or child.check(), START_S, f"the group {group} has its member")

    def _is_stable(self, group: str) -> bool:
        try:
            found = self.admin.describe_consumer_groups([group])[group].result()
        except KafkaException:  # not there yet
            return False
        return any(member.assignment.topic_partitions for member in found.members)

    def committed(self, group: str, topic: str) -> int:
        """Sum of the offsets that a group has committed: everything below is settled or in the overflow's care."""
        wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, part) for part in range(PARTITIONS)])]
        answer = self.admin.list_consumer_group_offsets(wanted)[group].result()
        return sum(max(partition.offset, 0) for partition in answer.topic_partitions)

    def child(self, module: str, *arguments: str) -> "Child":
        """Start another program of this directory."""
        return Child([sys.executable, "-m", module, *arguments], self.path / f"{module}.log", {})

    def sidecar(self, group: str, **settings: str) -> "Sidecar":
        """A sidecar with default settings beside those given by their names, `__` for nesting."""
        port = free_port()
        given = {
            "group": group,
            "kafka__bootstrap_servers": self.kafka.bootstrap,
            "redis__url": self.valkey.url,
            "policies__file": str(self.path / "policies.yaml"),
            "api__port": str(port),
            "log__level": "warning",
            **settings,
        }
        environment = {f"TICKOVER_{name.upper()}": value for name, value in given.items()}
        return Sidecar(self.path / f"{group}.log", environment, f"http://127.0.0.1:{port}")

    @property
    def turns(self) -> Path:
        """Where sidecars that are asked to (`test_turns`) note their engine's long turns."""
        return self.path / "turns"


class Child:
    """A child process and what it costs."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log.open("ab")
        self.started_s = time.time()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=self._log, stderr=self._log
        )

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cpu_s(self, pid: int = 0) -> float:
        """Processor time so far, all threads, of this process or of another one."""
        fields = Path(f"/proc/{pid or self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Resident memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

    def check(self) -> bool:
        """False: not there yet. Raises BenchmarkError when it has ended badly."""
        if self.process.poll():
            raise BenchmarkError(f"{self.process.args!r} ended with status {self.process.returncode}")
        return False

    def stop(self) -> None:
        """SIGTERM, then SIGKILL. Twice is harmless."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


class Sidecar(Child):
    """`python -m sidecar run`."""

    def __init__(self, log: Path, environment: Mapping[str, str], url: str) -> None:
        self.url = url
        module = "benchmarks.timed_turns" if VARIABLE in environment else "sidecar"
        super().__init__([sys.executable, "-m", module, "run"], log, environment)

    def get(self, path: str) -> Any:
        """One answer of the REST interface."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)

    def count(self, name: str) -> int:
        """One count of /v1/stats, over all topics; 0 while it has no engine yet."""
        try:
            topics = self.get("/v1/stats")["topics"]
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return 0
        return sum(int(counts[name]) for counts in topics.values())

    def metric(self, name: str) -> float:
        """One sample without labels of /metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))

    def sum_of(self, name: str) -> float:
        """All samples of one name of /metrics, added up."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def in_overflow(self) -> int:
        """Records in the overflow, those on their way there included."""
        return sum(int(counts["held"]["overflow"]) for counts in self.get("/v1/stats")["topics"].values())

    def is_up(self) -> bool:
        """True when the sidecar answers /livez, ready or not."""
        return self._answers("/livez")

    def wait_ready(self) -> None:
        """Until its share of the group is recovered."""
        wait_until(lambda: self._answers("/readyz"), START_S, "the sidecar is ready")
        self.ready_s = time.time() - self.started_s

    def _answers(self, path: str) -> bool:
        self.check()
        try:
            self.get(path)
        except (urllib.error.URLError, ConnectionError):
            return False
        return True


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)


def sleep_until(moment_s: float) -> None:
    """A benchmark's own clock: wall time."""
    time.sleep(max(moment_s - time.time(), 0.0))


@dataclass(frozen=True, slots=True)
class Report:
    """A table with what it takes to judge it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caveats: Sequence[str]

    def show(self) -> None:
        """Print it: command, machine, table, caveats."""
        name = Path(sys.argv[0]).stem
        print(f"command: python -m benchmarks.{' '.join([name, *sys.argv[1:]])}")
        print(f"machine: {machine()}")
        print(f"date:    {time.strftime('%Y-%m-%d %H:%M')}, load average {os.getloadavg()[0]:.1f} at the end")
        table = Table(*self.columns)
        for row in self.rows:
            table.add_row(*row)
        Console(width=130).print(table)
        for caveat in self.caveats:
            print(f"caveat: {caveat}")


def machine() -> str:
    """Processor, memory and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{model}, {os.cpu_count()} cores, {memory_gb:.0f} GB; {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, librdkafka {libversion()[0]}"
    )


def percentile(ordered: Sequence[int], share: float) -> int:
    """Of sorted values."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
