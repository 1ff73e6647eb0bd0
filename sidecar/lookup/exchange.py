"""Questions and answers of replicas that look held records up through Redis: as bytes, and checked.

    channel tickover:<group>:questions      PUBLISH: what is asked, and where the answer goes
    list    tickover:<group>:answer:<id>    RPUSH: one answer of each replica; gone after a minute

    question   {"ask": ..., "query": [...], ..., "reply": the list, "from": who asks, "wait_ms": how long}
    answer     [lanes, rows, reach, minutes, read], as `Answer` has them; to `overview` the one row is a report

Where `redis.signing_key_file` is set, the signature stands before each, in hexadecimal digits, and a space: over a
question for the channel, over an answer for its list.

Whoever may write to Redis may say anything here. So nothing is larger than a limit, has another shape than ours, or
speaks of topics that aren't the group's, before it becomes part of an answer. What is refused is counted, and is as if
nobody had said it.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from policies.fields import is_topic
from policies.headers import OFFSET_MAX
from sidecar.lookup.query import OVERFLOW, TIME_MAX_MS, WHEEL, Answer, Key, Query
from sidecar.lookup.report import read_report, row_of_report
from sidecar.model.record import TopicPartition
from sidecar.overflow.signing import SIGNATURE_BYTES, Signing

QUESTION_BYTES_MAX: Final = 128 * 1024
QUERY_FIELDS_MIN: Final = 8  # of a query of the oldest version
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_MS_MAX: Final = 60_000
WAIT_MS_DEFAULT: Final = 1_000  # of a replica whose version doesn't say
LIMIT_MAX: Final = 10_000  # rows of one page
SIGNATURE_DIGITS: Final = 2 * SIGNATURE_BYTES
PARTITION_MAX: Final = (1 << 31) - 1
NUMBER_MAX: Final = OFFSET_MAX

Question = dict[str, Any]
Row = dict[str, Any]

# What a row tells, and how it is known to be told right; `row_of` in `query.py` writes it. Epoch ms, bytes.
_NUMBERS: Final = {"due": TIME_MAX_MS, "size": NUMBER_MAX}
_NUMBERS_OR_NONE: Final = {
    "target_partition": PARTITION_MAX, "attempt": NUMBER_MAX, "first_failure": NUMBER_MAX, "expires_at": NUMBER_MAX,
}  # fmt: skip
_TEXTS: Final = ("source", "target", "policy")
_TEXTS_OR_NONE: Final = ("id", "error_class", "origin")
_TOLD: Final = (
    "id", "source", "position", "accepted", "state", "tier", "due", "target", "target_partition", "policy", "attempt",
    "first_failure", "expires_at", "error_class", "origin", "size",
)  # fmt: skip


class Refused(ValueError):
    """Bytes from Redis that are no question or answer of ours; the text says why, without anything of them."""


def sealed(signing: Signing, kind: bytes, place: str, data: bytes) -> bytes:
    """With its signature for this channel or list, where there are keys."""
    return signing.signature(kind, place.encode(), data).hex().encode() + b" " + data if signing.is_on else data


def opened(signing: Signing, kind: bytes, place: str, data: bytes) -> bytes:
    """Bytes that were signed for this channel or list. Raises Refused where they weren't; without keys all pass."""
    if not signing.is_on:
        return data
    if len(data) > SIGNATURE_DIGITS + 1 + ANSWER_BYTES_MAX:
        raise Refused(f"{len(data)} bytes, more than {ANSWER_BYTES_MAX}")
    digits, rest = data[:SIGNATURE_DIGITS], data[SIGNATURE_DIGITS + 1 :]
    try:
        signature = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise Refused("it is not signed") from None
    if not signing.holds(kind, place.encode(), rest, signature):
        raise Refused("none of our keys has signed it")
    return rest


def question_bytes(question: Question, reply: str, sender: str, wait_ms: int) -> bytes:
    """A question to all replicas, who answer within `wait_ms` or not at all.

    Conditions that aren't set are left out from the end of the query: a replica of an older version, which doesn't know
    them, answers. Where one is set, it refuses the question, so that its partitions are missing.
    """
    query = list(question["query"])
    while len(query) > QUERY_FIELDS_MIN and query[-1] == Query()[len(query) - 1]:
        query.pop()
    return json.dumps({**question, "query": query, "reply": reply, "from": sender, "wait_ms": wait_ms}).encode()


def read_question(data: bytes, answers: str) -> Question:
    """A question whose answer goes to a list that begins with `answers`. Raises Refused."""
    question = _json(data, QUESTION_BYTES_MAX)
    if not isinstance(question, dict) or not isinstance(query := question.get("query"), list):
        raise Refused("no question")
    for name in ("ask", "reply", "from"):
        _expect(isinstance(question.get(name), str))
    _expect(question["reply"].startswith(answers) and len(question["reply"]) <= len(answers) + 64)
    _expect(_is_number(question.setdefault("wait_ms", WAIT_MS_DEFAULT), 1, WAIT_MS_MAX))
    _expect(QUERY_FIELDS_MIN <= len(query) <= len(Query._fields))
    for part, default in zip(query, Query(), strict=False):
        _expect(_is_number(part, -1, NUMBER_MAX) if isinstance(default, int) else isinstance(part, str))
    match question["ask"]:
        case "page":
            _expect(_is_number(question.get("limit"), 1, LIMIT_MAX) and _is_key(question.get("after")))
        case "find":
            _expect(isinstance(question.get("id"), str))
        case "forecast" | "overview":
            _expect(_is_number(question.get("until"), -NUMBER_MAX, NUMBER_MAX))
        case "ends":
            pass  # nothing more is asked
        case _:
            raise Refused("an unknown question")
    return question


def answer_bytes(answer: Answer) -> bytes:
    """An answer to another replica. Raises Refused where it is larger than any replica reads."""
    data = json.dumps(answer).encode()
    if len(data) > ANSWER_BYTES_MAX:
        raise Refused(f"an answer of {len(data)} bytes, more than {ANSWER_BYTES_MAX}")
    return data


def read_answer(data: bytes, question: Question, topics: Collection[str]) -> Answer:
    """Another replica's answer to this question, as far as it is about these topics. Raises Refused."""
    parts = _json(data, ANSWER_BYTES_MAX)
    _expect(isinstance(parts, list) and len(parts) == len(Answer._fields))
    lanes, rows, reach, minutes, read = parts
    _expect(all(isinstance(part, list) for part in (lanes, rows, read)) and isinstance(minutes, dict))
    _expect(len(lanes) == len(read) and (reach is None or _is_key(reach)))
    _expect(all(_is_number(offset, -1, NUMBER_MAX) for offset in read))
    query = Query(*question["query"])
    named = list(map(_lane, lanes))
    _expect(len(set(named)) == len(named))
    meant = {lane: offset for lane, offset in zip(named, read, strict=True)
             if lane.topic in topics and query.wants_lane(lane)}  # fmt: skip
    return Answer(
        list(meant),
        _reports(rows)
        if question["ask"] == "overview"
        else [row for lane, row in _rows(rows, question, named) if lane in meant],
        Key(*reach) if reach is not None else None,
        dict(_minutes(minutes)),
        list(meant.values()),
    )


def _rows(
    rows: list[Any], question: Question, lanes: Collection[TopicPartition]
) -> Iterable[tuple[TopicPartition, Row]]:
    """Of each row what we know of, and its partition, which is one that the answer is about."""
    of_answer = set(lanes)
    if question["ask"] == "ends":
        found = [(_lane([row.get("topic"), row.get("partition")]), row) for row in map(_object, rows)]
        _expect(all(lane in of_answer and _is_number(row.get("offset"), -1, NUMBER_MAX) for lane, row in found))
        return [(lane, {**lane._asdict(), "offset": row["offset"]}) for lane, row in found]
    _expect(question["ask"] != "page" or len(rows) <= question["limit"])
    known = [_row(_object(row)) for row in rows]
    _expect(all(lane in of_answer for lane, _ in known))
    _expect(question["ask"] != "find" or all(row["id"] == question["id"] for _, row in known))
    return known


def _reports(rows: list[Any]) -> list[Row]:
    """The report of the replica; none of one that couldn't make it."""
    _expect(len(rows) <= 1)
    try:
        return [row_of_report(read_report(_object(row))) for row in rows]
    except ValueError:
        raise Refused("no report") from None


def _row(row: Row) -> tuple[TopicPartition, Row]:
    (lane, offset), (lane_then, came_at) = _place(row.get("position")), _place(row.get("accepted"))
    _expect(lane == lane_then and row.get("source") == lane.topic)
    _expect(row.get("state") == "held" and row.get("tier") in (WHEEL, OVERFLOW))
    _expect(all(_is_number(row.get(name), 0, most) for name, most in _NUMBERS.items()))
    _expect(all(row.get(name) is None or _is_number(row[name], 0, most) for name, most in _NUMBERS_OR_NONE.items()))
    _expect(all(isinstance(row.get(name), str) for name in _TEXTS))
    _expect(all(row.get(name) is None or isinstance(row[name], str) for name in _TEXTS_OR_NONE))
    told = {name: row.get(name) for name in _TOLD}
    told["position"], told["accepted"] = ({**lane._asdict(), "offset": at} for at in (offset, came_at))
    return lane, told


def _place(part: Any) -> tuple[TopicPartition, int]:
    place = _object(part)
    lane, offset = _lane([place.get("topic"), place.get("partition")]), place.get("offset")
    _expect(_is_number(offset, 0, NUMBER_MAX))
    return lane, int(offset)  # type: ignore[arg-type]


def _minutes(minutes: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    for minute, count in minutes.items():
        _expect(len(minute) <= 20 and minute.removeprefix("-").isdecimal() and _is_number(count, 0, NUMBER_MAX))
        yield int(minute), count


def _json(data: bytes, bytes_max: int) -> Any:
    if len(data) > bytes_max:
        raise Refused(f"{len(data)} bytes, more than {bytes_max}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None


def _lane(parts: Any) -> TopicPartition:
    _expect(isinstance(parts, list) and len(parts) == 2)
    topic, partition = parts
    _expect(isinstance(topic, str) and is_topic(topic) and _is_number(partition, 0, PARTITION_MAX))
    return TopicPartition(topic, partition)


def _object(part: Any) -> Row:
    _expect(isinstance(part, dict))
    found: Row = part
    return found


def _is_key(part: Any) -> bool:
    if not isinstance(part, list) or len(part) != len(Key._fields):
        return False
    due_ms, topic, partition, offset = part
    numbers = (due_ms, partition, offset)
    return isinstance(topic, str) and all(_is_number(number, -1, NUMBER_MAX) for number in numbers)


def _is_number(part: Any, lowest: int, highest: int) -> bool:
    return type(part) is int and lowest <= part <= highest  # a boolean is one, too, to Python


def _expect(holds: bool) -> None:
    if not holds:
        raise Refused("not of the shape that replicas write")
