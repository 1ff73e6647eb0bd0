"""The reference broker over its socket, asked in raw frames: what is answered, what closes the connection."""

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from broker.protocol.api_keys import VERSIONS, ApiKey
from broker.protocol.messages import write_response
from broker.records.record_batch import Buffer
from purgatory.errors import Errors
from tests.services.raw_client import RawClient, encode
from tests.services.reference_broker import ReferenceBroker
from tests.unit.log_world import batch


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker"), socket_request_max_bytes=1 << 20).start()
    with RawClient(broker.bootstrap) as client:
        assert client.create_topic("topic").error_code == Errors.NONE
    yield broker
    broker.stop()


@pytest.fixture
def client(broker: ReferenceBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap) as client:
        yield client


def new_batch(*values: bytes) -> Buffer:
    return batch(*values or (b"value",), timestamp=1_000)


def test_versions_are_told(client: RawClient) -> None:
    answer = client.ask(ApiKey.API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert answer.error_code == Errors.NONE
    assert told[ApiKey.PRODUCE] == VERSIONS[ApiKey.PRODUCE]
    assert told[ApiKey.API_VERSIONS] == (0, 4)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient) -> None:
    client.socket.sendall(pack(">ihhih", 10, ApiKey.API_VERSIONS, 99, 1, -1))
    frame = client.receive_frame()
    assert frame[4:6] == pack(">h", Errors.UNSUPPORTED_VERSION)
    assert pack(">hhh", ApiKey.PRODUCE, 3, 13) in frame


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_all_versions(client: RawClient, version: int) -> None:
    topic: dict[str, object] = {"name": "topic"}
    answer = client.ask(ApiKey.METADATA, version, topics=[topic])
    assert [(one.node_id, one.port) for one in answer.brokers] == [(1, client.socket.getpeername()[1])]
    [found] = answer.topics
    assert (found.error_code, found.name, [one.leader_id for one in found.partitions]) == (Errors.NONE, "topic", [1])


def test_metadata_of_what_is_not_there(client: RawClient) -> None:
    names = [{"name": "nowhere"}, {"name": "no good"}]
    answer = client.ask(ApiKey.METADATA, 12, topics=names, allow_auto_topic_creation=True)
    assert [one.error_code for one in answer.topics] == [
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.INVALID_TOPIC_EXCEPTION,
    ]
    unknown_id = {"topic_id": "00000000-0000-0000-0000-000000000007", "name": None}
    [found] = client.ask(ApiKey.METADATA, 12, topics=[unknown_id]).topics
    assert found.error_code == Errors.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(3, 13))
def test_what_is_produced_is_fetched(client: RawClient, version: int) -> None:
    produced = client.produce("topic", new_batch(b"one", b"two"), version=version)
    assert (produced.error_code, produced.log_append_time) == (Errors.NONE, None)
    fetched = client.fetch("topic", produced.base_offset)
    assert (fetched.error_code, fetched.high_watermark) == (Errors.NONE, produced.base_offset + 2)
    assert b"one" in fetched.records
    assert fetched.records[:8] == pack(">q", produced.base_offset)


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_in_all_versions(client: RawClient, version: int) -> None:
    [topic] = client.ask(ApiKey.METADATA, 12, topics=[{"name": "topic"}]).topics
    offset = client.produce("topic", new_batch()).base_offset
    body = client.fetch_body(str(topic.topic_id) if version >= 13 else "topic", offset, version=version)
    [answer] = client.ask(ApiKey.FETCH, version, **body).responses
    assert b"value" in answer.partitions[0].records


def test_a_fetch_waits_for_a_produce(broker: ReferenceBroker, client: RawClient) -> None:
    end = client.produce("topic", new_batch()).base_offset + 1
    client.send(ApiKey.FETCH, 12, **client.fetch_body("topic", end, max_wait_ms=30_000))
    with RawClient(broker.bootstrap) as producer:
        producer.produce("topic", new_batch(b"late"))
    [answer] = client.receive(ApiKey.FETCH, 12).responses
    assert b"late" in answer.partitions[0].records


def test_requests_of_one_connection_are_answered_in_order(client: RawClient) -> None:
    end = client.produce("topic", new_batch()).base_offset + 1
    frames = [
        encode(ApiKey.FETCH, 12, client.fetch_body("topic", end, max_wait_ms=50), 71),
        *(encode(ApiKey.API_VERSIONS, 0, {}, number) for number in range(72, 120)),
    ]
    client.socket.sendall(b"".join(frames))
    numbers = [int.from_bytes(client.receive_frame()[:4], "big") for _ in frames]
    assert numbers == list(range(71, 120))


def test_a_frame_in_pieces_and_one_larger_than_the_buffer(client: RawClient) -> None:
    large = new_batch(bytes(200_000))
    frame = encode(
        ApiKey.PRODUCE,
        9,
        {
            "acks": 1,
            "timeout": 1000,
            "transactional_id": None,
            "topic_data": [{"name": "topic", "partition_data": [{"index": 0, "records": bytes(large)}]}],
        },
    )
    for start in range(0, len(frame), 7_001):
        client.socket.sendall(frame[start : start + 7_001])
    assert b"\0\0\0\1" in client.receive_frame()[:4]
    for piece in encode(ApiKey.API_VERSIONS, 0, {}, 5):
        client.socket.sendall(bytes((piece,)))
    assert client.receive_frame()[:4] == pack(">i", 5)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (b"", Errors.INVALID_RECORD),
        (bytes(new_batch()) * 2, Errors.INVALID_RECORD),
        (bytes(new_batch())[:-1], Errors.INVALID_RECORD),
        (bytes(new_batch())[:-1] + b"?", Errors.CORRUPT_MESSAGE),
    ],
)
def test_bad_records_are_refused(client: RawClient, records: bytes, expected: Errors) -> None:
    assert client.produce("topic", records).error_code == expected


def test_unknown_partitions_and_acks(client: RawClient) -> None:
    assert client.produce("nowhere", new_batch()).error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("nowhere", b"").error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION  # its records don't matter
    assert client.produce("topic", new_batch(), partition=7).error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce("topic", new_batch(), acks=3).error_code == Errors.INVALID_REQUIRED_ACKS
    assert client.fetch("topic", 1 << 40).error_code == Errors.OFFSET_OUT_OF_RANGE
    assert client.fetch("nowhere", 0).error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_no_answer_without_acks_and_an_error_closes(client: RawClient) -> None:
    client.produce("topic", new_batch(), acks=0)
    assert client.ask(ApiKey.API_VERSIONS, 0).error_code == Errors.NONE
    client.produce("nowhere", new_batch(), acks=0)
    assert client.is_closed()


@pytest.mark.parametrize(
    "sent",
    [
        pack(">i", (1 << 20) + 1),
        pack(">i", -1),
        pack(">i", 0),
        pack(">ih", 2, 3),
        pack(">ihhih", 10, 999, 0, 1, -1),
        pack(">ihhih", 10, ApiKey.METADATA, 99, 1, -1),
        pack(">ihhihi", 14, ApiKey.METADATA, 1, 1, -1, 1 << 30),
        encode(ApiKey.PRODUCE, 9, {"acks": 1})[:-1] + b"\xff",
    ],
)
def test_what_is_no_request_closes_only_its_connection(broker: ReferenceBroker, client: RawClient, sent: bytes) -> None:
    with RawClient(broker.bootstrap) as other:
        other.socket.sendall(sent)
        assert other.is_closed()
    assert client.ask(ApiKey.API_VERSIONS, 0).error_code == Errors.NONE


def test_a_field_that_no_version_has_is_our_mistake() -> None:
    with pytest.raises(KeyError, match="cluster"):
        write_response(ApiKey.METADATA, 12, {"cluster": "x"})
    assert write_response(ApiKey.METADATA, 0, {"cluster_id": "x"})  # which version 0 doesn't have


def test_offsets_by_time_and_end(client: RawClient) -> None:
    client.create_topic("times")
    for timestamp in (1_000, 3_000, 2_000):
        client.produce("times", batch(b"a", b"b", timestamp=timestamp))

    def offset_of(timestamp: int) -> tuple[int, int]:
        wanted = {"partition_index": 0, "timestamp": timestamp}
        answer = client.ask(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "times", "partitions": [wanted]}]
        )
        [found] = answer.topics[0].partitions
        assert found.error_code == Errors.NONE
        return found.offset, found.timestamp

    assert [offset_of(one) for one in (-1, -2, -3)] == [(6, -1), (0, -1), (3, 3_001)]
    assert [offset_of(one) for one in (-4, -5)] == [(0, -1), (-1, -1)]  # all is local, nothing tiered
    assert [offset_of(one) for one in (0, 1_001, 1_002, 3_001, 3_002)] == [
        (0, 1_000),
        (1, 1_001),
        (2, 3_000),
        (3, 3_001),
        (-1, -1),
    ]


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    broker = ReferenceBroker(tmp_path).start()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("kept", 2)
        client.produce("kept", new_batch(b"kept"), partition=1)
    broker.stop()
    broker.start()
    with RawClient(broker.bootstrap) as client:
        fetched = client.fetch("kept", 0, partition=1)
        assert b"kept" in fetched.records
        assert client.produce("kept", new_batch(), partition=1).base_offset == 1
    broker.stop()
