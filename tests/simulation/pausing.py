"""Operators who pause targets, policies and sources, and resume them; what is paused for `HEARD_MS` gets nothing more.
And who open and close breakers, open or not.

Every replica hears of it at once: how the topic of pauses spreads it is asked elsewhere. Chance is of its own, so that
runs without pauses are as they would be.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from sidecar.model.condition import Pausable, Pause, PauseKind, Pauses, Switch, Switches
from sidecar.model.record import Headers
from tests.simulation.workload import QUARANTINE, SOURCES

if TYPE_CHECKING:
    from sidecar.engine.partition.partition import SourcePartition
    from tests.simulation.world import World

HEARD_MS: Final = 2_000
CHANCE: Final = 0.02  # of a change at each step
SWITCH_CHANCE: Final = 0.08  # of a breaker at each step: only every fourth run has one
PAUSABLE: Final = (
    *(Pausable(PauseKind.TARGET, name) for name in ("mail-a", "mail-b", "orders")),
    *(Pausable(PauseKind.POLICY, name) for name in ("reminders", "orders")),
    *(Pausable(PauseKind.SOURCE, name) for name in SOURCES),
)
GAP_MAX: Final = 3  # offsets without a record behind each that has one
FOR_MS: Final = (-1, -1, 1_500, 10_000, 60_000)


class Pausing:
    """Of one run."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = Random(f"pausing {seed}")
        self._switching = Random(f"switching {seed}")
        self._switches: Switches = {}
        self._pauses: Pauses = {}
        self._since_ms: dict[Pausable, int] = {}  # by the true time
        self._read: dict[SourcePartition, int] = {}  # how far a lane was read when its source had been paused for long

    def step(self) -> None:
        """Somebody pauses or resumes something, now and then."""
        rng, now_ms = self._rng, self._world.clock.now_ms
        if self._switching.random() < SWITCH_CHANCE:
            self._switch_breaker()
        if self._world.rare_events or rng.random() >= CHANCE:  # what is rare happens to what is emitted
            return
        if self._pauses and rng.random() < 0.4:
            resumed = rng.choice([*self._pauses])
            self._change({one: pause for one, pause in self._pauses.items() if one != resumed})
            return
        for_ms = rng.choice(FOR_MS)
        # The brokers' clock may be set while it lasts: then nobody knows when it ends, and it isn't judged.
        until_ms = now_ms + for_ms if for_ms >= 0 else -1
        self._change({**self._pauses, rng.choice(PAUSABLE): Pause("", "me", now_ms, until_ms)})

    def _switch_breaker(self) -> None:
        """Somebody wants retries to be held up, or to be tried now: by a clock that is anywhere."""
        rng, seen = self._switching, self._world.seen
        switch = Switch(rng.random() < 0.5, rng.randrange(1 << 40))
        self._switches = {**self._switches, "orders": switch}
        gates = [replica.emitter.gate for replica in self._world.replicas]
        states = {flow.breaker for gate in gates for flow in gate.flows().values()}
        seen["a breaker closed by hand"] += not switch.opens and "open" in states
        seen["a breaker opened by hand"] += switch.opens and not states.isdisjoint({"closed", "half_open"})
        self.tell()

    def resume_all(self) -> None:
        """All goes on."""
        self._change({})

    def _change(self, pauses: Pauses) -> None:
        self._pauses = pauses
        now_ms = self._world.clock.now_ms
        judged = (one for one, pause in pauses.items() if pause.until_ms < 0)
        self._since_ms = {one: self._since_ms.get(one, now_ms) for one in judged}
        self.tell()

    def tell(self) -> None:
        """Let all replicas know, also those that have just started."""
        for replica in self._world.replicas:
            replica.engine.pauses = self._pauses
            replica.engine.switches = self._switches

    def _is_paused(self, kind: PauseKind, name: str) -> bool:
        since_ms = self._since_ms.get(Pausable(kind, name))
        return since_ms is not None and self._world.clock.now_ms > since_ms + HEARD_MS

    def handed_over(self, topic: str, headers: Headers) -> None:
        """A producer got a record: for a target, or one of tickover's own."""
        policy = dict(headers).get("tickover-policy")
        if policy is None or topic == QUARANTINE or topic.endswith("-dlq"):
            return
        said = policy.decode()
        assert not self._is_paused(PauseKind.TARGET, topic), f"{topic} is paused, and gets a record"
        assert not self._is_paused(PauseKind.POLICY, said.rpartition("@")[0]), f"{said} is paused, and emits"

    def check(self, lanes: list[SourcePartition], batch: int) -> None:
        """After a turn: of a paused source nothing new is read, but for the batch that ends what is read again."""
        for lane in lanes:
            if not self._is_paused(PauseKind.SOURCE, lane.id.topic):
                self._read.pop(lane, None)
                continue
            known = self._read.setdefault(lane, lane.offsets.next)
            until = max(known, lane.recovered_until + batch * (1 + GAP_MAX))
            assert lane.offsets.next <= until, (
                f"{lane.id} is paused, and read from {known} to {lane.offsets.next}, before {lane.recovered_until}"
            )
