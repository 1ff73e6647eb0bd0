"""The rule of the policy topic, without its I/O: records in, versions out. Every reader that applies the same
records has the same history, whoever wrote them and however the writers raced.

    record   key     the policy's name, for people; no reader looks at it
             value   {"schema": 1 or 2, "write": "...", "name": "orders-retry", "expected": 3, "author": "...",
                      "managed_by": "api", "policy": {...} or null}

A record counts if `expected` is the version that its name has at that moment (0: there is none); the name
then has its next version, and a null policy removes it. A removed name is expected at 0 again, but its
versions go on: `name@version` never means two things. All other records change nothing. What is no such
record (garbage) is passed over; a schema newer than this program stops the reader, since other readers may
count that record.
"""

import json
from bisect import bisect_right
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.errors import NewerSchema
from policies.fields import NAME_PATTERN
from policies.model import ManagedBy, Policy, Removed, Versioned, policy_document
from policies.table import EMPTY_TABLE, PolicyTable

SCHEMA: Final = 2
# What policies could not say before schema 2, by part. A policy that says none of it is written as schema 1, so that
# replicas of an older version go on reading.
ADDED_WITH_2: Final = {
    "retry": ("breaker", "spread", "spread_max"),
    "delay": ("spread", "spread_max"),
    "target": ("rate", "burst"),
}
ADDED_WHOLE_WITH_2: Final = frozenset({"order", "quota"})
RECORD_BYTES_MAX: Final = 512 * 1024
POLICIES_MAX: Final = 10_000
PAST_TABLES_MAX: Final = 64
AUTHOR_LENGTH_MAX: Final = 256
VERSION_MAX: Final = (1 << 53) - 1  # what every JSON reader keeps exact


class Change(BaseModel):
    """Change of one policy, as a record of the policy topic asks for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    write: Annotated[str, Field(min_length=1, max_length=64)]  # unique: the writer knows its own record by it
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    expected: Annotated[int, Field(ge=0, lt=VERSION_MAX)]
    author: Annotated[str, Field(max_length=AUTHOR_LENGTH_MAX)]
    managed_by: ManagedBy
    policy: Annotated[Policy | None, Field(strict=False)]


class Verdict(NamedTuple):
    """Outcome of one record of the policy topic."""

    change: Change
    won: Versioned | Removed | None  # None: it lost
    current_version: int  # of the name before the record; 0: no such policy


def schema_of(policy: Policy | None) -> int:
    """The lowest schema that can say this policy."""
    document = {} if policy is None else policy_document(policy)
    added = not ADDED_WHOLE_WITH_2.isdisjoint(document) or any(
        name in document.get(part, {}) for part, names in ADDED_WITH_2.items() for name in names
    )
    return 2 if added else 1


def encode_change(change: Change) -> bytes:
    """The value of the record that asks for the change."""
    document = {
        "schema": schema_of(change.policy),
        "write": change.write,
        "name": change.name,
        "expected": change.expected,
        "author": change.author,
        "managed_by": change.managed_by,
        "policy": None if change.policy is None else policy_document(change.policy),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def decode_change(value: bytes | None, offset: int) -> Change | None:
    """The change that a record asks for; None for garbage. Raises NewerSchema."""
    if value is None or len(value) > RECORD_BYTES_MAX:
        return None
    try:
        document = json.loads(value.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    schema = document.pop("schema", None)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        return None
    if schema > SCHEMA:
        raise NewerSchema(schema, offset)
    try:
        change = Change.model_validate(document)
    except ValidationError:
        return None
    if change.policy is not None and change.policy.name != change.name:
        return None
    if schema < schema_of(change.policy):  # to a reader of that schema it is garbage, so it is to all
        return None
    return change


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is given twice")
    return document


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class PolicyLog:
    """The history that the records read so far make. Not safe for threads: its owner guards it."""

    def __init__(self) -> None:
        self.position = 0  # the offset after the last record read
        self._history: dict[str, list[Versioned | Removed]] = {}
        self._table_versions: dict[str, list[int]] = {}  # beside the history: the table version of each entry
        self._alive: dict[str, Versioned] = {}
        self._table = EMPTY_TABLE
        self._table_version = 0
        self._past: dict[int, PolicyTable] = {}  # tables asked for again during a recovery, with their caches

    def apply(self, offset: int, value: bytes | None, time_ms: int) -> Verdict | None:
        """Read the next record; None for garbage. Raises NewerSchema, and then has not read it."""
        change = decode_change(value, offset)
        self.position = offset + 1
        if change is None:
            return None
        current_version = self.current_version(change.name)
        if change.expected != current_version or not self._has_sense(change):
            return Verdict(change, None, current_version)
        entry = self._entry(change, time_ms)
        self._history.setdefault(change.name, []).append(entry)
        self._table_versions.setdefault(change.name, []).append(self.position)
        if isinstance(entry, Versioned):
            self._alive[change.name] = entry
        else:
            del self._alive[change.name]
        self._table_version = self.position
        return Verdict(change, entry, current_version)

    def _has_sense(self, change: Change) -> bool:
        if change.name in self._alive:
            return True
        return change.policy is not None and len(self._alive) < POLICIES_MAX

    def _entry(self, change: Change, time_ms: int) -> Versioned | Removed:
        version = len(self._history.get(change.name, ())) + 1
        if change.policy is None:
            return Removed(change.name, version, change.author, time_ms, change.managed_by)
        return Versioned(change.policy, version, change.author, time_ms, change.managed_by)

    def current_version(self, name: str) -> int:
        """The version that a change of this policy must expect; 0: there is no such policy."""
        versioned = self._alive.get(name)
        return 0 if versioned is None else versioned.version

    @property
    def table(self) -> PolicyTable:
        """The policies as of the last record read; the same object until one changes."""
        if self._table.version != self._table_version:
            self._table = PolicyTable(self._table_version, MappingProxyType(dict(self._alive)))
        return self._table

    def versions(self, name: str) -> tuple[Versioned | Removed, ...]:
        """All versions the name ever had, oldest first."""
        return tuple(self._history.get(name, ()))

    def table_at(self, version: int) -> PolicyTable:
        """The policies as they were when the table had this version; needs `position >= version`."""
        if version == self._table_version:
            return self.table
        if (known := self._past.get(version)) is not None:
            return known
        policies = {}
        for name, table_versions in self._table_versions.items():
            count = bisect_right(table_versions, version)
            if count and isinstance(entry := self._history[name][count - 1], Versioned):
                policies[name] = entry
        if len(self._past) >= PAST_TABLES_MAX:
            self._past.clear()
        return self._past.setdefault(version, PolicyTable(version, MappingProxyType(policies)))
