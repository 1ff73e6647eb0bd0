"""Plain words for each kind of fault that pydantic finds: one table for files, REST, settings and schedules.

No word shows what was given: it may be a payload or a secret, and many see the words.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from policies.errors import FormatError
from policies.fields import NAME_PATTERN, NAME_WORDS

Written = Callable[[Any], object]  # how a limit is written: 60000 as 1m

UNKNOWN_KEY: Final = "extra_forbidden"
MISSING: Final = "missing"
NO_TAG: Final = "union_tag_not_found"  # the key that says which kind it is is missing
WRONG_TAG: Final = "union_tag_invalid"
FALLBACK: Final = "can't be used here"

_TEXT: Final = "must be a text"
_WHOLE: Final = "must be a whole number"
_NUMBER: Final = "must be a number"
_FLAG: Final = "must be true or false"
_LIST: Final = "must be a list"
_MAPPING: Final = "must be a mapping"

# Of what is of another kind than wanted. Where a value may be of several kinds, these are told together.
KINDS: Final = {
    "string_type": _TEXT,
    "string_unicode": _TEXT,
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "none_required": "must be left out",
    "path_type": "must be the path of a file",
}
_PLAIN: Final = {
    **KINDS,
    MISSING: "is missing",
    UNKNOWN_KEY: "unknown key",
    "finite_number": "must be a finite number",
    "json_invalid": "is no JSON",
    "recursion_loop": "is nested too deeply",
}
_LIMITS: Final = {
    "greater_than_equal": ("must be at least {}", "ge"),
    "greater_than": ("must be more than {}", "gt"),
    "less_than_equal": ("must be at most {}", "le"),
    "less_than": ("must be less than {}", "lt"),
    "multiple_of": ("must be a multiple of {}", "multiple_of"),
}
_LENGTHS: Final = {
    "string_too_short": ("must have at least {} characters", "min_length"),
    "string_too_long": ("may have at most {} characters", "max_length"),
    "too_short": ("must have at least {} entries", "min_length"),
    "too_long": ("may have at most {} entries", "max_length"),
}
_PATTERNS: Final = {NAME_PATTERN: NAME_WORDS}
_CHARACTERS: Final = re.compile(r"\^\[([^\]]+)\]\{(\d+),(\d+)\}\$")  # a pattern that only says which, and how many


def words_of(error: Mapping[str, Any], written: Written = str) -> str:
    """Words for one of pydantic's errors; `written` is how its limits look."""
    context = error.get("ctx") or {}
    kind = error["type"]
    if isinstance(cause := context.get("error"), FormatError):
        return cause.problem
    if kind in ("value_error", "assertion_error"):
        return str(error["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        return words.format(written(context[name]))
    if kind in _LENGTHS:
        words, name = _LENGTHS[kind]
        return "must not be empty" if context[name] == 1 and "least" in words else words.format(context[name])
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"]) or _form(context["pattern"])
    if kind in ("literal_error", "enum"):
        return f"must be {_one_of(context['expected'])}"
    if kind == WRONG_TAG:
        return f"must be one of {_one_of(context['expected_tags'])}"
    if kind == NO_TAG:
        return "is missing"
    return _PLAIN.get(kind, FALLBACK)


def hint_of(error: Mapping[str, Any], given: object) -> str:
    """Words that say how to write it, behind those of `words_of`; empty where nothing is to be said. What was given
    decides, and is not shown.
    """
    match error["type"]:
        case "int_type" | "float_type" if isinstance(given, str) and given.strip().lstrip("+-").isdigit():
            return ", without quotes"
        case "string_type" if isinstance(given, bool | int | float):
            return ": put it in quotes"
        case "list_type" | "tuple_type":
            return ", such as [a, b]"
        case "dict_type" | "model_type" | "model_attributes_type":
            return ", such as {key: value}"
    return ""


def _form(pattern: str) -> str:
    if plain := _CHARACTERS.fullmatch(pattern):
        return f"must be {plain[2]} to {plain[3]} of {plain[1]}"
    return f"must be of the form {pattern}"


def _one_of(expected: str) -> str:
    """Pydantic's `'none', 'full' or 'equal'`, without its quotes."""
    return expected.replace("'", "")
