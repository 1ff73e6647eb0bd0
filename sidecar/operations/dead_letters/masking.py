"""A payload as it may be shown: fields whose names match a rule are masked, what isn't text stays closed.

A rule is a glob over names, in any case: of JSON fields at any depth, of headers, and `key` and `value` for a key or
value that is no JSON object or list. Not over contents: a pattern that finds secrets in free text promises too much.

What a letter died of is shown without its payload, too, by the rules for that header; addresses in it are then hidden.
"""

import fnmatch
import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from policies.headers import (
    ACTION,
    ATTEMPT,
    CHANGE,
    DELAY,
    DELIVER_AT,
    DETAIL,
    DUE,
    EDITED_BY,
    ERROR_MESSAGE,
    EXPIRES_AT,
    FIRST_FAILURE,
    ID,
    IF_OFFSET,
    JOB,
    ORIGIN,
    POLICY,
    REASON,
    REDRIVE_COUNT,
    REDRIVE_PLAN,
    REDRIVE_SOURCE,
    SOURCE,
    SPREAD,
    TARGET,
    TARGET_PARTITION,
)
from sidecar.model.fingerprint import shown
from sidecar.model.foreign_text import ADDRESS, without_addresses
from sidecar.operations.dead_letters.dead_letter import DeadLetter

MASK: Final = "***"
SHOWN_BYTES_MAX: Final = 65_536
CAUSE_LENGTH_MAX: Final = 8_192  # characters of an error message; what tickover has emitted has no more
NAME_LENGTH_MAX: Final = 256
DEPTH_MAX: Final = 50
# Headers that no rule masks: positions, times, reasons. Anybody may invent others that begin like them, and what stands
# in an id or an error is the user's.
OWN_WORDS: Final = frozenset({
    ACTION, ATTEMPT, CHANGE, DELAY, DELIVER_AT, DETAIL, DUE, EDITED_BY, EXPIRES_AT, FIRST_FAILURE, IF_OFFSET, JOB,
    ORIGIN, POLICY, REASON, REDRIVE_COUNT, REDRIVE_PLAN, REDRIVE_SOURCE, SOURCE, SPREAD, TARGET, TARGET_PARTITION,
})  # fmt: skip


class Search(NamedTuple):
    """Words that letters must have, among what may be shown of them: else who searches would learn what is hidden.
    `error` is a part of what a letter died of, in any case; `header` is `name=value`. Empty: any letter has them.
    """

    error: str = ""
    id: str = ""
    key_prefix: str = ""
    header: str = ""


class Masking:
    """The rules of one process."""

    def __init__(self, rules: Sequence[str]) -> None:
        self.rules = tuple(rules)
        patterns = [fnmatch.translate(rule.lower()) for rule in rules]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def payload(self, letter: DeadLetter) -> dict[str, Any]:
        """Key, value and headers as plain data."""
        headers = [[name, self._header(name, value)] for name, value in letter.headers or ()]
        return {"key": self.part("key", letter.key), "value": self.part("value", letter.value), "headers": headers}

    def cause(self, letter: DeadLetter, with_addresses: bool) -> dict[str, str | None]:
        """Words about the end of a letter: its consumer's `error_message`, the quarantine's `detail`, and `error`, the
        name of its group. None where it has none.

        Without addresses `<address>` stands for each in the message. The detail is tickover's own words.
        """
        message, detail = self._words(ERROR_MESSAGE, letter.last(ERROR_MESSAGE)), letter.text(DETAIL)
        cut = message[:CAUSE_LENGTH_MAX]
        return {
            "error": self.group_name(letter) or None,
            "error_message": (cut if with_addresses else without_addresses(cut)) or None,
            "detail": detail[:CAUSE_LENGTH_MAX] or None,
        }

    def group_name(self, letter: DeadLetter) -> str:
        """Words that letters which failed alike have in common of message or detail; empty where they have neither."""
        return MASK if self._hides(ERROR_MESSAGE, letter.last(ERROR_MESSAGE)) else shown(letter.message)

    def finds(self, letter: DeadLetter, search: Search, with_addresses: bool) -> bool:
        """Whether a letter has all these words. Cheap questions first."""
        if search.id and letter.text(ID) != search.id:
            return False
        key = letter.key
        if search.key_prefix and not (key and key.startswith(_bytes(search.key_prefix)) and self.shows("key", key)):
            return False
        if search.header and not self._has_header(letter, search.header):
            return False
        return not search.error or self._says(letter, search.error.casefold(), with_addresses)

    def _has_header(self, letter: DeadLetter, header: str) -> bool:
        name, _, text = header.partition("=")
        value = _bytes(text)
        if (name, value) not in (letter.headers or ()):
            return False
        return name in OWN_WORDS or (not self._hides(name, value) and self.shows(name, value))

    def _says(self, letter: DeadLetter, wanted: str, with_addresses: bool) -> bool:
        """Whether the class of a letter's error, or what `cause` shows of message and detail, has these words."""
        if wanted in letter.error_class.casefold() or wanted in letter.text(DETAIL)[:CAUSE_LENGTH_MAX].casefold():
            return True
        message = self._words(ERROR_MESSAGE, letter.last(ERROR_MESSAGE))[:CAUSE_LENGTH_MAX]
        if wanted not in message.casefold() and not _may_be_of_address(wanted):
            return False
        return wanted in (message if with_addresses else without_addresses(message)).casefold()

    def _words(self, name: str, data: bytes | None) -> str:
        """A header as text; bytes that aren't UTF-8 are U+FFFD. JSON stays JSON, masked where a rule says so."""
        if self._hides(name, data):
            return MASK
        if data is None or self.shows(name, data):
            return (data or b"").decode()
        match self.part(name, data):
            case str(text):
                return text
            case {"bytes": int(count)} if count == len(data) > SHOWN_BYTES_MAX:
                return f"({count} bytes)"
            case {"bytes": int(count)} if count == len(data):
                return data.decode(errors="replace")
            case masked:
                return json.dumps(masked, ensure_ascii=False)

    def shows(self, name: str, data: bytes | None) -> bool:
        """Whether all of it may be shown as it is."""
        if data is None:
            return True
        if len(data) > SHOWN_BYTES_MAX or not isinstance(_text(data), str):
            return False
        try:
            json.loads(data, object_pairs_hook=unambiguous)
        except Ambiguous:
            return False  # of two values of one name only the last is compared with the rules
        except (ValueError, RecursionError):
            pass
        return bool(self.part(name, data) == _OPEN.part(name, data))

    def _masks(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.match(name[:NAME_LENGTH_MAX].lower()) is not None

    def _header(self, name: str, value: bytes | None) -> Any:
        if name in OWN_WORDS:
            return _text(value)
        return MASK if self._hides(name, value) else self.part(name, value)

    def _hides(self, name: str, value: bytes | None) -> bool:
        """Whether a rule hides the header as a whole, JSON or not."""
        return bool(value) and self._masks(name)

    def part(self, name: str, data: bytes | None) -> Any:
        """One key, value or header of this name as it may be shown."""
        if data is None:
            return None
        if len(data) > SHOWN_BYTES_MAX:
            return {"bytes": len(data)}
        try:
            document = json.loads(data, parse_constant=str, parse_float=_float)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict | list):
            return self._masked(document, DEPTH_MAX)
        return MASK if self._masks(name) else _text(data)

    def _masked(self, node: Any, depth: int) -> Any:
        if depth == 0:
            return MASK
        if isinstance(node, dict):
            return {name: MASK if self._masks(name) else self._masked(item, depth - 1) for name, item in node.items()}
        if isinstance(node, list):
            return [self._masked(item, depth - 1) for item in node]
        return node


_OPEN: Final = Masking(())
masking_of = lru_cache(maxsize=64)(Masking)  # by its rules, a tuple


def _may_be_of_address(wanted: str) -> bool:
    """Whether a text may be found where an address was hidden, though it isn't in what was there before."""
    return "<" in wanted or ">" in wanted or wanted in ADDRESS


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class Ambiguous(ValueError):
    """A JSON object has a name twice."""


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of these. Raises Ambiguous."""
    if len(document := dict(pairs)) != len(pairs):
        raise Ambiguous("a name stands twice in an object")
    return document


def _float(text: str) -> float | str:
    """A number that JSON can't say again stays text."""
    number = float(text)
    return number if math.isfinite(number) else text


def _text(data: bytes | None) -> Any:
    try:
        return None if data is None else data[:SHOWN_BYTES_MAX].decode()
    except UnicodeDecodeError:
        return {"bytes": len(data or b"")}
