"""The overflow against a sorted list: random puts, strikes, replays, promotions, tidying, restarts, in any order.

Run with tiny limits, so that every page, window and step ends in the middle of something.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from policies.headers import ID
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.record import Held, Position, Tombstone, held_id
from sidecar.overflow import chunk, chunk_reader, chunk_writer, read_ahead, redis_overflow, tidying
from sidecar.overflow.interface import Change
from sidecar.overflow.keys import DUE_MAX_MS, INDEX_SHARDS, LaneKeys
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from tests.contract.overflow_records import LANE, NOW_MS, held
from tests.examples import examples

HOUR_MS = 3_600_000
SPAN_MS = 5 * HOUR_MS
STEPS_MS = st.sampled_from([0, 1, 1_000, 59_999, 60_000, 600_000, HOUR_MS, SPAN_MS])

_groups = count()


class OverflowModel(RuleBasedStateMachine):
    """One lane as the engine drives it; the model is the list of all records ever put."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.group = f"model{next(_groups)}"
        self.overflow: RedisOverflow = open_overflow(self.url, self.group)
        self.records: list[Held] = []
        self.index: dict[str, Held] = {}
        self.struck = 0
        self.changes: list[Change] = []
        self.cursor = Position(NOW_MS, -1)
        self.settled = self.cursor
        self.offset = 0

    def teardown(self) -> None:
        """When all is settled nothing stays behind but what shows that keys are there."""
        end = Position(1 << 50, 0)
        while self.overflow.tidy(LANE, end, self.cursor.due_ms):
            pass
        for _ in range(INDEX_SHARDS):  # one at a time
            self.overflow.tidy(LANE, end, self.cursor.due_ms)
        client, keys = self.overflow.client, LaneKeys(self.group, LANE)
        left = {key.decode() for key in client.keys(f"*{self.group}:*")}
        assert left <= {*keys.fixed, *keys.shards()}
        assert not any(client.zcount(key, "-inf", DUE_MAX_MS) for key in keys.fixed[1:])
        assert all(client.hlen(key) <= 1 for key in keys.shards())
        client.close()

    @rule(delays=st.lists(st.integers(1, SPAN_MS) | st.integers(1, 200), min_size=1, max_size=40), late=STEPS_MS)
    def put(self, delays: list[int], late: int) -> None:
        """Everything that is put lies behind the cursor: so the engine does it."""
        fresh = []
        for delay_ms in delays:
            self.offset += 1
            record = held(self.offset, self.cursor.due_ms - NOW_MS + delay_ms)
            if self.offset % 2:
                record = record._replace(trailer=[(ID, b"id%d" % (self.offset % 7))])
                self.index[f"id{self.offset % 7}"] = record
            fresh.append(record)
        self.changes.append(Change(LANE, len(self.changes) + 1, fresh))
        self.overflow.apply(self.changes[-1:], self.cursor.due_ms + late)
        self.records += fresh

    @rule(places=st.lists(st.integers(0, 1_000), min_size=1, max_size=10), late=STEPS_MS)
    def strike(self, places: list[int], late: int) -> None:
        """Records that lie behind the cursor leave: they are cancelled, replaced or moved."""
        ahead = self.between(self.cursor, Position(1 << 60, 0))
        leaving = {ahead[place % len(ahead)].offset: ahead[place % len(ahead)] for place in places} if ahead else {}
        struck = [Tombstone(record.position, held_id(record)) for record in leaving.values()]
        self.changes.append(Change(LANE, len(self.changes) + 1, [], struck))
        self.overflow.apply(self.changes[-1:], self.cursor.due_ms + late)
        self.records = [record for record in self.records if record.offset not in leaving]
        self.index = {key: record for key, record in self.index.items() if record.offset not in leaving}
        self.struck += len(leaving)

    @rule()
    def find(self) -> None:
        """The latest of each id is found, unless it was struck out, or was promoted."""
        found = self.overflow.find(LANE, [f"id{number}" for number in range(8)], self.cursor, len(self.changes))
        assert found == {key: record for key, record in self.index.items() if record.position > self.cursor}

    @precondition(lambda self: self.changes)
    @rule(back=st.integers(1, 3), late=STEPS_MS)
    def replay(self, back: int, late: int) -> None:
        self.overflow.apply(self.changes[-back:], self.cursor.due_ms + late)

    @rule(step_ms=STEPS_MS, records_max=st.integers(1, 30))
    def promote(self, step_ms: int, records_max: int) -> None:
        until = Position(self.cursor.due_ms + step_ms, 1 << 60)
        step = self.overflow.promote(LANE, self.cursor, until, records_max, len(self.changes))
        assert step.records == self.between(self.cursor, step.cursor)
        assert len(step.records) <= records_max
        assert self.cursor < step.cursor <= until or step.cursor == until
        self.cursor = max(self.cursor, step.cursor)

    @rule(share=st.floats(0, 1))
    def settle(self, share: float) -> None:
        behind = self.between(self.settled, self.cursor)
        if behind:
            self.settled = behind[int(share * (len(behind) - 1))].position

    @rule(ahead_ms=STEPS_MS, steps=st.integers(1, 4))
    def tidy(self, ahead_ms: int, steps: int) -> None:
        for _ in range(steps):
            self.overflow.tidy(LANE, self.settled, self.cursor.due_ms + ahead_ms)

    @rule(ahead_ms=STEPS_MS)
    def zombie_tidies(self, ahead_ms: int) -> None:
        """Somebody who was here before knows only an older `settled`."""
        other = open_overflow(self.url, self.group)
        other.tidy(LANE, Position(NOW_MS, -1), self.cursor.due_ms + ahead_ms)
        other.close()

    @rule()
    def restart(self) -> None:
        self.overflow.close()
        self.overflow = open_overflow(self.url, self.group)
        self.cursor = self.settled

    @rule()
    def counts_agree(self) -> None:
        assert self.overflow.last_applied(LANE) == len(self.changes)
        held_now = len(self.between(self.settled, Position(1 << 60, 0)))
        assert held_now <= self.overflow.count(LANE, self.settled) <= held_now + self.struck

    def between(self, after: Position, until: Position) -> list[Held]:
        return sorted(
            (record for record in self.records if after < record.position <= until), key=lambda record: record.position
        )


@pytest.fixture(name="url", scope="module")
def url_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Not synced: thousands of small writes, and no crash of the machine is tried here.
    server = EmbeddedValkey(Path(tmp_path_factory.mktemp("valkey")), settings={"appendfsync": "no"})
    server.start()
    yield server.url
    server.stop()


@pytest.mark.parametrize("tiny", [True, False])
def test_overflow_agrees_with_a_sorted_list(url: str, tiny: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if tiny:
        monkeypatch.setattr(chunk, "RECORDS_MAX", 3)
        monkeypatch.setattr(chunk_reader, "HEADERS_PER_PAGE", 3)
        monkeypatch.setattr(tidying, "HEADERS_PER_PAGE", 3)
        monkeypatch.setattr(tidying, "CASCADE_RECORDS_MAX", 5)
        monkeypatch.setattr(chunk_writer, "BATCH_RECORDS_MAX", 50)
        monkeypatch.setattr(redis_overflow, "READ_AHEAD_RECORDS_MAX", 7)
        monkeypatch.setattr(redis_overflow, "READ_AHEAD_RECORDS_MIN", 4)
        monkeypatch.setattr(read_ahead, "BLOBS_PER_PAGE_MAX", 2)
    machine = type("Machine", (OverflowModel,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(100), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
