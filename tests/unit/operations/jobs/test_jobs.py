"""Jobs as a process sees them that lives for long, and whatever somebody writes to an internal topic."""

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from policies.retention import JOBS_KEPT_MS
from policies.topic.log import PolicyLog
from sidecar.kafka.topic_follower import TopicFollower, TopicReader
from sidecar.lookup.ledger_reader import LedgerReader
from sidecar.lookup.receipts import Receipts
from sidecar.operations.bulk.plan import FORM as CHANGES
from sidecar.operations.dead_letters.redrive_plan import FORM as REDRIVES
from sidecar.operations.dead_letters.redrive_plan import Progress, Redrive
from sidecar.operations.jobs import run
from sidecar.operations.jobs.job import BEGUN_WITHIN_MS, EARLY_MAX, JobLog, State, progress_key
from sidecar.operations.jobs.run import JobRun, RunContext
from sidecar.operations.jobs.runner import LEASE_MS, LEGS_MAX, PLANS_MAX, JobRefused
from sidecar.operations.schedules.schedule_book import ScheduleBook
from tests.unit.letter_world import MemoryLetterLog
from tests.unit.operations.dead_letters.test_redrive_parts import encode, plan
from tests.unit.redrive_world import MemoryRedrives

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


class Record:
    """As the client gives it out."""

    def __init__(self, offset: int, key: bytes, value: bytes) -> None:
        self._offset, self._key, self._value = offset, key, value

    def error(self) -> None:
        return None

    def leader_epoch(self) -> int | None:
        return None

    def offset(self) -> int:
        return self._offset

    def partition(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value


def log_of_redrives() -> JobLog[Redrive]:
    return JobLog(TopicReader({}), "tickover.g.redrives", REDRIVES)


def write(log: JobLog[Redrive], id: str, created_ms: int, state: State) -> None:
    log.take(Record(0, f"{id}/plan".encode(), encode(plan(id=id, created_ms=created_ms))))
    log.take(Record(0, f"{id}/progress".encode(), encode(Progress(state=state))))


def test_a_log_forgets_what_its_topic_forgets_but_what_somebody_works_on() -> None:
    log = log_of_redrives()
    old_ms = NOW_MS - JOBS_KEPT_MS - DAY_MS
    write(log, "done", old_ms, State.DONE)
    write(log, "running", old_ms, State.RUNNING)
    write(log, "young", NOW_MS - DAY_MS, State.DONE)
    write(log, "new", NOW_MS, State.PLANNED)
    assert set(log.all()) == {"running", "young", "new"}


def test_jobs_of_more_than_thirty_days_ago_are_not_listed_and_make_room() -> None:
    world = MemoryRedrives(MemoryLetterLog())
    crew, plans = world.redrives.crew, world.plans
    for number in range(PLANS_MAX):
        plans.write_plan(plan(id=f"p{number}", created_ms=plans.time_ms - 40 * DAY_MS))
        plans.set(f"p{number}", state=State.DONE)
    assert crew.all() == []
    plans.set("p0", state=State.RUNNING)
    assert [job.plan.id for job in crew.all()] == ["p0"]
    crew.plan(plan(id="new", created_ms=plans.time_ms))
    assert {job.plan.id for job in crew.all()} == {"p0", "new"}


def test_what_compaction_has_left_before_the_plan_counts_in_whatever_order() -> None:
    """A plan that is written again stands behind what was said before, and its first record goes."""
    log = log_of_redrives()
    log.take(Record(7, b"p/progress", encode(Progress(state=State.RUNNING, positions={0: 5}))))
    log.take(Record(8, b"p/abort", b'{"author": "me"}'))
    assert log.all() == {}
    log.take(Record(9, b"p/plan", encode(plan(id="p", created_ms=NOW_MS))))
    job = log.get("p")
    assert job is not None
    assert (job.progress.positions, job.aborted_by, job.state) == ({0: 5}, "me", State.ABORTING)


def test_of_jobs_without_a_plan_not_everything_is_kept() -> None:
    log = log_of_redrives()
    for number in range(EARLY_MAX + 1):
        log.take(Record(number, f"p{number}/progress".encode(), encode(Progress(state=State.RUNNING))))
    for number in range(EARLY_MAX + 1):
        log.take(Record(number, f"p{number}/plan".encode(), encode(plan(id=f"p{number}", created_ms=NOW_MS))))
    assert [id for id, job in log.all().items() if job.state is State.PLANNING] == ["p0"]


def test_what_is_almost_forgotten_is_not_begun() -> None:
    """The topic would forget its plan, and every process the job, before a progress says that somebody works on it."""
    world = MemoryRedrives(MemoryLetterLog())
    crew, plans = world.redrives.crew, world.plans
    plans.write_plan(plan(id="old", created_ms=plans.time_ms))
    plans.set("old", state=State.PLANNED)
    plans.time_ms += JOBS_KEPT_MS - DAY_MS
    crew.startable("old")
    plans.time_ms += 1
    with pytest.raises(JobRefused, match="29 days"):
        crew.startable("old")


def test_a_leg_that_stood_still_does_not_begin_what_is_almost_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call was in time; the machine slept before the leg got its turn."""
    monkeypatch.setattr(run, "TransactionalSender", MagicMock())
    log = log_of_redrives()
    log.take(Record(0, b"old/plan", encode(plan(id="old", created_ms=NOW_MS))))
    log.take(Record(1, progress_key("old"), encode(Progress(state=State.PLANNED))))
    begun: list[MagicMock] = []
    for late_ms, legs in ((0, 1), (1, 1)):
        now_ms = NOW_MS + BEGUN_WITHIN_MS + late_ms
        monkeypatch.setattr(log, "catch_up", lambda: None)
        monkeypatch.setattr(log, "now_ms", lambda now_ms=now_ms: now_ms)
        JobRun("old", begun.append, RunContext({}, log, str, MagicMock(), MagicMock(return_value=True))).run()
        assert len(begun) == legs


def test_a_lease_ends_in_its_time_whatever_the_clock_of_its_owner_says() -> None:
    world = MemoryRedrives(MemoryLetterLog())
    crew, plans = world.redrives.crew, world.plans
    plans.write_plan(plan(id="ahead", created_ms=plans.time_ms))
    plans.set("ahead", state=State.RUNNING, owner="there", updated_ms=plans.time_ms + DAY_MS)
    assert crew.abandoned() == []
    plans.time_ms += LEASE_MS
    plans.set("ahead", updated_ms=plans.time_ms + DAY_MS)  # a sign of work
    assert crew.abandoned() == []
    plans.time_ms += LEASE_MS
    assert crew.abandoned() == []
    plans.time_ms += 1
    assert crew.abandoned() == ["ahead"]


class Waiting:
    """A leg that is under way until it is told to end."""

    problem = ""

    def __init__(self, end: threading.Event) -> None:
        self.begun = threading.Event()
        self.begun.set()
        self._end = end

    def run(self) -> None:
        self._end.wait(30)


def test_a_plan_that_was_refused_is_not_there() -> None:
    world = MemoryRedrives(MemoryLetterLog())
    crew, end = world.redrives.crew, threading.Event()
    for number in range(LEGS_MAX):
        crew.begin(f"busy{number}", Waiting(end))
    try:
        with pytest.raises(JobRefused) as refused:
            crew.plan(plan(id="refused"))
        assert refused.value.type == "redrives-busy"
        assert world.plans.all() == {}
    finally:
        end.set()


def test_the_plan_of_a_job_that_takes_long_is_written_again_before_its_topic_forgets_it() -> None:
    world = MemoryRedrives(MemoryLetterLog())
    crew, plans, end = world.redrives.crew, world.plans, threading.Event()
    plans.write_plan(plan(id="long", created_ms=plans.time_ms))
    plans.write_plan(plan(id="ended", created_ms=plans.time_ms))
    written: list[str] = []
    plans.write_plan = lambda one: written.append(one.id)  # type: ignore[assignment,return-value]
    crew.begin("long", Waiting(end))
    crew.begin("ended", Waiting(end))  # by a successor, while this process stood still
    plans.set("ended", state=State.DONE)
    try:
        crew._repeat_plans(["long", "ended"])
        assert written == []
        plans.time_ms += JOBS_KEPT_MS // 4
        crew._repeat_plans(["long", "ended"])
        crew._repeat_plans(["long", "ended"])
        assert written == ["long"]
    finally:
        end.set()


def test_the_plan_of_a_long_job_that_is_taken_over_is_written_again_before_it_is_begun() -> None:
    world = MemoryRedrives(MemoryLetterLog())
    crew, plans, calls = world.redrives.crew, world.plans, list[str]()
    plans.write_plan(plan(id="long", created_ms=plans.time_ms))
    plans.set("long", state=State.RUNNING)
    plans.time_ms += JOBS_KEPT_MS // 4
    crew.abandoned = lambda: ["long"]  # type: ignore[method-assign]
    crew.begin = lambda id, _: calls.append(f"begin {id}")  # type: ignore[method-assign,assignment]
    plans.write_plan = lambda one: calls.append(f"plan {one.id}")  # type: ignore[assignment,return-value]
    crew.supervise()
    assert calls == ["plan long", "begin long"]


GARBAGE = (
    b"",
    b"\x00\xff",
    b"null",
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"\xed\xa0\x80",
    b'{"schema_version": 1e999}',
    b"9" * 5_000,
)
KEYS = (b"", b"p/plan", b"p/progress", b"p/abort", b"s/schedule", b"s/progress", b"\xff/plan", b"/" * 3)


def followed(apply: Callable[[bytes, bytes, int], None]) -> Callable[[Record], object]:
    return TopicFollower(TopicReader({}), "topic", apply).take


def policies() -> Callable[[Record], object]:
    known = PolicyLog()
    return lambda record: known.apply(record.offset(), record.value(), NOW_MS)


READERS: dict[str, Callable[[], Callable[[Any], object]]] = {
    "redrives": lambda: log_of_redrives().take,
    "changes": lambda: JobLog(TopicReader({}), "tickover.g.changes", CHANGES).take,
    "schedules": lambda: followed(ScheduleBook().apply),
    "policies": policies,
    "ledger": lambda: LedgerReader({}, "ledger", Receipts(1 << 20), 0)._take,
}


@pytest.mark.parametrize("topic", READERS)
def test_whatever_is_written_to_an_internal_topic_its_reader_goes_on(topic: str) -> None:
    take = READERS[topic]()
    for key in KEYS:
        for offset, value in enumerate(GARBAGE):
            take(Record(offset, key, value))


def test_a_record_that_nobody_thought_of_does_not_end_the_thread_that_follows() -> None:
    taken: list[bytes] = []

    def apply(key: bytes, value: bytes, _: int) -> None:
        if value == b"bad":
            raise ZeroDivisionError
        taken.append(value)

    follower = TopicFollower(TopicReader({}), "topic", apply)
    for offset, value in enumerate((b"one", b"bad", b"two")):
        follower.take(Record(offset, b"k", value))
    assert taken == [b"one", b"two"]
    follower.wait_for(2)


def test_after_garbage_the_next_record_is_taken_in() -> None:
    log = log_of_redrives()
    log.take(Record(0, b"p/plan", encode(plan())))
    [name] = log.all()
    log.take(Record(1, f"{name}/abort".encode(), b"[" * 200_000))
    log.take(Record(2, f"{name}/progress".encode(), encode(Progress(state=State.DONE))))
    job = log.get(name)
    assert job is not None
    assert job.progress.state is State.DONE
