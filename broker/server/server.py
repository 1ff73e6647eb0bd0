"""A broker's listening socket: frames become requests, requests go to their handlers, responses become frames."""

import asyncio
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.log.file import Part
from broker.protocol.api_keys import VERSIONS, ApiKey
from broker.protocol.connection import CloseConnection, Connection
from broker.protocol.messages import is_flexible, write_response
from broker.protocol.request import MalformedRequest, Request, RequestHeader, read_frame
from broker.requests.handlers import HANDLERS
from purgatory.errors import Errors

CORRELATION: Final = Struct(">i")
NO_TAGS: Final = b"\0"
DRAIN_S: Final = 5.0
DRAIN_LOOK_S: Final = 0.01


class Server:
    """Serves one broker at a host and port; port 0 takes any that is free."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._broker = broker
        self._host = host
        self.port = port
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._is_stopping = False  # then the event loop may still have accepted some

    async def start(self) -> None:
        """Listen. OSError: the port is taken."""
        self._is_stopping = False
        self._server = await self._broker.loop.create_server(self._connect, self._host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def drain(self) -> None:
        """Wait until what has been answered is sent, DRAIN_S at most: a client may never read."""
        deadline_s = self._broker.loop.time() + DRAIN_S
        is_sending = True
        while is_sending and self._broker.loop.time() < deadline_s:
            await asyncio.sleep(DRAIN_LOOK_S)  # in which those write their answers who were given them just now
            is_sending = any(one.unsent_bytes for one in self.connections)

    async def stop(self) -> None:
        """Listen no more, and close what is open. Twice is harmless."""
        server, self._server = self._server, None
        if server is None:
            return
        self._is_stopping = True
        server.close()
        for connection in list(self.connections):
            connection.close()
        await server.wait_closed()

    def _connect(self) -> Connection:
        settings = self._broker.settings
        is_refused = self._is_stopping or len(self.connections) >= settings.max_connections
        connection = Connection(
            self._handle, settings.socket_request_max_bytes, self._disconnected, is_refused=is_refused
        )
        self.connections.add(connection)
        return connection

    def _disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)

    async def _handle(self, frame: bytearray, peer: str) -> Sequence[Part] | None:
        try:
            header, body = read_frame(frame)
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        if header.api_key is ApiKey.API_VERSIONS:
            return _answer_api_versions(header)
        handler = HANDLERS.get(header.api_key)
        if body is None or handler is None:
            raise CloseConnection(f"{header.api_key.name} {header.version} is not served")
        response = await handler(self._broker, Request(header, body, peer))
        self._broker.replicas.try_complete_actions()
        return None if response is None else _encode(header, header.version, response)


def _answer_api_versions(header: RequestHeader) -> Sequence[Part]:
    """Of a version that isn't known nothing can be read, not even by the client: it is answered in version 0."""
    served = [
        {"api_key": int(key), "min_version": VERSIONS[key][0], "max_version": VERSIONS[key][1]}
        for key in sorted((*HANDLERS, ApiKey.API_VERSIONS))
    ]
    error = Errors.NONE if header.is_version_known else Errors.UNSUPPORTED_VERSION
    version = header.version if header.is_version_known else 0
    return _encode(header, version, {"error_code": error, "api_keys": served})


def _encode(header: RequestHeader, version: int, response: Mapping[str, Any]) -> Sequence[Part]:
    body = write_response(header.api_key, version, response)
    has_tags = header.api_key is not ApiKey.API_VERSIONS and is_flexible(header.api_key, version)
    return [CORRELATION.pack(header.correlation_id), NO_TAGS if has_tags else b"", *body]
