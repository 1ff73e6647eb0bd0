"""One attempt at the work of a change, read top to bottom: count what is meant; then change it, batch by batch.

    list a page  ->  write down who is next  ->  control records  ->  what became of them  ->  receipts and progress

Held messages have one order (`sidecar/lookup/query.py`), and the work is a walk through it: memory holds a page. Who is
next is written before anything is sent, so after a crash it is known who may have been sent for; sent again, a control
record that has acted acts no more (`tickover-if-offset`). Receipts and the progress that counts them are one
transaction, and who was taken over can't write one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from policies.table import PolicyTable
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.lookup.query import Key, LookUpUnavailable, Query, key_of_row
from sidecar.model.record import Headers, TopicPartition
from sidecar.operations.bulk.control_sender import control_headers, objection
from sidecar.operations.bulk.outcome import DELETED, REFUSED, TOO_LATE, Found, Lines, Place, Verdict, hit_by, verdict
from sidecar.operations.bulk.plan import Change, ChangePlan, Counted, Item, Progress
from sidecar.operations.bulk.receipt_log import batch
from sidecar.operations.jobs.job import State, summed
from sidecar.operations.jobs.pace import Pace
from sidecar.operations.jobs.transactional_sender import TakenOver

PAGE_MAX: Final = 1_000
PAGE_MIN: Final = 50  # while a replica hasn't answered in time, less and less is asked for
PENDING_BYTES_MAX: Final = 256 << 10  # of messages in one batch, as they are written down; of receipts it's thrice that
HEARTBEAT_S: Final = 3.0
PAUSE_S: Final = 0.02  # while the pace allows nothing
AGAIN_S: Final = 0.5  # while not every partition can be asked
ANSWER_S: Final = 2.0  # for one look at the ledger
LEAVING_S: Final = 1.0  # how long a message that wasn't hit is given to settle
NO_ID: Final = "no_id"  # why a message that matches can't be changed

Rows = Sequence[Mapping[str, Any]]


class LookUp(Protocol):
    """The group's held records (`sidecar.lookup.group.GroupLookUp`). Raises LookUpUnavailable."""

    def page(
        self, query: Query, after: Key, limit: int, ends: Mapping[TopicPartition, int]
    ) -> tuple[Rows, Key | None, Sequence[TopicPartition]]: ...

    def ends(self, query: Query) -> tuple[Mapping[TopicPartition, int], Sequence[TopicPartition]]: ...


class Sources(NamedTuple):
    """Held records, and Kafka's ids of the topics that they were read from, by name: of topics that are there; "" where
    the cluster has none. `topic_ids` raises LogUnavailable.
    """

    lookup: LookUp
    topic_ids: Callable[[Collection[str]], Mapping[str, str]]


class Couriers(Protocol):
    """`control_sender.ControlRecordSender`."""

    def send(self, controls: Sequence[tuple[Item, Headers]], now_ms: int) -> list[int | str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """`aborted(plan_id)`: somebody has asked for its end. `sent_by(plan_id, places)`: those of these places where a
    control record of this plan lies; raises LogUnavailable.
    """

    topic: str  # of changes
    sources: Sources
    lines: Lines
    table: Callable[[], PolicyTable]
    courier: Callable[[], Couriers]
    sent_by: Callable[[str, Collection[Place]], Collection[Place]]
    receipts_end: Callable[[], int]
    aborted: Callable[[str], bool]
    owner: str
    in_flight_max: int
    answer_s: float
    now_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    wait: Callable[[float], bool]  # sleeps; True: the process is asked to stop


class _Page(NamedTuple):
    items: list[Item]
    skipped: dict[str, int]
    following: Key | None


class _End(Exception):
    """No more is to be done by this attempt: the process stops, or the change was aborted."""


class ChangeWork:
    """One attempt at a change: all that is in memory between two crashes."""

    def __init__(self, change: Change, shipping: Any, here: ChangeContext) -> None:
        self.shipping = shipping
        self._here = here
        self._plan: ChangePlan = change.plan
        self._progress: Progress = change.progress
        self._may_start = change.state.may_start
        self._ends = {TopicPartition(topic, partition): offset for topic, partition, offset in change.plan.ends}
        self._ids = None if change.plan.selection.ids is None else frozenset(change.plan.selection.ids)
        self._courier = here.courier()
        self._written_s = here.monotonic_s()

    def begin(self) -> None:
        """A run, if the change is still where it was when it was asked for."""
        if not self._may_start:
            raise TakenOver
        self._write([], state=State.RUNNING, at=Progress().at, receipts_from=self._here.receipts_end())

    def close(self) -> None:
        self._courier.close()

    def go_on(self) -> None:
        """Until the end."""
        try:
            self._check()
            if self._progress.state is State.PLANNING:
                self._count()
            elif self._progress.state is State.RUNNING:
                self._run()
        except _End:
            if self._here.aborted(self._plan.id):
                self._give_up()

    def _give_up(self) -> None:
        """Nothing more is sent; what was is said as far as it is known."""
        pending = self._progress.pending
        found = [Found(None, None, self._here.lines.line(item.place)) for item in pending]
        self._finish(pending, dict(enumerate(found)), {}, again=True)
        self._write([], state=State.ABORTED)

    # --- counting -------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        following: Key | None = self._progress.at
        while following is not None:
            page = self._page(following)
            following = page.following
            self._note(planned=self._counted(page), at=following or self._progress.at)
            self._beat()
            self._check()
        self._write([], state=State.PLANNED, planned_ms=self._here.now_ms(), reason="")

    def _counted(self, page: _Page) -> Counted:
        """The count with this page, and what is foreseen of it."""
        now_ms, table = self._here.now_ms(), self._here.table()
        why_not = (objection(self._plan, item, control_headers(self._plan, item), table, now_ms) for item in page.items)
        overdue = sum(item.due_ms <= now_ms for item in page.items)
        return self._progress.planned.plus(page.items, page.skipped, Counter(filter(None, why_not)), overdue)

    def _page(self, after: Key) -> _Page:
        """The next messages that are meant. Waits until every partition of the plan can be asked, and is read as far
        as it was when the plan was made: none is passed over unseen.
        """
        limit = PAGE_MAX
        while True:
            self._leave_out(self._ends)
            try:
                lookup, query = self._here.sources.lookup, self._plan.selection.query
                rows, following, missing = lookup.page(query, after, limit, self._ends)
            except LookUpUnavailable as error:
                reason = f"held messages can't be looked up: {error}"
            else:
                if not missing:
                    self._note(reason="")
                    return self._meant(rows, following)
                reason = (
                    f"nobody answers for {missing[0]} as far as it was read when this was planned; where that "
                    "partition is consumed no more, consume it again, or abort the change"
                )
            self._wait_for(reason)
            limit = max(limit // 2, PAGE_MIN)

    def _meant(self, rows: Rows, following: Key | None) -> _Page:
        items: list[Item] = []
        without_id = 0
        self._leave_out(TopicPartition(key.topic, key.partition) for key in map(key_of_row, rows))
        for row in rows:
            key = key_of_row(row)
            if key.offset >= self._ends.get(TopicPartition(key.topic, key.partition), -1):
                continue
            if self._ids is not None and row["id"] not in self._ids:
                continue
            if row["id"] is None:
                without_id += 1
                continue
            names = {"target": row["target"], "policy": row["policy"]}
            place = {"topic": key.topic, "partition": key.partition, "offset": key.offset}
            items.append(Item(id=row["id"], due_ms=row["due"], **place, **names))
        return _Page(items, {NO_ID: without_id} if without_id else {}, following)

    def _leave_out(self, lanes: Iterable[TopicPartition]) -> None:
        """Nothing is meant any more of those that are of a topic that was made anew."""
        anew = self._made_anew({lane.topic for lane in lanes})
        self._ends = {lane: end for lane, end in self._ends.items() if lane.topic not in anew}

    def _made_anew(self, topics: Collection[str]) -> set[str]:
        """Topics that aren't the planned ones, though they have the name: other messages lie at the plan's offsets.
        Waits while nobody knows. Raises _End.
        """
        planned = {topic: id for topic in topics if (id := self._plan.topic_ids.get(topic))}
        while True:
            try:
                now = self._here.sources.topic_ids(planned)
            except LogUnavailable as error:
                reason = str(error)
            else:
                unknown = [topic for topic in planned if not now.get(topic)]
                if not unknown:
                    self._note(reason="")
                    return {topic for topic, id in planned.items() if now[topic] != id}
                reason = f"no answer about the id of the topic {min(unknown)}"
            self._wait_for(reason)

    # --- changing -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._progress.pending:
            self._hear()
            self._change(self._progress.pending, again=True)
        pace = Pace(self._plan.rate, 0, self._here.monotonic_s())
        following: Key | None = self._progress.at
        while following is not None:
            page = self._page(following)
            items = page.items
            while items:
                if self._here.aborted(self._plan.id):
                    raise _End
                self._hear()
                allowed = pace.allowed(self._here.monotonic_s(), min(len(items), self._here.in_flight_max))
                if allowed:
                    chosen = tuple(items[: _fitting(items[:allowed])])
                    self._write([], pending=chosen, at=_key(chosen[-1]))
                    self._change(chosen, again=False)
                    pace.sent(len(chosen))
                    items = items[len(chosen) :]
                self._beat()
                self._check(0 if allowed else PAUSE_S)
            following = page.following
            self._note(at=following or self._progress.at)
            self._beat()
            self._check()
        self._write([], state=State.DONE)

    def _hear(self) -> None:
        """Wait until the ledger can be heard: without it every message would stay unanswered."""
        while trouble := self._here.lines.trouble:
            self._wait_for(trouble)
        self._note(reason="")

    def _change(self, items: Sequence[Item], again: bool) -> None:
        """Send for these, wait for what becomes of them, and write that down."""
        anew = self._made_anew({item.topic for item in items})
        now_ms, table = self._here.now_ms(), self._here.table()
        headers = [control_headers(self._plan, item) for item in items]
        unsent: dict[int, Verdict] = {}
        for row, item in enumerate(items):
            if item.topic in anew:
                unsent[row] = Verdict(TOO_LATE, DELETED, item.due_ms, None)
            elif why_not := objection(self._plan, item, headers[row], table, now_ms):
                unsent[row] = Verdict(REFUSED, why_not, item.due_ms, None)
        sendable = [row for row in range(len(items)) if row not in unsent]
        answers = self._courier.send([(items[row], headers[row]) for row in sendable], now_ms)
        controls: dict[int, Place] = {}
        for row, sent in zip(sendable, answers, strict=True):
            if isinstance(sent, str):
                unsent[row] = Verdict(REFUSED, sent, items[row].due_ms, None)
            else:
                controls[row] = (items[row].topic, items[row].partition, sent)
        self._finish(items, self._found(items, controls), unsent, again)

    def _found(self, items: Sequence[Item], controls: Mapping[int, Place]) -> dict[int, Found]:
        """Control records by row, with what the ledger says of them, as far as it does in time. Those that hit nobody
        are mostly too late by a moment: what they meant is given another to settle. Raises _End when the process stops.
        """
        lines = self._here.lines
        found = {row: Found(control, None, None) for row, control in controls.items()}
        deadline_s = self._here.monotonic_s() + self._here.answer_s
        open_rows = list(controls)
        while open_rows and (left_s := deadline_s - self._here.monotonic_s()) > 0:
            answers = lines.outcomes([controls[row] for row in open_rows], min(ANSWER_S, left_s))
            for row, answer in zip(open_rows, answers, strict=True):
                found[row] = found[row]._replace(answer=answer)
            open_rows = [row for row in open_rows if found[row].answer is None]
            self._beat()
            if self._here.wait(PAUSE_S if open_rows else 0):
                raise _End
            if self._here.aborted(self._plan.id):
                break
        missed = [row for row, (_, answer, _) in found.items() if answer is None or answer.related < 0]
        owns = lines.outcomes([items[row].place for row in missed], LEAVING_S)
        for row, own in zip(missed, owns, strict=True):
            found[row] = found[row]._replace(own=own)
        return found

    def _finish(
        self, items: Sequence[Item], found: Mapping[int, Found], unsent: Mapping[int, Verdict], again: bool
    ) -> None:
        action, lines = self._plan.action, self._here.lines
        told = [hit_by(action, items[row], one.own) for row, one in found.items()] if again else []
        sent = self._here.sent_by(self._plan.id, [place for place in told if place is not None])
        verdicts = [
            unsent[row] if row in unsent else verdict(action, item, found[row], lines, sent)
            for row, item in enumerate(items)
        ]
        receipts = [said.receipt(item, action) for item, said in zip(items, verdicts, strict=True)]
        before = sum(self._progress.outcomes.values())
        outcomes = summed(self._progress.outcomes, Counter(said.word for said in verdicts))
        parcels = [batch(self._here.topic, self._plan.id, before, receipts)] if receipts else []
        self._write(parcels, pending=(), outcomes=outcomes)

    # --- progress -------------------------------------------------------------------------------------------------

    def _wait_for(self, reason: str) -> None:
        """Nothing can be done for now, and the progress says why. Raises _End."""
        self._note(reason=reason)
        self._beat()
        self._check(AGAIN_S)

    def _check(self, pause_s: float = 0) -> None:
        """Sleep, and see whether to go on. Raises _End."""
        if self._here.wait(pause_s) or self._here.aborted(self._plan.id):
            raise _End

    def _beat(self) -> None:
        """Say now and then that somebody works on it."""
        if self._here.monotonic_s() - self._written_s > HEARTBEAT_S:
            self._write([])

    def _note(self, **update: Any) -> None:
        """Change fields of the progress, as the next record will have it."""
        self._progress = self._progress.model_copy(update=update)

    def _write(self, parcels: Sequence[Any], **update: Any) -> None:
        """A fact when it returns."""
        always = {"owner": self._here.owner, "updated_ms": self._here.now_ms()}
        progress = self._progress.model_copy(update={**always, **update})
        self.shipping.ship(self._plan.id, parcels, progress)
        self._progress = progress
        self._written_s = self._here.monotonic_s()


def _fitting(items: Sequence[Item]) -> int:
    """How many of them may be pending together: at least one."""
    size = 0
    for count, item in enumerate(items):
        size += len(item.model_dump_json().encode())
        if size > PENDING_BYTES_MAX and count:
            return count
    return len(items)


def _key(item: Item) -> Key:
    return Key(item.due_ms, item.topic, item.partition, item.offset)
