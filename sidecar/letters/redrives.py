"""Redrives as the API asks for them: plan, canary, run, abort. What they do is in `leg.py`, in a thread each.

A process that dies leaves its redrives active; they have a lease, and whoever sees it run out goes on with them.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, NamedTuple, Protocol

from sidecar.letters.destination import is_internal
from sidecar.letters.letter_log import LetterLog
from sidecar.letters.plan import Governor, Plan, Redrive, Span, State
from sidecar.letters.selection import Selection

LEASE_MS: Final = 15_000
SUPERVISED_S: Final = 2.0
LEGS_MAX: Final = 4
BEGIN_S: Final = 20.0
STOP_S: Final = 5.0
PLANS_MAX: Final = 1_000

log = logging.getLogger("tickover.redrive")


class RedriveRefused(Exception):
    """`type` is the last step of a problem's URI."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(detail)
        self.type = type


class Wanted(NamedTuple):
    """What a plan is asked to be."""

    topic: str
    selection: Selection
    target: str | None
    governor: Governor
    confirm_all: bool
    author: str


class Plans(Protocol):
    """The topic of redrives (`redrive_log.RedriveLog`)."""

    def all(self) -> dict[str, Redrive]: ...

    def get(self, plan_id: str) -> Redrive | None: ...

    def write_plan(self, plan: Plan) -> Redrive: ...

    def write_abort(self, plan_id: str, author: str) -> None: ...

    def now_ms(self) -> int: ...


class Work(Protocol):
    """One leg (`leg.Leg`)."""

    begun: threading.Event

    def run(self) -> None: ...


class Topics(NamedTuple):
    """What may be read, and what must not be written to."""

    choose: Callable[[LetterLog, str], None]  # raises UnknownTopic
    letters: Callable[[LetterLog], frozenset[str]]
    own: frozenset[str]


class Redrives:
    """Methods raise RedriveRefused, UnknownTopic and LettersUnavailable. They block: not for an event loop."""

    def __init__(
        self,
        plans: Plans,
        open_log: Callable[[], LetterLog],
        topics: Topics,
        leg: Callable[[str, State | None, int], Work],
        owner: str,
    ) -> None:
        self._plans = plans
        self._open_log = open_log
        self._topics = topics
        self._leg = leg
        self._owner = owner
        self._legs: dict[str, threading.Thread] = {}
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="redrives", daemon=True)

    def start(self) -> None:
        """Take over what others have left, from now on. Twice is harmless."""
        if not self._supervisor.is_alive():
            self._supervisor.start()

    def stop(self) -> None:
        """What is under way stays as it is, for whoever goes on with it. Twice is harmless."""
        self._stopping.set()
        for thread in [*self._legs.values(), self._supervisor]:
            if thread.is_alive():
                thread.join(STOP_S)

    def wait(self, seconds: float) -> bool:
        """Sleep; True when everything is to stop."""
        return self._stopping.wait(seconds)

    # --- what the API asks for ------------------------------------------------------------------------------------

    def all(self) -> list[Redrive]:
        """Every redrive, the newest first."""
        return sorted(self._plans.all().values(), key=lambda redrive: (-redrive.plan.created_ms, redrive.plan.id))

    def get(self, plan_id: str) -> Redrive:
        redrive = self._plans.get(plan_id)
        if redrive is None:
            raise RedriveRefused("redrive-not-found", "There is no redrive of this id.")
        return redrive

    def plan(self, wanted: Wanted) -> Redrive:
        """Pin the letters that are there now, and begin to count them."""
        if wanted.selection.is_everything and not wanted.confirm_all:
            detail = 'The filter matches every dead letter of the topic; say "confirm_all": true if that is meant.'
            raise RedriveRefused("confirmation-needed", detail)
        if len(self._plans.all()) >= PLANS_MAX:
            raise RedriveRefused("too-many-redrives", f"There are {PLANS_MAX} redrives; the oldest go after 30 days.")
        with closing(self._open_log()) as letters:
            self._topics.choose(letters, wanted.topic)
            partitions = letters.topics()
            self._check_target(wanted, partitions, letters)
            spans = tuple(self._span(letters, wanted, partition) for partition in range(partitions[wanted.topic]))
        plan = Plan(
            id=secrets.token_hex(6),
            author=wanted.author,
            created_ms=self._plans.now_ms(),
            topic=wanted.topic,
            selection=wanted.selection,
            target=wanted.target,
            spans=spans,
            governor=wanted.governor,
        )
        self._plans.write_plan(plan)
        self._begin(plan.id, None, 0)
        return self.get(plan.id)

    def canary(self, plan_id: str, count: int) -> Redrive:
        """Send so many, and see what becomes of them."""
        return self._start(plan_id, State.CANARY, count)

    def run(self, plan_id: str) -> Redrive:
        """Send the rest."""
        return self._start(plan_id, State.RUNNING, 0)

    def abort(self, plan_id: str, author: str) -> Redrive:
        """No more is sent by this plan, by whoever works on it; what was sent stays sent."""
        state = self.get(plan_id).state
        if state in (State.DONE, State.ABORTED):
            raise RedriveRefused("redrive-ended", f"The redrive is {state} already.")
        self._plans.write_abort(plan_id, author)
        return self.get(plan_id)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _check_target(self, wanted: Wanted, partitions: Mapping[str, int], letters: LetterLog) -> None:
        if wanted.target is None:
            return
        if wanted.target in self._topics.letters(letters) or wanted.target in self._topics.own:
            detail = f"{wanted.target} holds dead letters, or is tickover's own: what goes there would come back."
            raise RedriveRefused("redrive-loop", detail)
        if wanted.target not in partitions or is_internal(wanted.target):
            raise RedriveRefused("unknown-target", f"There is no topic {wanted.target} for this.")

    def _span(self, letters: LetterLog, wanted: Wanted, partition: int) -> Span:
        low, high = letters.bounds(wanted.topic, partition)
        if wanted.selection.since is not None and low < high:
            at = letters.offset_at(wanted.topic, partition, wanted.selection.since)
            low = high if at is None else max(low, at)
        return Span(partition=partition, start=low, end=high)

    def _start(self, plan_id: str, state: State, count: int) -> Redrive:
        redrive = self.get(plan_id)
        if plan_id in self._legs or redrive.state.is_active:
            raise RedriveRefused("redrive-active", f"The redrive is {redrive.state} already.")
        if not redrive.state.may_start:
            raise RedriveRefused("redrive-ended", f"The redrive is {redrive.state}: plan a new one.")
        progress = redrive.progress
        if progress.planned.sent == 0:
            raise RedriveRefused("nothing-to-redrive", "No letter of this plan can be sent: see what it skips.")
        with closing(self._open_log()) as letters:
            gone = sorted(set(progress.planned.targets) - letters.topics().keys())
        if gone:
            raise RedriveRefused("target-gone", f"Planned targets are gone: {', '.join(gone)}.")
        self._begin(plan_id, state, count)
        return self.get(plan_id)

    def _begin(self, plan_id: str, state: State | None, count: int) -> None:
        """Returns when the leg stands in the log, or has ended."""
        work = self._leg(plan_id, state, count)
        with self._changing:
            if plan_id in self._legs:
                raise RedriveRefused("redrive-active", "The redrive is being started already.")
            if len(self._legs) >= LEGS_MAX:
                raise RedriveRefused("redrives-busy", f"{LEGS_MAX} redrives are under way in this process.")
            thread = threading.Thread(target=self._work, args=(plan_id, work), name="redrive", daemon=True)
            self._legs[plan_id] = thread
        thread.start()
        work.begun.wait(BEGIN_S)

    def _work(self, plan_id: str, work: Work) -> None:
        try:
            work.run()
        except Exception as error:
            log.error("a redrive failed", extra={"plan": plan_id, "error": type(error).__name__}, exc_info=error)
        finally:
            with self._changing:
                del self._legs[plan_id]

    def _supervise(self) -> None:
        while not self._stopping.wait(SUPERVISED_S):
            for plan_id in self.abandoned():
                log.info("going on with a redrive that nobody works on", extra={"plan": plan_id})
                try:
                    self._begin(plan_id, None, 0)
                except RedriveRefused as error:
                    log.warning("not now", extra={"plan": plan_id, "error": str(error)})

    def abandoned(self) -> list[str]:
        """Redrives whose lease has run out, and our own of a former life."""
        now_ms = self._plans.now_ms()
        return [
            plan_id
            for plan_id, redrive in self._plans.all().items()
            if redrive.state.is_active
            and plan_id not in self._legs
            and (
                redrive.progress.owner == self._owner
                or now_ms - max(redrive.progress.updated_ms, redrive.plan.created_ms) > LEASE_MS
            )
        ]
