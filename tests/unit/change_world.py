"""Changes without Kafka: held messages, an engine that obeys control records, a ledger, and faults on demand."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.headers import ACTION, CHANGE, DELAY, DELIVER_AT, ID, IF_OFFSET
from policies.table import PolicyTable
from policies.topic.log import PolicyLog
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.lookup.query import Key, LookUpUnavailable, Query, key_of_row, row_of
from sidecar.model.record import Headers, Held, Outcome, TopicPartition
from sidecar.operations.bulk.changes import Changes, Terms
from sidecar.operations.bulk.outcome import Place
from sidecar.operations.bulk.plan import Change, ChangePlan, Item, Progress
from sidecar.operations.bulk.receipt_log import Batch, receipts_of
from sidecar.operations.bulk.receipt_log import Place as ReceiptPlace
from sidecar.operations.bulk.run import ChangeContext, ChangeWork, Sources
from sidecar.operations.jobs.job import Approval, PlanHead

NOW_MS = 1_800_000_000_000
TTL_MS = 900_000
LANES = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))


class CrashError(Exception):
    """The process dies here."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the ledger."""

    outcome: Outcome
    related: int
    due_ms: int
    reason: str = ""


def held(offset: int, due_ms: int, id: str | None = None, **fields: Any) -> Held:
    """A held record; what is not said is the same for all."""
    trailer: Headers = [] if id is None else [(ID, id.encode())]
    given = {"target": "mail", "target_partition": -1, "key": b"k", "value": b"v", "headers": [], "policy": "p@1"}
    more = {"origin": None, "attempt": 0, "first_failure_ms": -1, "expires_ms": -1, "dead_letter": "", "size": 1}
    return Held(**{"due_ms": due_ms, "offset": offset, "trailer": trailer, **given, **more, **fields})


class MemoryGroup:
    """Every lane, with the engine's rule: an action reaches the latest of its id, if that is the one it means."""

    def __init__(self) -> None:
        self.lanes: dict[TopicPartition, dict[int, Held]] = {lane: {} for lane in LANES}
        self.next = dict.fromkeys(LANES, 0)
        self.lines: dict[Place, Line] = {}
        self.missing: list[list[TopicPartition]] = []  # of the next pages
        self.down: list[str] = []
        self.trouble = ""
        self.silent = False  # no control record is obeyed
        self.topic_ids: dict[str, str | None] = {}  # None: it isn't there; else every topic has one
        self.unanswered: list[str] = []  # why the next questions about ids have no answer
        self.sent: list[Headers] = []
        self.controls: dict[Place, Headers] = {}  # of changes and of others
        self.fault: Callable[[str], None] = lambda _: None

    # --- messages -------------------------------------------------------------------------------------------------

    def accept(self, lane: TopicPartition, due_ms: int, id: str | None, **fields: Any) -> int:
        offset = self.next[lane]
        self.next[lane] += 1
        self.lanes[lane][offset] = held(offset, due_ms, id, **fields)
        return offset

    def emit(self, lane: TopicPartition, offset: int) -> None:
        """Emit a message that fell due."""
        gone = self.lanes[lane].pop(offset)
        self.lines[*lane, offset] = Line(Outcome.EMITTED, -1, gone.due_ms)

    def _obey(self, lane: TopicPartition, control: int, headers: Mapping[str, bytes | None]) -> None:
        of_id = [one for one in self.lanes[lane].values() if dict(one.trailer).get(ID) == headers[ID]]
        found = max(of_id, key=lambda one: one.offset, default=None)
        if found is None or headers.get(IF_OFFSET) not in (None, b"%d" % found.offset):
            self.lines[*lane, control] = Line(Outcome.APPLIED, -1, NOW_MS)
            return
        del self.lanes[lane][found.offset]
        if headers[ACTION] == b"cancel":
            self.lines[*lane, found.offset] = Line(Outcome.CANCELLED, control, found.due_ms)
            self.lines[*lane, control] = Line(Outcome.APPLIED, found.offset, NOW_MS)
            return
        due_ms = NOW_MS
        if delay := headers.get(DELAY):
            due_ms += int(delay)
        elif at := headers.get(DELIVER_AT):
            due_ms = int(at)
        self.lanes[lane][control] = found._replace(offset=control, due_ms=due_ms, source=found.came_at)
        self.lines[*lane, found.offset] = Line(Outcome.MOVED, control, found.due_ms)
        self.lines[*lane, control] = Line(Outcome.MOVED, control, due_ms)  # of the moved one, as receipts have it

    # --- what the work asks for -----------------------------------------------------------------------------------

    def page(
        self, query: Query, after: Key, limit: int, ends: Mapping[TopicPartition, int]
    ) -> tuple[list[dict[str, Any]], Key | None, list[TopicPartition]]:
        self.fault("page")
        if self.down:
            raise LookUpUnavailable(self.down.pop())
        rows = [
            row_of(lane, one, "wheel")
            for lane, records in self.lanes.items()
            for one in records.values()
            if query.wants_lane(lane) and query.matches(one)
        ]
        rows = [row for row in sorted(rows, key=key_of_row) if key_of_row(row) > after]
        following = key_of_row(rows[limit - 1]) if len(rows) > limit else None
        missing = self.missing.pop() if self.missing else []
        told = [
            row for row in rows[:limit] if TopicPartition(row["source"], row["position"]["partition"]) not in missing
        ]
        return told, following, missing

    def ends(self, query: Query) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        lanes = {lane: offset for lane, offset in self.next.items() if query.wants_lane(lane)}
        return lanes, self.missing.pop() if self.missing else []

    def ids_of(self, topics: Collection[str]) -> dict[str, str]:
        self.fault("ids")
        if self.unanswered:
            raise LogUnavailable(self.unanswered.pop())
        found = {topic: self.topic_ids.get(topic, f"id of {topic}") for topic in topics}
        return {topic: id for topic, id in found.items() if id is not None}

    def make_anew(self, topic: str) -> None:
        """The topic is deleted and created again: nothing of it is held, and its offsets begin at 0."""
        self.topic_ids[topic] = "another"
        for lane in LANES:
            if lane.topic == topic:
                self.lanes[lane], self.next[lane] = {}, 0

    def send(self, controls: Sequence[tuple[Item, Headers]], now_ms: int) -> list[int | str]:
        offsets: list[int | str] = []
        for item, headers in controls:
            self.fault("send")
            lane = TopicPartition(item.topic, item.partition)
            self.sent.append(headers)
            offsets.append(self.write(lane, headers))
        return offsets

    def write(self, lane: TopicPartition, headers: Headers) -> int:
        """A control record of whoever it may be; returns its offset."""
        control = self.next[lane]
        self.next[lane] += 1
        self.controls[*lane, control] = headers
        if not self.silent:
            self._obey(lane, control, dict(headers))
        return control

    def sent_by(self, plan_id: str, places: Collection[Place]) -> set[Place]:
        self.fault("sent_by")
        return {place for place in places if (CHANGE, plan_id.encode()) in self.controls[place]}

    def outcomes(self, places: Sequence[Place], timeout_s: float) -> list[Line | None]:
        self.fault("outcomes")
        return [self.line(place) for place in places]

    def line(self, place: Place) -> Line | None:
        return self.lines.get(place)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class MemoryJobs:
    """The topic of changes: plans and progress, and the receipts, as facts together."""

    changes: dict[str, Change] = field(default_factory=dict)
    elsewhere: dict[str, Change] = field(default_factory=dict)  # written by others, not read yet
    batches: list[Batch] = field(default_factory=list)
    progresses: list[Progress] = field(default_factory=list)
    time_ms: int = NOW_MS
    fault: Callable[[str], None] = lambda _: None

    def all(self) -> dict[str, Change]:
        return dict(self.changes)

    def get(self, plan_id: str) -> Change | None:
        return self.changes.get(plan_id)

    def write_plan(self, plan: PlanHead) -> Change:
        assert isinstance(plan, ChangePlan)
        self.changes[plan.id] = Change(plan=plan)
        return self.changes[plan.id]

    def write_abort(self, plan_id: str, author: str, given_up: str = "") -> None:
        said = {"aborted_by": author, "given_up": given_up}
        self.changes[plan_id] = self.changes[plan_id].model_copy(update=said)

    def write_approval(self, plan_id: str, author: str) -> None:
        said = {"approved_by": author, "approved_ms": self.time_ms}
        self.changes[plan_id] = self.changes[plan_id].model_copy(update=said)

    def catch_up(self) -> None:
        self.changes |= self.elsewhere

    def now_ms(self) -> int:
        return self.time_ms

    def ship(self, plan_id: str, parcels: Sequence[Batch], progress: Any) -> None:
        self.fault("ship")
        read = Progress.model_validate_json(progress.model_dump_json())
        self.batches += parcels
        self.progresses.append(read)
        self.changes[plan_id] = self.changes[plan_id].model_copy(update={"progress": read})
        self.fault("shipped")

    def page(self, plan_id: str, start: ReceiptPlace, limit: int) -> tuple[list[dict[str, Any]], ReceiptPlace | None]:
        receipts = self.receipts()[start.offset : start.offset + limit]
        more = start.offset + limit < len(self.receipts())
        return receipts, ReceiptPlace(start.offset + limit, 0) if more else None

    def receipts(self) -> list[dict[str, Any]]:
        return [receipt for batch in self.batches for receipt in receipts_of(batch.value)]


class MemoryChanges:
    """Real `Changes` and real work over these, in the caller's thread or in theirs."""

    def __init__(
        self,
        table: Callable[[], PolicyTable] = lambda: PolicyLog().table,
        in_flight_max: int = 3,
        group: MemoryGroup | None = None,
        jobs: MemoryJobs | None = None,
        approval: Approval = "none",
    ) -> None:
        self.group = group or MemoryGroup()
        self.jobs = jobs or MemoryJobs()
        self.in_flight_max = in_flight_max
        self.table = table
        self.time_s = 0.0
        self.stops: Callable[[], bool] = lambda: False
        sources = Sources(self.group, self.group.ids_of)
        self.changes = Changes(self.jobs, sources, self.jobs, self._leg, "here", Terms(TTL_MS, approval))

    def wait(self, seconds: float) -> bool:
        self.time_s += seconds
        return self.stops()

    def work(self, plan_id: str) -> ChangeWork:
        """A new attempt at what stands in the log."""
        here = ChangeContext(
            topic="changes",
            sources=Sources(self.group, self.group.ids_of),
            lines=self.group,
            table=self.table,
            courier=lambda: self.group,
            sent_by=self.group.sent_by,
            receipts_end=lambda: 0,
            aborted=lambda id: self.jobs.changes[id].aborted_by is not None,
            owner="here",
            in_flight_max=self.in_flight_max,
            answer_s=0.1,
            now_ms=self.jobs.now_ms,
            monotonic_s=lambda: self.time_s,
            wait=self.wait,
        )
        return ChangeWork(self.jobs.changes[plan_id], self.jobs, here)

    def _leg(self, plan_id: str, begins: bool) -> "MemoryLeg":
        return MemoryLeg(self, plan_id, begins)


class MemoryLeg:
    """One leg, done when it begins; or held up by `MemoryGroup.fault`."""

    problem = ""

    def __init__(self, world: MemoryChanges, plan_id: str, begins: bool) -> None:
        self.begun = threading.Event()
        self._world, self._plan_id, self._begins = world, plan_id, begins

    def run(self) -> None:
        try:
            work = self._world.work(self._plan_id)
            if self._begins:
                work.begin()
            if self._world.group.silent:
                self.begun.set()
            work.go_on()
        finally:
            self.begun.set()
