"""The examples, run as they stand against a sidecar with the policies that stand beside them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sidecar.embedded.child import free_port
from tests.services.fixtures import missing
from tests.services.kafka import Kafka
from tests.services.kafka_servers import ReferenceServer
from tests.services.maven_jars import broker_jars
from tests.services.sidecar_process import Sidecar
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"
EXAMPLE_S = 180.0
BUILD_S = 300.0  # Go compiles its standard library first
TOPICS = ("reminders", "reminders-dlq", "push", "orders", "orders-retry", "orders-dlq")
LANGUAGES = ("python", "java", "go", "node")
GROUPS = {"python": "shop", "java": "java-shop", "go": "go-shop", "node": "node-shop"}
# A program lives for two seconds: to compile its code well takes longer than it saves.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")

Program = Callable[[str], list[str]]  # `send delayed` -> the command that runs the example


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables of the examples. The broker is their own, because the examples' topics have plain names."""
    directory = tmp_path_factory.mktemp("examples")
    server = ReferenceServer(directory / "kafka")
    server.start()
    try:
        kafka = Kafka(server)
        for name in TOPICS:
            kafka.create_topic(name)
        sidecar = Sidecar(
            {
                "KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
                "DATA_DIR": str(directory / "data"),
                "POLICIES__FILE": str(EXAMPLES / "policies.yaml"),
            },
            free_port(),
            directory / "sidecar.log",
        )
        try:
            sidecar.start()
            yield {**os.environ, "TICKOVER_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "TICKOVER_URL": sidecar.url}
        finally:
            sidecar.kill()
    finally:
        server.remove()


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Each in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def program(language: str, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """How examples in this language are run, once they are built."""
    match language:
        case "python":
            return lambda name: [sys.executable, str(EXAMPLES / f"{name.replace(' ', '_')}.py")]
        case "java":
            return java_program()
        case "go":
            return go_program(tmp_path_factory.mktemp("go"))
        case _:
            return node_program(tmp_path_factory.mktemp("node"))


def java_program() -> Program:
    """By the jars of the embedded Kafka; java compiles a single file by itself."""
    try:
        jars = broker_jars()
    except LookupError as error:
        missing("Kafka's jars", error)
        raise
    needed("javac")
    files = {"send delayed": "SendDelayed.java", "retrying consumer": "RetryingConsumer.java"}
    return lambda name: [*JAVA, "-cp", f"{jars}/*", str(EXAMPLES / "java" / files[name])]


def go_program(place: Path) -> Program:
    """Both programs, built; the modules are pinned by go.sum."""
    fetch([needed("go"), "mod", "download"], EXAMPLES / "go")
    built = run(
        [needed("go"), "build", "-mod=readonly", "-buildvcs=false", "-o", f"{place}/", "./..."], EXAMPLES / "go"
    )
    assert built.returncode == 0, built.stderr
    return lambda name: [str(place / name.replace(" ", ""))]


def node_program(place: Path) -> Program:
    """In a copy, which gets the packages that package-lock.json pins."""
    shutil.copytree(EXAMPLES / "node", place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    fetch([needed("npm"), "ci", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"], place)
    return lambda name: [needed("node"), str(place / f"{name.replace(' ', '-')}.js")]


def needed(tool: str) -> str:
    """Where the tool is."""
    found = shutil.which(tool)
    if found is None:
        missing(tool, "not installed")
    return str(found)


def fetch(command: list[str], place: Path) -> None:
    """Packages that the examples build on; where there is no registry, they are missing."""
    done = run(command, place)
    if done.returncode:
        missing(" ".join(command), done.stdout + done.stderr)


def run(command: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=place, text=True, capture_output=True, timeout=BUILD_S)


def output_of(command: list[str], environment: dict[str, str]) -> str:
    """Output of the example; it must end in order."""
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=EXAMPLE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def begin_at_the_end(bootstrap: str, group: str) -> None:
    """The group has read the orders of the examples before."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition("orders", 0), EXAMPLE_S)
        consumer.commit(offsets=[TopicPartition("orders", 0, end)], asynchronous=False)
    finally:
        consumer.close()


def test_send_delayed(language: str, program: Program, environment: dict[str, str]) -> None:
    more = r" after ([2-9]|\d\d+) s, with language=b'en'" if language == "python" else ""
    said = output_of(program("send delayed"), environment)
    assert re.fullmatch(rf"sent to reminders, for push in 2 s\narrived on push{more}\n", said), said


def test_retrying_consumer(language: str, program: Program, environment: dict[str, str]) -> None:
    begin_at_the_end(environment["TICKOVER_KAFKA__BOOTSTRAP_SERVERS"], GROUPS[language])
    assert output_of(program("retrying consumer"), environment) == (
        "order 1, attempt 1: the warehouse does not answer\n"
        "order 1, attempt 2: the warehouse does not answer\n"
        "order 1, attempt 3: done\n"
    )


def test_schedule_by_rest(environment: dict[str, str]) -> None:
    assert output_of([sys.executable, str(EXAMPLES / "schedule_by_rest.py")], environment) == (
        "202: written to reminders\nsent again: the same message\n422: No source\n"
    )


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_are_short(example: str) -> None:
    assert len((EXAMPLES / example).read_text().splitlines()) <= 40
