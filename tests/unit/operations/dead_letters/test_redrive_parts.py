"""The pure parts of a redrive: what is passed over and why, what the topic of redrives says, what a refusal means."""

import json
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError

from sidecar.kafka.topic_follower import LogUnavailable, TopicReader
from sidecar.model.record import Place
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.edit import Edit, NewContent
from sidecar.operations.dead_letters.redrive_plan import (
    FORM,
    SCHEMA,
    TARGETS_MAX,
    Action,
    Plan,
    Progress,
    Redrive,
    SearchedSelection,
    Span,
    Tally,
)
from sidecar.operations.dead_letters.redrive_routing import RoutedLetter, Sorting, Ways
from sidecar.operations.jobs import log_writer
from sidecar.operations.jobs.job import JobLog, State, decoded
from sidecar.operations.jobs.runner import PLAN_BYTES_MAX
from sidecar.operations.jobs.transactional_sender import Refused, ShipmentFailed, TakenOver, TargetRefused, _verdict
from sidecar.settings.settings import MESSAGE_BYTES_MIN
from tests.unit.letter_world import NOW_MS, Record, dead
from tests.unit.redrive_world import GOVERNOR

ANYWHERE = Ways(frozenset(), {"reminders", "orders"})
INNER = {"tickover.policies": 1, "__consumer_offsets": 50}


def plan(**changes: Any) -> Plan:
    given = {
        "id": "p",
        "author": "a",
        "created_ms": NOW_MS,
        "topic": "orders-dlq",
        "selection": SearchedSelection(reason="expired"),
        "target": None,
        "spans": (Span(partition=0, start=2, end=10), Span(partition=1, start=0, end=0)),
        "governor": GOVERNOR,
    }
    return Plan(**{**given, **changes})


def encode(model: Plan | Progress) -> bytes:
    return model.model_dump_json().encode()


def letter(headers: Any, value: bytes | None = b"v") -> DeadLetter:
    return DeadLetter(Place("orders-dlq", 0, 5), NOW_MS, b"k", value, headers)


@pytest.mark.parametrize(
    ("one", "target", "expected"),
    [
        (letter(dead()), None, ("orders", "")),
        (letter(dead()), "elsewhere", ("elsewhere", "")),
        (letter(dead()), "nowhere", ("", "unknown_target")),
        (letter(dead(source="gone-retry/0/1")), None, ("", "unknown_target")),
        (letter([]), None, ("orders", "")),  # another program has written it
        (letter([]), "elsewhere", ("elsewhere", "")),
        (letter([])._replace(place=Place("orders-dead", 0, 5)), None, ("", "no_target")),
        (letter(None), "orders", ("", "unreadable")),
        (letter(dead(redrive_count="3")), "orders", ("", "redriven_too_often")),
        (letter(dead(redrive_count="2")), "orders", ("orders", "")),
        (letter(dead("too_large"), None), "orders", ("", "no_value")),
        (letter(dead("too_large")), "orders", ("orders", "")),
        (letter(dead("bad_header", detail="too large to be produced: refused"), None), "orders", ("", "no_value")),
        (letter(dead("bad_header", detail="no such unit"), None), "orders", ("orders", "")),  # it never had a value
        (letter(dead("no_policy", source="orders-dlq/0/1")), None, ("", "loop")),
        (letter(dead("no_policy", source="orders-retry/0/1")), None, ("orders-retry", "")),
        (letter(dead("no_policy", source="elsewhere/0/1")), None, ("", "not_a_source")),  # nobody would take it up
        (letter(dead("no_policy", source="elsewhere/0/1")), "elsewhere", ("", "not_a_source")),
        (letter(dead("no_policy", source="tickover.policies/0/1")), None, ("", "target_not_allowed")),
        (letter(dead("no_policy", source="tickover.b.ledger/0/1")), None, ("", "target_not_allowed")),
        (letter(dead()), "tickover.policies", ("", "target_not_allowed")),  # planned by a program of before
        (letter(dead(source="__consumer_offsets-retry/0/1", policy="x@1")), None, ("", "target_not_allowed")),
    ],
)
def test_what_becomes_of_a_letter(one: DeadLetter, target: str | None, expected: tuple[str, str]) -> None:
    sorting = Sorting(
        Redrive(plan=plan(target=target)),
        lambda _: (),
        {"orders": 1, "orders-retry": 1, "elsewhere": 1, "orders-dlq": 1, **INNER},
        Ways(ReservedTopics(frozenset({"tickover.policies"})), {"orders-retry"}),
        3,
    )
    assert sorting.target(one) == expected
    assert sorting.target(one) == expected  # by what was remembered


def test_only_so_many_targets() -> None:
    topics = {f"t{n}": 1 for n in range(TARGETS_MAX + 1)}
    sorting = Sorting(Redrive(plan=plan()), lambda _: (), topics, ANYWHERE, 3)
    found = [sorting.target(letter(dead(policy=f"p{n}@1", source=f"t{n}-retry/0/1"))) for n in range(TARGETS_MAX + 1)]
    assert [why for _, why in found] == [""] * TARGETS_MAX + ["too_many_targets"]
    assert sorting.gone(["t0", "away"]) == ["away"]


def test_the_targets_of_earlier_attempts_count_too() -> None:
    """Else the progress, which names them all, would grow with each attempt."""
    planned = Tally(targets={f"t{n}": 1 for n in range(TARGETS_MAX - 1)})
    before = Redrive(plan=plan(), progress=Progress(planned=planned, tally=Tally(targets={"a": 1})))
    topics = {**dict.fromkeys(planned.targets, 1), "a": 1, "b": 1}
    sorting = Sorting(before, lambda _: (), topics, ANYWHERE, 3)
    found = [sorting.target(letter(dead(source=f"{name}-retry/0/1"))) for name in ("t0", "b", "a")]
    assert found == [("t0", ""), ("", "too_many_targets"), ("a", "")]


def test_the_progress_of_the_largest_plan_fits_into_a_record() -> None:
    """Of each partition it has three offsets; of its targets as many as may be, of each kind."""
    for digits in (1, 10, 19):
        spans: list[Span] = []
        size = len(encode(plan(spans=())))
        for partition in count():
            span = Span(partition=partition, start=10 ** (digits - 1), end=10 ** (digits - 1))
            size += len(span.model_dump_json()) + 1
            if size > PLAN_BYTES_MAX:
                break
            spans.append(span)
        offsets = {span.partition: 10 * span.end for span in spans}
        tally = Tally(targets={f"{n:0249}": 10**12 for n in range(TARGETS_MAX)})
        progress = Progress(
            positions=offsets, watched=offsets, scanned=offsets, planned=tally, tally=tally,
            reason="target gone: " + ", ".join(tally.targets), sample=("s" * 280,) * 10,
        )  # fmt: skip
        assert len(encode(progress)) < MESSAGE_BYTES_MIN - (8 << 10)


def test_only_what_goes_back_to_its_source_keeps_its_control_headers() -> None:
    sorting = Sorting(Redrive(plan=plan()), lambda _: (), {"orders": 1}, ANYWHERE, 3)
    one = letter([("tickover-delay", b"5s"), *dead("no_policy", source="orders/0/1")])
    assert dict(sorting.parcel(one, "orders", "p/1").headers)["tickover-delay"] == b"5s"
    assert "tickover-delay" not in dict(sorting.parcel(one, "elsewhere", "p/1").headers)


def test_a_letter_without_a_key_goes_back_to_the_partition_that_it_came_from() -> None:
    """There are those of its id: a control record that was sent again would meet none of them elsewhere."""
    sorting = Sorting(Redrive(plan=plan()), lambda _: (), {"reminders": 4, "orders": 4}, ANYWHERE, 3)
    without_key = DeadLetter(Place("orders-dlq", 0, 5), NOW_MS, None, b"v", dead("no_policy", source="reminders/3/1"))
    assert sorting.parcel(without_key, "reminders", "p/1").partition == 3
    assert sorting.parcel(without_key, "orders", "p/1").partition == -1
    assert sorting.parcel(without_key._replace(key=b"k"), "reminders", "p/1").partition == -1
    fewer = Sorting(Redrive(plan=plan()), lambda _: (), {"reminders": 3}, ANYWHERE, 3)  # the topic was made anew
    assert fewer.parcel(without_key, "reminders", "p/1").partition == -1


def test_plans_and_progress_are_read_back() -> None:
    progress = Progress(state=State.RUNNING, positions={0: 7}, tally=Tally(targets={"t": 3}, skipped={"loop": 1}))
    assert decoded(Plan, encode(plan()), SCHEMA) == plan()
    assert decoded(Progress, encode(progress), SCHEMA) == progress
    for garbage in (b"", b"{", b"null", b"[]", b"{}", b"\xff", encode(plan(schema_version=SCHEMA + 1))):
        assert decoded(Plan, garbage, SCHEMA) is None
    assert decoded(Progress, encode(Progress(schema_version=SCHEMA + 1)), SCHEMA) is None


def test_a_plan_of_an_older_version_names_no_topic_id() -> None:
    older = json.loads(encode(plan(topic_id="x")))
    del older["topic_id"]
    assert decoded(Plan, json.dumps(older).encode(), SCHEMA) == plan()
    assert plan().topic_id == ""


def test_a_plan_without_words_of_a_search_is_written_as_programs_of_before_read_it() -> None:
    written = json.loads(encode(plan()))["selection"]
    assert Selection.model_validate(written).reason == "expired"
    for words in ({"error": "a"}, {"id": "a"}, {"key_prefix": "a"}, {"header": "a=b"}):
        searched = json.loads(encode(plan(selection=SearchedSelection(**words))))["selection"]
        with pytest.raises(ValidationError):
            Selection.model_validate(searched)
        assert decoded(Plan, encode(plan(selection=SearchedSelection(**words))), SCHEMA) == plan(
            selection=SearchedSelection(**words)
        )


MESSAGE = "Card 7 was declined by a@b.corp"


@pytest.mark.parametrize(
    ("words", "mask", "fits"),
    [
        ({"error": "CARD 7"}, (), True),
        ({"error": "app.error"}, (), True),  # its class
        ({"error": "card 8"}, (), False),
        ({"error": "card 7"}, ("tickover-error-message",), False),
        ({"error": "***"}, ("tickover-error-message",), True),  # as the list shows it
        ({"error": "b.corp"}, (), False),  # who reads the list sees no address
        ({"error": "by <address>"}, (), True),
        ({"error": "card 7", "reason": "timeout"}, (), False),
        ({"id": "i-7"}, (), True),
        ({"id": "i-"}, (), False),
        ({"key_prefix": "k"}, (), True),
        ({"key_prefix": "k"}, ("key",), False),
        ({"header": "tenant=gold"}, (), True),
        ({"header": "tenant=gold"}, ("TENANT",), False),
        ({"header": "tenant=silver"}, (), False),
    ],
)
def test_a_search_of_a_plan_finds_what_was_shown_when_it_was_made(
    words: dict[str, str], mask: tuple[str, ...], fits: bool
) -> None:
    headers = dead(error_class="app.Error", error_message=MESSAGE, id="i-7")
    searching = plan(selection=SearchedSelection(**words), mask=mask)
    read = decoded(Plan, encode(searching), SCHEMA)
    assert read is not None
    assert read.means(letter([("tenant", b"gold"), *headers])) is fits


@pytest.mark.parametrize(
    ("one", "other", "may_share"),
    [
        ({"error": "a"}, {"error": "b"}, True),  # one message may have both
        ({"error": "a"}, {}, True),
        ({"error": "a", "reason": "expired"}, {"reason": "timeout"}, False),
        ({"id": "a"}, {"id": "b"}, False),
        ({"id": "a"}, {"id": "a", "error": "x"}, True),
        ({"id": "a"}, {"error": "x"}, True),
        ({"key_prefix": "ab"}, {"key_prefix": "a"}, True),
        ({"key_prefix": "ab"}, {"key_prefix": "ac"}, False),
        ({"key_prefix": "ab"}, {}, True),
        ({"header": "a=1"}, {"header": "a=2"}, True),  # one letter may have both
    ],
)
def test_plans_whose_searches_no_letter_can_fit_do_not_wait_for_each_other(
    one: dict[str, str], other: dict[str, str], may_share: bool
) -> None:
    first, second = (plan(selection=SearchedSelection(**words)) for words in (one, other))
    assert first.may_share(second) is may_share
    assert second.may_share(first) is may_share


def test_progress_as_rest_shows_it() -> None:
    document = Redrive(plan=plan(), progress=Progress(state=State.RUNNING, positions={0: 6})).document()
    assert document["records"] == {"read": 4, "remaining": 4}
    assert document["filter"] == {"reason": "expired"}
    json.dumps(document)


@pytest.mark.parametrize("state", list(State))
def test_what_somebody_works_on_is_aborting_until_the_one_who_works_has_written_its_end(state: State) -> None:
    aborted = Redrive(plan=plan(), progress=Progress(state=state), aborted_by="me")
    if state is State.DONE:  # the abort came too late
        assert aborted.state is State.DONE
    else:
        assert aborted.state is (State.ABORTING if state.is_active else State.ABORTED)
    assert aborted.state.is_active == state.is_active
    assert not aborted.state.may_start


def test_garbage_in_the_topic_of_redrives_is_passed_over() -> None:
    log = JobLog(TopicReader({}), "tickover.g.redrives", FORM)
    progress = encode(Progress(state=State.PLANNED))
    records = [
        (b"r/progress", progress),  # of a plan that is not there
        (b"p/plan", encode(plan())),
        (b"q/plan", encode(plan())),  # somebody else's
        (None, None),
        (b"p/plan", None),
        (b"\xff/plan", b"\xff"),
        (b"p/progress", b"{"),
        (b"p/plan", encode(plan(topic="other"))),  # a plan never changes
    ]
    for offset, (key, value) in enumerate(records):
        log.take(Record(offset, key, value))
    assert list(log.all()) == ["p"]
    redrive = log.get("p")
    assert redrive is not None
    assert (redrive.plan, redrive.state) == (plan(), State.PLANNING)
    log.take(Record(8, b"p/progress", progress))
    log.take(Record(9, b"p/abort", b"nonsense"))
    redrive = log.get("p")
    assert redrive is not None
    assert (redrive.progress.state, redrive.state, redrive.aborted_by) == (State.PLANNED, State.ABORTED, "?")


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ({3: KafkaError.MSG_SIZE_TOO_LARGE, 4: KafkaError._PURGE_QUEUE, 9: KafkaError._PURGE_QUEUE}, Refused),
        ({3: KafkaError.UNKNOWN_TOPIC_OR_PART, 4: KafkaError._PURGE_QUEUE}, TargetRefused),
        ({3: KafkaError.MSG_SIZE_TOO_LARGE, 4: KafkaError._FENCED}, TakenOver),
        ({9: KafkaError.UNKNOWN_TOPIC_OR_PART}, ShipmentFailed),  # the topic of redrives
        ({3: KafkaError._MSG_TIMED_OUT}, ShipmentFailed),
        ({3: KafkaError._PURGE_QUEUE}, ShipmentFailed),
        ({}, ShipmentFailed),
    ],
)
def test_what_refusals_mean(errors: dict[int, int], kind: type[Exception]) -> None:
    verdict = _verdict({index: KafkaError(code) for index, code in errors.items()}, 9)
    assert type(verdict) is kind
    if isinstance(verdict, Refused):
        assert list(verdict.codes) == [3]


def test_a_producer_of_the_topic_of_redrives_that_has_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fatal error it would take nothing more, for as long as the process lives."""
    made: list[FailingProducer] = []

    def producer(_: object) -> FailingProducer:
        made.append(FailingProducer(fails=len(made) < 2))
        return made[-1]

    monkeypatch.setattr(log_writer, "Producer", producer)
    log = JobLog(TopicReader({}), "tickover.g.redrives", FORM)
    monkeypatch.setattr(log._writer, "_wait_for", lambda offset: None)
    for _ in range(2):
        with pytest.raises(LogUnavailable):
            log.write_abort("p", "me")
    log.write_abort("p", "me")
    log.write_abort("p", "me")
    assert [one.produced for one in made] == [0, 0, 2]


class FailingProducer:
    """confluent-kafka's, as far as it is used."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self.produced = 0

    def produce(self, *_: object, on_delivery: Any) -> None:
        if self._fails:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self.produced += 1
        on_delivery(None, Record(self.produced, None, None))

    def flush(self, _: float) -> int:
        return 0

    def purge(self, **_: bool) -> None: ...

    def close(self) -> None: ...


def test_a_letter_that_is_edited_is_judged_by_what_it_becomes() -> None:
    """One that left its value behind can be sent with another value; what the patch doesn't fit is passed over."""
    by_reference, whole = letter(dead("too_large"), None), letter(dead(), b'{"a": 1}')
    edits = Edit(value=NewContent(data=b"n")), Edit(merge={"a": 2})
    plans = [plan(target="orders", edit=edit) for edit in edits]
    other, patch = (Sorting(Redrive(plan=one), lambda _: (), {"orders": 1}, ANYWHERE, 3) for one in plans)
    assert isinstance(other.fate(by_reference, "p/1"), RoutedLetter)
    assert [patch.fate(one, "p/1") for one in (by_reference, letter(dead()), letter(None))] == [
        "not_editable", "not_editable", "unreadable",
    ]  # fmt: skip
    fate = patch.fate(whole, "p/1")
    assert isinstance(fate, RoutedLetter)
    assert (fate.value, dict(fate.headers)["tickover-edited-by"]) == (b'{"a":2}', b"a")
    assert whole.value == b'{"a": 1}'


def test_a_corrected_header_of_a_quarantined_record_goes_back_with_it() -> None:
    edit = Edit(headers={"tickover-delay": b"5s"})
    sorting = Sorting(Redrive(plan=plan(edit=edit)), lambda _: (), {"reminders": 1}, ANYWHERE, 3)
    bad = letter([("tickover-delay", b"soon"), *dead("bad_header", source="reminders/0/1")])
    fate = sorting.fate(bad, "p/1")
    assert isinstance(fate, RoutedLetter)
    assert (fate.target, dict(fate.headers)["tickover-delay"]) == ("reminders", b"5s")


def test_whatever_lies_there_can_be_discarded() -> None:
    sorting = Sorting(Redrive(plan=plan(action=Action.DISCARD)), lambda _: (), {}, ANYWHERE, 3)
    for one in (letter(None), letter(dead("too_large"), None), letter(dead(redrive_count="99")), letter([])):
        assert sorting.fate(one, "p/1") == RoutedLetter(one, "", [])


def test_plans_that_name_other_letters_do_not_wait_for_each_other() -> None:
    first, second = (plan(id=str(n), letters={0: (n,), 1: (9,) if n == 2 else ()}) for n in (1, 2))
    assert not first.may_share(second)
    assert first.may_share(plan(letters={0: (1, 2)}))
    assert second.may_share(plan())
    assert not plan().may_share(plan(topic="others-dlq"))
    assert [(one.partition, one.start, one.end) for one in plan(letters={0: (4, 2)}).reads] == [(0, 2, 5)]
