"""The rule of the API for places of records: wherever an answer has one, its text `topic/partition/offset` is there
under `place`, or under a name that ends with `_place`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

TEXT: Final = re.compile(r"[A-Za-z0-9._-]{1,249}/[0-9]+/[0-9]+")
LISTS: Final = ("letters", "sample")  # of dead letters: the texts alone
# The user's, and what the audit has noted of a request, which is shown as it was written.
NOT_OURS: Final = ("id", "ids", "payload", "notes", "subject")


def unplaced(answer: Any, path: str = "$") -> Iterator[str]:
    """Places of an answer, of any depth, whose text isn't where the rule says, or is that of another place."""
    if isinstance(answer, list):
        for number, one in enumerate(answer):
            yield from unplaced(one, f"{path}[{number}]")
    if not isinstance(answer, Mapping):
        return
    if _has_numbers(answer) and answer.get("place") != _text(answer):
        yield f"{path} is {_text(answer)!r}, and its place {answer.get('place')!r}"
    for name, value in answer.items():
        here = f"{path}.{name}"
        if name in NOT_OURS or name == "places":
            continue
        if name == "place" or name.endswith("_place"):
            if not (value is None or (isinstance(value, str) and TEXT.fullmatch(value))):
                yield f"{here} is {value!r}"
        elif _is_bare(value):
            yield from _without(here, _text(value), answer, _twin(name))
        elif isinstance(value, list) and value and all(map(_is_bare, value)) and name not in LISTS:
            yield from _without(here, list(map(_text, value)), answer, _twin(name))
        else:
            yield from unplaced(value, here)


def _without(path: str, wanted: Any, owner: Mapping[str, Any], twin: str) -> Iterator[str]:
    told = owner.get(twin)
    # A block of the ledger has its partition and offset; the text also says the topic.
    if told != wanted and not (isinstance(wanted, str) and wanted.startswith("/") and str(told).endswith(wanted)):
        yield f"{path} is {wanted!r}, and {twin} {told!r}"


def _twin(name: str) -> str:
    return {"position": "place", "positions": "places"}.get(name, f"{name}_place")


def _is_bare(value: Any) -> bool:
    """Whether it is a place, as a text or as numbers that have no text with them."""
    if isinstance(value, str):
        return TEXT.fullmatch(value) is not None
    return isinstance(value, Mapping) and _has_numbers(value) and "place" not in value


def _has_numbers(value: Mapping[str, Any]) -> bool:
    return {"partition", "offset"} <= value.keys()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value.get('topic', '')}/{value['partition']}/{value['offset']}"
