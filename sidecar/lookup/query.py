"""Asking for held records: what is asked for, in which order they come, and what is told of one. Pure.

Held records have one order over all partitions: by due time, then topic, partition and offset. A page ends at a place
in it, and the next one begins behind that place: so paging is stable, whatever comes and goes meanwhile.
"""

import base64
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from policies.headers import ERROR_CLASS, OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition, held_id


class LookUpUnavailable(Exception):
    """A replica can't look anything up for now; the text says why."""


WHEEL: Final = "wheel"
OVERFLOW: Final = "overflow"

TIME_MAX_MS: Final = (1 << 53) - 1
HASH_BYTES: Final = 4  # of an id in `Query.ids`: 10,000 ids take 54 kB of a question


class Key(NamedTuple):
    """A place in the order of held records."""

    due_ms: int
    topic: str
    partition: int
    offset: int


ORIGIN_BYTES_MAX: Final = 1_024  # a longer one is no place, and would fill what replicas tell each other
START: Final = Key(-1, "", -1, -1)


class Query(NamedTuple):
    """Conditions on held records, which are meant where all are met; what is empty, or -1, is no condition.

    `policy` is a name, or `name@version`; `due_from_ms` <= due < `due_to_ms`; `header` is `name=value`, and one of a
    record's headers is meant. `ids` are hashes (`hashes_of`): a record whose id has one of these may be meant, and who
    asks compares the ids themselves. New conditions come last: older replicas know the first eight.
    """

    topic: str = ""
    partition: int = -1
    policy: str = ""
    target: str = ""
    key_prefix: str = ""
    error_class: str = ""
    due_from_ms: int = -1
    due_to_ms: int = TIME_MAX_MS
    id: str = ""
    header: str = ""
    ids: str = ""

    def wants_lane(self, lane: TopicPartition) -> bool:
        """Records of this partition may be meant."""
        return self.topic in ("", lane.topic) and self.partition in (-1, lane.partition)

    def conditions(self) -> dict[str, str | int]:
        """Conditions that are set, by name."""
        return {name: value for name, value in self._asdict().items() if value != ALL._asdict()[name]}

    @property
    def chooses(self) -> bool:
        """Whether anything but places and times is asked for."""
        return bool(self.needles or self.ids)

    @property
    def needles(self) -> list[bytes]:
        """Texts that must stand somewhere in a record, and so in whatever contains it."""
        name, _, value = self.header.partition("=")
        texts = (self.policy, self.target, self.key_prefix, self.error_class, self.id, name, value)
        return [text.encode() for text in texts if text and "\ufffd" not in text]  # which stands for any odd bytes

    def matches(self, held: Held) -> bool:
        """Whether a record is meant, as far as one can tell without its partition."""
        return (
            self.due_from_ms <= held.due_ms < self.due_to_ms
            and (not self.policy or self.policy in (held.policy, held.policy.rpartition("@")[0]))
            and (not self.target or held.target == self.target)
            and (not self.key_prefix or (held.key is not None and held.key.startswith(self.key_prefix.encode())))
            and (not self.error_class or _text_of(held, ERROR_CLASS) == self.error_class)
            and (not self.id or held_id(held) == self.id)
            and (not self.header or _has_header(held, self.header))
            and (not self.ids or _hash_of(held_id(held)) in _hashes_in(self.ids))
        )


ALL: Final = Query()


def hashes_of(ids: Iterable[str]) -> str:
    """Hashes of ids as `Query.ids` has them."""
    return base64.b64encode(b"".join(sorted({_hash_of(id) for id in ids}))).decode()


def _hash_of(id: str | None) -> bytes:
    """Hash of an id; of none it is one that no list has."""
    return b"" if id is None else zlib.crc32(id.encode(errors="surrogatepass")).to_bytes(HASH_BYTES)


@lru_cache(maxsize=8)
def _hashes_in(ids: str) -> frozenset[bytes]:
    """Raises ValueError for what isn't base64."""
    data = base64.b64decode(ids, validate=True)
    return frozenset(data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def _has_header(held: Held, header: str) -> bool:
    """Whether one of the user's headers, or of those that describe a failure, is this `name=value`."""
    name, _, value = header.partition("=")
    return (name, value.encode(errors="surrogatepass")) in chain(held.headers, held.trailer)


def after_in(lane: TopicPartition, key: Key) -> Position:
    """The last position of this lane that is not behind `key`."""
    if (lane.topic, lane.partition) == (key.topic, key.partition):
        return Position(key.due_ms, key.offset)
    before = (lane.topic, lane.partition) < (key.topic, key.partition)
    return Position(key.due_ms, OFFSET_MAX) if before else Position(key.due_ms, -1)


def key_of(lane: TopicPartition, position: tuple[int, int]) -> Key:
    """Where a position of this lane stands among those of all."""
    return Key(position[0], lane.topic, lane.partition, position[1])


def _text_of(held: Held, header: str) -> str | None:
    for name, value in held.trailer:
        if name == header and value is not None:
            return value.decode(errors="replace")
    return None


def row_of(lane: TopicPartition, held: Held, tier: str) -> dict[str, Any]:
    """Row that tells of a held record: never its key, value or headers, but for id, error class and origin."""
    return {
        "id": held_id(held),
        "source": lane.topic,
        "position": {"topic": lane.topic, "partition": lane.partition, "offset": held.offset},
        "accepted": {"topic": lane.topic, "partition": lane.partition, "offset": held.came_at},
        "state": "held",
        "tier": tier,
        "due": held.due_ms,
        "target": held.target,
        "target_partition": held.target_partition if held.target_partition >= 0 else None,
        "policy": held.policy,
        "attempt": held.attempt or None,
        "first_failure": held.first_failure_ms if held.first_failure_ms >= 0 else None,
        "expires_at": held.expires_ms if held.expires_ms >= 0 else None,
        "error_class": _text_of(held, ERROR_CLASS),
        "origin": held.origin[:ORIGIN_BYTES_MAX].decode(errors="replace") if held.origin else None,
        "size": held.size,
    }


def key_of_row(row: Mapping[str, Any]) -> Key:
    """Place of a row in the order of held records."""
    position = row["position"]
    return Key(row["due"], position["topic"], position["partition"], position["offset"])


class Answer(NamedTuple):
    """Answer of one replica: about these lanes, up to `reach` in the order (None: to the end).

    `read`: of each lane the offset to be read next. What lies there and behind, this replica doesn't know of.
    """

    lanes: list[TopicPartition]
    rows: list[dict[str, Any]]
    reach: Key | None
    minutes: dict[int, int]  # of a forecast: held records by the minute in which they are due
    read: list[int]

    def read_up_to(self, lane: TopicPartition) -> int:
        """The offset to be read next of a lane; -1 where it isn't one of these."""
        return next((read for one, read in zip(self.lanes, self.read, strict=True) if one == lane), -1)


def merged(answers: Iterable[Answer], limit: int) -> tuple[list[dict[str, Any]], Key | None]:
    """The first rows of all answers, each record once, and where the next page begins; None: there is none."""
    rows: dict[tuple[str, int, int], dict[str, Any]] = {}
    reaches: list[Key] = []
    for answer in answers:
        if answer.reach is not None:
            reaches.append(answer.reach)
        for row in answer.rows:
            known = rows.setdefault(key_of_row(row)[1:], row)
            if known["tier"] == OVERFLOW:  # promoted meanwhile
                rows[key_of_row(row)[1:]] = row
    reach = min(reaches, default=None)
    ordered = sorted((row for row in rows.values() if reach is None or key_of_row(row) <= reach), key=key_of_row)
    if len(ordered) > limit:
        return ordered[:limit], key_of_row(ordered[limit - 1])
    return ordered, reach
