"""A run: users, replicas, an overflow that comes and goes, crashes, rebalances; the seed decides everything."""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from policies.table import PolicyTable
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.interface import OverflowFull, OverflowUnavailable
from tests.simulation.fake_group import Group
from tests.simulation.fake_kafka import Broker, FakeRecord, Killed
from tests.simulation.fake_overflow import Copy, FakeOverflow, NewOverflow
from tests.simulation.fake_time import Machine, VirtualClock
from tests.simulation.fake_transactions import Coordinator
from tests.simulation.full_walk import check_agenda, check_published, check_wheels
from tests.simulation.interventions import RARE, RARE_EACH
from tests.simulation.oracle import Oracle
from tests.simulation.pausing import Pausing
from tests.simulation.replica import INTAKE_BATCH, LEDGER, Replica, Shape, Surroundings
from tests.simulation.workload import ORDERS, QUARANTINE, SOURCES, TARGETS, Workload, rulebook

BLOCK_BYTES_MAX = 2_000  # so small that a few long ids fill a block
RUNS_BYTES_MAX = 500  # that a change which is written again may have more
CALM_STEPS_MAX = 4_000
CALM_STEPS_SHORT = 100  # of `CALM_MS`: then only the records that are due late are left, in steps of `CALM_LONG_MS`
CALM_MS = 20
CALM_LONG_MS = 500
NOTED_EACH = 4  # steps: what is noted lasts for several of them
BREAKER: Final = {"window": "10s", "minimum": 4, "open": "2s", "probes": 2}
QUOTAS: Final[tuple[dict[str, int] | None, ...]] = (None, {"records": 6}, {"bytes": 3_000}, {"records": 40})
MEDDLED = 0.01  # of the steps
TIDY_STEPS = 10
SET_BACK_MIN_MS = 1_000
WRONG_MS: Final = (3_600_000, 60_000, 5_000, 300, 40, 0, -40, -300, -5_000, -60_000)  # clocks


@dataclass(slots=True)
class Weather:
    """How bad it is just now."""

    delay_max_ms: int = 20
    overflow_down: bool = False
    overflow_full: bool = False
    overflow_flaky: float = 0.0  # share of calls whose answer is lost
    jobs_max: int = 20  # how much the other threads do between two turns
    trouble: float = 0.0  # share of a transaction's calls that fail


class World:
    """Everything of one run."""

    def __init__(self, seed: int, exactly_once: bool = False, overflow: NewOverflow = FakeOverflow) -> None:
        self.rng = rng = Random(seed)
        self._neighbour = Random(f"neighbour {seed}")  # chance of its own: without it the runs are as they were
        self.rare = Random(f"rare {seed}")
        self.rare_events = RARE.get(seed % RARE_EACH, ())  # all other runs are as they were
        self.clock = VirtualClock()
        self.weather = Weather()
        self.order = rng.choice(ORDERS)
        # In two of three runs some targets are limited.
        self._limits = ({}, {"rate": "40/s", "burst": 2}, {"rate": "10/s"})[seed % 3]
        self._quota = QUOTAS[seed % len(QUOTAS)]
        self._breaker = BREAKER if seed % 4 == 3 else None
        self.tables: dict[int, PolicyTable] = {1: rulebook(1, self.order, self._limits, self._quota, self._breaker)}
        self.broker = Broker(self.clock)
        self.broker.block_bytes_max = BLOCK_BYTES_MAX + RUNS_BYTES_MAX
        for topic in SOURCES:
            self.broker.create(topic, rng.randint(1, 2))
        for topic in TARGETS:
            self.broker.create(topic, rng.randint(1, 3))
        self.broker.create(QUARANTINE, 1)
        self.broker.create(LEDGER.name, LEDGER.partitions)
        self.overflow = overflow(self._overflow_call)
        self.oracle = Oracle(self.overflow, self.tables.__getitem__, exactly_once)
        self.oracle.ordered = self.order is not None
        self.broker.listeners.append(self.oracle.appended)
        self.broker.listeners.append(self._note_block)
        self.group = Group(self.broker, SOURCES, rng)
        self.group.on_commit = self.oracle.committed
        self.workload = Workload(rng, rng.choice((5_000, 30_000, 120_000)))
        self.shape = Shape(
            horizon_ms=rng.randint(2_000, 10_000),
            tick_ms=rng.choice((1, 1, 5, 10)),
            settle_interval_ms=rng.choice((20, 50, 100)),
            wheel_records_max=rng.choice((20, 100, 5_000)),
            queue_max=rng.choice((5, 50, 10_000)),
            rebuild_rate=rng.choice((0, 5, 200)),
        )
        self.group.static = seed % 5 in (1, 3)
        self.group.starts_latest = rng.random() < 0.3
        self.coordinator = Coordinator(self.broker, self.group, rng, rng.random() < 0.4) if exactly_once else None
        if self.coordinator is not None:
            self.group.unstable = self.coordinator.unstable
        self.shared = Surroundings(
            self.broker, self.group, self.overflow, self.tables.__getitem__, self._delay_ms, rng, self.coordinator,
            self._trouble, replace(LEDGER, block_bytes_max=BLOCK_BYTES_MAX),
        )  # fmt: skip
        self._roots: list[str] = []  # of replicas that are gone
        self._roots_used = 0
        self._machines: dict[str, Machine] = {}  # by the roots of the replicas that run there, one after the other
        self.replicas: list[Replica] = []
        self.copy: Copy = ({}, {}, {}, {}, {})  # of the overflow, some time ago
        self.clock.passing.append(self._as_time_passes)
        self._steps = 0
        self.seen: Counter[str] = Counter()  # what happened, to know that a run is worth its time
        self.pausing = Pausing(self, seed)
        self.broker.handing_over.append(self.pausing.handed_over)

    # --- what happens by itself -----------------------------------------------------------------------------------

    def _delay_ms(self) -> int:
        return self.rng.randint(0, self.weather.delay_max_ms)

    def _trouble(self) -> str:
        if self.rng.random() >= self.weather.trouble:
            return ""
        return self.rng.choice(("abort", "abort", "unknown"))

    def _overflow_call(self, method: str, after: bool) -> None:
        weather = self.weather
        if weather.overflow_down:
            raise OverflowUnavailable("down")
        if weather.overflow_full and method == "apply":
            raise OverflowFull("full")
        if self.rng.random() < weather.overflow_flaky and method != "watermark":
            raise OverflowUnavailable("the answer was lost" if after else "not reached")

    def _as_time_passes(self) -> None:
        for replica in self.replicas:
            replica.deliver()
            replica.background(self.weather.jobs_max)

    def _note_block(self, record: FakeRecord) -> None:
        if record.topic() == LEDGER.name:
            topic, partition = (record.key() or b"").decode().rsplit("/", 1)
            self.group.seen.add(TopicPartition(topic, int(partition)))

    # --- what is done to it ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """One more replica."""
        if self._roots and self.rng.random() < 0.7:
            root = self._roots.pop()
        else:
            self._roots_used += 1
            root = f"root{self._roots_used}"
        machine = self._machines.setdefault(root, Machine(self.clock))
        replica = Replica(self.shared, self.shape, self.tables[max(self.tables)], root, machine)
        self.replicas.append(replica)
        self.pausing.tell()
        self.seen["a static member came back"] += root in self.group.absent
        self.group.join(replica.intake, root)

    def send(self, count: int) -> None:
        """Users send records."""
        for _ in range(count):
            self.send_to(self.rng.choice(self.group.lanes), 1, self.rng.choice((0, 0, 0, 0, 1, 3)))

    def send_to(self, lane: TopicPartition, count: int, gap: int = 0) -> None:
        """Users send to one partition, with so many offsets behind each that have no record."""
        for _ in range(count):
            record = self.workload.record(lane.topic, lane.partition, self.clock.now_ms)
            self.workload.sent(self.oracle.own(self.broker.append(lane.topic, lane.partition, record)))
            self.broker.logs[lane.topic][lane.partition].end += gap  # marks of transactions

    def kill(self) -> None:
        """A replica will be gone from one moment to the next, at one of its next calls to the outside."""
        self.rng.choice(self.replicas).fate.calls_left = self.rng.choice((0, 1, 2, 5, 20))

    def take_down(self, replica: Replica) -> None:
        """Remove a replica at once, whatever it was doing."""
        self.replicas.remove(replica)
        self._roots.append(replica.root)
        lanes = [lane for lane in self.group.lanes if self.group.owner[lane] is replica.intake]
        replica.crash()
        self.oracle.crashed(lanes)
        self.seen["killed"] += 1

    def bury(self, replica: Replica) -> None:
        """Remove a replica, and start another."""
        self.take_down(replica)
        self.start()

    def complete_transactions(self) -> None:
        """Put the marks of all committed transactions everywhere."""
        if self.coordinator is not None:
            self.coordinator.complete_all()

    def stop(self) -> None:
        """A replica ends as asked; another comes."""
        replica = self.rng.choice(self.replicas)
        lanes = replica.lanes
        try:
            replica.stop()
        except Killed:
            self.bury(replica)
        else:
            if self.broker.short:  # it has waited for some time
                self.oracle.crashed(lane.id for lane in lanes)
            self.replicas.remove(replica)
            self._roots.append(replica.root)
            self.start()

    def expire(self) -> None:
        """The group gives up on a replica that is alive: it hears of it, joins again, and has to begin anew."""
        replica = self.rng.choice(self.replicas)
        if self.coordinator is None:
            self.broker.short = set()
            replica.deliver_all()
            self.oracle.may_repeat(replica.refused())
            for executor in replica.executors:
                executor.run()
        lanes = [lane for lane in self.group.lanes if self.group.owner[lane] is replica.intake]
        self.oracle.crashed(lanes)
        replica.intake.lose(0 if self.coordinator is None else self.rng.choice((0, 1, 20)))
        self.group.rebalance()

    def step_clock(self) -> None:
        """The wall clock of one machine is set, or that of the brokers: by which records are early or not."""
        if self.rng.random() < 0.5:
            self._set_brokers_clock(self.rng.choice((0, SET_BACK_MIN_MS, -SET_BACK_MIN_MS, -20_000)))
        else:
            self._machines[self.rng.choice(self.replicas).root].ahead_ms = self.rng.choice(WRONG_MS)
        self.seen["clock set"] += 1

    def _set_brokers_clock(self, ahead_ms: int) -> None:
        self.oracle.latest_ms = max(self.oracle.latest_ms, self.clock.broker_ms)
        self.clock.brokers_ahead_ms = ahead_ms

    def _note_former_time(self) -> None:
        """The former time counts for a process that has not heard from the brokers since their clock was set back."""
        believed_ms = max((replica.time.broker_ms_max() for replica in self.replicas), default=0)
        if believed_ms >= self.clock.broker_ms + SET_BACK_MIN_MS:
            self.oracle.latest_ms = max(self.oracle.latest_ms, int(believed_ms))

    def tidy(self) -> None:
        """Housekeeping comes by."""
        replica = self.rng.choice(self.replicas)
        replica.engine.tidy()
        replica.publisher.survey()

    def lose(self) -> None:
        """Redis is wiped, or comes back as it was some time ago, or lacks one record's content or one of its keys."""
        overflow, rng = self.overflow, self.rng
        match rng.randint(0, 7):
            case 0:
                overflow.wipe()
            case 1 | 2:
                self.copy = overflow.copy()
            case 3:
                overflow.restore(self.copy)
            case kind:
                lanes = [lane for lane, records in overflow.records.items() if records]
                if lanes:
                    lane = rng.choice(lanes)
                    self._lose_key(kind, lane, rng.choice(overflow.records[lane]))

    def _lose_key(self, kind: int, lane: TopicPartition, held: Held) -> None:
        match kind:
            case 4:
                self.overflow.damage(lane, held.offset)
            case 5:
                self.overflow.lose_level(lane, held.due_ms)
            case 6:
                self.overflow.lose_tombstones(lane)
            case _:
                self.overflow.lose_index(lane)

    def meddle(self) -> None:
        """Somebody else who may write to Redis gives a record another target, now and then: a reserved one."""
        lanes = [lane for lane, records in self.overflow.records.items() if records]
        if not (self.overflow.rewritable and lanes and self._neighbour.random() < MEDDLED):
            return
        lane = self._neighbour.choice(lanes)
        held = self._neighbour.choice(self.overflow.records[lane])
        self.overflow.redirect(lane, held.offset, self._neighbour.choice((LEDGER.name, QUARANTINE)), LEDGER.name)
        self.seen["a record with another target"] += 1

    def change_policies(self) -> None:
        """A new version of the rulebook; each replica hears of it when it does."""
        version = max(self.tables) + 1
        limits = self._limits if self.rng.random() < 0.8 else {}
        self.tables[version] = rulebook(version, self.order, limits, self._quota, self._breaker)

    def spread_policies(self) -> None:
        """A replica hears of the newest rulebook."""
        self.rng.choice(self.replicas).engine.table = self.tables[max(self.tables)]

    def change_weather(self) -> None:
        """Better or worse."""
        rng = self.rng
        self.weather = Weather(
            delay_max_ms=rng.choice((0, 20, 20, 300)),
            overflow_down=rng.random() < 0.2,
            overflow_full=rng.random() < 0.1,
            overflow_flaky=rng.choice((0.0, 0.0, 0.2)),
            jobs_max=rng.choice((1, 2, 20)),
            trouble=rng.choice((0.0, 0.0, 0.02, 0.2)),
        )
        self.group.commits_lost = rng.choice((0.0, 0.0, 0.3))
        # Without transactions, what a target has not acknowledged at a rebalance may be repeated.
        if self.coordinator is not None or len(self.replicas) == 1:
            self.broker.short = set(rng.choice(((), (), ("orders",), ("mail-a",), (("orders", 0),))))

    def calm(self) -> None:
        """All is well from now on."""
        for replica in self.replicas:
            replica.fate.calls_left = -1
        self.weather = Weather(delay_max_ms=5)
        self.group.commits_lost = 0.0
        if self.group.absent:
            self.group.rebalance()
        self.broker.short = set()
        self.pausing.resume_all()
        self._set_brokers_clock(0)
        for machine in self._machines.values():
            machine.ahead_ms = 0.0

    # --- steps ----------------------------------------------------------------------------------------------------

    def step(self, ms: int) -> None:
        """Time passes, then everyone has a turn."""
        self.clock.advance(ms)
        self._note_former_time()
        self._steps += 1
        self.oracle.give_up_lost()
        for replica in list(self.replicas):
            try:
                replica.turn()
            except Killed:
                self.bury(replica)
            else:
                self._check(replica)
                if self._steps % NOTED_EACH == 0:
                    check_published(replica)
                    check_wheels(replica)
                    self._note(replica)

    def _check(self, replica: Replica) -> None:
        assert replica.tally.early == 0
        for topic, counts in replica.engine.stats.topics.items():
            assert counts.overflow >= 0, f"{topic}: {counts.overflow} in the overflow"
        ready = replica.emitter.backlog
        for lane in replica.lanes:
            assert lane.imbalance == 0, f"{lane.id}: imbalance {lane.imbalance}"
            assert lane.wheel.count == lane.wheel.recount()
            assert lane.promotion.watermark <= lane.promotion.cursor
        check_agenda(replica)
        held = replica.records_in_wheels()
        ready += replica.emitter.pauses.count - replica.emitter.pauses.resumed_count
        self.pausing.check(replica.lanes, INTAKE_BATCH)
        assert held <= replica.emitter.load.records <= held + ready, (
            f"load {replica.emitter.load.records}, wheels {held}, ready {ready}"
        )

    def _note(self, replica: Replica) -> None:
        seen = self.seen
        seen["paused"] += replica.assignment.paused
        seen["recovering"] += replica.assignment.recovering > 0
        seen["queue full"] += replica.output.under_way >= self.shape.queue_max
        seen["sent alone"] += replica.isolation_output.under_way
        seen["sent in small batches"] += replica.small_output.under_way
        seen["rebuilt records"] += any(replica.tally.rebuilt.values())
        seen["starting over"] += replica.settlement.must_start_over
        seen["overflow away"] += bool(replica.worker.problem)
        for lane in replica.lanes:
            seen["rebuilding"] += lane.loss is not None
            seen["rebuilt in part"] += lane.loss is not None and lane.loss.hw > 0
            seen["intake of a lane held"] += lane.intake_held
            seen["promoted"] += bool(lane.promotion.windows)
            seen["promotion under way"] += lane.promotion.promised is not None
            seen["overtaken"] += any(lane.offsets.is_done(offset) is False for offset in lane.promotion.skip)
            seen["redone"] += any(change.missing for change in lane.changes)
            seen["known from before"] += bool(lane.entries)
            seen["moved before"] += any(held.source >= 0 for held in lane.entries.values())
            seen["struck"] += bool(lane.promotion.struck)
            if lane.quota is not None:
                seen["a quota reached"] += any(used.share >= 1 for used in lane.quota.used.values())
            if lane.order is not None:
                seen["parked"] += lane.order.parked > 0
                seen["waited for a place in the order"] += bool(lane.order.queue)
                seen["one at a time by key"] += any(chain.single for chain in lane.order.chains.values())
        seen["waiting for a partition"] += any(replica.targets.suspended_topics)
        seen["waiting for a pause"] += replica.emitter.pauses.count > 0
        seen["waiting at the gate"] += replica.emitter.gate.count > 0
        seen["ahead of the brokers"] += replica.time.skew_ahead_ms > 0
        seen["waiting for the overflow to find"] += replica.actions.count > 0

    def check_marks(self) -> None:
        """No done mark is ahead of the fact, and W is below whatever the overflow has unsettled."""
        for replica in self.replicas:
            for lane in replica.lanes:
                kept = {held.offset: held.position for held in self.overflow.records[lane.id]}
                recoverable = self.oracle.recoverable(lane.id, lane.promotion.watermark)
                for offset in self.oracle.open[lane.id] - recoverable:
                    index = offset - lane.offsets.base
                    if index < 0 or (index < len(lane.offsets.done) and lane.offsets.done[index]):
                        assert offset in kept, f"{lane.id}/{offset} is marked done and is nowhere"
                        assert lane.promotion.watermark < kept[offset], f"{lane.id}: W passed {kept[offset]}"

    def settle_down(self) -> None:
        """No more faults: within a bounded time everything is settled."""
        self.calm()
        for step in range(CALM_STEPS_MAX):
            if not any(self.oracle.open.values()) and self._is_quiet():
                break
            self.step(CALM_MS if step < CALM_STEPS_SHORT else CALM_LONG_MS)
        passed: dict[TopicPartition, Position] = {}
        for step in range(TIDY_STEPS):
            if step == TIDY_STEPS // 2:  # W goes on passing what was cancelled ahead of its time
                passed = {
                    lane.id: lane.ledger.committed_watermark for replica in self.replicas for lane in replica.lanes
                }
            for replica in self.replicas:
                replica.worker.ask_to_tidy(replica.lanes)
            self.step(500)
        self.oracle.finished()
        for replica in self.replicas:
            for lane in replica.lanes:
                end = self._end_of(lane.id.topic, lane.id.partition, lane.offsets.low)
                assert lane.cuts.log_offset(lane.advance_low()) == end, f"{lane.id}: L"
                assert not lane.promotion.windows
                assert not lane.changes
                assert lane.overflow_held == lane.overflow_sealed >= 0, f"{lane.id}: the overflow's count"
                # What a rebuild could not fetch from a log that was cut stays counted, if its process died at its end.
                assert lane.overflow_held == 0 or lane.cuts, f"{lane.id}: the overflow's count"
                for name, used in lane.quota.used.items() if lane.quota is not None else ():
                    # What a rebuild could not put back counts on, and so does what stays counted in the overflow.
                    stays = used.records > 0 and (lane.lost or used.records <= lane.overflow_held)
                    is_right = (used.records, used.bytes) == (0, 0) or stays
                    assert is_right, f"{lane.id}: what {name} holds is miscounted"
            assert replica.emitter.load.records == 0
            assert replica.emitter.load.bytes == 0
            was_cut = self.seen["a source cut back"]
            assert was_cut or not any(replica.tally.lost.values()), "a rebuild gave records up"
            assert replica.publisher.survey() == 0
        for lane_id, records in self.overflow.records.items():
            assert all(passed[lane_id] < held.position for held in records), "settled copies behind W stay"

    def _is_quiet(self) -> bool:
        return all(
            not replica.settlement.unfinished(replica.lanes)
            and not replica.emitter.backlog
            and not any(
                lane.promotion.windows or lane.changes or lane.uncommitted or lane.loss for lane in replica.lanes
            )
            and replica.settlement.ready
            and len(self.group.lanes) == sum(len(other.lanes) for other in self.replicas)
            for replica in self.replicas
        )

    def _end_of(self, topic: str, partition: int, low: int) -> int:
        """Past the marks of transactions behind its last record, too: they are no lag."""
        log = self.broker.logs[topic][partition]
        return log.end if log.records else low
