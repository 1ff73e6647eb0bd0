"""Requests written and responses read: the other side of `broker.protocol.messages`, with kio's field names as there.

One version of each API is spoken, one that Kafka since 3.2 and the reference broker both take.
"""

from functools import cache
from struct import Struct
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from broker.protocol.api_keys import ApiKey
from broker.protocol.message_reader import ReadValue, struct_reader
from broker.protocol.messages import Writer, collect_names, struct_writer
from broker.protocol.wire import Reader

SPOKEN: Final = {
    ApiKey.API_VERSIONS: 0,
    ApiKey.METADATA: 9,
    ApiKey.PRODUCE: 9,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FETCH: 12,  # the last that names topics
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 9,  # a static leader that comes back is told that it leads
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
}

_HEADER = Struct(">hhi")
_SHORT = Struct(">h")
_INT = Struct(">i")


def encode_request(api_key: ApiKey, version: int, body: dict[str, Any], correlation_id: int, client_id: str) -> bytes:
    """A whole frame. KeyError: a field that this version doesn't have."""
    flexible, write = _request_writer(api_key, version)
    name = client_id.encode()
    parts = [_HEADER.pack(api_key, version, correlation_id), _SHORT.pack(len(name)), name]
    if flexible:
        parts.append(b"\0")
    write(parts.append, body)
    content = b"".join(parts)
    return _INT.pack(len(content)) + content


def decode_response(api_key: ApiKey, version: int, frame: bytes) -> Any:
    """The body behind the correlation id. ValueError, IndexError, struct.error: malformed."""
    flexible, read = _response_reader(api_key, version)
    reader = Reader(memoryview(frame)[_INT.size :], is_compact=flexible)
    if api_key is not ApiKey.API_VERSIONS:
        reader.tags()
    return read(reader)


@cache
def _request_writer(api_key: ApiKey, version: int) -> tuple[bool, Writer]:
    kind = load_request_schema(api_key, version)
    names: dict[str, frozenset[str]] = {}
    collect_names(kind, names)
    return bool(kind.__flexible__), struct_writer(kind, names)


@cache
def _response_reader(api_key: ApiKey, version: int) -> tuple[bool, ReadValue]:
    kind = load_response_schema(api_key, version)
    return bool(kind.__flexible__), struct_reader(kind)
