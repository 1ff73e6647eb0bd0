"""Schedules: operators make, change, pause and delete them, while replicas die, take over, and meet faults."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Any, Final

from sidecar.engine.clock import Timekeeper
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.jobs.transactional_sender import ShipmentFailed, TakenOver
from sidecar.operations.schedules.cron import occurrences
from sidecar.operations.schedules.firing import Firing
from sidecar.operations.schedules.schedule import Schedule, ScheduleConflict, ScheduleRefused, SchedulesUnavailable
from sidecar.service.operations.schedules import clock_of
from tests.unit.schedule_world import LIMITS, NOW_MS, Delayed, MemorySchedules, schedule

NAMES: Final = ("tick", "keyed", "large", "hourly")
CRONS: Final = ("*/5 * * * * *", "*/3 * * * * *", "7 * * * * *", "* * * * * *")
LARGE: Final = "x" * 300_000
REPLICAS: Final = 3
STEPS: Final = 100
CALM_STEPS: Final = 60
PAUSE_MS: Final = 6_000  # between two steps, at most
HEARD_MS: Final = PAUSE_MS  # who writes occurrences hears of a change so late
HOUR_MS: Final = 3_600_000
OFF_MS: Final = (0, 0, 24 * HOUR_MS, HOUR_MS, 90_000, -20_000)  # how far a machine's clock is ahead


@dataclass(slots=True)
class Count:
    """Occurrences of one expression, from a write of an operator on; brokers' time."""

    cron: str
    start_ms: int
    end_ms: int = 1 << 62  # paused, deleted, or another expression

    def due(self, until_ms: int) -> set[int]:
        """Occurrences owed up to `until_ms`, with those that may have been written ahead of the end; epoch ms."""
        last_ms = min(until_ms, self.end_ms + HEARD_MS + LIMITS.ahead_ms)
        return set(takewhile(lambda at_ms: at_ms <= last_ms, occurrences(self.cron, "UTC", self.start_ms)))


class Machine:
    """The clocks of one: the wall's, which anybody may set, and the time since it was started."""

    def __init__(self, world: MemorySchedules, off_ms: int) -> None:
        self.off_ms = off_ms
        self._world = world

    def read(self) -> tuple[float, float]:
        return float(self._world.now_ms + self.off_ms), float(self._world.now_ms - NOW_MS)

    def monotonic_s(self) -> float:
        return self.read()[1] / 1_000


class Engine:
    """One process's, as far as schedules ask it for the time; they begin before it has seen the brokers' clock."""

    def __init__(self, world: MemorySchedules, machine: Machine) -> None:
        self.time = Timekeeper(machine)
        self.engine = self
        self._world = world

    def submit(self, command: Callable[[Any], int | None]) -> "Future[int | None]":
        future: Future[int | None] = Future()
        future.set_result(command(None))
        return future

    def write_block(self) -> None:
        """Acknowledge a block at once, with the time of the brokers' clock."""
        boot_ms = self.time.boot_ms()
        self.time.observe(boot_ms, self._world.now_ms, boot_ms)


class Operators:
    """One run. `seen` counts what happened."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = MemorySchedules()
        self.delayed = Delayed()
        self.world.run = self.delayed.run
        self.seen: Counter[str] = Counter()
        self.counts: dict[str, list[Count]] = {name: [] for name in NAMES}
        self._alive: dict[str, Schedule] = {}
        self._machines = [Machine(self.world, self.rng.choice(OFF_MS)) for _ in range(REPLICAS)]
        self._engines = [Engine(self.world, machine) for machine in self._machines]
        self._stores = [self.world.replica() for _ in range(REPLICAS)]
        self._replicas = [self._firing(number) for number in range(REPLICAS)]
        self._stepping: set[int] = set()  # in the middle of a step

    def run(self) -> None:
        """All of it, and the verdict."""
        for _ in range(STEPS):
            if self.rng.random() < 0.3:
                self.rng.choice((self._put, self._put, self._put, self._delete))()
            if self.rng.random() < 0.1:
                self._kill(self.rng.randrange(REPLICAS))
            self._hear()
            self._see_the_time()
            self._strike()
            self._step(self.rng.randrange(REPLICAS))
            while self.rng.random() < 0.6:
                self.delayed.work(self.rng)
            self._calm_down()
            self.world.now_ms += self.rng.randint(0, PAUSE_MS)
        self.world.topic.silent, self.world.topic.refused, self._machines[0].off_ms = set(), set(), 0
        self._replicas[0]._patience_s = 1.0  # nothing is slow any more
        for _ in range(CALM_STEPS):
            self.world.now_ms += 2_000
            self._engines[0].write_block()
            self._step(0)
            self.delayed.work_all()
        self._judge()

    # --- what operators do ----------------------------------------------------------------------------------------

    def _put(self) -> None:
        name, rng = self.rng.choice(NAMES), self.rng
        cron = self._alive[name].cron if name in self._alive and rng.random() < 0.5 else rng.choice(CRONS)
        changes: dict[str, Any] = {"cron": cron, "paused": rng.random() < 0.2, "headers": {"x": str(rng.random())}}
        changes |= {"value": LARGE} if name == "large" else {}
        changes |= {"key": "k"} if name == "keyed" else {}
        new = schedule(name=name, missed="all", **changes)
        if self._write(
            lambda store: store.put(new, "reminders", store.get(name).version if name in self._alive else 0, "me")
        ):
            self._note(name, new)

    def _delete(self) -> None:
        if self._alive:
            name = self.rng.choice(sorted(self._alive))
            if self._write(lambda store: store.delete(name, store.get(name).version, "me")):
                self._note(name, None)

    def _write(self, act: Callable[[Any], object]) -> bool:
        """By REST on a replica, whose machine's clock may be wrong, and which may not hear how its write has ended."""
        store = self.rng.choice(self._stores)
        self.world.host_ahead_ms = self.rng.choice((0, 0, HOUR_MS, -HOUR_MS))
        topic, chance = self.world.topic, self.rng.random()
        try:
            store.catch_up()
            if chance < 0.1:
                topic.failures = [self.rng.choice((ShipmentFailed("x"), TakenOver()))]
            elif chance < 0.2:
                topic.lost_answers = [self.rng.choice((ShipmentFailed("x"), TakenOver()))]
                self.seen["lost answers to operators"] += 1
            act(store)
        except (ScheduleConflict, ScheduleRefused, SchedulesUnavailable) as error:
            self.seen[type(error).__name__] += 1
            return False
        finally:
            self._calm_down()
        return True

    def _note(self, name: str, new: Schedule | None) -> None:
        """A count ends where the expression changes, or nothing is to fire any more; and another begins."""
        now_ms, before, counts = self.world.now_ms, self._alive.pop(name, None), self.counts[name]
        if new is not None:
            self._alive[name] = new
        if before is not None and new is not None and before.times() == new.times():
            self.seen["changed"] += 1
            return
        if counts:
            counts[-1].end_ms = min(counts[-1].end_ms, now_ms)
        self.seen["deleted" if new is None else "paused" if new.paused else "begun"] += 1
        if new is not None and not new.paused:
            counts.append(Count(new.cron, now_ms))

    # --- what happens to replicas ---------------------------------------------------------------------------------

    def _firing(self, number: int) -> Firing:
        clock = clock_of(self._engines[number])  # type: ignore[arg-type] # no more of it is asked for
        firing = Firing(self.world.surroundings(self._stores[number])._replace(now_ms=clock))
        firing._patience_s = self.rng.choice((1.0, 0.0))  # 0: whatever goes apart is slow, and stays there
        return firing

    def _kill(self, number: int) -> None:
        """Nothing of its memory is left, but for what runs on in a thread."""
        self._engines[number] = Engine(self.world, self._machines[number])
        self._stores[number] = self.world.replica()
        self._replicas[number] = self._firing(number)
        self.seen["killed"] += 1

    def _step(self, number: int) -> None:
        if number not in self._stepping:
            self._stepping.add(number)
            with suppress(ShipmentFailed, SchedulesUnavailable):
                self._replicas[number].step()
            self._stepping.discard(number)

    def _hear(self) -> None:
        """All have read what is in the topic by now."""
        for store in self._stores:
            with suppress(SchedulesUnavailable):
                store.catch_up()

    def _see_the_time(self) -> None:
        """By the blocks that engines write; and somebody may set a machine's clock."""
        for machine, engine in zip(self._machines, self._engines, strict=True):
            if self.rng.random() < 0.5:
                engine.write_block()
            if self.rng.random() < 0.02:
                machine.off_ms = self.rng.choice(OFF_MS)
                self.seen["clocks set"] += 1

    def _strike(self) -> None:
        """Faults of the next transactions, and of partitions; and others come in between."""
        topic, rng = self.world.topic, self.rng
        if rng.random() < 0.2:
            topic.silent = {f"reminders/{rng.randrange(12)}" for _ in range(rng.randrange(4))}
            self.seen["silent partitions"] += bool(topic.silent)
        if rng.random() < 0.1:
            topic.refused = {rng.choice((b"", LARGE.encode()))}
            self.seen["refused records"] += 1
        if rng.random() < 0.2:
            topic.failures = [rng.choice((ShipmentFailed("x"), TakenOver()))]
        if rng.random() < 0.1:
            topic.lost_answers = [rng.choice((ShipmentFailed("x"), TakenOver()))]
            self.seen["lost answers"] += 1
        if rng.random() < 0.1:
            topic.before = lambda: setattr(topic, "down", LogUnavailable("down"))
        if rng.random() < 0.3:
            topic.meanwhile = lambda: self._step(rng.randrange(REPLICAS))
        if rng.random() < 0.3:
            topic.between = lambda: self._step(rng.randrange(REPLICAS))

    def _calm_down(self) -> None:
        topic = self.world.topic
        topic.failures.clear()
        topic.lost_answers.clear()
        topic.meanwhile = topic.between = topic.before = topic.down = None

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        written: dict[str, list[int]] = {name: [] for name in NAMES}
        for parcel, sent_ms in zip(self.world.topic.sent, self.world.topic.sent_ms, strict=True):
            _, name, at_ms = (dict(parcel.headers)["tickover-id"] or b"").decode().split(":")
            written[name].append(int(at_ms))
            assert int(at_ms) <= sent_ms + LIMITS.ahead_ms, f"{name}: {at_ms} was written at {sent_ms}"
        until_ms = self.world.now_ms + LIMITS.ahead_ms
        for name, counts in self.counts.items():
            mine = written[name]
            assert len(mine) == len(set(mine)), f"{name}: twice {[one for one, n in Counter(mine).items() if n > 1]}"
            meant = set[int]().union(*(count.due(until_ms) for count in counts))
            assert set(mine) <= meant, f"{name}: nobody meant {sorted(set(mine) - meant)}"
            if counts and counts[-1].end_ms > until_ms:
                owed = counts[-1].due(
                    self.world.now_ms
                )  # what is still to come may go by one partition after the other
                missed = sorted((at_ms - NOW_MS) // 1_000 for at_ms in owed - set(mine))
                assert not missed, (
                    f"{name}: never written {missed}, counted from {(counts[-1].start_ms - NOW_MS) / 1_000}"
                )
                self.seen["written to the end"] += 1
