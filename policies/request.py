"""Request that the control headers of one record make. Reading it is the only place where they are checked."""

from codecs import getincrementaldecoder
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from policies.decision import BAD_HEADER, CANCEL, FIRE, RESCHEDULE, Control, Refusal
from policies.duration import TEXT_LENGTH_MAX, TIME_MAX_MS, parse_duration, parse_time
from policies.errors import FormatError
from policies.headers import (
    ACTION,
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    ERROR_CLASS,
    EXPIRES_AT,
    FIRST_FAILURE,
    ID,
    ORIGIN,
    POLICY,
    SPREAD,
    TARGET,
    TARGET_PARTITION,
)

INT32_MAX: Final = (1 << 31) - 1
ID_BYTES_MAX: Final = 1_024
ERROR_CLASS_BYTES_MAX: Final = 1_024
DURATIONS_CACHED_MAX: Final = 16_384
DIGITS_MAX: Final = 32
EPOCH_MS_DIGITS: Final = 13
ACTIONS: Final = frozenset((CANCEL, RESCHEDULE, FIRE))


class Absent(Enum):
    """The place of a value for a header that was not given; null is a value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

_new_tuple: Final = tuple.__new__
_Decoder: Final = getincrementaldecoder("utf-8")

Found = Control | Absent


class Request(NamedTuple):
    """The headers that every policy reads; `target` is raw, because its answer is cached by its bytes."""

    deliver_at_ms: int  # -1: not given
    delay_ms: int  # -1: not given
    target: Found
    target_partition: int  # -1: by key
    id: str | None
    expires_ms: int  # -1: never
    action: str = ""  # of a control record, which has an id then
    spread_ms: int = -1  # not given


class Failure(NamedTuple):
    """The further headers that a retry policy reads."""

    attempt: int  # the one that failed
    first_failure_ms: int
    error_class: str | None


def read_request(controls: Mapping[str, Control]) -> Request:
    """The request of a record. Raises Refusal (bad_header)."""
    deliver_at_ms = delay_ms = target_partition = expires_ms = spread_ms = -1
    message_id: str | None = None
    target: Found = ABSENT
    # Hot: a loop over the few headers that are there beats one look-up for each that could be.
    for name, raw in controls.items():
        if name == TARGET:
            target = raw
        elif name == DELAY:
            delay_ms = _duration_of(DELAY, raw)
        elif name == DELIVER_AT:
            deliver_at_ms = _time_of(DELIVER_AT, raw)
        elif name == TARGET_PARTITION:
            target_partition = number_of(TARGET_PARTITION, raw, INT32_MAX)
        elif name == EXPIRES_AT:
            expires_ms = _time_of(EXPIRES_AT, raw)
        elif name == ID:
            message_id = _id_of(raw)
        elif name == SPREAD:
            spread_ms = _duration_of(SPREAD, raw)
    action = _action_of(controls[ACTION], message_id) if ACTION in controls else ""
    # Hot: half the time of Request(...), which is a Python function that does this.
    fields = (deliver_at_ms, delay_ms, target, target_partition, message_id, expires_ms, action, spread_ms)
    return _new_tuple(Request, fields)


def read_failure(controls: Mapping[str, Control], timestamp_ms: int, policy: str, topic: str) -> Failure:
    """Read what a retry policy must know of the failure. Raises Refusal (bad_header).

    Who copies the headers of a message onto another one copies its attempts, too. Those that another policy has counted
    for another source aren't read: the record failed for the first time.
    """
    attempt, first_failure_ms, error_class = 1, timestamp_ms, None
    is_counted = _is_counted_here(controls, policy, topic)
    if is_counted and ATTEMPT in controls:
        attempt = number_of(ATTEMPT, controls[ATTEMPT], INT32_MAX - 1)
        if attempt == 0:
            raise Refusal(BAD_HEADER, f"{ATTEMPT}: attempts count from 1")
    if is_counted and FIRST_FAILURE in controls:
        first_failure_ms = number_of(FIRST_FAILURE, controls[FIRST_FAILURE], TIME_MAX_MS)
    if isinstance(raw := controls.get(ERROR_CLASS), bytes):
        error_class = _readable(raw, ERROR_CLASS_BYTES_MAX)
    return _new_tuple(Failure, (attempt, first_failure_ms, error_class))


def _is_counted_here(controls: Mapping[str, Control], policy: str, topic: str) -> bool:
    """False: another policy emitted the record, and tickover met it first in another topic. Where nothing says who did,
    it is believed: a consumer may send an attempt of its own.
    """
    label, origin = controls.get(POLICY), controls.get(ORIGIN)
    if not isinstance(label, bytes) or label.rpartition(b"@")[0] == policy.encode():
        return True
    return isinstance(origin, bytes) and origin.rsplit(b"/", 2)[0] == topic.encode()


def _readable(raw: bytes, bytes_max: int) -> str:
    """The text of what is for people: what isn't UTF-8 is replaced, and a character that the limit cuts is left out."""
    if len(raw) <= bytes_max:
        return raw.decode(errors="replace")
    return _Decoder("replace").decode(raw[:bytes_max])


def text_of(header: str, raw: Found) -> str:
    """The header's text. Raises Refusal when it is repeated, null or not UTF-8."""
    if isinstance(raw, bytes):
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Refusal(BAD_HEADER, f"{header}: not UTF-8") from None
    raise Refusal(BAD_HEADER, f"{header}: {'null' if raw is None else 'given more than once'}")


@lru_cache(DURATIONS_CACHED_MAX)
def _cached_duration_of(header: str, raw: bytes) -> int:
    try:
        # What no policy allows is too far, for which its limit is the reason; what no calendar has is no duration.
        return parse_duration(text_of(header, raw), TIME_MAX_MS)
    except FormatError as error:
        raise Refusal(BAD_HEADER, f"{header}: {error.problem}") from None


def _duration_of(header: str, raw: Found) -> int:
    # The length is limited before the cache, so that its memory is; a cache keeps no errors.
    if isinstance(raw, bytes) and len(raw) <= TEXT_LENGTH_MAX:
        return _cached_duration_of(header, raw)
    text_of(header, raw)
    raise Refusal(BAD_HEADER, f"{header}: longer than {TEXT_LENGTH_MAX} bytes")


def _time_of(header: str, raw: Found) -> int:
    if isinstance(raw, bytes) and len(raw) == EPOCH_MS_DIGITS and raw.isdigit():
        return int(raw)  # hot: every time of our days looks like this
    try:
        return parse_time(text_of(header, raw))
    except FormatError as error:
        raise Refusal(BAD_HEADER, f"{header}: {error.problem}") from None


def number_of(header: str, raw: Found, number_max: int) -> int:
    """The header's whole number. Raises Refusal when it is none, or larger than the limit."""
    if isinstance(raw, bytes) and len(raw) <= EPOCH_MS_DIGITS and raw.isdigit() and (number := int(raw)) <= number_max:
        return number  # hot: a retry has two of them
    text = text_of(header, raw)
    if not (text.isascii() and text.isdigit()):
        raise Refusal(BAD_HEADER, f"{header}: not a whole number of 0 or more")
    # The length first: int() of a text without end takes time without end.
    if len(text) > DIGITS_MAX or int(text) > number_max:
        raise Refusal(BAD_HEADER, f"{header}: larger than {number_max}")
    return int(text)


def _id_of(raw: Found) -> str:
    text = text_of(ID, raw)
    if not text:
        raise Refusal(BAD_HEADER, f"{ID}: empty")
    if len(text.encode()) > ID_BYTES_MAX:
        raise Refusal(BAD_HEADER, f"{ID}: longer than {ID_BYTES_MAX} bytes")
    return text


def _action_of(raw: Found, message_id: str | None) -> str:
    action = text_of(ACTION, raw)
    if action not in ACTIONS:
        raise Refusal(BAD_HEADER, f"{ACTION}: unknown (cancel, reschedule or fire)")
    if message_id is None:
        raise Refusal(BAD_HEADER, f"{ACTION}: needs {ID}")
    return action
