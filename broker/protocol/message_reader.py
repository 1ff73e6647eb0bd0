"""Requests read by the fields that kio's types declare, with every length checked against what is there.

kio's own reader is not used: a frame of a few bytes that claims an array of 2^31 elements makes it reserve memory for
them, and ends the process. Here nothing is reserved; a message is as large as its frame at most.

Values are plain: text, integers, booleans, tuples, `timedelta` for durations, text for ids (None for zero), `bytes`.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

from broker.protocol.message_schema import FORMATS, element_type, is_array, is_optional
from broker.protocol.wire import Reader

ReadValue = Callable[[Reader], Any]

NULL_STRUCT: Final = -1


def struct_reader(kind: Any) -> ReadValue:
    """Reads a message of this type of kio's into an object with its fields. ValueError, IndexError or struct.error:
    malformed."""
    plain: list[tuple[str, ReadValue]] = []
    tagged: dict[int, tuple[str, ReadValue]] = {}
    defaults: dict[str, Any] = {}
    for field in fields(kind):
        read = _field_reader(field)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[tag] = (field.name, read)
            defaults[field.name] = None if field.default is MISSING else field.default
    flexible: bool = kind.__flexible__

    def read_struct(reader: Reader) -> SimpleNamespace:
        values = dict(defaults)
        for name, read in plain:
            values[name] = read(reader)
        if flexible:
            for tag, content in reader.tagged():
                if tag in tagged:
                    name, read = tagged[tag]
                    values[name] = read(content)
        return SimpleNamespace(**values)

    return read_struct


def _field_reader(field: Field[Any]) -> ReadValue:
    inner = element_type(field.type)
    optional = is_optional(field.type) and "tag" not in field.metadata
    if is_dataclass(inner):
        read = struct_reader(inner)
        if optional and not is_array(field.type):
            return _optional_struct(read)
    else:
        read = _primitive_reader(field.metadata["kafka_type"], optional=optional and not is_array(field.type))
    return _array(read, optional=optional) if is_array(field.type) else read


def _array(read: ReadValue, *, optional: bool) -> ReadValue:
    def read_array(reader: Reader) -> tuple[Any, ...] | None:
        count = reader.nullable_count()
        if count is None:
            if optional:
                return None
            raise ValueError("an array is null")
        return tuple([read(reader) for _ in range(count)])

    return read_array


def _optional_struct(read: ReadValue) -> ReadValue:
    present = FORMATS["int8"]

    def read_optional(reader: Reader) -> Any:
        return None if reader.numbers(present)[0] == NULL_STRUCT else read(reader)

    return read_optional


def _primitive_reader(kind: str, *, optional: bool) -> ReadValue:
    match kind:
        case "string":
            return Reader.nullable_string if optional else Reader.string
        case "bytes" | "records":
            return _nullable_bytes if optional else _bytes
        case "uuid":
            return Reader.uuid
        case "timedelta_i32" | "timedelta_i64":
            form = FORMATS[kind]
            return lambda reader: timedelta(milliseconds=reader.numbers(form)[0])
    form = FORMATS[kind]
    return lambda reader: reader.numbers(form)[0]


def _nullable_bytes(reader: Reader) -> bytes | None:
    found = reader.nullable_bytes()
    return None if found is None else bytes(found)


def _bytes(reader: Reader) -> bytes:
    found = reader.nullable_bytes()
    if found is None:
        raise ValueError("bytes are null")
    return bytes(found)
