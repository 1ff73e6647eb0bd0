"""Kafka's messages: requests read, responses written, by what kio knows of their fields.

A handler gives a response as a mapping of field names (kio's) to plain values: error codes and times as integers, ids
of topics as text. What a version doesn't have is left out, what a handler doesn't give gets the field's default, so
handlers know nothing of versions except where the meaning changes. A name that no version has is a KeyError.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from broker.log.file import Part
from broker.protocol.api_keys import VERSIONS, ApiKey
from broker.protocol.message_reader import ReadValue, struct_reader
from broker.protocol.message_schema import FORMATS, element_type, is_array, is_optional
from broker.protocol.wire import Reader

Put = Callable[[Any], None]
Writer = Callable[[Put, Any], None]

NO_ID: Final = bytes(16)
# What kio has types of its own for, and what stands for nothing there.
IMPLICIT: Final = {"timedelta_i32": 0, "timedelta_i64": 0, "datetime_i64": -1, "uuid": None}
EMPTY: Final = {"bool": False, "string": "", "bytes": b"", "records": b""}
_SHORT: Final = FORMATS["int16"]
_INT: Final = FORMATS["int32"]


def read_request(api_key: int, version: int, body: memoryview) -> Any:
    """The request, with the fields of this version. Any exception: it is malformed.

    What follows it is passed over, as in Kafka: librdkafka's Metadata 13 has bytes too many.
    """
    return _request_reader(api_key, version)(Reader(body, is_compact=is_flexible(api_key, version)))


class Encoded(bytes):
    """A struct of a response as it is sent, in the place of its mapping."""


def encode_element(api_key: int, version: int, name: str, value: Mapping[str, Any]) -> Encoded:
    """One of a response's list of this name: who has thousands of them can write them in several turns."""
    parts: list[bytes] = []
    _element_writer(api_key, version, name)(parts.append, value)
    return Encoded(b"".join(parts))


def write_response(api_key: int, version: int, response: Mapping[str, Any]) -> list[Part]:
    """The body of a response, in parts; records that lie in a file stay there."""
    parts: list[Part] = []
    _response_writer(api_key, version)(parts.append, response)
    return parts


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has tagged fields, its header too."""
    return bool(load_request_schema(api_key, version).__flexible__)


def preload() -> None:
    """Import the types of all versions, which would otherwise delay the first request of each."""
    for api_key, (lowest, highest) in VERSIONS.items():
        for version in range(lowest, highest + 1):
            _request_reader(api_key, version)
            _response_writer(api_key, version)


@cache
def _request_reader(api_key: int, version: int) -> ReadValue:
    return struct_reader(load_request_schema(api_key, version))


@cache
def _response_writer(api_key: int, version: int) -> Writer:
    return struct_writer(load_response_schema(api_key, version), names_of(api_key))


@cache
def _element_writer(api_key: int, version: int, name: str) -> Writer:
    [field] = [one for one in fields(load_response_schema(api_key, version)) if one.name == name]
    return struct_writer(element_type(field.type), names_of(api_key))


@cache
def names_of(api_key: int) -> Mapping[str, frozenset[str]]:
    """The fields of each struct of a response, of all versions together."""
    names: dict[str, frozenset[str]] = {}
    lowest, highest = VERSIONS[ApiKey(api_key)]
    for version in range(lowest, highest + 1):
        collect_names(load_response_schema(api_key, version), names)
    return names


def collect_names(kind: Any, names: dict[str, frozenset[str]]) -> None:
    """Add the fields of this type of kio's, and of those in it."""
    names[kind.__name__] = names.get(kind.__name__, frozenset()) | {field.name for field in fields(kind)}
    for field in fields(kind):
        inner = element_type(field.type)
        if is_dataclass(inner):
            collect_names(inner, names)


def struct_writer(kind: Any, names: Mapping[str, frozenset[str]]) -> Writer:
    """Writes a mapping as this type of kio's."""
    known = names[kind.__name__]
    flexible: bool = kind.__flexible__
    plain: list[tuple[str, Any, Writer]] = []
    tagged: list[tuple[int, str, Writer]] = []
    for field in fields(kind):
        write = _field_writer(field, names, flexible=flexible)
        if "tag" in field.metadata:
            tagged.append((field.metadata["tag"], field.name, write))
        else:
            plain.append((field.name, _default(field), write))
    tagged.sort()

    def write_struct(put: Put, value: Mapping[str, Any] | Encoded) -> None:
        if isinstance(value, Encoded):
            put(value)
            return
        if not known.issuperset(value):
            raise KeyError(f"{kind.__name__} has no {sorted(set(value) - known)}")
        for name, default, write in plain:
            write(put, value.get(name, default))
        if flexible:
            _write_tagged(put, value, tagged)

    return write_struct


def _write_tagged(put: Put, value: Mapping[str, Any], tagged: list[tuple[int, str, Writer]]) -> None:
    given = [(tag, write, value[name]) for tag, name, write in tagged if value.get(name) is not None]
    put(unsigned_varint(len(given)))
    for tag, write, content in given:
        parts: list[bytes] = []
        write(parts.append, content)
        encoded = b"".join(parts)
        put(unsigned_varint(tag))
        put(unsigned_varint(len(encoded)))
        put(encoded)


def _field_writer(field: Field[Any], names: Mapping[str, frozenset[str]], *, flexible: bool) -> Writer:
    inner = element_type(field.type)
    optional = is_optional(field.type) and "tag" not in field.metadata
    write: Writer
    if is_dataclass(inner):
        write = struct_writer(inner, names)
        if optional and not is_array(field.type):
            return partial(_write_optional_struct, write)
    else:
        write = _primitive_writer(field.metadata["kafka_type"], flexible=flexible)
    if is_array(field.type):
        return partial(_write_compact_array if flexible else _write_array, write)
    return write


def _primitive_writer(kind: str, *, flexible: bool) -> Writer:
    if kind in FORMATS:
        return partial(_write_number, FORMATS[kind].pack)
    if kind == "uuid":
        return _write_uuid
    if flexible:
        return _write_compact_bytes
    return _write_string if kind == "string" else _write_bytes


def _write_number(pack: Callable[[Any], bytes], put: Put, value: Any) -> None:
    put(pack(value))


def _write_uuid(put: Put, value: str | None) -> None:
    put(NO_ID if value is None else bytes.fromhex(value.replace("-", "")))


def _write_string(put: Put, value: str | None) -> None:
    if value is None:
        put(_SHORT.pack(-1))
        return
    encoded = value.encode()
    put(_SHORT.pack(len(encoded)))
    put(encoded)


def _write_bytes(put: Put, value: Part | None) -> None:
    if value is None:
        put(_INT.pack(-1))
        return
    put(_INT.pack(len(value)))
    put(value)


def _write_compact_bytes(put: Put, value: str | Part | None) -> None:
    if value is None:
        put(b"\0")
        return
    encoded = value.encode() if isinstance(value, str) else value
    put(unsigned_varint(len(encoded) + 1))
    put(encoded)


def _write_array(write: Writer, put: Put, values: Any) -> None:
    if values is None:
        put(_INT.pack(-1))
        return
    put(_INT.pack(len(values)))
    for value in values:
        write(put, value)


def _write_compact_array(write: Writer, put: Put, values: Any) -> None:
    if values is None:
        put(b"\0")
        return
    put(unsigned_varint(len(values) + 1))
    for value in values:
        write(put, value)


def _write_optional_struct(write: Writer, put: Put, value: Any) -> None:
    put(b"\xff" if value is None else b"\1")
    if value is not None:
        write(put, value)


def unsigned_varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _default(field: Field[Any]) -> Any:
    kind = field.metadata.get("kafka_type", "")
    if kind in IMPLICIT:
        return IMPLICIT[kind]
    if field.default is not MISSING:
        return {} if is_dataclass(field.default) else field.default
    if is_array(field.type):
        return ()
    return None if is_optional(field.type) else EMPTY.get(kind, 0)
