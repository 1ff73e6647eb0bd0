"""Connections to the brokers of a cluster, and what is known of it: Kafka's NetworkClient and Metadata.

Requests of one connection go out in the order of `send`, and several may wait for their answers.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.clients.client_messages import SPOKEN, decode_response, encode_request
from broker.protocol.api_keys import ApiKey
from purgatory.log_offsets import TopicPartition

CLIENT_ID: Final = "reference"
BOOTSTRAP: Final = -1  # no broker's id: whoever answers first
COORDINATOR: Final = -2  # nor this: a group's, with a connection of its own, since a JoinGroup keeps it busy
NO_LEADER: Final = -1


class Disconnected(ConnectionError):
    """The connection ended, or nothing came in time: what was asked may or may not have happened."""


class Connection:
    """To one broker. Disconnected is raised to everybody who waits when it ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0
        self._waiting: dict[int, tuple[ApiKey, asyncio.Future[Any]]] = {}
        self._task = asyncio.create_task(self._receive())

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return not self._task.done()

    def send(self, api_key: ApiKey, body: dict[str, Any]) -> asyncio.Future[Any]:
        """Write a request; the future is its answer."""
        self._write(api_key, body)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_open:
            self._waiting[self._correlation_id] = api_key, answer
        else:
            answer.set_exception(Disconnected("the connection was closed"))
        return answer

    def send_silent(self, api_key: ApiKey, body: dict[str, Any]) -> None:
        """Write a request that gets no answer."""
        self._write(api_key, body)

    def _write(self, api_key: ApiKey, body: dict[str, Any]) -> None:
        self._correlation_id += 1
        self._writer.write(encode_request(api_key, SPOKEN[api_key], body, self._correlation_id, CLIENT_ID))

    async def close(self) -> None:
        """Twice is harmless."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(size)
                api_key, answer = self._waiting.pop(int.from_bytes(frame[:4], "big"))
                if not answer.done():
                    answer.set_result(decode_response(api_key, SPOKEN[api_key], frame))
        except (OSError, asyncio.IncompleteReadError):
            pass  # what it means is said to those who wait
        finally:
            self._writer.close()
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Disconnected("the connection was closed"))
            self._waiting.clear()


@dataclass(slots=True)
class Metadata:
    """The cluster as a broker last told it: addresses, racks, and of each topic the partitions' leaders."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    racks: dict[int, str | None] = field(default_factory=dict)
    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    replicas: dict[str, list[list[int]]] = field(default_factory=dict)

    def partition_count(self, topic: str) -> int:
        """How many there are; 0: the topic is not known."""
        return len(self.replicas.get(topic, ()))

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader of a partition; None: nobody leads it, or nobody knows."""
        leader = self.leaders.get(partition, NO_LEADER)
        return leader if leader in self.brokers else None


class NetworkClient:
    """The cluster behind `bootstrap_servers` (host:port, separated by commas)."""

    def __init__(self, bootstrap_servers: str, request_timeout_ms: int = 30_000) -> None:
        self._bootstrap = [self._address(one) for one in bootstrap_servers.split(",")]
        self._timeout_s = request_timeout_ms / 1000
        self._connections: dict[int, Connection] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._topics: set[str] = set()
        self._coordinator: list[tuple[str, int]] = []
        self.metadata = Metadata()

    async def set_coordinator(self, *addresses: tuple[str, int]) -> None:
        """Where COORDINATOR is; nowhere, if nothing is given. Who waits for its former connection is disconnected."""
        self._coordinator = list(addresses)
        connection = self._connections.pop(COORDINATOR, None)
        if connection is not None:
            await connection.close()

    async def connection(self, broker_id: int) -> Connection:
        """To this broker. OSError: it can't be reached, or doesn't take what we speak."""
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            found = self._connections.get(broker_id)
            if found is not None and found.is_open:
                return found
            found = await self._connect(self._addresses(broker_id))
            self._connections[broker_id] = found
            return found

    async def ask(self, broker_id: int, api_key: ApiKey, timeout_s: float = 0.0, **body: Any) -> Any:
        """Send and wait. Disconnected after the request's time, too: then the connection is closed, as in Java, since
        its order is lost. OSError: it can't be reached."""
        connection = await self.connection(broker_id)
        return await self.answer(connection, connection.send(api_key, body), timeout_s)

    async def answer(self, connection: Connection, answer: asyncio.Future[Any], timeout_s: float = 0.0) -> Any:
        """Wait for what was sent, `timeout_s` longer than for others."""
        try:
            async with asyncio.timeout(self._timeout_s + timeout_s):
                return await answer
        except TimeoutError:
            await connection.close()
            raise Disconnected("no answer came in time") from None

    async def refresh(self, *topics: str) -> Metadata:
        """Ask any broker about these topics and all that were asked for before, and keep what it says. OSError: none
        answers."""
        self._topics.update(topics)
        body: dict[str, Any] = {
            "topics": [{"name": name} for name in sorted(self._topics)],
            "allow_auto_topic_creation": False,
        }
        told = await self.ask(BOOTSTRAP, ApiKey.METADATA, **body)
        metadata = Metadata(
            {one.node_id: (one.host, one.port) for one in told.brokers}, {one.node_id: one.rack for one in told.brokers}
        )
        for topic in told.topics:
            rows = sorted(topic.partitions, key=lambda row: int(row.partition_index))
            if rows:
                metadata.replicas[topic.name] = [list(row.replica_nodes) for row in rows]
            metadata.leaders |= {TopicPartition(topic.name, row.partition_index): row.leader_id for row in rows}
        self.metadata = metadata
        return metadata

    async def close(self) -> None:
        """Twice is harmless."""
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()

    def _addresses(self, broker_id: int) -> list[tuple[str, int]]:
        if broker_id == BOOTSTRAP:
            return self._bootstrap
        if broker_id == COORDINATOR:
            return self._coordinator
        return [self.metadata.brokers[broker_id]] if broker_id in self.metadata.brokers else []

    async def _connect(self, addresses: Iterable[tuple[str, int]]) -> Connection:
        refused: OSError = Disconnected("no address")
        for host, port in addresses:
            try:
                async with asyncio.timeout(self._timeout_s):
                    connection = Connection(*await asyncio.open_connection(host, port))
                    told = await connection.send(ApiKey.API_VERSIONS, {})
            except OSError as error:  # TimeoutError is one
                refused = error
                continue
            check_versions({row.api_key: (row.min_version, row.max_version) for row in told.api_keys})
            return connection
        raise refused

    @staticmethod
    def _address(text: str) -> tuple[str, int]:
        host, _, port = text.strip().rpartition(":")
        return host, int(port)


def check_versions(told: Mapping[int, tuple[int, int]]) -> None:
    """Disconnected if the broker doesn't take a version that we speak."""
    for api_key, version in SPOKEN.items():
        lowest, highest = told.get(api_key, (0, -1))
        if not lowest <= version <= highest:
            raise Disconnected(f"the broker takes {api_key.name} {lowest} to {highest}, and not {version}")
