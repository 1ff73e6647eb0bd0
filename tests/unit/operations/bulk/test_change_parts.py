"""Parts of changes: what Kafka's reports mean, receipts as they are kept, waiting for many lines of the ledger."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError
from pydantic import ValidationError

from policies.headers import ACTION, CHANGE, DELIVER_AT, ID
from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.lookup.exchange import QUESTION_BYTES_MAX
from sidecar.lookup.query import hashes_of
from sidecar.lookup.receipt import LedgerPlace
from sidecar.lookup.receipts import Receipts
from sidecar.model.record import Headers, Outcome, TopicPartition, held_id
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.operations.bulk import receipt_log
from sidecar.operations.bulk.changes import Wanted
from sidecar.operations.bulk.control_sender import ControlRecordSender
from sidecar.operations.bulk.plan import DONE, IDS_MAX, SCHEMA, ChangePlan, Item, Selection, When
from sidecar.operations.bulk.receipt_log import Batch, Place, ReceiptLog, batch, receipts_of
from sidecar.operations.bulk.run import PENDING_BYTES_MAX
from sidecar.operations.jobs.job import State, decoded
from sidecar.operations.jobs.runner import JobRefused
from sidecar.settings.settings import MESSAGE_BYTES_MIN
from tests.property.operations.bulk.test_change import TABLE
from tests.unit.change_world import LANES, NOW_MS, CrashError, MemoryChanges, MemoryJobs
from tests.unit.lookup.test_receipts import block, settled

MESSAGES = 900
OVERHEAD = 8 << 10  # of a record and its batch
ITEM = Item(id="a", topic="t", partition=2, offset=7, due_ms=5, target="mail", policy="p@1")


class Report:
    """Delivery report of a record, as the client gives it."""

    def __init__(self, offset: int | None, key: bytes = b"", value: bytes | None = b"") -> None:
        self._offset, self._key, self._value = offset, key, value

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class FakeProducer:
    """Answers each record as it is told to: by an offset, an error, or not at all."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.full = 1
        self.sent: list[Any] = []

    def produce(self, topic: str, value: object, key: object, partition: int, on_delivery: Any, **more: Any) -> None:
        if self.full:
            self.full -= 1
            raise BufferError
        self.sent.append((topic, partition, more["headers"]))
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            on_delivery(answer, Report(None))
        elif answer != "silent":
            on_delivery(None, Report(answer))

    def poll(self, timeout: float) -> None:
        """There is room now."""

    def flush(self, timeout: float) -> None:
        """All reports came."""


class FakeConsumer:
    """Opened and closed."""

    def close(self) -> None:
        """Nothing is open."""


def courier(*answers: Any) -> ControlRecordSender:
    made = ControlRecordSender.__new__(ControlRecordSender)
    made._producer = FakeProducer(list(answers))
    made._reserved = ReservedTopics()
    return made


def test_what_kafka_takes_and_what_it_never_will() -> None:
    gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    answers = courier(41, gone, 42).send([(ITEM, [("x", b"1")])] * 3, 1)
    assert answers == [41, gone.name().lower(), 42]


def test_no_control_record_is_sent_to_a_topic_of_tickover_s_own() -> None:
    """Other replicas say over Redis what they hold, and anybody may speak there."""
    forged = ITEM.model_copy(update={"topic": "tickover.policies"})
    there = courier(41, 42)
    assert there.send([(ITEM, []), (forged, []), (ITEM, [])], 1) == [41, "not_a_source", 42]
    assert [topic for topic, *_ in there._producer.sent] == ["t", "t"]


@pytest.mark.parametrize("answer", [KafkaError(KafkaError._MSG_TIMED_OUT), None, "silent"])
def test_what_nobody_knows_is_tried_again_by_whoever_goes_on(answer: Any) -> None:
    """Without an offset it isn't proven to be there."""
    with pytest.raises(LogUnavailable):
        courier(41, answer).send([(ITEM, [])] * 2, 1)


def kept(monkeypatch: pytest.MonkeyPatch, *records: tuple[bytes, bytes | None]) -> ReceiptLog:
    """A topic with these records; the client's batches are of two."""
    messages = [Report(offset, key, value) for offset, (key, value) in enumerate(records)]

    def read(consumer: object, lane: object, start: int, end: int) -> Iterator[list[Report]]:
        for first in range(start, end, 2):
            yield messages[first : min(first + 2, end)]

    log = ReceiptLog({}, "changes")
    monkeypatch.setattr(receipt_log, "read", read)
    monkeypatch.setattr(log, "_consumer", FakeConsumer)
    monkeypatch.setattr(receipt_log, "bounds", lambda *_: (0, len(messages)))
    return log


def test_pages_of_receipts_skip_what_is_of_others_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(plan: str, first: int, count: int) -> tuple[bytes, bytes]:
        made = batch("changes", plan, first, [{"id": f"{plan}{first + n}"} for n in range(count)])
        return made.key, made.value

    garbage: list[tuple[bytes, bytes | None]] = [(b"p/9", b"{"), (b"p/9", b"7"), (b"p/9", None), (b"pp/0", b"[{}]")]
    log = kept(monkeypatch, record("p", 0, 3), record("q", 0, 5), record("p", 3, 1), *garbage, record("p", 4, 4))
    for limit in (1, 2, 3, 5, 8, 100):
        found: list[str] = []
        place: Place | None = Place(0, 0)
        while place is not None:
            page, place = log.page("p", place, limit)
            assert len(page) <= limit
            found += [receipt["id"] for receipt in page]
        assert found == [f"p{n}" for n in range(8)]
    monkeypatch.setattr(receipt_log, "RECORDS_MAX", 2)
    page, place = log.page("q", Place(2, 0), 10)
    assert (page, place) == ([], Place(4, 0))
    assert receipts_of(b'[1, {"id": "x"}]') == [{"id": "x"}]


def test_lines_of_many_records_are_waited_for_together() -> None:
    receipts = Receipts(1 << 20)
    places = [("reminders", 3, offset) for offset in (8, 9, 10)]
    assert receipts.outcomes(places, 0.0) == [None] * 3  # the ledger isn't read yet
    receipts.note_trouble("")
    receipts.add(LedgerPlace(1, 7), block({}, settled=settled({9: Outcome.EMITTED})))
    answers = receipts.outcomes(places, 0.01)
    assert [answer and answer.outcome for answer in answers] == [None, Outcome.EMITTED, None]
    assert receipts._waiting == {}
    assert receipts._waiting_count == 0
    line = receipts.line(places[1])
    assert line is not None
    assert line.outcome is Outcome.EMITTED
    receipts.end()
    assert receipts.outcomes(places[:1], 60.0) == [None]


@pytest.mark.parametrize("topic", ["t", "t" * 249])
@pytest.mark.parametrize("character", ["", "\x01", "é", "😀"])
def test_progress_and_receipts_fit_into_a_record_whatever_ids_users_have(character: str, topic: str) -> None:
    """As many in flight as settings allow."""
    lane = TopicPartition(topic, 0)
    everything = Policy.model_validate(
        {"name": "p", "match": {"topics": ["*"]}, "delay": {}, "target": {"allow": ["*"]}}
    )
    table = PolicyTable(1, {"p": Versioned(everything, 1, "me", 0, "api")})
    world = MemoryChanges(lambda: table, in_flight_max=5_000)
    world.group.lanes, world.group.next = {lane: {}}, {lane: 0}
    for number in range(MESSAGES):
        id = f"{number:04}" + character * (1_020 // max(len(character.encode()), 1))
        world.group.accept(lane, NOW_MS + number, id, target=topic if number % 2 else "m")
    sizes: list[int] = []

    def ship(plan_id: str, parcels: Sequence[Batch], progress: Any) -> None:
        sizes.extend([len(progress.model_dump_json().encode()), *(len(parcel.value) for parcel in parcels)])
        MemoryJobs.ship(world.jobs, plan_id, parcels, progress)

    world.jobs.ship = ship  # type: ignore[method-assign]
    plan = world.changes.plan(Wanted("cancel", Selection(), When(), 0, True, "me"))
    world.changes.run(plan.plan.id, world.changes.get(plan.plan.id).token or "")
    assert world.changes.get(plan.plan.id).progress.outcomes == {"cancelled": MESSAGES}
    assert len(world.jobs.receipts()) == MESSAGES
    assert PENDING_BYTES_MAX / 2 < max(sizes) < MESSAGE_BYTES_MIN - OVERHEAD


def test_a_plan_about_more_partitions_than_a_record_can_name_is_refused() -> None:
    """With what to do; Kafka would refuse it again and again."""
    world = MemoryChanges()
    world.group.next = {TopicPartition("t" * 249, partition): 10**12 for partition in range(2_000)}
    with pytest.raises(JobRefused, match="may have 524288: plan topic by topic") as refused:
        world.changes.plan(Wanted("cancel", Selection(), When(), 0, True, "me"))
    assert refused.value.type == "change-too-large"
    assert world.jobs.all() == {}
    world.group.next = {TopicPartition("t" * 249, partition): 10**12 for partition in range(1_500)}
    world.changes.plan(Wanted("cancel", Selection(), When(), 0, True, "me"))


@pytest.mark.parametrize("action", ["cancel", "reschedule", "fire"])
@pytest.mark.parametrize("died", ["shipped", "outcomes"], ids=["before it was sent for", "after"])
def test_what_somebody_else_has_changed_is_not_claimed_after_a_crash(action: str, died: str) -> None:
    """A successor doesn't know whether the dead process had sent for the message: the ledger names the control record
    that has hit it, and that one says whose it is.
    """
    world = MemoryChanges(lambda: TABLE.table, in_flight_max=10)
    for id in ("mine", "theirs"):
        world.group.accept(LANES[0], NOW_MS + 20_000, id)
    when = When(by_ms=1) if action == "reschedule" else When()
    plan_id = world.changes.plan(Wanted(action, Selection(topic="a"), when, 0, False, "me")).plan.id

    theirs: Headers = [(ID, b"theirs"), (ACTION, action.encode()), (DELIVER_AT, b"%d" % (NOW_MS + 9))]

    def fault(call: str) -> None:
        if not world.jobs.changes[plan_id].progress.pending:
            return
        if call == "shipped":  # they are written down as next
            world.group.write(LANES[0], theirs)
        if call == died:
            raise CrashError

    work = world.work(plan_id)
    work.begin()
    world.group.fault = world.jobs.fault = fault
    with pytest.raises(CrashError):
        work.go_on()
    world.group.fault = world.jobs.fault = lambda _: None
    world.work(plan_id).go_on()
    receipts = {receipt["id"]: receipt for receipt in world.jobs.receipts()}
    assert receipts["mine"]["outcome"] == DONE[action]
    assert receipts["theirs"]["outcome"] == "too_late", "somebody else did it"
    assert receipts["theirs"]["state"] == ("cancelled" if action == "cancel" else "moved")
    control = receipts["mine"]["control"]
    assert (CHANGE, plan_id.encode()) in world.group.controls[LANES[0].topic, 0, control["offset"]]


def made_anew(world: MemoryChanges, ids: str) -> None:
    """The source is deleted and created again, and gets messages with these ids."""
    world.group.make_anew(LANES[0].topic)
    for id in ids:
        world.group.accept(LANES[0], NOW_MS + 20_000, id)


def test_messages_of_a_source_that_was_made_anew_are_not_those_of_the_plan() -> None:
    """Messages of the new topic lie at the same offsets, fit the same filter, and may have the same ids."""
    world = MemoryChanges(lambda: TABLE.table)
    for lane in (LANES[0], LANES[2]):
        for id in "abc":
            world.group.accept(lane, NOW_MS + 20_000, id)
    planned = world.changes.plan(Wanted("cancel", Selection(), When(), 0, True, "me"))
    assert planned.progress.planned.messages == 6
    made_anew(world, "cab")
    change = world.changes.run(planned.plan.id, str(planned.token))
    assert change.state is State.DONE
    assert change.progress.outcomes == {"cancelled": 3}
    assert change.document()["gone"] == 3
    assert len(world.group.lanes[LANES[0]]) == 3
    assert len(world.group.lanes[LANES[2]]) == 0


def test_what_was_pending_in_a_source_that_was_made_anew_is_not_sent_for_again() -> None:
    world = MemoryChanges(lambda: TABLE.table)
    for id in "abc":
        world.group.accept(LANES[0], NOW_MS + 20_000, id)
    plan_id = world.changes.plan(Wanted("cancel", Selection(), When(), 0, True, "me")).plan.id

    def die(call: str) -> None:
        if call == "send" and len(world.group.sent) == 1:
            raise CrashError

    work = world.work(plan_id)
    work.begin()
    world.group.fault = die
    with pytest.raises(CrashError):
        work.go_on()
    world.group.fault = lambda _: None
    made_anew(world, "abc")
    world.work(plan_id).go_on()
    assert len(world.group.sent) == 1
    assert len(world.group.lanes[LANES[0]]) == 3
    outcomes = {receipt["id"]: (receipt["outcome"], receipt["state"]) for receipt in world.jobs.receipts()}
    assert outcomes == dict.fromkeys("abc", ("too_late", "deleted"))


@pytest.mark.parametrize("silence", ["no answer", "no id", "no topic"])
def test_while_nobody_knows_whether_a_source_is_the_same_it_waits(silence: str) -> None:
    world = MemoryChanges(lambda: TABLE.table)
    world.group.accept(LANES[0], NOW_MS + 20_000, "a")
    planned = world.changes.plan(Wanted("cancel", Selection(topic="a"), When(), 0, False, "me"))
    if silence == "no answer":
        world.group.unanswered = [silence] * 20
    elif silence == "no id":
        world.group.topic_ids["a"] = ""
    else:
        world.group.topic_ids["a"] = None

    def stops() -> bool:
        if world.time_s > 5:
            world.group.topic_ids["a"] = "id of a"
            world.group.unanswered = []
        else:
            assert world.group.sent == []
        return False

    world.stops = stops
    change = world.changes.run(planned.plan.id, str(planned.token))
    assert world.time_s > 5
    assert change.state is State.DONE
    assert change.progress.outcomes == {"cancelled": 1}
    assert any(progress.reason for progress in world.jobs.progresses)


def test_a_plan_of_an_older_version_has_no_ids() -> None:
    world = MemoryChanges(lambda: TABLE.table)
    world.group.accept(LANES[0], NOW_MS + 20_000, "a")
    planned = world.changes.plan(Wanted("cancel", Selection(topic="a"), When(), 0, False, "me"))
    assert planned.plan.topic_ids == {"a": "id of a"}
    told = json.loads(planned.plan.model_dump_json())
    del told["topic_ids"]
    older = decoded(ChangePlan, json.dumps(told).encode(), SCHEMA)
    assert older is not None
    world.jobs.changes[older.id] = planned.model_copy(update={"plan": older})
    assert world.changes.run(older.id, str(planned.token)).progress.outcomes == {"cancelled": 1}


def test_of_two_ids_with_one_hash_only_the_one_that_is_named_is_meant() -> None:
    """Replicas look for hashes, so that a question stays small; who changes compares the ids."""
    named, other = "plumless", "buckeroo"
    assert hashes_of([named]) == hashes_of([other])
    world = MemoryChanges(lambda: TABLE.table)
    for id in (named, other):
        world.group.accept(LANES[0], NOW_MS + 20_000, id)
    planned = world.changes.plan(Wanted("cancel", Selection(ids=(named,)), When(), 0, False, "me"))
    assert planned.progress.planned.messages == 1
    assert world.changes.run(planned.plan.id, str(planned.token)).progress.outcomes == {"cancelled": 1}
    assert [held_id(one) for one in world.group.lanes[LANES[0]].values()] == [other]


def test_a_plan_without_the_newest_conditions_is_written_as_older_versions_read_it() -> None:
    """Older versions refuse a selection with a field that they don't know, and would pass the plan over."""
    world = MemoryChanges(lambda: TABLE.table)
    plan = world.changes.plan(Wanted("cancel", Selection(topic="a"), When(), 0, False, "me")).plan
    assert json.loads(plan.model_dump_json())["selection"] == {"topic": "a"}


def test_ids_are_few_enough_for_a_record_of_kafka() -> None:
    many = tuple(f"{number:0100d}" for number in range(IDS_MAX))
    with pytest.raises(ValidationError, match="at most 524288 bytes together"):
        Selection(ids=many)
    with pytest.raises(ValidationError):
        Selection(ids=("a",) * (IDS_MAX + 1))
    assert len(Selection(ids=tuple(f"{number:052d}" for number in range(IDS_MAX))).query.ids) < QUESTION_BYTES_MAX / 2
