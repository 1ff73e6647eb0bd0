"""Bulk changes: plans and runs of several operators, while messages come and go and others act on them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from policies.headers import ACTION, CHANGE, DELAY, ID
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.record import Headers, TopicPartition
from sidecar.operations.bulk.changes import NotAllAnswer, Wanted
from sidecar.operations.bulk.outcome import TOO_LATE, UNANSWERED, Place
from sidecar.operations.bulk.plan import DONE, Change, ChangePlan, Selection, When
from sidecar.operations.bulk.receipt_log import Batch, receipts_of
from sidecar.operations.jobs.job import State
from tests.property.operations.bulk.test_change import TABLE
from tests.unit.change_world import LANES, NOW_MS, CrashError, MemoryChanges, MemoryGroup, MemoryJobs

TRIES_MAX: Final = 500  # of processes that take a change over, one after the other
CRASHES_MAX: Final = 8  # of one run; then it is left alone
MESSAGES: Final = 30
PLANS: Final = 4
HOUR_MS: Final = 3_600_000
EVENT: Final = 0.3  # share of the calls to the outside at which something happens
CRASH: Final = 0.05

Token = tuple[int, Place]  # which topic of this name, and the place in it


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the messages that it means."""

    plan: ChangePlan
    meant: dict[Token, str | None]  # with their ids


class Group(MemoryGroup):
    """A group in memory that notes which plan hit which message."""

    def __init__(self) -> None:
        super().__init__()
        self.generation: Counter[str] = Counter()
        self.hits: dict[Token, bytes] = {}  # the plan that changed it; empty: somebody else
        self.wrote: list[bytes] = []  # plans, one for each control record

    def token(self, lane: TopicPartition, offset: int) -> Token:
        return self.generation[lane.topic], (*lane, offset)

    def _obey(self, lane: TopicPartition, control: int, headers: Mapping[str, bytes | None]) -> None:
        before = set(self.lanes[lane])
        super()._obey(lane, control, headers)
        for offset in before - set(self.lanes[lane]):
            self.hits[self.token(lane, offset)] = headers.get(CHANGE) or b""

    def make_anew(self, topic: str) -> None:
        super().make_anew(topic)
        self.generation[topic] += 1
        self.topic_ids[topic] = f"{topic} {self.generation[topic]}"


class Jobs(MemoryJobs):
    """Jobs in memory, which note each plan's receipts."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, list[dict[str, Any]]] = {}

    def ship(self, plan_id: str, parcels: Sequence[Batch], progress: Any) -> None:
        before = len(self.batches)
        try:
            super().ship(plan_id, parcels, progress)
        finally:  # it may have been written by a process that died right after
            for batch in self.batches[before:]:
                self.told.setdefault(plan_id, []).extend(receipts_of(batch.value))


class Operators:
    """One run. `seen` counts what happened."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.group, self.jobs = Group(), Jobs()
        self.world = MemoryChanges(
            lambda: TABLE.table, in_flight_max=self.rng.choice((1, 3, 50)), group=self.group, jobs=self.jobs
        )
        self.world.changes.crew.plan = self.jobs.write_plan  # type: ignore[method-assign] # nobody counts in a thread
        self.group.fault = self.jobs.fault = self._meanwhile
        self.world.stops = self._stops
        self.seen: Counter[str] = Counter()
        self.plans: list[Planned] = []
        self._crashes_left = 0
        self._acting = True
        for _ in range(MESSAGES):
            self._accept()

    def run(self) -> None:
        """All of it, and the verdict."""
        self._acting = False
        for _ in range(PLANS):
            planned = self._plan()
            if planned is not None:
                self.plans.append(planned)
                self._carry_out(planned)
                self._judge(planned)
        for planned in self.plans:
            self._judge(planned)

    # --- what operators do ----------------------------------------------------------------------------------------

    def _plan(self) -> Planned | None:
        rng, self._crashes_left = self.rng, 0
        selection = Selection(
            topic=rng.choice((None, "a", "b")), policy=rng.choice((None, "p", "q@1")), partition=rng.choice((None, 0))
        )
        when = When(delay_ms=rng.randint(0, HOUR_MS))
        wanted = Wanted(rng.choice(("cancel", "reschedule", "fire")), selection, when, 0, True, "me")
        try:
            plan = self.world.changes.plan(wanted).plan
        except (NotAllAnswer, LookUpUnavailable, LogUnavailable):
            self.seen["no plan"] += 1
            return None
        query, ends = selection.query, {TopicPartition(*end[:2]): end.offset for end in plan.ends}
        meant = {
            self.group.token(lane, one.offset): dict(one.trailer).get(ID)
            for lane, end in ends.items()
            for one in self.group.lanes[lane].values()
            if query.wants_lane(lane) and query.matches(one) and one.offset < end
        }
        return Planned(plan, {token: id.decode() if id else None for token, id in meant.items()})

    def _carry_out(self, planned: Planned) -> None:
        """Count, and run: by one process after the other, as they die."""
        self._crashes_left = self.rng.randint(0, CRASHES_MAX)
        self._work(planned, begins=False)
        if self._change(planned).progress.planned.messages and self._change(planned).state is State.PLANNED:
            self._work(planned, begins=True)

    def _work(self, planned: Planned, begins: bool) -> None:
        for _ in range(TRIES_MAX):
            work = self.world.work(planned.plan.id)
            try:
                if begins and self._change(planned).state.may_start:
                    work.begin()
                work.go_on()
            except CrashError:
                continue
            change = self._change(planned)
            if not change.state.is_active and not (begins and change.state.may_start):
                self.seen[change.state.value] += 1
                return
        raise AssertionError(f"{planned.plan.id} never ends: {self._change(planned).progress}")

    def _change(self, planned: Planned) -> Change:
        return self.jobs.changes[planned.plan.id]

    def _stops(self) -> bool:
        """Now and then somebody asks for the end of what runs, or the process is to stop."""
        if self._acting:
            return False
        running = [change for change in self.jobs.changes.values() if change.state.is_active]
        if running and self.rng.random() < 0.01:
            self.jobs.write_abort(running[0].plan.id, "somebody")
        return self.rng.random() < 0.02

    # --- what happens meanwhile -----------------------------------------------------------------------------------

    def _meanwhile(self, point: str) -> None:
        """At each call to the outside: others act, and the process may die."""
        if self._acting:
            return
        self._acting = True
        if self.rng.random() < EVENT:
            events = [self._accept, self._emit, self._act]
            # From the question about ids to the sending nobody can know that a topic was made anew.
            events += [self._make_anew, self._hide, self._silence] if point == "page" else []
            self.rng.choice(events)()
        self._acting = False
        if self._crashes_left and self.rng.random() < CRASH:
            self._crashes_left -= 1
            self.seen[f"killed at {point}"] += 1
            raise CrashError(point)

    def _accept(self) -> None:
        """Under the same offset of a topic that is made anew the same id comes again."""
        lane, rng = self.rng.choice(LANES), self.rng
        offset = self.group.next[lane]
        id = f"{lane}-{offset}" if rng.random() < 0.9 else None
        self.group.accept(lane, NOW_MS + rng.randint(1, HOUR_MS), id, policy=rng.choice(("p@1", "q@1")))

    def _emit(self) -> None:
        held = [(lane, offset) for lane in LANES for offset in self.group.lanes[lane]]
        if held:
            self.group.emit(*self.rng.choice(held))
            self.seen["emitted"] += 1

    def _act(self) -> None:
        """Somebody cancels or moves one message, by its id."""
        held = [(lane, one) for lane in LANES for one in self.group.lanes[lane].values() if one.trailer]
        if held:
            lane, one = self.rng.choice(held)
            action = self.rng.choice((b"cancel", b"reschedule", b"fire"))
            headers: Headers = [(ID, dict(one.trailer)[ID]), (ACTION, action), (DELAY, b"1000")]
            self.group.write(lane, headers)
            self.seen["somebody else acted"] += 1

    def _make_anew(self) -> None:
        self.group.make_anew(self.rng.choice(("a", "b")))
        for _ in range(10):
            self._accept()
        self.seen["a topic made anew"] += 1

    def _hide(self) -> None:
        self.group.missing.append([self.rng.choice(LANES)])
        self.seen["a partition missing"] += 1

    def _silence(self) -> None:
        self.rng.choice((self.group.down, self.group.unanswered)).append("nobody answers")
        self.seen["no answer"] += 1

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _judge(self, planned: Planned) -> None:
        plan, group = planned.plan, self.group
        change, receipts = self._change(planned), self.jobs.told.get(plan.id, [])
        changed = {token for token, by in group.hits.items() if by == plan.id.encode()}
        assert changed <= planned.meant.keys(), f"changed what was not meant: {changed - planned.meant.keys()}"
        told: dict[Place, str] = {}
        for receipt in receipts:
            place = tuple(receipt["position"].values())
            assert place not in told, f"{place} is told of twice"
            told[place] = receipt["outcome"]
        assert sum(change.progress.outcomes.values()) == len(receipts)
        by_place = {token[1]: token for token in planned.meant}
        for place, word in told.items():
            assert place in by_place, f"{place} was not meant, and is told of"
            assert (word == DONE[plan.action]) == (by_place[place] in changed), f"{place} is told to be {word}"
            # Who aborts it where a process has died between sending and hearing can't know.
            known = word in (DONE[plan.action], TOO_LATE)
            assert known or (word == UNANSWERED and change.state is State.ABORTED), f"{place} is told to be {word}"
            self.seen[f"told: {word}"] += 1
        for token in changed:
            assert token[1] in told or change.state is not State.DONE, f"{token} was changed, and nobody says so"
        if change.state is State.DONE:
            left = [token for token, id in planned.meant.items() if id is not None and self._is_held(token)]
            assert not left, f"done, and these were passed over: {left}"

    def _is_held(self, token: Token) -> bool:
        generation, (topic, partition, offset) = token
        return (
            self.group.generation[topic] == generation and offset in self.group.lanes[TopicPartition(topic, partition)]
        )
