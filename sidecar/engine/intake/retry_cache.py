"""Retries remembered: of those that failed alike, only the times differ.

What becomes of a retry depends on the values of a few headers (`_DECIDING`), which recur, and on times: its
timestamp, its first failure, and the jitter of its place. So the first is decided as any record, and its answer kept
under these values. Where in a record they stand is looked up by the names of all its headers (its *shape*). A record
that has an id, or that says when, or a header of tickover's twice, has no shape: it is decided as any other, and so is
each whose answer isn't known.

What is remembered is bounded in number and size, whatever is sent, and forgotten with the policy table it came from.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from sys import intern, maxsize
from typing import Any, Final, NamedTuple

from policies.backoff import delay_range_ms, jittered_ms
from policies.headers import (
    ATTEMPT,
    COUNTED,
    DELAY,
    ERROR_CLASS,
    FAILURE,
    FIRST_FAILURE,
    ID,
    INSTRUCTIONS,
    ORIGIN,
    POLICY,
    TARGET,
    TARGET_PARTITION,
    WRITTEN,
)
from policies.request import EPOCH_MS_DIGITS
from policies.table import PolicyTable, Rule
from sidecar.model.header_codec import UNCUT_BYTES
from sidecar.model.ports import SourceRecord
from sidecar.model.record import NO_HEADERS, Headers, Held

ANSWERS_MAX: Final = 4_096  # of one topic
SHAPES_MAX: Final = 256
HEADERS_MAX: Final = 32
BYTES_MAX: Final = 1_024  # of the values that an answer is kept under; of all names of a shape

_DECIDING: Final = frozenset((ATTEMPT, ERROR_CLASS, POLICY, TARGET, TARGET_PARTITION, DELAY))
_RESERVED: Final = INSTRUCTIONS | FAILURE | COUNTED | WRITTEN | {ID, ORIGIN}
_UNLIKE: Final = (INSTRUCTIONS | {ID}) - _DECIDING
_new_tuple: Final = tuple.__new__

Place = tuple[str, int, int]  # topic, partition, offset of a record


class Answer(NamedTuple):
    """A decision to hold, but for its times."""

    shortest_ms: int  # from the record's timestamp, before jitter
    longest_ms: int
    attempt: int
    target: str
    target_partition: int
    policy: str
    dead_letter: str


class Shape(NamedTuple):
    """Records whose headers have these names, in this order: places of what is read, and answers by what decides."""

    names_size: int
    deciding: Callable[[Sequence[bytes]], Any]
    first_failure: int  # -1: not there
    origin: int  # -1: not there
    user: tuple[tuple[str, int], ...]
    trailer: tuple[tuple[str, int], ...]
    answers: dict[Any, Answer]


class TopicRetries:
    """Answers that one policy table gave to the retries of one topic; none where a policy says more than when."""

    __slots__ = ("_remembered", "_rule", "_shapes", "_timeout_ms")

    def __init__(self, topic: str, table: PolicyTable) -> None:
        rules = table.rules(topic)
        self._rule = rules[0] if rules and _is_plain(rules[0]) else None
        retry = self._rule.retry if self._rule else None
        self._timeout_ms = None if retry is None else retry.timeout
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._remembered = 0

    def held(self, record: SourceRecord, place: Place, headers: Headers, bytes_max: int) -> Held | None:
        """A retry that failed as one before, to be held; None: decide it. The hot path. The caller looks at the
        timestamp and at the target's partitions.
        """
        if not self._shapes or not headers:
            return None
        names, values = zip(*headers, strict=True)
        shape = self._shapes.get(names)
        if shape is None or None in values:
            return None
        size, deciding, first_failure, origin, user, trailer, answers = shape
        answer = answers.get(deciding(values))
        size += sum(map(len, values))
        if answer is None or size > bytes_max:
            return None
        shortest_ms, due_ms, attempt, target, target_partition, policy, dead_letter = answer
        timestamp_ms = first_failure_ms = record.timestamp()[1]
        if first_failure >= 0:
            raw = values[first_failure]
            if len(raw) != EPOCH_MS_DIGITS or not raw.isdigit():
                return None
            first_failure_ms = int(raw)
        if shortest_ms != due_ms:
            due_ms = jittered_ms(shortest_ms, due_ms, place)
        due_ms += timestamp_ms
        if self._timeout_ms is not None and due_ms > first_failure_ms + self._timeout_ms:
            return None
        follow = [(name, values[at]) for name, at in trailer]
        if any(len(text) > UNCUT_BYTES for _, text in follow):
            return None
        key: bytes | None = record.key()
        value: bytes | None = record.value()
        size += len(key or b"") + len(value or b"")
        fields = (
            due_ms, place[2], target, target_partition, key, value, [(name, values[at]) for name, at in user], policy,
            (values[origin] or None) if origin >= 0 else None, attempt, first_failure_ms, follow or NO_HEADERS, -1,
            dead_letter, size, -1,
        )  # fmt: skip
        return _new_tuple(Held, fields)

    def note(self, record: SourceRecord, place: Place, headers: Headers, held: Held) -> None:
        """Remember a decision for later records that failed alike, if that gives the same of this one again."""
        rule = self._rule
        if rule is None or rule.retry is None or not held.attempt or not 0 < len(headers) <= HEADERS_MAX:
            return
        names, values = zip(*headers, strict=True)
        asked = dict(headers)
        label = asked.get(POLICY)
        # Who has counted the attempts of another policy's record is told by its origin, which is each record's own.
        if None in values or (label is not None and label.rpartition(b"@")[0] != rule.policy.name.encode()):
            return
        if self._remembered >= ANSWERS_MAX or len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
            self._remembered = 0
        shape = self._shapes.get(names) or _shape_of(names)
        if shape is None or sum(len(asked.get(name) or b"") for name in _DECIDING) > BYTES_MAX:
            return
        wait_ms = held.due_ms - record.timestamp()[1]
        is_asked = DELAY in asked
        range_ms = (wait_ms, wait_ms) if is_asked else delay_range_ms(rule.retry.backoff, held.attempt - 1)
        answer = Answer(
            *range_ms, held.attempt, held.target, held.target_partition, held.policy, held.dead_letter
        )  # fmt: skip
        self._shapes[tuple(map(intern, names))] = shape
        deciding = shape.deciding(values)
        shape.answers[deciding] = answer
        if self.held(record, place, headers, maxsize) == held:
            self._remembered += 1
        else:
            del shape.answers[deciding]


def _is_plain(rule: Rule) -> bool:
    """Whether it decides all retries of its topic, and by nothing else than what is remembered."""
    return rule.retry is not None and not rule.conditions and not rule.spread.max_ms and rule.policy.order is None


def _shape_of(names: Sequence[str]) -> Shape | None:
    reserved = [name for name in names if name in _RESERVED]
    names_size = sum(map(len, names))
    if len(set(reserved)) < len(reserved) or not _UNLIKE.isdisjoint(reserved) or names_size > BYTES_MAX:
        return None
    places = {name: place for place, name in enumerate(names)}
    deciding = [place for place, name in enumerate(names) if name in _DECIDING]
    user = tuple((intern(name), place) for place, name in enumerate(names) if name not in _RESERVED)
    trailer = tuple((intern(name), place) for place, name in enumerate(names) if name in FAILURE)
    picker: Any = itemgetter(*deciding) if deciding else itemgetter(slice(0))
    return Shape(names_size, picker, places.get(FIRST_FAILURE, -1), places.get(ORIGIN, -1), user, trailer, {})
