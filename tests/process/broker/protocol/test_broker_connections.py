"""Clients that are many, slow, or gone before their answer comes."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from broker.log.file import FileRegion, LogFile
from broker.protocol.api_keys import ApiKey
from broker.protocol.connection import Connection
from purgatory.errors import Errors
from sidecar.embedded.kafka import PROGRAM
from tests.services.fixtures import own_broker
from tests.services.kafka_servers import ReferenceServer
from tests.services.raw_client import RawClient, encode
from tests.services.reference_broker import ReferenceBroker
from tests.services.waiting import wait_until
from tests.unit.log_world import batch

WAIT_S = 90.0
CONNECTIONS = 300
ASKED = 60
CROWD = 2_000
FILES_AT_FIRST = 256
LARGE_BATCHES = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker"), max_connections=CONNECTIONS).start()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("topic")
        client.produce("topic", batch(bytes(500_000)))
    yield broker
    broker.stop()


def parked(broker: ReferenceBroker) -> Any:
    return broker.inspect(lambda cluster: cluster.brokers[1].replicas.fetch.num_delayed)


def connections(broker: ReferenceBroker) -> Any:
    return broker.inspect(lambda cluster: len(cluster.servers[1].connections))


def unsent(broker: ReferenceBroker) -> Any:
    return broker.inspect(lambda cluster: sum(each.unsent_bytes for each in cluster.servers[1].connections))


def reset(client: RawClient) -> None:
    """Leave without a word."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def test_many_wait_and_one_produce_answers_all(broker: ReferenceBroker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(CONNECTIONS - 1)]
        for client in clients:
            client.send(ApiKey.FETCH, 12, **client.fetch_body("topic", 1, max_wait_ms=600_000))
        wait_until(lambda: parked(broker) == len(clients), WAIT_S, lambda: f"{parked(broker)} wait")
        with RawClient(broker.bootstrap) as producer:
            assert producer.produce("topic", batch(b"news")).error_code == Errors.NONE
        for client in clients:
            [answer] = client.receive(ApiKey.FETCH, 12).responses
            assert b"news" in answer.partitions[0].records


@pytest.fixture
def many_files() -> Iterator[None]:
    """For the clients, which are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
def test_thousands_wait_at_a_process_that_was_started_with_few_files(tmp_path: Path) -> None:
    """As a shell starts it."""
    program = ("sh", "-c", f'ulimit -S -n {FILES_AT_FIRST}; exec "$@"', "sh", *PROGRAM)
    with own_broker(ReferenceServer(tmp_path, program)) as server, ExitStack() as stack:
        producer = stack.enter_context(RawClient(server.bootstrap))
        producer.create_topic("topic")
        clients = [stack.enter_context(RawClient(server.bootstrap)) for _ in range(CROWD)]
        for client in clients:
            client.send(ApiKey.FETCH, 12, **client.fetch_body("topic", 0, max_wait_ms=600_000))
        assert all(client.is_silent(0) for client in clients)
        assert producer.produce("topic", batch(b"news")).error_code == Errors.NONE
        for client in clients:
            [answer] = client.receive(ApiKey.FETCH, 12).responses
            assert b"news" in answer.partitions[0].records


def test_one_connection_too_many_is_closed(broker: ReferenceBroker) -> None:
    wait_until(lambda: not connections(broker), WAIT_S, lambda: "those of the test before are still there")
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.bootstrap)) for _ in range(CONNECTIONS)]
        for client in clients:
            assert client.ask(ApiKey.API_VERSIONS, 0).error_code == Errors.NONE
        assert stack.enter_context(RawClient(broker.bootstrap)).is_closed()
        assert clients[0].ask(ApiKey.API_VERSIONS, 0).error_code == Errors.NONE


def test_an_answer_that_is_being_sent_when_its_broker_stops_is_sent_whole(tmp_path: Path) -> None:
    broker = ReferenceBroker(tmp_path, 2).start()

    def is_leaving() -> Any:
        return broker.inspect(lambda cluster: not cluster.metadata.is_eligible(1))

    with ExitStack() as stack:
        stack.callback(broker.stop)
        client = stack.enter_context(RawClient(broker.bootstrap))
        client.create_topic("topic")
        for _ in range(LARGE_BATCHES):
            assert client.produce("topic", batch(bytes(1_000_000))).error_code == Errors.NONE
        body = client.fetch_body("topic", 0, bytes_max=1 << 30, max_bytes=1 << 30)
        client.send(ApiKey.FETCH, 12, **body)
        wait_until(lambda: unsent(broker) > 0, WAIT_S, lambda: "the answer went at once")
        stopping = stack.enter_context(ThreadPoolExecutor(1)).submit(broker.run, broker.cluster.stop_broker(1))
        wait_until(is_leaving, WAIT_S, lambda: "broker 1 doesn't stop")
        [answer] = client.receive(ApiKey.FETCH, 12).responses
        assert len(answer.partitions[0].records) > LARGE_BATCHES * 1_000_000
        stopping.result(WAIT_S)
        assert client.is_closed()


def test_a_connection_that_is_ended_before_it_is_made_is_closed_then() -> None:
    """The event loop has accepted it while the broker stops."""

    async def scene() -> bool:
        connection = Connection(AsyncMock(), 1 << 20, lambda connection: None)
        connection.close()
        transport = Mock(spec=asyncio.Transport)
        connection.connection_made(transport)
        return bool(transport.abort.called)

    assert asyncio.run(scene())


def test_a_client_that_does_not_read_is_not_read_from(broker: ReferenceBroker) -> None:
    """The client asks for half a megabyte again and again: what isn't sent must not pile up in the broker."""
    with RawClient(broker.bootstrap) as client:
        frame = encode(ApiKey.FETCH, 12, client.fetch_body("topic", 0))
        client.socket.sendall(frame * ASKED)

        wait_until(lambda: unsent(broker) > 0, WAIT_S, lambda: "everything was sent")
        assert unsent(broker) < 2_000_000
        with RawClient(broker.bootstrap) as other:
            assert other.ask(ApiKey.API_VERSIONS, 0).error_code == Errors.NONE
        for _ in range(ASKED):  # all are answered in the end
            assert len(client.receive_frame()) > 500_000


def test_who_leaves_while_records_are_sent_to_it_disturbs_nobody(
    broker: ReferenceBroker, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: not connections(broker), WAIT_S, lambda: "those of the test before are still there")
    client = RawClient(broker.bootstrap)
    client.socket.sendall(encode(ApiKey.FETCH, 12, client.fetch_body("topic", 0)) * ASKED)
    wait_until(lambda: unsent(broker) > 0, WAIT_S, lambda: "everything was sent")
    reset(client)
    wait_until(lambda: not connections(broker), WAIT_S, lambda: "the connection is still there")
    with RawClient(broker.bootstrap) as other:
        assert bytes(500_000) in other.fetch("topic", 0).records
    assert not any(record.exc_info for record in caplog.records), caplog.text


def test_a_log_that_is_cut_while_it_is_sent_ends_the_connection(tmp_path: Path) -> None:
    """The client was told how much comes, so nothing else can follow."""
    file = LogFile(tmp_path / "log")
    file.append(bytes(100_000))

    async def scene() -> bytes:
        region = FileRegion(file, 0, 100_000)
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(AsyncMock(return_value=[b"ahead", region]), 1 << 20, lambda connection: None),
            "127.0.0.1",
        )
        file.truncate(60_000)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"\0\0\0\1?")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    answer = asyncio.run(asyncio.wait_for(scene(), WAIT_S))
    assert answer == (100_005).to_bytes(4, "big") + b"ahead" + bytes(60_000)


def test_who_leaves_while_waiting_is_forgotten(broker: ReferenceBroker) -> None:
    before = parked(broker)
    client = RawClient(broker.bootstrap)
    client.send(ApiKey.FETCH, 12, **client.fetch_body("topic", 1 << 40, max_wait_ms=600_000))
    assert client.receive(ApiKey.FETCH, 12).responses[0].partitions[0].error_code == Errors.OFFSET_OUT_OF_RANGE
    end = client.fetch("topic", 0).high_watermark
    client.send(ApiKey.FETCH, 12, **client.fetch_body("topic", end, max_wait_ms=600_000))
    wait_until(lambda: parked(broker) == before + 1, WAIT_S, lambda: "the fetch does not wait")
    reset(client)
    with RawClient(broker.bootstrap) as other:
        other.produce("topic", batch(b"nobody waits"))
        assert other.fetch("topic", end).high_watermark == end + 1
    wait_until(lambda: parked(broker) == before, WAIT_S, lambda: "the operation is still there")
