"""Changes as the API asks for them: plan, run, abort, receipts. The work is in `run.py`, in a thread each."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.model.record import TopicPartition
from sidecar.operations.bulk.plan import Change, ChangePlan, End, Selection, When
from sidecar.operations.bulk.receipt_log import Place, Receipts
from sidecar.operations.bulk.run import Sources
from sidecar.operations.jobs.job import Approval
from sidecar.operations.jobs.runner import JobRefused, JobRunner, Jobs, Work


class Wanted(NamedTuple):
    """A plan as it is asked for. `rate`: messages a second at most, 0: no limit. `past`: see `ChangePlan`."""

    action: Any  # cancel, reschedule or fire
    selection: Selection
    when: When
    rate: int
    confirm_all: bool
    author: str
    past: bool = False


class Terms(NamedTuple):
    """Terms under which plans may run: so long after they were counted, and approved by whom."""

    ttl_ms: int
    approval: Approval = "none"


class NotAllAnswer(Exception):
    """Partitions that could not be asked, so that nobody can say what is held."""

    def __init__(self, missing: Sequence[TopicPartition]) -> None:
        super().__init__(f"{len(missing)} partitions can't be asked")
        self.missing = missing


class KeptReceipts(Protocol):
    """`receipt_log.ReceiptLog`."""

    def page(self, plan_id: str, start: Place, limit: int) -> tuple[Receipts, Place | None]: ...


class Changes:
    """Methods raise JobRefused, NotAllAnswer, LookUpUnavailable and LogUnavailable. They block: not for an event loop.

    `leg(plan_id, begins)`: a run, or a leg that goes on with what somebody began.
    """

    def __init__(
        self,
        jobs: Jobs[Change],
        sources: Sources,
        receipts: KeptReceipts,
        leg: Callable[[str, bool], Work],
        owner: str,
        terms: Terms,
    ) -> None:  # fmt: skip
        self.crew: JobRunner[Change] = JobRunner(
            "change", jobs, owner, lambda plan_id: leg(plan_id, False), terms.approval
        )
        self._sources = sources
        self._receipts = receipts
        self._leg = leg
        self._ttl_ms = terms.ttl_ms

    def all(self) -> list[Change]:
        """Every change, the newest first."""
        return self.crew.all()

    def get(self, plan_id: str) -> Change:
        return self.crew.get(plan_id)

    def plan(self, wanted: Wanted) -> Change:
        """Pin what is held now, and begin to count it."""
        if wanted.selection.is_everything and not wanted.confirm_all:
            detail = 'The filter matches every held message; say "confirm_all": true if that is meant.'
            raise JobRefused("confirmation-needed", detail)
        ends, missing = self._sources.lookup.ends(wanted.selection.query)
        if missing:
            raise NotAllAnswer(missing)
        topics = {lane.topic for lane in ends}
        topic_ids = self._sources.topic_ids(topics)
        if gone := topics - topic_ids.keys():
            raise LogUnavailable(f"the topic {min(gone)} isn't there at the moment")
        plan = ChangePlan(
            id=secrets.token_hex(6),
            author=wanted.author,
            created_ms=self.crew.jobs.now_ms(),
            action=wanted.action,
            selection=wanted.selection,
            when=wanted.when,
            past=wanted.past,
            ends=tuple(End(*lane, offset) for lane, offset in sorted(ends.items())),
            topic_ids=dict(topic_ids),
            rate=wanted.rate,
            ttl_ms=self._ttl_ms,
        )
        return self.crew.plan(plan)

    def run(self, plan_id: str, token: str) -> Change:
        """Do it; `token` is the one that the plan showed with its count."""
        change = self.crew.startable(plan_id)
        if change.token is None or not secrets.compare_digest(token.encode(), change.token.encode()):
            detail = "The token is not the one of this plan and its count: look at the plan again."
            raise JobRefused("stale-token", detail)
        if change.expires_ms is not None and self.crew.jobs.now_ms() >= change.expires_ms:
            raise JobRefused("plan-expired", "What the plan has counted is too long ago: plan anew.")
        if change.progress.planned.messages == 0:
            raise JobRefused("nothing-to-change", "No message of this plan can be changed: see what it skips.")
        self.crew.begin(plan_id, self._leg(plan_id, True))
        return self.get(plan_id)

    def approve(self, plan_id: str, author: str) -> Change:
        """Let it begin, as another than who planned it."""
        return self.crew.approve(plan_id, author)

    def abort(self, plan_id: str, author: str) -> Change:
        """Ask for its end: no more is changed once it is `aborted`; what was changed stays changed."""
        return self.crew.abort(plan_id, author)

    def receipts(self, plan_id: str, start: Place, limit: int) -> tuple[Receipts, Place | None]:
        """The next receipts, and where to go on (None: there are no more yet)."""
        first = self.get(plan_id).progress.receipts_from
        return ([], None) if first < 0 else self._receipts.page(plan_id, max(start, Place(first, 0)), limit)
