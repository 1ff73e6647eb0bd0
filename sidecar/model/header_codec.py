"""Headers in and out: what a record asks of tickover, and what tickover writes on what it emits.

In: `split` sorts a record's headers into the user's own (kept, in order), the control headers a policy may read,
and the trailer (error headers, id), which follows tickover's own headers on the way out.
Out: own headers are made at emission, not while a record is held: a record waits longer than it travels.
"""

from collections.abc import Mapping
from operator import methodcaller
from sys import intern
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.decision import REPEATED, Repeated
from policies.headers import (
    ATTEMPT,
    COUNTED,
    DELIVER_AT,
    DETAIL,
    DUE,
    ERROR_CLASS,
    ERROR_MESSAGE,
    EXPIRES_AT,
    FAILURE,
    FIRST_FAILURE,
    ID,
    INSTRUCTIONS,
    ORIGIN,
    POLICY,
    REASON,
    SOURCE,
    SPREAD,
    TARGET,
    TARGET_PARTITION,
    WRITTEN,
)
from sidecar.model.ports import SourceRecord
from sidecar.model.record import NO_HEADERS, Headers, Held

Controls = Mapping[str, bytes | Repeated | None]

ERROR_LIMITS_BYTES: Final = {ERROR_CLASS: 1_024, ERROR_MESSAGE: 8_192}
UNCUT_BYTES: Final = min(ERROR_LIMITS_BYTES.values())
# What becomes of a reserved header on the way in, by name. A tickover-* name that isn't here is the user's own.
_CONTROL: Final = 1  # read by policies, gone from what is emitted
_ERROR: Final = 2  # read by policies, follows our own headers; the last one counts: many clients append
_NAME: Final = 3  # read by policies, comes last of all
_COUNTED: Final = 4  # read by retry policies, which rewrite it
_FIRST_MET: Final = 5
_OWN: Final = 6  # replaced
_EMITTER: Final = 7  # replaced, and read by retry policies: who has emitted the record that this one is made of
_KINDS: Final = {
    **dict.fromkeys(INSTRUCTIONS, _CONTROL),
    **dict.fromkeys(FAILURE, _ERROR),
    ID: _NAME,
    **dict.fromkeys(COUNTED, _COUNTED),
    ORIGIN: _FIRST_MET,
    **dict.fromkeys(WRITTEN, _OWN),
    POLICY: _EMITTER,
}
# Not `record.headers()`: for a name that is not UTF-8 the client returns a list with null pointers *and* leaves an
# exception pending. A call from C checks for that and raises SystemError; the interpreter's own specialised call of
# a method that was called often does not, and reading the list ends the process.
headers_of: Final = methodcaller("headers")
_new_tuple: Final = tuple.__new__  # half the time of a NamedTuple's own constructor, which is a Python function


class Split(NamedTuple):
    """A record's headers, sorted. `counted` are attempt and first failure, which only a retry policy rewrites."""

    user: Headers
    controls: Controls
    trailer: Headers
    counted: Headers
    origin: bytes | None
    size: int  # of names and values; a name counts by its characters, which costs least


_NOTHING: Final = Split(NO_HEADERS, MappingProxyType({}), NO_HEADERS, NO_HEADERS, None, 0)


def split(headers: Headers | None) -> Split:
    """Sort the headers of a consumed record. Names are interned: held records share them."""
    if not headers:
        return _NOTHING
    user: Headers = []
    controls: dict[str, bytes | Repeated | None] = {}
    trailer: Headers = []
    counted: Headers = []
    ids: Headers = []
    origin = None
    size = 0
    for name, value in headers:
        kind = _KINDS.get(name)
        size += len(name)  # a name may be as long as a value, and a held record keeps it
        if value:
            size += len(value)
        if kind is None:
            user.append((intern(name), value))
        elif kind == _CONTROL:
            controls[name] = value if name not in controls else REPEATED
        elif kind == _FIRST_MET:
            origin = value or origin
            controls[name] = origin
        elif kind == _EMITTER:
            controls[name] = value
        elif kind == _ERROR:
            if name in controls:
                trailer = [header for header in trailer if header[0] != name]
            controls[name] = value
            trailer.append((intern(name), value if not value or len(value) <= UNCUT_BYTES else _cut(name, value)))
        elif kind != _OWN:
            controls[name] = value if name not in controls else REPEATED
            if kind == _COUNTED:
                counted.append((intern(name), value))
            else:
                ids.append((name, value))
    trailer += ids
    # A held record keeps its trailer, and most have none: they share one.
    return _new_tuple(Split, (user, controls, trailer or NO_HEADERS, counted, origin, size))


def complete(entry: Held, record: SourceRecord, parts: Split) -> Held:
    """An entry of the ledger, which has the decision, with its payload from the source; `parts` are its headers.

    `record` is the one at `entry.came_at`.
    """
    user, _, trailer, counted, origin, size = parts
    key: bytes | None = record.key()
    value: bytes | None = record.value()
    (
        due_ms, offset, target, target_partition, _, _, _, policy, _, attempt, first_failure_ms, _, expires_ms,
        dead_letter, _, source,
    ) = entry  # fmt: skip
    if counted and not attempt:
        trailer = counted + trailer
    fields = (
        due_ms, offset, target, target_partition, key, value, user, policy, origin, attempt, first_failure_ms, trailer,
        expires_ms, dead_letter, size + len(key or b"") + len(value or b""), source,
    )  # fmt: skip
    return _new_tuple(Held, fields)


def _cut(name: str, value: bytes) -> bytes:
    limit = ERROR_LIMITS_BYTES[name]
    if len(value) <= limit:
        return value
    cut = value[:limit]
    try:
        cut.decode()
    except UnicodeDecodeError as error:
        if limit - error.start < 4:  # the limit fell inside a character: drop its first bytes too
            return cut[: error.start]
    return cut


def emission_headers(held: Held, here: bytes) -> Headers:
    """Headers of a record that is due. `here` is the lane's `topic/partition/`."""
    own: Headers = [
        *held.headers,
        (ORIGIN, held.origin or here + b"%d" % held.came_at),
        (DUE, b"%d" % held.due_ms),
        (POLICY, held.policy.encode()),
    ]
    if held.attempt:
        own.append((ATTEMPT, b"%d" % held.attempt))
        own.append((FIRST_FAILURE, b"%d" % held.first_failure_ms))
    if held.trailer:
        own += held.trailer
    return own


def dead_letter_headers(held: Held, here: bytes, reason: str) -> Headers:
    """Headers of a dead letter: those of an emission whose attempt is the one that failed, and why it is dead."""
    return [
        *emission_headers(held, here),
        (REASON, reason.encode()),
        (SOURCE, here + b"%d" % held.came_at),
    ]


def quarantine_headers(headers: Headers | None, source: bytes, reason: str, detail: str) -> Headers:
    """All headers as they came, then where the record is from and why it is here."""
    kept = [header for header in headers or () if header[0] not in (SOURCE, REASON, DETAIL)]
    return [*kept, (SOURCE, source), (REASON, reason.encode()), (DETAIL, detail.encode(errors="replace"))]


def asked_headers(held: Held, here: bytes) -> Headers:
    """The headers of a held record as a request again: sent to its source once more, it is decided the same."""
    asked: Headers = [
        *held.headers,
        (DELIVER_AT, b"%d" % held.due_ms),
        (TARGET, held.target.encode()),
        (ORIGIN, held.origin or here + b"%d" % held.came_at),
        (SPREAD, b"0"),  # it has been
    ]
    if held.target_partition >= 0:
        asked.append((TARGET_PARTITION, b"%d" % held.target_partition))
    if held.expires_ms >= 0:
        asked.append((EXPIRES_AT, b"%d" % held.expires_ms))
    if held.attempt:
        asked.append((ATTEMPT, b"%d" % (held.attempt - 1)))
        asked.append((FIRST_FAILURE, b"%d" % held.first_failure_ms))
    return [*asked, *held.trailer]


def header_bytes(headers: Headers | None) -> int:
    """Size of the headers' names and values in bytes."""
    return sum(len(name) + len(value or b"") for name, value in headers or ())
