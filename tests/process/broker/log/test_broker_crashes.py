"""A broker that is killed while records are produced: what it had acknowledged is there when it is back."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.records.record_batch import check_crc, whole_batches
from broker.records.records import read_records
from purgatory.errors import Errors
from tests.services.fixtures import own_broker
from tests.services.forgetful_broker import forget
from tests.services.kafka_servers import ReferenceServer
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until
from tests.unit.log_world import NOW_MS, batch

pytestmark = pytest.mark.slow

LIVES: Final = 3
PRODUCERS: Final = 4
RECORDS_OF_A_LIFE: Final = 300
WAIT_S: Final = 120.0


class Producing:
    """Clients that produce to one partition, one batch after the other, until their broker is gone."""

    def __init__(self, bootstrap: str, life: int) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self._bootstrap = bootstrap
        self._threads = [
            threading.Thread(target=self._run, args=(b"%d-%d" % (life, number),)) for number in range(PRODUCERS)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def _run(self, name: bytes) -> None:
        with RawClient(self._bootstrap) as client:
            for number in range(1_000_000):
                values = [b"%s-%d-%d" % (name, number, index) * (1 + number % 40) for index in range(1 + number % 3)]
                try:
                    answer = client.produce("topic", batch(*values, timestamp=NOW_MS))
                except OSError:
                    return
                assert answer.error_code == Errors.NONE
                self.acknowledged.update(enumerate(values, answer.base_offset))


def read_all(bootstrap: str) -> dict[int, bytes | None]:
    """Every record by its offset; all are whole, and none is missing in between."""
    found: dict[int, bytes | None] = {}
    with RawClient(bootstrap) as client:
        while data := client.fetch("topic", len(found)).records:
            for header, position in whole_batches(data):
                check_crc(header, data, position)
                for record in read_records(header, data, position):
                    assert record.offset == len(found)
                    found[record.offset] = record.value
    return found


class Crashing:
    """A broker in a process of its own, with a topic, and how it goes: killed, and with the power, if it forgets."""

    def __init__(self, directory: Path, *, forgets: bool) -> None:
        self.data, self.journal = directory, directory / "flushed"
        program = (sys.executable, "-m", "tests.services.forgetful_broker", str(self.journal))
        self.server = ReferenceServer(directory, program) if forgets else ReferenceServer(directory)
        self.forgets = forgets

    def crash(self) -> int:
        """The bytes that were lost."""
        self.server.kill()
        return forget(self.journal, self.data) if self.forgets else 0


@pytest.fixture
def crashing(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crashing]:
    crashing = Crashing(tmp_path, forgets=request.param)
    with own_broker(crashing.server):
        yield crashing


def lives(crashing: Crashing, **config: Any) -> Iterator[tuple[dict[int, bytes], dict[int, bytes | None], int]]:
    """Of each life: the values acknowledged, those there when the broker is back, both by offset; the bytes lost."""
    with RawClient(crashing.server.bootstrap) as client:
        assert client.create_topic("topic", **config).error_code == Errors.NONE
    for life in range(LIVES):
        producing = Producing(crashing.server.bootstrap, life)
        wait_until(lambda of=producing: len(of.acknowledged) > RECORDS_OF_A_LIFE, WAIT_S)  # type: ignore[misc]
        lost = crashing.crash()
        producing.join()
        crashing.server.start()
        yield producing.acknowledged, read_all(crashing.server.bootstrap), lost


@pytest.mark.parametrize("crashing", [True], indirect=True)
def test_a_loss_of_power_takes_nothing_that_was_acknowledged_after_a_flush(crashing: Crashing) -> None:
    kept: dict[int, bytes] = {}
    for acknowledged, found, _ in lives(crashing, flush_messages="1"):
        kept |= acknowledged
        assert {offset: found.get(offset) for offset in kept} == kept


@pytest.mark.parametrize("crashing", [False], indirect=True)
def test_a_kill_takes_nothing_that_was_acknowledged(crashing: Crashing) -> None:
    kept: dict[int, bytes] = {}
    for acknowledged, found, _ in lives(crashing):
        kept |= acknowledged
        assert {offset: found.get(offset) for offset in kept} == kept


@pytest.mark.parametrize("crashing", [True], indirect=True)
def test_without_a_flush_a_loss_of_power_is_one(crashing: Crashing) -> None:
    """Basis of the tests of a loss of power: the disk does forget, and the broker comes back with what it has."""
    acknowledged, found, lost = next(lives(crashing))
    assert lost > 0
    assert len(found) < len(acknowledged)
