"""One request as a handler gets it, and how it is read from a frame.

frame:    size 4 | header | body
header:   api key 2 | version 2 | correlation id 4 | client id | tagged fields, in flexible versions
"""

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from broker.protocol.api_keys import VERSIONS, ApiKey
from broker.protocol.messages import is_flexible, read_request
from broker.protocol.produce_request import read_produce_request
from broker.protocol.wire import Reader

HEADER: Final = Struct(">hhi")


class MalformedRequest(Exception):
    """No request that this broker can answer: the connection is closed, as Kafka does."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of every request."""

    api_key: ApiKey
    version: int
    correlation_id: int
    client_id: str

    @property
    def is_version_known(self) -> bool:
        """Whether the body can be read."""
        lowest, highest = VERSIONS[self.api_key]
        return lowest <= self.version <= highest


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `body` is kio's type for the version, or for produce a `ProduceRequest`. `listener` is the address
    that the client has connected to, `peer` the client's own."""

    header: RequestHeader
    body: Any
    peer: str = ""

    @property
    def version(self) -> int:
        """Of this request's type."""
        return self.header.version


def read_frame(frame: bytearray) -> tuple[RequestHeader, Any]:
    """The header and the body of a frame without its size; the body is None if its version isn't known.
    MalformedRequest otherwise."""
    reader = Reader(memoryview(frame), is_compact=False)
    try:
        number, version, correlation_id = reader.numbers(HEADER)
        api_key = ApiKey(number)
        client_id = reader.nullable_string() or ""
        header = RequestHeader(api_key, version, correlation_id, client_id)
        if not header.is_version_known:
            return header, None
        body = reader.rest
        if is_flexible(api_key, version):
            tagged = Reader(body, is_compact=True)
            tagged.tags()
            body = tagged.rest
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequest(f"a header that can't be read: {error}") from error
    try:
        if api_key is ApiKey.PRODUCE:
            return header, read_produce_request(version, body)
        return header, read_request(api_key, version, body)
    except Exception as error:
        raise MalformedRequest(f"{api_key.name} {version} that can't be read: {type(error).__name__}") from error
