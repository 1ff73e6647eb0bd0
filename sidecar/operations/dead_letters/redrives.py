"""Redrives as the API asks for them: plan, canary, run, abort. The work is in `redrive_run.py`, in a thread each."""

import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from sidecar.model.reserved_topics import INTERNAL_PREFIX
from sidecar.operations.dead_letters.dead_letter_log import LetterLog, LettersGone, TopicId, check_letters
from sidecar.operations.dead_letters.edit import Edit
from sidecar.operations.dead_letters.masking import Search
from sidecar.operations.dead_letters.redrive_plan import (
    PLAIN_SCHEMA,
    SCHEMA,
    Action,
    Governor,
    Plan,
    Redrive,
    SearchedSelection,
    Span,
    rivals,
)
from sidecar.operations.jobs.job import Approval, State
from sidecar.operations.jobs.runner import JobRefused, JobRunner, Jobs, Work


class Wanted(NamedTuple):
    """A plan as it is asked for. `mask`: rules of what may be shown, by which a search is done."""

    topic: str
    selection: SearchedSelection
    target: str | None
    governor: Governor
    confirm_all: bool
    author: str
    again: bool = False
    action: Action = Action.SEND
    letters: Mapping[int, tuple[int, ...]] = {}
    edit: Edit | None = None
    mask: tuple[str, ...] = ()


class Topics(NamedTuple):
    """Topics that may be read, and topics that must not be written to."""

    choose: Callable[[LetterLog, str], None]  # raises UnknownTopic
    letters: Callable[[LetterLog], frozenset[str]]
    reserved: Container[str]
    id: TopicId


class Redrives:
    """Methods raise JobRefused, UnknownTopic and LogUnavailable. They block: not for an event loop.

    `leg(plan_id, state, count)`: a new leg, or with state None one that goes on with what somebody began.
    """

    def __init__(
        self,
        jobs: Jobs[Redrive],
        open_log: Callable[[], LetterLog],
        topics: Topics,
        leg: Callable[[str, State | None, int], Work],
        owner: str,
        approval: Approval = "none",
    ) -> None:
        self.crew: JobRunner[Redrive] = JobRunner(
            "redrive", jobs, owner, lambda plan_id: leg(plan_id, None, 0), approval
        )
        self._open_log = open_log
        self._topics = topics
        self._leg = leg

    def all(self) -> list[Redrive]:
        """Every redrive, the newest first."""
        return self.crew.all()

    def get(self, plan_id: str) -> Redrive:
        return self.crew.get(plan_id)

    def plan(self, wanted: Wanted) -> Redrive:
        """Pin the letters that are there now, and begin to count them."""
        if wanted.selection.is_everything and not wanted.letters and not wanted.confirm_all:
            detail = 'The filter matches every dead letter of the topic; say "confirm_all": true if that is meant.'
            raise JobRefused("confirmation-needed", detail)
        with closing(self._open_log()) as letters:
            self._topics.choose(letters, wanted.topic)
            partitions = letters.topics()
            self._check_target(wanted, partitions, letters)
            topic_id = self._topics.id(wanted.topic)  # before its ends: it is looked at again before anything is sent
            spans = tuple(self._span(letters, wanted, partition) for partition in range(partitions[wanted.topic]))
        _check_letters_there(wanted, spans)
        searches = wanted.selection.search != Search()
        is_plain = wanted.action is Action.SEND and not wanted.letters and wanted.edit is None and not searches
        plan = Plan(
            schema_version=PLAIN_SCHEMA if is_plain else SCHEMA,
            id=secrets.token_hex(6),
            author=wanted.author,
            created_ms=self.crew.jobs.now_ms(),
            topic=wanted.topic,
            topic_id=topic_id,
            selection=wanted.selection,
            mask=wanted.mask if searches else (),
            target=wanted.target,
            spans=spans,
            governor=wanted.governor,
            again=wanted.again,
            action=wanted.action,
            letters=wanted.letters,
            edit=wanted.edit,
        )
        return self.crew.plan(plan)

    def canary(self, plan_id: str, count: int) -> Redrive:
        """Send so many, and see what becomes of them."""
        return self._start(plan_id, State.CANARY, count)

    def run(self, plan_id: str) -> Redrive:
        """Send the rest."""
        return self._start(plan_id, State.RUNNING, 0)

    def approve(self, plan_id: str, author: str) -> Redrive:
        """Let it begin, as another than who planned it."""
        return self.crew.approve(plan_id, author)

    def abort(self, plan_id: str, author: str) -> Redrive:
        """Ask for its end: no more is sent once it is `aborted`; what was sent stays sent."""
        return self.crew.abort(plan_id, author)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _check_target(self, wanted: Wanted, partitions: Mapping[str, int], letters: LetterLog) -> None:
        if wanted.target is None:
            return
        is_reserved = wanted.target in self._topics.reserved
        is_internal = wanted.target.startswith(INTERNAL_PREFIX)
        if wanted.target in self._topics.letters(letters) or (is_reserved and not is_internal):
            detail = f"{wanted.target} holds dead letters, or is tickover's own: what goes there would come back."
            raise JobRefused("redrive-loop", detail)
        if wanted.target not in partitions or is_reserved:
            raise JobRefused("unknown-target", f"There is no topic {wanted.target} for this.")

    def _span(self, letters: LetterLog, wanted: Wanted, partition: int) -> Span:
        low, high = letters.bounds(wanted.topic, partition)
        if wanted.selection.since is not None and low < high:
            at = letters.offset_at(wanted.topic, partition, wanted.selection.since)
            low = high if at is None else max(low, at)
        return Span(partition=partition, start=low, end=high)

    def _start(self, plan_id: str, state: State, count: int) -> Redrive:
        redrive = self.crew.startable(plan_id)
        progress = redrive.progress
        if progress.planned.settled == 0:
            detail = (
                "No letter of this plan can be sent or discarded: see what it skips; "
                '"again": true means those redriven or discarded before, too.'
            )
            raise JobRefused("nothing-to-redrive", detail)
        for rival in rivals(redrive, self.crew.jobs.all().values()):
            detail = f"The redrive {rival.plan.id} sends letters that this one may mean, too: wait for it, or abort it."
            raise JobRefused("letters-busy", detail)
        with closing(self._open_log()) as letters:
            try:
                check_letters(letters, redrive.plan, self._topics.id)
            except LettersGone as error:
                raise JobRefused("letters-gone", f"This plan's letters are gone: {error}.") from None
            gone = sorted(set(progress.planned.targets) - letters.topics().keys())
        if gone:
            raise JobRefused("target-gone", f"Planned targets are gone: {', '.join(gone)}.")
        self.crew.begin(plan_id, self._leg(plan_id, state, count))
        return self.get(plan_id)


def _check_letters_there(wanted: Wanted, spans: Sequence[Span]) -> None:
    """Raises JobRefused where a letter that is named isn't there, or no more."""
    there = {span.partition: span for span in spans}
    for partition, offsets in wanted.letters.items():
        span = there.get(partition)
        for offset in offsets:
            if span is None or not span.start <= offset < span.end:
                place = f"{wanted.topic}/{partition}/{offset}"
                raise JobRefused("letters-gone", f"There is no record at {place} that fits, or none any more.")
