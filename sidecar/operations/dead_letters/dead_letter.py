"""A dead letter as it lies in its topic, what its headers say about it, and selections by that."""

from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Protocol

from confluent_kafka import Message
from pydantic import BaseModel, ConfigDict, Field

from policies.decision import TOO_LARGE
from policies.glob import Matcher, compile_globs
from policies.headers import (
    ATTEMPT,
    BY_REFERENCE,
    DETAIL,
    EDITED_BY,
    ERROR_CLASS,
    ERROR_MESSAGE,
    FIRST_FAILURE,
    ID,
    ORIGIN,
    POLICY,
    REASON,
    REDRIVE_COUNT,
    REDRIVE_PLAN,
    REDRIVE_SOURCE,
    SOURCE,
)
from sidecar.model.fingerprint import fingerprint
from sidecar.model.header_codec import headers_of
from sidecar.model.record import PLACE, Headers, Place, with_places
from sidecar.model.times import StoredTime, with_times

TEXT_LENGTH_MAX: Final = 1_024
COUNT_DIGITS_MAX: Final = 6
PLACES_TOLD: Final = ("origin", "source", "redriven_from")  # by headers, in which anything may stand


class DeadLetter(NamedTuple):
    """One record of a dead-letter topic. `headers` None: they can't be read (a name that is not UTF-8)."""

    place: Place
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    def last(self, name: str) -> bytes | None:
        """Value of the last header of this name; None when there is none, or it is null."""
        return next((value for found, value in reversed(self.headers or ()) if found == name), None)

    def text(self, name: str) -> str:
        """The last header of this name as text; empty when there is none."""
        return (self.last(name) or b"").decode(errors="replace")

    @property
    def reason(self) -> str:
        return self.text(REASON)[:TEXT_LENGTH_MAX]

    @property
    def is_by_reference(self) -> bool:
        """Whether it was quarantined without its value: there is nothing to send."""
        left_behind = self.reason == TOO_LARGE or self.text(DETAIL).startswith(BY_REFERENCE)
        return self.value is None and left_behind

    @property
    def error_class(self) -> str:
        return self.text(ERROR_CLASS)[:TEXT_LENGTH_MAX]

    @property
    def message(self) -> str:
        """Error text, in the words of the consumer, or of the quarantine."""
        return self.text(ERROR_MESSAGE) or self.text(DETAIL)

    def shown_bytes(self, whole: bool) -> int:
        """Bytes that are looked through to show it: of key, value and headers, or of its last words alone."""
        if not whole:
            return len(self.last(ERROR_MESSAGE) or b"") + len(self.last(DETAIL) or b"")
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.error_class, self.message)

    @property
    def policy(self) -> str:
        """`name@version`."""
        return self.text(POLICY)[:TEXT_LENGTH_MAX]

    @property
    def redrives(self) -> int:
        """How often it has been redriven."""
        text = self.text(REDRIVE_COUNT)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS_MAX else 0

    def document(self) -> dict[str, Any]:
        """JSON document of the letter without its payload and what it died of, as REST shows it."""
        told: dict[str, Any] = {
            "position": str(self.place),
            "topic": self.place.topic,
            "partition": self.place.partition,
            "offset": self.place.offset,
            "time": self.timestamp_ms,
            "reason": self.reason or None,
            "error_class": self.error_class or None,
            "fingerprint": self.fingerprint,
            "policy": self.policy or None,
            "attempt": _number(self.text(ATTEMPT)),
            "first_failure": _number(self.text(FIRST_FAILURE)),
            "origin": self.text(ORIGIN)[:TEXT_LENGTH_MAX] or None,
            "source": self.text(SOURCE)[:TEXT_LENGTH_MAX] or None,
            "id": self.text(ID)[:TEXT_LENGTH_MAX] or None,
            "redrives": self.redrives,
            "redriven_from": self.text(REDRIVE_SOURCE)[:TEXT_LENGTH_MAX] or None,
            "edited_by": self.text(EDITED_BY)[:TEXT_LENGTH_MAX] or None,
            "plan": self.text(REDRIVE_PLAN)[:TEXT_LENGTH_MAX] or None,
            "key_bytes": None if self.key is None else len(self.key),
            "value_bytes": None if self.value is None else len(self.value),
        }
        named = {f"{name}_{PLACE}": told[name] if Place.of_text(told[name] or "") else None for name in PLACES_TOLD}
        return {**with_places(with_times(told, "time", "first_failure"), "position"), **named}


def letter_of(message: Message) -> DeadLetter:
    """The letter of a consumed record."""
    place = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)
    try:
        headers: Headers | None = headers_of(message) or []
    except SystemError:
        headers = None
    return DeadLetter(place, message.timestamp()[1], message.key(), message.value(), headers)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


WORD_LENGTH_MAX: Final = 256

Word = Annotated[str, Field(min_length=1, max_length=WORD_LENGTH_MAX)]
Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Words(Protocol):
    """Words about a letter's end, and its policy (`DeadLetter`)."""

    @property
    def reason(self) -> str: ...

    @property
    def error_class(self) -> str: ...

    @property
    def policy(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


class Selection(BaseModel):
    """Letters that fit everything given. `since` and `until` (excluded) are epoch milliseconds of the letter."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="LetterSelection")
    reason: Word | None = None
    fingerprint: Fingerprint | None = None
    error_class: Word | None = Field(default=None, description="A glob")
    policy: Word | None = Field(default=None, description="Name, without version")
    since: StoredTime | None = None
    until: StoredTime | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every letter fits."""
        return not self.model_dump(exclude_none=True)

    def fits(self, letter: DeadLetter) -> bool:
        """Whether a letter fits everything."""
        return self.covers(letter.timestamp_ms) and self.has_words(letter)

    def covers(self, time_ms: int) -> bool:
        """Whether a time is of the selection's times."""
        return (self.since is None or time_ms >= self.since) and (self.until is None or time_ms < self.until)

    def has_words(self, letter: Words) -> bool:
        """Whether a letter fits, but for its time. Cheap questions first: a fingerprint costs a look at the message."""
        if self.reason is not None and letter.reason != self.reason:
            return False
        if self.policy is not None and letter.policy.partition("@")[0] != self.policy:
            return False
        if self.error_class is not None and not _matcher(self.error_class).matches(letter.error_class):
            return False
        return self.fingerprint is None or letter.fingerprint == self.fingerprint

    def may_share(self, other: "Selection") -> bool:
        """Whether a letter may fit both; False: none can."""
        words = ((self.reason, other.reason), (self.fingerprint, other.fingerprint), (self.policy, other.policy))
        if any(one != another for one, another in words if one is not None and another is not None):
            return False
        untils = [until for until in (self.until, other.until) if until is not None]
        return not untils or max(self.since or 0, other.since or 0) < min(untils)


@lru_cache(maxsize=64)
def _matcher(glob: str) -> Matcher:
    matcher = compile_globs((glob,))
    assert matcher is not None
    return matcher
