"""Jobs and the topic they are in: planned, begun and aborted on replicas that die, stand still and come back.

The crew, the leg, the log and the follower are the product's. The topic is compacted, forgets after 30 days, and has
what anybody writes to it. A job's work is a row of units, each in a transaction with the progress that speaks of it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from policies.retention import JOBS_KEPT_MS
from sidecar.kafka.topic_follower import LogUnavailable, TopicFollower, TopicReader
from sidecar.operations.dead_letters.redrive_plan import (
    FORM,
    Governor,
    Plan,
    Progress,
    Redrive,
    SearchedSelection,
    Span,
)
from sidecar.operations.jobs.job import JobLog, State, progress_key
from sidecar.operations.jobs.run import JobRun, RunContext
from sidecar.operations.jobs.runner import JobRefused, JobRunner
from sidecar.operations.jobs.transactional_sender import ShipmentFailed, TakenOver

TOPIC: Final = "tickover.g.redrives"
NOW_MS: Final = 1_800_000_000_000
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
OFF_MS: Final = (0, 0, HOUR_MS, -HOUR_MS)  # how far a machine's clock is ahead
REPLICAS: Final = 3
STEPS: Final = 60
LAST_ACTS: Final = 3
CALM_STEPS: Final = 60  # of two seconds: several leases
UNITS_MAX: Final = 8  # of a job
PLANS_MAX: Final = 6
DEPTH_MAX: Final = 3  # processes that are in the middle of something at the same moment
CRASHES_MAX: Final = 6
HEARTBEAT_MS: Final = 3_000
NO_LIMIT: Final = Governor(rate=0, ramp_ms=0, stop_share=1, watch_ms=0)
GARBAGE: Final = (b"", b"null", b"\x00\xff", b"[" * 100_000, b'{"schema_version": 99}', b'{"author": 1}', b"9" * 5_000)


class CrashError(BaseException):
    """The process dies here: nothing of it may catch that."""


class Record(NamedTuple):
    """One of the topic, as the client gives it out."""

    place: int
    name: bytes
    content: bytes
    appended_ms: int

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.content

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self.appended_ms


class Topic:
    """The topic of jobs: its committed records, and what all of them together mean."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.end = 0
        self.jobs: dict[str, Redrive] = {}  # as they were written, whatever the topic has forgotten since

    def append(self, key: bytes, value: bytes, now_ms: int) -> int:
        self.records.append(Record(self.end, key, value, now_ms))
        self.end += 1
        return self.end - 1

    def compact(self, closed: int) -> None:
        """Of each key the last one stays, but in the segment that is written to, which begins at `closed`."""
        last = {record.name: record.place for record in self.records if record.place < closed}
        self.records = [one for one in self.records if one.place >= closed or last[one.name] == one.place]

    def forget(self, now_ms: int) -> None:
        """Retention: whole segments, from the beginning on."""
        while self.records and self.records[0].appended_ms < now_ms - JOBS_KEPT_MS:
            del self.records[0]


class Follower(TopicFollower):
    """Reads when it is asked to, as late as can be."""

    records: Topic

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def read(self) -> None:
        for record in [one for one in self.records.records if one.place >= self.read_up_to]:
            self.take(record)
        self.read_up_to = self.records.end

    def catch_up(self, seconds: float = 0) -> None:
        self.read()

    def wait_for(self, offset: int, seconds: float = 0) -> None:
        self.read()


class Log(JobLog[Redrive]):
    """One replica's; its machine's clock is off."""

    _follower: Follower

    def __init__(self, operators: "Operators", off_ms: int) -> None:
        super().__init__(TopicReader({}), TOPIC, FORM)
        self._follower.records = operators.topic
        self.read = self._follower.read
        self._operators = operators
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return self._operators.now_ms + self._off_ms


class Writer:
    """A producer without transactions: what it writes may be there or not, and what it hears of that, too."""

    def __init__(self, operators: "Operators") -> None:
        self._operators = operators

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, on_delivery: Any) -> None:
        operators = self._operators
        chance = operators.rng.random() if operators.is_wild else 1.0
        if chance < 0.05:
            operators.seen["lost writes"] += 1
            on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            return
        offset = operators.append(key, value)
        if chance < 0.1:
            operators.seen["lost answers"] += 1
            on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            return
        on_delivery(None, SimpleNamespace(offset=lambda: offset))

    def flush(self, seconds: float) -> int:
        return 0

    def purge(self, **_: Any) -> None:
        """Nothing is queued."""

    def close(self) -> None:
        """Nothing is open."""


class Pen:
    """A transactional producer: whoever has taken its id last may write."""

    def __init__(self, operators: "Operators", id: str) -> None:
        self._operators = operators
        self._id = id
        self._epoch = -1

    def init(self, seconds: float = 0.0) -> None:
        self._operators.meanwhile()
        self._epoch = self._operators.epochs[self._id] = self._operators.epochs[self._id] + 1

    def ship(self, plan_id: str, units: int, progress: Progress) -> None:
        operators = self._operators
        operators.meanwhile()
        if self._epoch != operators.epochs[self._id]:
            operators.seen["fenced"] += 1
            raise TakenOver
        chance = operators.rng.random() if operators.is_wild else 1.0
        if chance < 0.03:
            raise ShipmentFailed("aborted")
        operators.ship(plan_id, units, progress)
        if chance < 0.06:
            raise ShipmentFailed("no answer")
        operators.meanwhile()

    def close(self) -> None:
        self._epoch = -1


class Task:
    """One attempt at a job, as `RedriveRun` and `ChangeWork` are: what is in memory between two crashes."""

    def __init__(self, replica: "Replica", job: Redrive, shipping: Any) -> None:
        self.shipping = shipping
        self._replica = replica
        self._plan = job.plan
        self._progress = job.progress
        self._may_start = job.state.may_start
        self._written_ms = replica.log.now_ms()

    def begin(self) -> None:
        if not self._may_start:
            raise TakenOver
        self._write(0, state=State.RUNNING, leg=self._progress.leg + 1)

    def go_on(self) -> None:
        while self._progress.state.is_active and not self._is_aborted() and not self._replica.wait(0):
            done = self._progress.positions.get(0, 0)
            if self._progress.state is State.PLANNING:
                self._write(0, state=State.PLANNED)
            elif done == self._plan.spans[0].end:
                self._write(0, state=State.DONE)
            elif self._replica.operators.rng.random() < 0.6:
                self._write(1, positions={0: done + 1})
            elif self._replica.log.now_ms() - self._written_ms > HEARTBEAT_MS:
                self._write(0)

    def close(self) -> None:
        """Nothing is open."""

    def _is_aborted(self) -> bool:
        job = self._replica.log.get(self._plan.id)
        if job is None or job.aborted_by is None:
            return False
        self._write(0, state=State.ABORTED)
        return True

    def _write(self, units: int, **update: Any) -> None:
        self._written_ms = self._replica.log.now_ms()
        always = {"owner": self._replica.owner, "updated_ms": self._written_ms}
        progress = self._progress.model_copy(update={**always, **update})
        self.shipping.ship(self._plan.id, units, progress)
        self._progress = progress


class Replica:
    """One life of a process."""

    def __init__(self, operators: "Operators", number: int) -> None:
        self.operators = operators
        self.is_dead = False
        self.owner = (
            f"{number}" if number else f"0 {operators.seen['killed']}"
        )  # the first one's has no name of its own
        self.log = Log(operators, operators.off_ms[number])
        self.crew: JobRunner[Redrive] = JobRunner(
            "redrive", self.log, self.owner, lambda plan_id: self.leg(plan_id, None)
        )
        self.stage = RunContext({}, self.log, lambda plan_id: plan_id, self._work, self.wait)
        self.log.read()

    def _work(self, job: Redrive, shipping: Any) -> Task:
        return Task(self, job, shipping)

    def leg(self, plan_id: str, begin: Callable[[Task], None] | None) -> JobRun[Redrive, Task]:
        return JobRun(plan_id, begin, self.stage)

    def wait(self, seconds: float) -> bool:
        self.operators.pass_time(self)
        self.operators.meanwhile()
        return False


class Thread:
    """A leg that gets its turn when the operators' run gives it one."""

    operators: "Operators"

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self.operators.waiting.append((self.operators.acting, self))

    def join(self, seconds: float) -> None:
        """Nobody waits."""

    def is_alive(self) -> bool:
        return False

    def run(self) -> None:
        self._target(*self._args)


class Begun(threading.Event):
    """Nobody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


def _ignore(*_: Any, **__: Any) -> None:
    """Drop a log line about something that may happen."""


class Operators:
    """One run. `seen` counts what happened. `patches`: by module, what stands in for threads and clients of Kafka."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.topic = Topic()
        self.now_ms = NOW_MS
        self.seen: Counter[str] = Counter()
        self.epochs: Counter[str] = Counter()
        self.done: dict[str, list[int]] = {}
        self.over: set[str] = set()  # of these was answered that they are aborted
        self.waiting: list[tuple[Replica, Thread]] = []
        self.wrong: list[str] = []  # that legs have done; they survive what is raised in them
        self.is_wild = True
        self.off_ms = [self.rng.choice(OFF_MS) for _ in range(REPLICAS)]
        self._crashes_left = self.rng.randint(0, CRASHES_MAX)
        self._stack: list[Replica] = []
        thread = type("LegThread", (Thread,), {"operators": self})
        threads = SimpleNamespace(Thread=thread, Lock=threading.Lock, Event=Begun)
        log = SimpleNamespace(info=_ignore, warning=_ignore, error=lambda *_, **about: self.wrong.append(repr(about)))
        self.patches: dict[str, dict[str, Any]] = {
            "runner": {"threading": threads, "PLANS_MAX": PLANS_MAX, "LEGS_MAX": 2, "log": log},
            "run": {"threading": threads, "TransactionalSender": lambda client, id, topic: Pen(self, id)},
            "job": {"TopicFollower": Follower},
            "log_writer": {
                "Producer": lambda settings: Writer(self),
                "give_up": lambda producer: producer.close(),
            },
        }
        self.replicas: list[Replica] = []

    @property
    def acting(self) -> Replica:
        return self._stack[-1]

    def run(self) -> None:
        """All of it, and the verdict. The patches must be in place."""
        self.replicas = [Replica(self, number) for number in range(REPLICAS)]
        for _ in range(STEPS):
            self._act()
            self._happen()
            self._work_on()
            self._pass_freely()
        for _ in range(LAST_ACTS):
            self._act()
        for number in range(REPLICAS):  # who dies before its legs have got a turn
            if self.rng.random() < 0.5:
                self._replace(number)
        self.is_wild = False
        for _ in range(CALM_STEPS):
            self.now_ms += 2_000
            for replica in self.replicas:
                replica.log.read()
                self._as(replica, replica.crew.supervise)
            while self.waiting:
                self._work_on()
        self._judge()

    # --- what operators do ----------------------------------------------------------------------------------------

    def _act(self) -> None:
        replica = self.rng.choice(self.replicas)
        act = self.rng.choice((self._plan, self._begin, self._begin, self._abort, self._list))
        try:
            self._as(replica, lambda: act(replica))
        except LogUnavailable:
            self.seen["no answer"] += 1

    def _plan(self, replica: Replica) -> None:
        id, now_ms = f"p{len(self.topic.jobs)}-{self.topic.end}", replica.log.now_ms()
        plan = Plan(
            id=id, author="me", created_ms=now_ms, topic="dlq", selection=SearchedSelection(), target=None,
            spans=(Span(partition=0, start=0, end=self.rng.randint(1, UNITS_MAX)),), governor=NO_LIMIT,
        )  # fmt: skip
        replica.log.read()
        known = [one for one in self.topic.jobs.values() if self._is_surely_known(one)]
        may_be_known = [one for one in self.topic.jobs.values() if not self._is_surely_forgotten(one)]
        with self._refusals() as refused:
            replica.crew.plan(plan)
            self.seen["planned"] += 1
        if not refused:
            assert len(known) < PLANS_MAX, f"{len(known)} jobs are known, and another one is planned"
            return
        assert id not in self.topic.jobs, f"{refused}, and the plan is there"
        if "too-many-redrives" in refused:
            assert len(may_be_known) >= PLANS_MAX, f"{len(may_be_known)} jobs, and there is no room for another"

    def _begin(self, replica: Replica) -> None:
        with self._refusals():
            if (id := self._anyone()) is not None:
                replica.crew.startable(id)
                replica.crew.begin(id, replica.leg(id, Task.begin))
                self.seen["begun"] += 1

    def _abort(self, replica: Replica) -> None:
        with self._refusals():
            if (id := self._anyone()) is not None and self.rng.random() < 0.3:
                state = replica.crew.abort(id, "me").state
                self.seen[f"abort: {state.value}"] += 1
                if state is State.ABORTED:
                    self.over.add(id)

    def _list(self, replica: Replica) -> None:
        assert replica.crew.all() is not None

    def _anyone(self) -> str | None:
        return self.rng.choice(sorted(self.topic.jobs)) if self.topic.jobs else None

    @contextmanager
    def _refusals(self) -> Iterator[list[str]]:
        types: list[str] = []
        try:
            yield types
        except JobRefused as refused:
            types.append(refused.type)
            self.seen[refused.type] += 1

    # --- what happens meanwhile -----------------------------------------------------------------------------------

    def _as(self, replica: Replica, act: Callable[[], object]) -> None:
        """Run `act` as this process, until it is through or dies."""
        self._stack.append(replica)
        try:
            act()
        except CrashError:
            self.seen["died in the middle"] += 1
        finally:
            self._stack.pop()

    def _work_on(self) -> None:
        """One of the legs that wait for their turn gets it."""
        if self.waiting:
            replica, thread = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            if not replica.is_dead:
                self._as(replica, thread.run)

    def _happen(self) -> None:
        replica, rng = self.rng.choice(self.replicas), self.rng
        event = rng.choice(("read", "read", "look", "look", "kill", "outage", "garbage", "compact", "forget"))
        if event == "read":
            replica.log.read()
        elif event == "look":
            self._as(replica, replica.crew.supervise)
        elif event == "kill":
            self._kill(replica)
        elif event == "outage":
            self._lose_all()
        elif event == "garbage":
            self._scribble()
        elif event == "compact":
            self.topic.compact(rng.randint(0, self.topic.end))
        else:
            self.topic.forget(self.now_ms)
        self.seen[event] += 1

    def _scribble(self) -> None:
        """Somebody writes what nobody can read; of an abort the key alone says what is meant."""
        id, value = self._anyone(), self.rng.choice(GARBAGE)
        if id is not None and self.rng.random() < 0.2:
            self.topic.jobs[id] = self.topic.jobs[id].model_copy(update={"aborted_by": "?"})
            self.topic.append(f"{id}/abort".encode(), value, self.now_ms)
        else:
            key = self.rng.choice((b"nobody/plan", b"nobody/progress", b"nobody/abort", b"\xff/plan", b"/", b""))
            self.topic.append(key, value, self.now_ms)

    def _kill(self, replica: Replica) -> None:
        if self._crashes_left:
            self._crashes_left -= 1
            self._replace(self.replicas.index(replica))

    def _replace(self, number: int) -> None:
        """By a new life, on the same machine or on another."""
        self.seen["killed"] += 1
        self.replicas[number].is_dead = True
        self.off_ms[number] = self.rng.choice((self.off_ms[number], *OFF_MS))
        self.replicas[number] = Replica(self, number)

    def _lose_all(self) -> None:
        """The whole group is away for longer than Kafka takes to compact the topic."""
        if self._crashes_left:
            self._crashes_left -= 1
            self.seen["all lost"] += 1
            for replica in self.replicas:
                replica.is_dead = True
            self.now_ms += 2 * DAY_MS
            self.topic.compact(self.topic.end)
            self.replicas = [Replica(self, number) for number in range(REPLICAS)]

    def meanwhile(self) -> None:
        """At each call to the outside: others act, and this process may have died."""
        if self._stack and self.acting.is_dead:
            raise CrashError
        if self.is_wild and len(self._stack) < DEPTH_MAX and self.rng.random() < 0.3:
            self.rng.choice((self._act, self._happen, self._happen, self._work_on))()
            if self._stack and self.acting.is_dead:
                raise CrashError

    def pass_time(self, replica: Replica) -> None:
        """While a job is worked on: its process goes on looking after it. Days pass only where nothing else waits."""
        times_ms = [1_000, 4_000, 20_000]
        is_alone = len(self._stack) == 1 and self._active() == 1 and not self.waiting
        times_ms += [DAY_MS, 5 * DAY_MS] if is_alone else []
        self._pass(self.rng.choice(times_ms) if self.is_wild else 100)
        if not replica.is_dead:
            replica.crew.supervise()

    def _pass_freely(self) -> None:
        """Days without anybody only where nothing is under way."""
        self._pass(self.rng.choice((1_000, 20_000, 0 if self._active() else 5 * DAY_MS)))

    def _active(self) -> int:
        return sum(job.state.is_active for job in self.topic.jobs.values())

    def _pass(self, ms: int) -> None:
        self.now_ms += ms
        for replica in self.replicas if ms >= DAY_MS else ():
            replica.log.read()  # nobody is so late that the topic has forgotten what comes next

    def append(self, key: bytes, value: bytes) -> int:
        """A plan, or that somebody wants its end."""
        id, _, kind = key.decode().rpartition("/")
        if kind == "plan":
            plan = Plan.model_validate_json(value)
            self.topic.jobs.setdefault(id, Redrive(plan=plan))
        else:
            self.topic.jobs[id] = self.topic.jobs[id].model_copy(update={"aborted_by": "me"})
        return self.topic.append(key, value, self.now_ms)

    def ship(self, plan_id: str, units: int, progress: Progress) -> None:
        """A committed transaction."""
        job, done = self.topic.jobs[plan_id], self.done.setdefault(plan_id, [])
        if units and plan_id in self.over:
            self.wrong.append(f"{plan_id} goes on after it was answered that it is aborted")
        if job.progress.state in (State.DONE, State.ABORTED):
            self.wrong.append(f"{plan_id} goes on though it is {job.state}")
        done += [progress.positions.get(0, 0)] * units
        if done != list(range(1, progress.positions.get(0, 0) + 1)):
            self.wrong.append(f"{plan_id} does its units as {done}, and says {progress.positions}")
        self.topic.jobs[plan_id] = job.model_copy(update={"progress": progress})
        self.topic.append(progress_key(plan_id), progress.model_dump_json().encode(), self.now_ms)

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _is_surely_known(self, job: Redrive) -> bool:
        return job.plan.created_ms > self.now_ms - JOBS_KEPT_MS + DAY_MS or job.state.is_active

    def _is_surely_forgotten(self, job: Redrive) -> bool:
        return job.plan.created_ms < self.now_ms - JOBS_KEPT_MS - DAY_MS and not job.state.is_active

    def _judge(self) -> None:
        assert not self.wrong, self.wrong
        active = {id: job.progress for id, job in self.topic.jobs.items() if job.state.is_active}
        assert not active, f"nobody goes on with {active}, clocks {self.off_ms}"
        self.topic.compact(self.topic.end)
        self.topic.forget(self.now_ms)
        newcomer = Replica(self, 0)
        for replica in [*self.replicas, newcomer]:
            replica.log.read()
            listed = {job.plan.id: job for job in replica.crew.all()}
            for id, job in self.topic.jobs.items():
                if self._is_surely_known(job):
                    assert id in listed, f"{id} is not known"
                    assert listed[id] == job, f"{id} is {job}, and is taken for {listed[id]}"
                elif self._is_surely_forgotten(job):
                    assert id not in listed, f"{id} is still known"
                    self.seen["forgotten"] += 1
        for job in self.topic.jobs.values():
            self.seen[f"ended: {job.state.value}"] += 1
