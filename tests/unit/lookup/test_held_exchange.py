"""Messages of replicas to each other through Redis: ours are read, everything else is left out and counted."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.headers import ID
from sidecar.lookup import exchange as held_exchange
from sidecar.lookup import group as held_group
from sidecar.lookup.exchange import (
    ANSWER_BYTES_MAX,
    QUESTION_BYTES_MAX,
    Refused,
    answer_bytes,
    question_bytes,
    read_answer,
    read_question,
)
from sidecar.lookup.group import WAITING_MAX, GroupLookUp
from sidecar.lookup.meeting import BAD_ANSWER, BAD_QUESTION, BUSY, STALE, Meeting
from sidecar.lookup.query import START, Answer, Key, Query, row_of
from sidecar.model.record import Held, TopicPartition
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report_of

LANE, OTHER = TopicPartition("gold", 0), TopicPartition("gold", 1)
ANSWERS = "tickover:g:answer:"
TOPICS = {"gold"}
HELD = Held(9, 3, "mail", -1, b"k", b"v", [], "p@1", b"t/0/1", 2, 5, [(ID, b"a")], 99, "dlq", 2)
ROW = row_of(LANE, HELD, "wheel")
PAGE: dict[str, Any] = {"ask": "page", "query": list(Query()), "after": list(START), "limit": 2}
FIND: dict[str, Any] = {"ask": "find", "query": list(Query()), "id": "a"}
ENDS: dict[str, Any] = {"ask": "ends", "query": list(Query())}
ANSWER = Answer([LANE], [ROW], Key(9, "gold", 0, 3), {1: 2, -1: 3}, [7])


def asked(question: dict[str, Any], **other: Any) -> bytes:
    return json.dumps({**question, "reply": ANSWERS + "x", "from": "me", "wait_ms": 500, **other}).encode()


def test_what_a_replica_asks_and_answers_is_read() -> None:
    for question in (PAGE, FIND, ENDS, {"ask": "forecast", "query": list(Query()), "until": 5}):
        read = read_question(question_bytes(question, ANSWERS + "x", "me", 1_000), ANSWERS)
        assert read == {**question, "query": list(Query())[:8], "reply": ANSWERS + "x", "from": "me", "wait_ms": 1_000}
    for question in (PAGE, FIND):
        assert read_answer(answer_bytes(ANSWER), question, TOPICS) == ANSWER
    ends = Answer([LANE, OTHER], [{**LANE._asdict(), "offset": 7}], None, {}, [7, 0])
    assert read_answer(answer_bytes(ends), ENDS, TOPICS) == ends
    assert read_answer(answer_bytes(Answer([], [], None, {}, [])), PAGE, TOPICS).lanes == []


@pytest.mark.parametrize("query", [Query(id="a"), Query(header="a=b", target="mail"), Query(ids="AAAA")])
def test_a_condition_that_older_versions_do_not_know_is_refused_by_them(query: Query) -> None:
    """Else an older replica would answer as if it weren't there. What all know is asked in the oldest words."""
    data = question_bytes({**PAGE, "query": query}, ANSWERS + "x", "me", 1_000)
    assert Query(*read_question(data, ANSWERS)["query"]) == query
    assert len(json.loads(data)["query"]) > 8
    assert len(json.loads(question_bytes(PAGE, ANSWERS + "x", "me", 1_000))["query"]) == 8


def test_a_version_that_does_not_say_how_long_it_waits_is_answered_for_a_second() -> None:
    data = json.loads(asked(ENDS))
    del data["wait_ms"]
    assert read_question(json.dumps(data).encode(), ANSWERS)["wait_ms"] == 1_000


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"7", b"null", b'"x"', b"[" * 60_000, b" " * (QUESTION_BYTES_MAX + 1), b"\xff",
        asked({"ask": "flush", "query": list(Query())}), asked({**PAGE, "query": []}),
        asked({**PAGE, "query": [1] * 8}), asked({**PAGE, "query": list(Query())[:7]}),
        asked({**PAGE, "query": [*Query(), ""]}), asked({**PAGE, "query": [*list(Query())[:8], 1]}),
        asked({**PAGE, "query": [[], -1, "", "", "", "", -1, 5]}), asked({**PAGE, "limit": 1 << 40}),
        asked({**PAGE, "limit": "x"}), asked({**PAGE, "limit": True}), asked({**PAGE, "after": [1, 2, 3, 4]}),
        asked({**PAGE, "after": None}), asked({"ask": "find", "query": list(Query())}), asked(FIND, id=7),
        asked({"ask": "forecast", "query": list(Query()), "until": 1 << 70}), asked(ENDS, reply="somewhere"),
        asked(ENDS, reply=ANSWERS + "x" * 1_000), asked(ENDS, reply=7), asked(ENDS, wait_ms=0),
        asked(ENDS, wait_ms=1 << 40), asked(ENDS, wait_ms="long"), asked(ENDS, **{"from": None}),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read_question(data, ANSWERS)


def other_row(**fields: Any) -> bytes:
    return answer_bytes(ANSWER._replace(rows=[{**ROW, **fields}]))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"[1,2,3,4]", b'{"lanes":1}', b"[[],[],[1],{}]", b"[[],[],null,{}]", b"[[],[],null,{},[1]]",
        b'[[["gold", 0]], [], null, {}, []]', b"[" * 60_000, b"[[],[],null,{},5]", b"[5,[],null,{},[]]",
        b'[[["gold", -1]],[],null,{},[0]]', b'[[["a b", 0]],[],null,{},[0]]', b'[[[0, "gold"]],[],null,{},[0]]',
        b'[[["gold", 0]],[],null,{},["7"]]', b'[[["gold", 0],["gold", 0]],[],null,{},[0,0]]',
        b'[[],[],[1,"",2],{},[]]', b'[[],[],null,{"x":1},[]]', b'[[],[],null,{"1":-1},[]]',
        b'[[],[],null,{"1":"1"},[]]',
        b'[[],["row"],null,{},[]]', b'[[],[{}],null,{},[]]',
        other_row(position={"topic": "gold", "partition": 1, "offset": 3}), other_row(position=None),
        other_row(position={"topic": "gold", "partition": 0}), other_row(accepted={"topic": "other", "partition": 0}),
        other_row(source="other"), other_row(state="settled"), other_row(tier="moon"), other_row(due="soon"),
        other_row(due=-1), other_row(due=1 << 60), other_row(due=True), other_row(due=1.5), other_row(target=None),
        other_row(target_partition=-2), other_row(attempt="x"), other_row(size=None), other_row(id=7),
        other_row(error_class={}), other_row(id="another"), answer_bytes(ANSWER._replace(rows=[ROW] * 3)),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    question = FIND if b"another" in data else PAGE
    with pytest.raises(Refused):
        read_answer(data, question, TOPICS)


def test_an_answer_is_not_read_beyond_its_size() -> None:
    with pytest.raises(Refused, match="bytes, more than"):
        read_answer(b" " * (ANSWER_BYTES_MAX + 1), PAGE, TOPICS)


def test_of_topics_that_are_not_the_groups_nothing_is_told() -> None:
    """A change sends control records to where rows are: nobody may lead it to another topic."""
    strange = TopicPartition("payments", 0)
    answer = Answer([strange, LANE], [row_of(strange, HELD, "wheel"), ROW], None, {}, [7, 7])
    assert read_answer(answer_bytes(answer), PAGE, TOPICS) == Answer([LANE], [ROW], None, {}, [7])
    of_one = {**PAGE, "query": list(Query(topic="gold", partition=1))}
    assert read_answer(answer_bytes(ANSWER), of_one, TOPICS).lanes == []


def test_what_no_row_has_is_not_passed_on() -> None:
    (row,) = read_answer(other_row(payload="secret"), PAGE, TOPICS).rows
    assert row == ROW
    assert list(row) == list(ROW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside, max_size=4),
    max_leaves=6,
)


@given(st.sampled_from(range(5)), st.sampled_from(["", *ROW]), json_values)
def test_anything_in_any_place_is_read_or_refused(place: int, name: str, value: Any) -> None:
    parts = json.loads(answer_bytes(ANSWER))
    if name:
        parts[1][0][name] = value
    else:
        parts[place] = value
    try:
        read_answer(json.dumps(parts).encode(), PAGE, TOPICS)
    except Refused:
        return


# --- deadlines, and room --------------------------------------------------------------------------------------------


class Redis:
    """Takes answers, and gives those that were put here for the asker."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, bytes]] = []
        self.given: list[bytes] = []

    def publish(self, channel: str, data: bytes) -> int:
        return 1 + len(self.given)

    def rpush(self, key: str, data: bytes) -> None:
        self.pushed.append((key, data))

    def expire(self, key: str, seconds: float) -> None:
        """Nothing goes away here."""

    def blpop(self, keys: list[str], timeout: float) -> tuple[str, bytes] | None:
        return (keys[0], self.given.pop(0)) if self.given else None


class Local:
    """A process with one partition of two, whose answer waits until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.answered = 0

    def views(self) -> list[Any]:
        return [SimpleNamespace(lane=OTHER, next=0)]

    def ends(self, query: Query) -> Answer:
        assert self.go_on.wait(60.0)
        self.answered += 1
        return Answer([OTHER], [], None, {}, [0])


def replica(redis: Redis, local: Local, reasons: list[str]) -> GroupLookUp:
    meeting = Meeting(redis, "g", reasons.append)
    return GroupLookUp(lambda: local, meeting, lambda: {"gold": 2}, FakeBacklog(), report_of)  # type: ignore[arg-type,return-value]


def drained(group: GroupLookUp) -> None:
    """Wait until all that was heard is answered, or dropped."""
    done: Future[None] = group._answering.submit(lambda: None)
    done.result(60.0)


def test_few_questions_wait_to_be_answered_and_stale_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(held_group, "time", SimpleNamespace(monotonic=lambda: now_s))
    redis, local, reasons = Redis(), Local(), list[str]()
    group = replica(redis, local, reasons)
    for _ in range(WAITING_MAX + 5):
        group.hear(asked(ENDS, wait_ms=500), now_s)
    assert reasons == [BUSY] * 5
    now_s += 0.5  # nobody waits for the others any more
    local.go_on.set()
    drained(group)
    assert (local.answered + reasons.count(STALE), len(redis.pushed)) == (WAITING_MAX, local.answered)
    assert reasons.count(STALE) >= WAITING_MAX - 1
    group.hear(asked(ENDS, wait_ms=500), now_s)
    drained(group)
    assert (reasons.count(BUSY), redis.pushed[-1][0]) == (5, ANSWERS + "x"), "there is room again"
    group.stop()


def test_a_question_that_is_none_is_counted_and_costs_no_room() -> None:
    redis, local, reasons = Redis(), Local(), list[str]()
    group = replica(redis, local, reasons)
    local.go_on.set()
    for _ in range(2 * WAITING_MAX):
        group.hear(b"garbage", 0.0)
    assert reasons == [BAD_QUESTION] * (2 * WAITING_MAX)
    group.stop()


def test_an_answer_larger_than_anybody_reads_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_exchange, "ANSWER_BYTES_MAX", 25)
    redis, local, reasons = Redis(), Local(), list[str]()
    local.go_on.set()
    group = replica(redis, local, reasons)
    group.hear(asked(ENDS), time.monotonic())
    drained(group)
    assert [json.loads(data) for _, data in redis.pushed] == [[[], [], None, {}, []]]
    group.stop()


@pytest.mark.parametrize(
    "garble", [lambda _: b"garbage", lambda parts: json.dumps([*parts[:4], ["x"]]).encode()], ids=["garbage", "offsets"]
)
def test_an_answer_that_is_none_leaves_its_partitions_missing(garble: Callable[[Any], bytes]) -> None:
    redis, local, reasons = Redis(), Local(), list[str]()
    local.go_on.set()
    group = replica(redis, local, reasons)
    true = json.loads(answer_bytes(Answer([LANE], [{**LANE._asdict(), "offset": 7}], None, {}, [7])))
    redis.given = [garble(deepcopy(true))]
    assert group.ends(Query()) == ({}, [LANE])
    assert reasons == [BAD_ANSWER]
    redis.given = [json.dumps(true).encode()]
    assert group.ends(Query()) == ({LANE: 7}, [])
    group.stop()
