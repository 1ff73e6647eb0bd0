"""An edit: what a redrive changes in the letters that it sends. The letters themselves stay as they are. Pure.

    {"merge": {"amount": 3, "note": null}}     JSON Merge Patch (RFC 7396) of values that are JSON objects
    {"value": "...", "key": "...", "headers": {"trace": "7", "draft": null}}     instead of what was there; null: none

A patch names fields and never reads them. So masked fields stay as they are, unseen, wherever they aren't named: nobody
has to know them, and no answer says what they were. The mask itself is refused: it would be written in their place.

A value is merged exactly or not at all: a number that this program can't say again, or a name that an object has twice,
leaves the letter as it is (`NotEditable`).
"""

import json
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from policies.headers import CONTROL_PREFIX, EDITED_BY, INSTRUCTIONS
from sidecar.model.record import Headers
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.masking import MASK, unambiguous

_AS_JSON: Final = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class NotEditable(ValueError):
    """The patch can't be applied to this letter: its value is no JSON object, or can't be said again exactly."""


class NewContent(BaseModel):
    """Bytes in place of others; None: none."""

    model_config = _AS_JSON
    data: bytes | None


class Edit(BaseModel):
    """Changes of a letter. None: it stays. `merge` is a patch of the value, `headers` are by name."""

    model_config = _AS_JSON
    merge: dict[str, Any] | None = None
    value: NewContent | None = None
    key: NewContent | None = None
    headers: dict[str, bytes | None] = {}

    def document(self) -> dict[str, Any]:
        """How much it changes; names of fields and headers may be as secret as what is written there."""
        return {
            "merge": len(self.merge or {}),
            "value": self.value is not None,
            "key": self.key is not None,
            "headers": len(self.headers),
        }

    def problem(self) -> str:
        """Why it is no edit, in words; empty: it is one."""
        if self == Edit():
            return "says nothing that would be changed"
        if self.merge is not None and self.value is not None:
            return "has a patch of the value and another value: give one of them"
        own = sorted(name for name in self.headers if name.startswith(CONTROL_PREFIX) and name not in INSTRUCTIONS)
        if own:
            return f"changes headers that are tickover's own: {', '.join(own)}"
        return ""

    @property
    def has_mask(self) -> bool:
        """Whether it would write the mask itself somewhere."""
        contents = [new.data for new in (self.value, self.key) if new is not None]
        texts = [data for data in (*contents, *self.headers.values()) if data is not None]
        return _has_mask(self.merge) or any(_has_mask(_loose(data)) for data in texts)

    def applied(self, letter: DeadLetter, author: str) -> DeadLetter:
        """A copy of the letter with the changes, and by whom. Raises NotEditable."""
        headers: Headers = [
            header for header in letter.headers or () if header[0] not in self.headers and header[0] != EDITED_BY
        ]
        headers += [(name, value) for name, value in self.headers.items() if value is not None]
        headers.append((EDITED_BY, author.encode()))
        value = letter.value if self.value is None else self.value.data
        if self.merge is not None:
            value = merged(value, self.merge)
        return letter._replace(headers=headers, value=value, key=letter.key if self.key is None else self.key.data)


def merged(value: bytes | None, patch: dict[str, Any]) -> bytes:
    """The JSON object with the patch, as JSON. Raises NotEditable."""
    try:
        document = json.loads(
            value or b"", object_pairs_hook=unambiguous, parse_float=_exact, parse_constant=_refuse_constant
        )
        if not isinstance(document, dict):
            raise NotEditable("no JSON object")
        return json.dumps(_patched(document, patch), ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise NotEditable(str(error)) from None


def _patched(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = _patched(kept.get(name), value)
    return kept


def difference(old: Any, new: Any) -> dict[str, Any]:
    """The patch that makes one JSON object of another. Raises NotEditable where none can: RFC 7396 has no null."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        raise NotEditable("only a JSON object can be patched")
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        if name in old and _same(old[name], value):
            continue
        if value is None:
            raise NotEditable(f"{name} can't be set to null by a patch: null removes")
        is_inner = isinstance(value, dict) and isinstance(old.get(name), dict)
        patch[name] = difference(old[name], value) if is_inner else value
    return patch


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)  # as Python says 1 == True == 1.0


def _exact(text: str) -> float:
    number = float(text)
    if Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"the number {text[:40]} can't be said again exactly")
    return number


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _loose(data: bytes) -> Any:
    """Bytes as JSON where they are, else as text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def _has_mask(node: Any) -> bool:
    if isinstance(node, dict):
        return any(map(_has_mask, node.values()))
    if isinstance(node, list):
        return any(map(_has_mask, node))
    return bool(node == MASK)
