"""Kafka's own command line tools, each as a process of its own, as users run them."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.services.class_archive import QUICK
from tests.services.maven_jars import broker_jars, fetch_test_jars

POM = Path(__file__).with_name("kafka-tools.xml")
END_S = 120.0  # of a tool that takes 2 s: a JVM starts slowly on a busy machine

MAINS: Mapping[str, str] = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsoleConsumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
PACKAGE = "org.apache.kafka.tools"
JAVA_OPTIONS = (*QUICK, "-Xshare:auto", "-Xmx256m")

_LOG4J = """\
status = error
appender.words.type = Console
appender.words.name = WORDS
appender.words.target = SYSTEM_ERR
appender.words.layout.type = PatternLayout
appender.words.layout.pattern = %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.words.ref = WORDS
"""


class JavaTools:
    """The tools against one broker; what they write goes to `directory`. LookupError: Java, Maven or jars missing."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        classes = f"{fetch_test_jars(POM)}/*:{broker_jars()}/*"
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J)
        java = shutil.which("java") or "java"
        self._java = [java, *JAVA_OPTIONS, f"-Dlog4j2.configurationFile=file:{log4j}", "-cp", classes]

    def run(self, tool: str, *arguments: str, stdin: str = "", status: int = 0) -> str:
        """Output of the tool, its errors too where it shall fail; AssertionError with all that it said if it ends with
        another status than this."""
        done = subprocess.run(
            self._command(tool, arguments), input=stdin, capture_output=True, text=True, timeout=END_S, check=False
        )
        said = f"{tool} {' '.join(arguments)}\nstatus {done.returncode}\n{done.stdout}\n--- stderr\n{done.stderr}"
        assert done.returncode == status, said
        print(said)  # pytest shows it when the test fails
        return done.stdout + done.stderr if status else done.stdout

    @contextmanager
    def started(self, tool: str, *arguments: str) -> Iterator["RunningTool"]:
        """A tool that goes on until it is told to end; it is gone at the end in any case."""
        words = (self._directory / f"{tool}-{len(list(self._directory.iterdir()))}.log").open("w+")
        process = subprocess.Popen(
            self._command(tool, arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words, text=True
        )
        running = RunningTool(process, words)
        try:
            yield running
        finally:
            running.close()

    def _command(self, tool: str, arguments: Sequence[str]) -> list[str]:
        return [*self._java, MAINS.get(tool, f"{PACKAGE}.{tool}"), "--bootstrap-server", self._bootstrap, *arguments]


class RunningTool:
    """A tool that tells events as JSON, one to a line."""

    def __init__(self, process: subprocess.Popen[str], words: IO[str]) -> None:
        self._process = process
        self._words = words
        self.events: list[dict[str, Any]] = []

    def wait_for(self, name: str) -> dict[str, Any]:
        """The next event of this name. It comes or the tool ends; pytest's time limit is above both."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            if event["name"] == name:
                return event
        raise AssertionError(f"no {name} came, but {self.events}; it said {self._said()}")

    def terminate(self) -> list[dict[str, Any]]:
        """SIGTERM, on which tools say goodbye; all their events."""
        self._process.terminate()
        assert self._process.stdout is not None
        self.events += [json.loads(line) for line in self._process.stdout]
        self._process.wait(END_S)
        return self.events

    def close(self) -> None:
        """End it if it goes on. Twice is harmless."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._words.close()

    def _said(self) -> str:
        self._words.seek(0)
        return self._words.read()[-2_000:]
