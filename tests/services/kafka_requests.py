"""Requests of any kind with any content: what a hostile or broken client may send."""

from dataclasses import fields
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st
from kio.index import load_request_schema

from broker.protocol.api_keys import VERSIONS, ApiKey
from broker.protocol.message_schema import element_type, is_array
from tests.services.raw_client import encode

NAMES: Final = ("topic", "other", "__consumer_offsets", "", ".", "no good", "x" * 300, "é")
BITS: Final = {
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "error_code": 16,
    "timedelta_i32": 32,
    "timedelta_i64": 64,
    "datetime_i64": 64,
}


def requests(api_keys: tuple[ApiKey, ...]) -> st.SearchStrategy[bytes]:
    """Whole frames that can be read, whatever they say."""
    known = [(key, version) for key in api_keys for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1)]
    return st.sampled_from(known).flatmap(
        lambda one: _struct(load_request_schema(*one)).map(lambda body: encode(one[0], one[1], body))
    )


@st.composite
def mutilated(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    """A frame in which bytes are changed, cut out or put in; its size stays right."""
    content = bytearray(draw(frames)[4:])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.integers(0, 2)):
            case 0 if content:
                content[place] = draw(st.integers(0, 255))
            case 1:
                del content[place : place + draw(st.integers(1, 8))]
            case _:
                content[place:place] = draw(st.binary(min_size=1, max_size=8))
    return len(content).to_bytes(4, "big") + bytes(content)


@cache
def _struct(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({field.name: _field(field) for field in fields(kind) if "tag" not in field.metadata})


def _field(field: Any) -> st.SearchStrategy[Any]:
    inner = element_type(field.type)
    one = _struct(inner) if hasattr(inner, "__type__") else _primitive(field.metadata["kafka_type"])
    return st.lists(one, max_size=3) if is_array(field.type) else one


def _primitive(kind: str) -> st.SearchStrategy[Any]:
    if kind in BITS:
        limit = 1 << (BITS[kind] - 1)
        # A wait is kept short: the test waits for the answer.
        highest = 20 if kind.startswith("timedelta") else limit - 1
        return st.one_of(st.integers(-2, 3), st.integers(-limit, highest)).filter(lambda number: number <= highest)
    match kind:
        case "bool":
            return st.booleans()
        case "uuid":
            return st.one_of(st.none(), st.uuids().map(str))
        case "string":
            return st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
        case "uint16":
            return st.integers(0, 65_535)
        case "float64":
            return st.floats()
    return st.binary(max_size=80)
