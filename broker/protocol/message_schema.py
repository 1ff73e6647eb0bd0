"""Facts about the fields of Kafka's messages, by kio's types."""

import types
from struct import Struct
from typing import Any, Final, Union, get_args, get_origin

FORMATS: Final = {
    "bool": Struct(">?"),
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "uint16": Struct(">H"),
    "float64": Struct(">d"),
    "error_code": Struct(">h"),
    "timedelta_i32": Struct(">i"),
    "timedelta_i64": Struct(">q"),
    "datetime_i64": Struct(">q"),
}
"""Fields of fixed size."""


def is_optional(kind: Any) -> bool:
    """Whether a field of this type may be null."""
    return get_origin(kind) in (types.UnionType, Union) and types.NoneType in get_args(kind)


def _without_none(kind: Any) -> Any:
    return next(arg for arg in get_args(kind) if arg is not types.NoneType) if is_optional(kind) else kind


def is_array(kind: Any) -> bool:
    """Whether a field of this type of kio's is an array."""
    return get_origin(_without_none(kind)) is tuple


def element_type(kind: Any) -> Any:
    """Of an array or an optional: what is in it."""
    kind = _without_none(kind)
    return _without_none(get_args(kind)[0]) if get_origin(kind) is tuple else kind
