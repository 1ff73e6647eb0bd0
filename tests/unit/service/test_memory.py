"""Memory that is needed no more."""

import gc

import pytest

from sidecar.model.stats import Stats, TopicCounts
from sidecar.service import housekeeping
from sidecar.service.housekeeping import BUSY_RECORDS, GARBAGE_HELD_MAX, Memory, give_back


class Process:
    """A process: its engine's counts, and what was done about its memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = TopicCounts()
        self.collected = self.given_back = 0
        self._memory = Memory(lambda: Stats(topics={"reminders": self.counts}))
        monkeypatch.setattr(housekeeping, "give_back", self._give_back)
        monkeypatch.setattr(gc, "collect", self._collect)

    def _give_back(self) -> None:
        self.given_back += 1

    def _collect(self) -> None:
        self.collected += 1

    def step(self, **counts: int) -> None:
        self.counts = TopicCounts(**counts)
        self._memory.step()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_freed_memory_is_given_back_once_after_a_busy_time(process: Process) -> None:
    process.step()
    assert process.given_back == 1, "what the start took"
    process.step(accepted=BUSY_RECORDS)
    process.step(accepted=2 * BUSY_RECORDS)
    assert process.given_back == 1, "not while much is read"
    for _ in range(3):
        process.step(accepted=2 * BUSY_RECORDS + 1)
    assert process.given_back == 2
    process.step(accepted=2 * BUSY_RECORDS + 1, emitted=BUSY_RECORDS)
    process.step(accepted=2 * BUSY_RECORDS + 1, emitted=BUSY_RECORDS)
    assert process.given_back == 3, "what was held takes memory, too"


def test_cycles_are_collected_while_little_is_held(process: Process) -> None:
    process.step(wheel=GARBAGE_HELD_MAX - 1)
    assert process.collected == 1
    process.step(wheel=GARBAGE_HELD_MAX)
    assert process.collected == 1


def test_the_c_library_takes_the_call() -> None:
    assert give_back() in (True, False)
