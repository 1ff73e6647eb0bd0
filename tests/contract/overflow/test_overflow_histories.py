"""Random histories on real servers: an owner, a zombie that repeats what it once knew, and a server that forgets.

Whatever comes between two commands: what the owner promotes without being told of a loss is all that is held, once and
in order, and nothing that was struck out; and after a loss a rebuild makes it so.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from policies.headers import OFFSET_MAX
from sidecar.engine.storage.rebuild import LaneRebuild
from sidecar.model.header_codec import split
from sidecar.model.record import Held, Position
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowLoss, OverflowUnavailable
from sidecar.overflow.keys import COARSE, FINE, LaneKeys
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow
from tests.contract.lost_lane import LostLane
from tests.contract.overflow_records import LANE, NOW_MS, held
from tests.contract.redis_servers import RedisServer, redis_server_fixture

pytestmark = pytest.mark.slow

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
SPAN_MS = 5 * HOUR_MS
TRIES_MAX = 40
_groups = count()

OWNER = ("put", "put", "apply", "apply", "pass_", "tidy", "tidy", "check")
SERVER = ("wipe", "copy", "copy", "restore", "restore", "damage", "vanish_number", "vanish", "vanish")
MEDDLERS = ("zombie_apply", "zombie_tidy", "zombie_tidy")
ZOMBIE = (*MEDDLERS, "zombie_rebuild", "zombie_rebuild", "zombie_rebuild")
HISTORIES = int(os.environ.get("TICKOVER_TEST_HISTORIES", "40"))
STEPS = 60
MEDDLING = 0.1  # of the commands have something come before them


class Meddled:
    """A real client; before each script something else may happen."""

    def __init__(self, client: Any, before: Callable[[], None]) -> None:
        self._client = client
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Taken for a client of its kind: in a Cluster scripts are sent in another way."""
        return type(self._client)

    def evalsha(self, *arguments: Any) -> Any:
        self._before()
        return self._client.evalsha(*arguments)

    def pipeline(self, **options: Any) -> Any:
        self._before()
        return self._client.pipeline(**options)


class History:
    """The lane, its owner, its zombie, and what must be there."""

    def __init__(self, server: RedisServer, seed: int, faults: Sequence[str] = SERVER) -> None:
        self.chance = Random(seed)
        self.group = f"history{next(_groups)}"
        self.client = connect(server.owner_url)
        guest = connect(server.url)
        self._busy = False
        self.losses: list[str] = []
        meddlers = (*faults, *ZOMBIE) if faults else MEDDLERS
        owner = Meddled(guest, lambda: self._meddle(meddlers))
        zombie = Meddled(guest, lambda: self._meddle((*faults, "tidy", "check", "check")))
        self.owner, self.owner_store = RedisOverflow(owner, self.group), RedisRebuildStore(owner, self.group)
        self.zombie, self.zombie_store = RedisOverflow(zombie, self.group), RedisRebuildStore(zombie, self.group)
        self.zombie_rebuild_: LaneRebuild | None = None
        self.lost = LostLane()
        self.acknowledged = 0
        self.watermark = self.old_watermark = Position(NOW_MS, -1)
        self.now_ms = self.old_now_ms = NOW_MS
        self.offset = 0
        self.kept: dict[bytes, bytes] = {}
        self.keys = LaneKeys(self.group, LANE)

    def end(self) -> None:
        """Let go of everything."""
        self.wipe(0)
        self.owner.close()
        self.client.close()

    def _meddle(self, names: Sequence[str]) -> None:
        if not self._busy and self.chance.random() < MEDDLING:
            self._busy = True
            self.step(self.chance.choice(names))
            self._busy = False

    def step(self, name: str) -> None:
        """One step of anybody; the owner's until it is through."""
        step = partial(getattr(self, name), self.chance.randint(0, 1_000))
        if name in OWNER:
            self.mended(step)
        else:
            step()

    # --- the owner ------------------------------------------------------------------------------------------------

    def put(self, number: int) -> None:
        """A block in the ledger."""
        records = []
        for place in range(1 + number % 30):
            delay_ms = self.watermark.due_ms - NOW_MS + 1 + (number * 7_919 + place * 104_729) * 37 % SPAN_MS
            record = held(self.offset, delay_ms, b"v%d" % self.offset)
            size = split(record.headers).size + len(record.value or b"")  # as when it was read from its source
            records.append(record._replace(size=size))
            self.offset += 1
        ahead = self.lost.held(self.watermark, len(self.lost.blocks))
        leaving = self.chance.sample(ahead, min(number % 5, len(ahead)))
        self.lost.add(records, leaving)

    def apply(self, number: int) -> None:
        last = len(self.lost.blocks)
        self.owner.apply(self.lost.changes(self.acknowledged + 1, last), self.now_ms)
        self.acknowledged = last

    def tidy(self, number: int) -> None:
        self.owner.tidy(LANE, self.watermark, self.now_ms)

    def check(self, number: int) -> None:
        """Nothing is missing, nothing is doubled, all is in order."""
        found: list[Held] = []
        place, end = self.watermark, Position(NOW_MS + 10 * SPAN_MS, OFFSET_MAX)
        while place < end:
            step = self.owner.promote(LANE, place, end, 1 + number, self.acknowledged)
            found += step.records
            place = step.cursor
        wanted = self.lost.held(self.watermark, self.acknowledged)
        everything = self.lost.held(self.watermark, len(self.lost.blocks))  # the zombie may have been ahead
        assert [one for one in found if one in wanted] == wanted
        # Nothing else but what the zombie was ahead with, and copies that are still to be struck out.
        struck_by = self.lost.struck_by
        rest = [one for one in found if one.offset not in struck_by]
        assert rest == [one for one in everything if one in rest]
        struck = [one.offset for one in found if one.offset in struck_by]
        assert all(struck_by[offset] > self.acknowledged for offset in struck)
        assert len(struck) == len(set(struck))

    def rebuild(self, hw: int) -> None:
        rebuild = self.lost.rebuild(self.owner_store, hw, self.acknowledged, self.watermark)
        while rebuild.result is None:
            rebuild.step(self.now_ms)
        assert rebuild.result.lost_to_source == 0
        assert rebuild.result.lost_to_ledger == 0

    def mended(self, step: Callable[[], None]) -> None:
        """Do it, again after each loss."""
        again = [step]
        for _ in range(TRIES_MAX):
            try:
                again[-1]()
            except OverflowLoss as loss:
                self.losses.append(str(loss))
                again.append(lambda hw=loss.hw: self.rebuild(hw))  # type: ignore[misc]
            except OverflowUnavailable:
                pass  # moved under its eyes: it would come back
            else:
                again.pop()
                if not again:
                    return
        raise AssertionError("it never came to an end")

    # --- time, and the server -------------------------------------------------------------------------------------

    def pass_(self, number: int) -> None:
        """Time goes on, and so does W."""
        self.old_watermark, self.old_now_ms = self.watermark, self.now_ms
        self.now_ms += number * HOUR_MS // 1_000
        self.watermark = max(self.watermark, Position(self.now_ms - 60_000, 5))

    def _all_keys(self) -> list[bytes]:
        return list(self.client.scan_iter(match=f"*{self.group}:*", count=1_000))

    def wipe(self, number: int) -> None:
        for key in self._all_keys():
            self.client.delete(key)

    def copy(self, number: int) -> None:
        self.kept = {key: self.client.dump(key) for key in self._all_keys()}

    def restore(self, number: int) -> None:
        self.wipe(0)
        for key, dump in self.kept.items():
            self.client.restore(key, 0, dump)

    def damage(self, number: int) -> None:
        """One chunk's content is gone."""
        level = (COARSE, FINE)[number % 2]
        slots = [key for key in self._all_keys() if f"}}:{level.name}:".encode() in key]
        if slots:
            slot = sorted(slots)[number % len(slots)]
            self.client.hdel(slot, sorted(self.client.hkeys(slot))[0])

    def vanish_number(self, number: int) -> None:
        self.client.delete(self.keys.hw)

    def vanish(self, number: int) -> None:
        """One of the keys has gone: evicted, deleted or expired."""
        keys = sorted(key for key in self._all_keys() if key != self.keys.hw.encode())
        if keys:
            fixed = [key for key in keys if key.decode() in self.keys.fixed]
            chosen = fixed if fixed and number % 3 else keys
            self.client.delete(chosen[number % len(chosen)])

    # --- the zombie -----------------------------------------------------------------------------------------------

    def zombie_apply(self, number: int) -> None:
        blocks = len(self.lost.blocks)
        if blocks:
            first = 1 + number % blocks
            changes = self.lost.changes(first, min(first + number % 4, blocks))
            self._try(lambda: self.zombie.apply(changes, self.old_now_ms))

    def zombie_tidy(self, number: int) -> None:
        now_ms = self.old_now_ms + number * HOUR_MS // 500
        self._try(lambda: self.zombie.tidy(LANE, self.old_watermark, now_ms))

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OverflowLoss as loss:
            self.losses.append(str(loss))

    def zombie_rebuild(self, number: int) -> None:
        """A few steps of a rebuild that began when the zombie was the owner."""
        if self.zombie_rebuild_ is None or self.zombie_rebuild_.result is not None:
            known = min(number % 7, self.acknowledged)
            self.zombie_rebuild_ = self.lost.rebuild(
                self.zombie_store, number % 2 * known, self.acknowledged - known, self.old_watermark
            )
        try:
            for _ in range(1 + number % 4):
                if self.zombie_rebuild_.result is None:
                    self.zombie_rebuild_.step(self.old_now_ms)
        except (OverflowLoss, OverflowUnavailable):
            self.zombie_rebuild_ = None


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_happens_nothing_held_is_missing_unnoticed(redis_server: RedisServer, seed: int) -> None:
    history = History(redis_server, seed)
    try:
        for _ in range(STEPS):
            history.step(history.chance.choice((*OWNER, *OWNER, *SERVER, *ZOMBIE)))
        history._busy = True  # nothing more comes between
        history.step("apply")
        history.step("check")
        assert history.owner.last_applied(LANE) >= history.acknowledged
    finally:
        history.end()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_but_a_server_s_fault_is_taken_for_a_loss(redis_server: RedisServer, seed: int) -> None:
    """A process that has lost its lane may do and repeat anything: a false loss would clear a lane."""
    history = History(redis_server, seed, faults=())
    try:
        for _ in range(STEPS):
            history.step(history.chance.choice((*OWNER, *OWNER, *MEDDLERS)))
        # A zombie may come with blocks that nobody has applied yet.
        assert [loss for loss in history.losses if "comes next" not in loss] == []
    finally:
        history.end()
