"""A source that loses the end of its log, as by an unclean election or a lost disk, under the same topic id."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.fixtures import own_broker, own_server
from tests.services.kafka import Kafka
from tests.services.kafka_servers import ChildServer
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(600)]

POLICIES = """
name: cut
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1d}
target: {topic: "~out"}
"""
REBUILT = (".index", ".timeindex", ".snapshot", ".kafka_cleanshutdown")  # by a broker that looks through its log


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ChildServer]:
    with own_broker(own_server(tmp_path / "broker")) as server:
        yield server


@pytest.fixture
def site(server: ChildServer, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(Kafka(server), redis_url, tmp_path)
    site.policies(POLICIES)
    site.topic("in")
    site.target("out")
    yield site
    site.close()


def cut_back(server: ChildServer, directory: Path, site: Site, end: int) -> None:
    """The broker comes back without the batches of the source from this offset on."""
    server.stop()
    [log] = directory.rglob(f"{site.name('in')}-0/*.log")
    data, size = log.read_bytes(), 0
    while size < len(data):
        first, length = struct.unpack_from(">qi", data, size)
        if first >= end:
            break
        size += struct.calcsize(">qi") + length
    assert size < len(data), "there is nothing to cut"
    os.truncate(log, size)
    for file in (*log.parent.iterdir(), *directory.rglob(REBUILT[-1])):
        if file.name.endswith(REBUILT):
            file.unlink()
    server.start()


def send(site: Site, count: int, word: str) -> list[bytes]:
    """In a batch of their own, or several."""
    sent = [f"{word} {number}".encode() for number in range(count)]
    site.kafka.produce(site.name("in"), [(b"key", value, [], 0, 0) for value in sent])
    return sent


def emitted(site: Site, count: int) -> list[bytes]:
    """All there are, once there are so many."""
    site.kafka.read(site.name("out"), count)
    return sorted(message.value() or b"" for message in site.kafka.read_all(site.name("out")))


def cuts(sidecar: Sidecar) -> list[tuple[int, int, int]]:
    said = [words for words in sidecar.messages("error") if "lost the end of its log" in words["message"]]
    return [(words["cut_back_to"], words["lost"], words["counts_from"]) for words in said]


def test_what_a_source_gets_since_its_log_was_cut_back_fires_once(
    site: Site, server: ChildServer, tmp_path: Path, guarantee: str
) -> None:
    sidecar = site.sidecar("one", GUARANTEE=guarantee).start()
    expected = send(site, 90, "kept") + send(site, 9, "lost")
    assert emitted(site, 99) == sorted(expected)
    site.send(site.name("in"), [("tickover-id", b"far"), ("tickover-delay", b"1h")], value=b"far")
    source = site.name("in")
    wait_until(lambda: sidecar.stats()["topics"][source]["held"]["overflow"] == 1, otherwise=sidecar.last_words)
    wait_until(site.is_in_redis, otherwise=sidecar.last_words)

    assert sidecar.stop() == 0
    cut_back(server, tmp_path / "broker", site, 90)
    expected += send(site, 20, "new")
    sidecar.start()
    assert emitted(site, 119) == sorted(expected)
    assert cuts(sidecar) == [(90, 10, 100)]

    expected += send(site, 10, "lost again")
    assert emitted(site, 129) == sorted(expected)
    cut_back(server, tmp_path / "broker", site, 110)  # while it is read
    expected += send(site, 15, "newest")
    assert emitted(site, 144) == sorted(expected)
    assert set(cuts(sidecar)) == {(90, 10, 100), (110, 10, 130)}, "once, or again where its transaction was aborted"

    answer = sidecar.call("POST", "/v1/messages/far/fire")
    assert answer.status_code == 200, answer.text
    assert emitted(site, 145) == sorted([*expected, b"far"]), "Redis has what the log lost"
    assert sidecar.stop() == 0
    known = cuts(sidecar)
    sidecar.start()
    expected += send(site, 1, "last")
    assert emitted(site, 146) == sorted([*expected, b"far"])
    assert cuts(sidecar) == known
    assert sidecar.stop() == 0
