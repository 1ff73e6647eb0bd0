"""Redrives without Kafka: plans in memory, and legs that do what a test tells them."""

import threading
from collections.abc import Callable
from typing import Any

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.operations.dead_letters.dead_letter_log import LetterLog
from sidecar.operations.dead_letters.reading import UnknownTopic
from sidecar.operations.dead_letters.redrive_plan import Governor, Plan, Progress, Redrive, Tally
from sidecar.operations.dead_letters.redrives import Redrives, Topics
from sidecar.operations.jobs.job import Approval, PlanHead, State

GOVERNOR = Governor(rate=1_000, ramp_ms=30_000, stop_share=0.1, watch_ms=30_000)
COUNTED = Progress(state=State.PLANNED, planned=Tally(targets={"orders": 3}, skipped={"no_target": 1}), updated_ms=1)


class MemoryPlans:
    """The topic of redrives as a dictionary."""

    def __init__(self) -> None:
        self.redrives: dict[str, Redrive] = {}
        self.time_ms = 1_800_000_000_000

    def all(self) -> dict[str, Redrive]:
        return dict(self.redrives)

    def get(self, plan_id: str) -> Redrive | None:
        return self.redrives.get(plan_id)

    def write_plan(self, plan: PlanHead) -> Redrive:
        assert isinstance(plan, Plan)
        self.redrives[plan.id] = Redrive(plan=plan)
        return self.redrives[plan.id]

    def catch_up(self) -> None:
        """All that there is is known."""

    def write_abort(self, plan_id: str, author: str, given_up: str = "") -> None:
        said = {"aborted_by": author, "given_up": given_up}
        self.redrives[plan_id] = self.redrives[plan_id].model_copy(update=said)

    def write_approval(self, plan_id: str, author: str) -> None:
        said = {"approved_by": author, "approved_ms": self.time_ms}
        self.redrives[plan_id] = self.redrives[plan_id].model_copy(update=said)

    def now_ms(self) -> int:
        return self.time_ms

    def set(self, plan_id: str, **update: object) -> None:
        """A progress as some leg has written it."""
        redrive = self.redrives[plan_id]
        progress = redrive.progress.model_copy(update=update)
        self.redrives[plan_id] = redrive.model_copy(update={"progress": progress})


class MemoryLeg:
    """Planning counts three letters at once; a canary or a run begins, and ends when told."""

    problem = ""

    def __init__(
        self, plans: MemoryPlans, plan_id: str, state: State | None, count: int, ending: dict[str, Any]
    ) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()
        self._plans, self._plan_id, self._state, self._count = plans, plan_id, state, count
        self._ending = ending

    def run(self) -> None:
        if self._state is None:
            self._plans.set(self._plan_id, **dict(COUNTED))
            self.begun.set()
            return
        self._plans.set(self._plan_id, state=self._state, left=self._count, updated_ms=self._plans.time_ms)
        self.begun.set()
        if self._ending:
            self._plans.set(self._plan_id, **self._ending)
            return
        self.end.wait(30)


class MemoryRedrives:
    """Real `Redrives` over these."""

    def __init__(self, letters: LetterLog, approval: Approval = "none") -> None:
        self.plans = MemoryPlans()
        self.legs: list[MemoryLeg] = []
        self.ending: dict[str, Any] = {}  # how canaries and runs end at once; empty: when told
        self.topic_ids: dict[str, str | None] = {}  # None: no answer; else every topic has one
        topics = Topics(self._choose, self._letters, ReservedTopics(frozenset({"tickover.policies"})), self._topic_id)
        self.redrives = Redrives(self.plans, lambda: letters, topics, self._leg, "here", approval)

    def finish(self, **update: object) -> None:
        """The last leg ends like this."""
        leg = self.legs[-1]
        self.plans.set(leg._plan_id, **update)
        leg.end.set()
        wait_until_gone(lambda: not self.redrives.crew.works_on(leg._plan_id))

    def _leg(self, plan_id: str, state: State | None, count: int) -> MemoryLeg:
        self.legs.append(MemoryLeg(self.plans, plan_id, state, count, self.ending))
        return self.legs[-1]

    def _topic_id(self, topic: str) -> str:
        topic_id = self.topic_ids.get(topic, f"id of {topic}")
        if topic_id is None:
            raise LogUnavailable("no answer")
        return topic_id

    def _choose(self, log: LetterLog, topic: str) -> None:
        if topic not in self._letters(log):
            raise UnknownTopic(topic)

    def _letters(self, log: LetterLog) -> frozenset[str]:
        return frozenset(name for name in log.topics() if name.endswith("-dlq"))


def wait_until_gone(true: Callable[[], bool]) -> None:
    """Until a thread has left the list of those that work."""
    waiting = threading.Event()
    for _ in range(3_000):
        if true():
            return
        waiting.wait(0.01)
    raise AssertionError("it is still there")
