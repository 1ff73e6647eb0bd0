"""A few rounds of the nemesis on real brokers, and the network that it cuts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sidecar.embedded.java_kafka import KafkaUnavailable
from tests.integration.conftest import SOAK
from tests.nemesis.__main__ import parse, run
from tests.nemesis.network import NAMESPACES, Namespaces, NetworkUnavailableError, sweep
from tests.nemesis.network import run as run_command
from tests.nemesis.report import goals, goals_table, rounds_table
from tests.nemesis.rounds import LEADER_KILLED
from tests.services.fixtures import missing

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(1_500)]

NODES: Final = ("broker-1", "broker-2", "broker-3", "sidecar-1", "sidecar-2")
CUT: Final = "sidecar and broker cut both ways"
ROUNDS: Final = (LEADER_KILLED, "broker to broker cut one way", CUT) if SOAK else (LEADER_KILLED, CUT)
# Only that it goes on: two cores at full load, with other tests. What is aimed at is measured by `make nemesis`.
EMITTING_MAX_S: Final = 300.0
LATE_MAX_S: Final = 600.0
PORT: Final = 4_000
LISTEN: Final = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
    sink.bind(("", PORT))
    sink.settimeout(60)
    print("listens", flush=True)
    while (word := sink.recv(100)) != b"end":
        print(word.decode(), flush=True)
""".replace("PORT", str(PORT))
SAY: Final = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
    source.sendto(sys.argv[1].encode(), (sys.argv[2], PORT))
""".replace("PORT", str(PORT))


@pytest.fixture
def network() -> Iterator[Namespaces]:
    """Links that can be cut; gone after the test, whatever happens."""
    try:
        network = Namespaces(NODES)
    except NetworkUnavailableError as error:
        missing("a network to be cut", error)
        raise
    try:
        yield network
    finally:
        network.close()


def test_whatever_is_cut_frozen_or_killed_nothing_is_lost_repeated_or_early(
    network: Namespaces, tmp_path: Path
) -> None:
    only = [word for kind in ROUNDS for word in ("--only", kind)]
    given = parse(["--minutes", "0", "--seed", "1", "--rate", "60", *only])
    try:
        result = run(tmp_path, network, given, uncut="")
    except KafkaUnavailable as error:
        missing("Kafka from maven", error)
        raise
    told = f"{rounds_table(result.rows)}\n\n{goals_table(goals(result.rows))}\n\n{result.verdict}"
    print(f"\n{told}")
    assert [row.kind for row in result.rows] == list(ROUNDS), told
    for row in result.rows:
        assert not row.error, row.error
        assert row.due > 0, told
        assert (row.lost, row.repeated, row.early) == (0, 0, 0), told
        assert row.late_s_most <= LATE_MAX_S, told
        assert max(row.resumed_s or 0, row.after_s or 0) <= EMITTING_MAX_S, told
    killed, *cuts = result.rows
    assert killed.failover_s is not None
    assert all((cut.lasted_s or 0) > 0 for cut in cuts), "the link was cut for a while"
    assert not result.violated, "\n".join([told, *result.verdict.faults])


def say(network: Namespaces, source: str, word: str, address: str) -> None:
    command = [*network.prefix(source), sys.executable, "-c", SAY, word, address]
    subprocess.run(command, check=True, timeout=60)


def test_a_link_is_cut_one_way_and_mended(network: Namespaces) -> None:
    one, other, third = NODES[:3]
    with subprocess.Popen(
        [*network.prefix(other), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        heard = iter(listener.stdout.readline, "")
        assert next(heard) == "listens\n"
        address = network.address(other)
        say(network, one, "before", address)
        network.cut(other, one)
        say(network, one, "while the way back is cut", address)
        network.cut(one, other)
        say(network, one, "never", address)
        say(network, third, "from a third", address)
        network.mend()
        say(network, one, "after", address)
        say(network, one, "end", address)
        assert [line.strip() for line in heard] == ["before", "while the way back is cut", "from a third", "after"]


def test_a_network_goes_without_a_trace(network: Namespaces) -> None:
    mine = network.prefix(NODES[0])[-1]
    assert (NAMESPACES / mine).exists()
    network.close()
    network.close()
    assert not list(NAMESPACES.glob(mine.replace(NODES[0], "*")))
    assert network.address("host").rpartition(".")[0] not in run_command("ip", "-4", "route")


def test_what_a_killed_nemesis_has_left_is_swept_away(network: Namespaces) -> None:
    left = network.prefix(NODES[0])[-1].split("-")
    left[2] = str(1 << 22)  # no process has this id
    name = "-".join(left)
    run_command("ip", "netns", "add", name)
    sweep()
    assert not (NAMESPACES / name).exists()
    assert (NAMESPACES / network.prefix(NODES[0])[-1]).exists(), "the owner of this one lives"
