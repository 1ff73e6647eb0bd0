"""Decoding and deciding: from a consumed record to what becomes of it."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from policies.decide import decide
from policies.decision import (
    BAD_HEADER,
    NO_POLICY,
    QUOTA_EXCEEDED,
    TARGET_NOT_ALLOWED,
    TOO_MANY_HEADERS,
    Act,
    Dead,
    Facts,
    Hold,
    Quarantine,
)
from policies.duration import TIME_MAX_MS
from policies.headers import ACTION, ID
from policies.request import ID_BYTES_MAX
from policies.table import PolicyTable
from sidecar.engine.intake.decision_cache import DecisionCache
from sidecar.engine.intake.retry_cache import Place, TopicRetries
from sidecar.engine.partition.exits import by_reference, dead
from sidecar.engine.partition.partition import NOT_DECIDED, SourcePartition
from sidecar.engine.recovery import table_version_at
from sidecar.model.header_codec import Controls, Split, complete, headers_of, quarantine_headers, split
from sidecar.model.ports import SourceRecord
from sidecar.model.record import (
    NEVER_HELD,
    NO_HEADERS,
    AwaitingTarget,
    Control,
    Diverted,
    Headers,
    Held,
    Outcome,
    ReplayedMove,
    held_id,
)
from sidecar.model.reserved_topics import RESERVED
from sidecar.overflow.chunk import RECORD_BYTES_MAX

CREATE_TIME: Final = 1  # the client's word for a timestamp that the producer has set; a broker's own is right

Named = Held | AwaitingTarget | Control | ReplayedMove  # has an id, or is a control record
Decided = Named | Diverted

_size: Final = attrgetter("size")
_new_tuple: Final = tuple.__new__  # half the time of a NamedTuple's own constructor, which is a Python function


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """Limits of one record's headers, and the topic for records that exceed them. `timestamp_age_max_ms`: how far a
    producer's timestamp may be from when the record is read, to count as when it came.
    """

    headers_max: int
    header_bytes_max: int
    quarantine: str
    timestamp_age_max_ms: int = TIME_MAX_MS


class Decider:
    """`partitions` are the topics known to exist; `table_at(version)` gives the policy table as it was; `reserved`
    are topics that no header may lead to, whatever a policy allows; `failed(target, timestamp)` hears of each retry
    that came back.
    """

    def __init__(
        self,
        limits: HeaderLimits,
        partitions: Mapping[str, int],
        table_at: Callable[[int], PolicyTable],
        reserved: Container[str] = (),
        failed: Callable[[str, int], None] = lambda target, timestamp_ms: None,
    ) -> None:
        self._limits = limits
        self._failed = failed
        self._reserved = reserved
        self._partitions = partitions
        self._table_at = table_at
        self._recall = DecisionCache()
        self._retired: frozenset[str] = frozenset()
        self._now_ms = -1  # of what is decided just now

    def retire(self, topics: frozenset[str]) -> None:
        """Read these topics only until what is held of them is settled: no policy decides what is new there."""
        self._retired = topics

    def decide_run(
        self,
        lane: SourcePartition,
        records: Sequence[SourceRecord],
        offsets: Sequence[int],
        table: PolicyTable,
        now_ms: int,
    ) -> tuple[list[Held], list[Diverted | AwaitingTarget], list[Named]]:
        """Consecutive records of one lane: those to hold, those that leave at once or whose target must be asked for,
        and those with an id, which meet others of the same id first. What the lane redoes is in none of them. The hot
        path: what was asked for before is answered here.
        """
        held: list[Held] = []
        others: list[Diverted | AwaitingTarget] = []
        named: list[Named] = []
        if not offsets:
            return held, others, named
        self._now_ms = now_ms
        latest_ms = min(now_ms + self._limits.timestamp_age_max_ms, TIME_MAX_MS)
        remembered = self._recall.of(lane.id.topic, table)
        forms, answers, own_names = remembered.forms, remembered.answers, remembered.own_names
        partitions, bytes_max = self._partitions, self._limits.header_bytes_max
        retries: TopicRetries | None = remembered.retries
        if offsets[0] < lane.recovered_until or lane.id.topic in self._retired:
            forms, retries = {}, None  # read before a crash: another table may have decided it
        else:
            lane.note_table(offsets[0], table.version)
        for record, offset in zip(records, offsets, strict=True):
            try:
                headers: Headers = headers_of(record) or NO_HEADERS  # once: a second call after an error gives garbage
            except SystemError:  # the client's way of saying that a header's name is not UTF-8
                detail = "a header name is not UTF-8; headers left out"
                others.append(self._quarantined(lane, record, offset, BAD_HEADER, detail))
                continue
            form = forms.get(len(headers))
            if form is not None and (answer := answers.get(tuple(form.controls(headers)))) is not None:
                wait_ms, target, target_partition, policy, dead_letter, size = answer
                user: Headers = []
                for name, content in form.user(headers):
                    if (own_name := own_names.get(name)) is None:
                        answer = None  # it may ask for something, too
                        break
                    size += len(own_name) + (len(content) if content else 0)
                    user.append((own_name, content))
                kind, timestamp_ms = record.timestamp()
                if (
                    answer is not None
                    and kind
                    and 0 <= timestamp_ms <= latest_ms
                    and size <= bytes_max
                    and target_partition < partitions.get(target, -1)
                ):
                    key: bytes | None = record.key()
                    value: bytes | None = record.value()
                    size += len(key or b"") + len(value or b"")
                    fields = (
                        timestamp_ms + wait_ms, offset, target, target_partition, key, value, user, policy, None, 0,
                        -1, NO_HEADERS, -1, dead_letter, size, -1,
                    )  # fmt: skip
                    held.append(_new_tuple(Held, fields))
                    continue
            if retries is not None and (retry := self._retry(retries, record, (*lane.id, offset), headers)) is not None:
                held.append(retry)
                continue
            parcel = self._decide(lane, record, offset, table, headers)
            if parcel is not None:
                self._sort(parcel, held, others, named)
        return self._fitting(lane, held, others), others, named

    def _retry(self, retries: TopicRetries, record: SourceRecord, place: Place, headers: Headers) -> Held | None:
        """A retry that is decided as one before; None: it must be decided."""
        kind, timestamp_ms = record.timestamp()
        if not kind or self._arrived_ms(kind, timestamp_ms) >= 0 or not 0 <= timestamp_ms <= TIME_MAX_MS:
            return None
        held = retries.held(record, place, headers, self._limits.header_bytes_max)
        if held is None or held.target_partition >= self._partitions.get(held.target, -1):
            return None
        if held.attempt > 2:  # as below
            self._failed(held.target, timestamp_ms)
        return held

    def _fitting(self, lane: SourcePartition, held: list[Held], others: list[Diverted | AwaitingTarget]) -> list[Held]:
        """The records that the overflow can have, as a rule all; the others leave at once."""
        if not held or max(map(_size, held)) <= RECORD_BYTES_MAX:
            return held
        others += [self._too_large(lane, one) for one in held if one.size > RECORD_BYTES_MAX]
        return [one for one in held if one.size <= RECORD_BYTES_MAX]

    def _too_large(self, lane: SourcePartition, held: Held) -> Diverted:
        """No batch of Kafka's has so much in it, but one that was compressed may unpack to it."""
        detail = f"{held.size} bytes, more than the {RECORD_BYTES_MAX} that can be held"
        return by_reference(self._limits.quarantine, lane, held, detail)._replace(held_bytes=NEVER_HELD)

    def _sort(
        self, parcel: Decided, held: list[Held], others: list[Diverted | AwaitingTarget], named: list[Named]
    ) -> None:
        """Put a record where `decide_run` returns it."""
        if isinstance(parcel, Diverted):
            others.append(parcel)
        elif isinstance(parcel, Control | ReplayedMove) or (
            (one := parcel if isinstance(parcel, Held) else parcel.held).trailer and held_id(one) is not None
        ):
            named.append(parcel)
        elif isinstance(parcel, Held):
            held.append(parcel)
        else:
            others.append(parcel)

    def _decide(
        self, lane: SourcePartition, record: SourceRecord, offset: int, table: PolicyTable, headers: Headers
    ) -> Decided | None:
        """A record to hold, one that leaves at once, one whose target must be asked for, a control record; None: the
        lane redoes it.
        """
        limits = self._limits
        if len(headers) > limits.headers_max:
            detail = f"{len(headers)} headers, the limit is {limits.headers_max}"
            return self._quarantined(lane, record, offset, TOO_MANY_HEADERS, detail, headers)
        parts = split(headers)
        if parts.size > limits.header_bytes_max:
            detail = f"{parts.size} bytes of headers, the limit is {limits.header_bytes_max}"
            return self._quarantined(lane, record, offset, TOO_MANY_HEADERS, detail, headers)
        if offset < lane.recovered_until:
            if (entry := lane.entries.pop(offset, None)) is not None:
                if entry.source >= 0:
                    return ReplayedMove(entry, str(parts.controls[ID], "utf-8", "replace"))  # type: ignore[arg-type]
                return _redone(lane, complete(entry, record, parts))
            table = self._table_then(lane, offset, table)
        elif lane.id.topic in self._retired:
            detail = "no policy makes this topic a source any more"
            departure = self._quarantined(lane, record, offset, NO_POLICY, detail, headers)
            return departure._replace(id=_message_id(parts.controls))
        else:
            lane.note_table(offset, table.version)
        topic, partition = lane.id
        kind, timestamp_ms = record.timestamp()
        arrived_ms = self._arrived_ms(kind, timestamp_ms)
        facts = (topic, partition, offset, timestamp_ms if kind else -1, parts.user, parts.controls, arrived_ms)
        decision = decide(_new_tuple(Facts, facts), table)
        if type(decision) is Hold:
            if decision.attempt > 2 and offset >= lane.recovered_until:  # the one that failed was emitted by us
                self._failed(decision.target, max(timestamp_ms, arrived_ms))
            if decision.target in self._reserved:
                detail = f"{decision.target} {RESERVED}"
                departure = self._quarantined(lane, record, offset, TARGET_NOT_ALLOWED, detail, headers)
                return departure._replace(id=decision.id)
            held = _held(record, offset, decision, parts)
            if held.size > RECORD_BYTES_MAX:
                return self._too_large(lane, held)
            if held.target_partition >= self._partitions.get(held.target, -1):
                return AwaitingTarget(held, headers)
            if offset >= lane.recovered_until:
                remembered = self._recall.of(topic, table)
                if held.attempt and arrived_ms < 0:  # else it waits from its arrival, and its age is no other's
                    remembered.retries.note(record, (topic, partition, offset), headers, held)
                elif not held.attempt:
                    remembered.note(headers, parts, timestamp_ms, held)
            return held
        if isinstance(decision, Dead):
            if decision.attempt > 1 and offset >= lane.recovered_until:
                self._failed(decision.target, max(timestamp_ms, arrived_ms))
            return _dead(lane, record, offset, decision, parts)
        if isinstance(decision, Act):
            return Control(offset, *decision)
        assert isinstance(decision, Quarantine)
        departure = self._quarantined(lane, record, offset, decision.reason, decision.detail, headers)
        return departure._replace(id=_message_id(parts.controls))

    def _arrived_ms(self, kind: int, timestamp_ms: int) -> int:
        """Time of reading, where the timestamp that the producer has set is too far from it; else -1.

        A record that is read again after a crash waits again from then on: it may be late, and is never early.
        """
        is_far = abs(self._now_ms - timestamp_ms) > self._limits.timestamp_age_max_ms
        return self._now_ms if kind == CREATE_TIME and is_far else -1

    def _table_then(self, lane: SourcePartition, offset: int, table: PolicyTable) -> PolicyTable:
        """The table that decided this record when it was read before a crash."""
        version = table_version_at(lane.recovered_runs, offset)
        return table if version in (NOT_DECIDED, table.version) else self._table_at(version)

    def _quarantined(
        self,
        lane: SourcePartition,
        record: SourceRecord,
        offset: int,
        reason: str,
        detail: str,
        headers: Headers | None = None,
    ) -> Diverted:
        marked = quarantine_headers(headers, lane.here + b"%d" % offset, reason, detail)
        return Diverted(
            max(record.timestamp()[1], 0), offset, Outcome.QUARANTINED, reason, self._limits.quarantine,
            record.key(), record.value(), marked, "", 0, None,
        )  # fmt: skip


def _message_id(controls: Controls) -> str | None:
    """The id under which a quarantined record is looked up; the id of a control record is another one's."""
    raw = controls.get(ID)
    if ACTION in controls or not isinstance(raw, bytes) or not 0 < len(raw) <= ID_BYTES_MAX:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _redone(lane: SourcePartition, held: Held) -> Held | None:
    """A record that was put to the overflow before a crash, as it was decided then; None: its change block has it."""
    if not lane.redo(held):
        return held
    if lane.quota is not None:
        lane.quota.add(held)
    return None


def _held(record: SourceRecord, offset: int, decision: Hold, parts: Split) -> Held:
    """On the hot path: one tuple."""
    user, _, trailer, counted, origin, size = parts
    due_ms, target, target_partition, policy, attempt, first_failure_ms, expires_ms, dead_letter, _ = decision
    key: bytes | None = record.key()
    value: bytes | None = record.value()
    if key:
        size += len(key)
    if value:
        size += len(value)
    if counted and not attempt:
        trailer = counted + trailer
    fields = (
        due_ms, offset, target, target_partition, key, value, user, policy, origin, attempt, first_failure_ms,
        trailer, expires_ms, dead_letter, size, -1,
    )  # fmt: skip
    return _new_tuple(Held, fields)


def _dead(lane: SourcePartition, record: SourceRecord, offset: int, decision: Dead, parts: Split) -> Diverted:
    due_ms = decision.due_ms if decision.fires_ms < 0 else decision.fires_ms
    held = Held(
        due_ms, offset, decision.topic, -1, record.key(), record.value(), parts.user, decision.policy,
        parts.origin, decision.attempt, decision.first_failure_ms, parts.trailer, -1, "", parts.size,
    )  # fmt: skip
    # Its letter says when it would have fired; the ledger, that it left as soon as it came.
    return dead(lane, held, decision.topic, decision.reason)._replace(due_ms=decision.due_ms, held_bytes=NEVER_HELD)


class Read(NamedTuple):
    """Records of one lane, decided and not yet held, as the decider gives them."""

    held: list[Held]
    others: list[Diverted | AwaitingTarget]
    named: list[Named]


class ReadyToHold(NamedTuple):
    """Records of one lane that may be held now; those that are due until `near_ms` go into the wheel."""

    lane: SourcePartition
    read: Read
    near_ms: int


class Item(NamedTuple):
    """One of them; `kind` is its place in `Read`."""

    offset: int
    kind: int
    record: Any


item_offset: Final = itemgetter(Item._fields.index("offset"))  # to sort by


def name_of(label: str) -> str:
    """The policy's name in `name@version`."""
    return label.rpartition("@")[0]


def held_of(record: Any) -> Held | None:
    """The record that is to be held; None: it isn't one of these."""
    if isinstance(record, AwaitingTarget):
        return record.held
    return record if isinstance(record, Held) else None


def refused_of(record: Any) -> Diverted | None:
    """The record that would have been held, had there been room; None: it isn't one of these."""
    return record if isinstance(record, Diverted) and record.reason == QUOTA_EXCEEDED else None


def offset_of(record: Any) -> int:
    """Where it was read."""
    offset: int = record.held.offset if isinstance(record, AwaitingTarget | ReplayedMove) else record.offset
    return offset


def list_of(read: Read, item: Item) -> list[Any]:
    """The list that it belongs to."""
    return read[item.kind]
