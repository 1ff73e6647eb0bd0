"""The broker answers whatever a client sends, or closes that connection, and goes on."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.protocol.api_keys import ApiKey
from broker.protocol.request import MalformedRequest, read_frame
from broker.requests.handlers import HANDLERS
from tests.examples import examples
from tests.services.kafka_requests import mutilated, requests
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.unit.log_world import batch

SERVED = (*HANDLERS, ApiKey.API_VERSIONS)
# Members of a group wait for each other, for minutes.
QUICK = tuple(key for key in SERVED if key not in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))


class Complaints(logging.Handler):
    """Errors that the broker logs: a request that it could not answer is our mistake, whatever was in it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker")).start()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("topic")
        client.produce("topic", batch(b"value"))
    yield broker
    broker.stop()


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    complaints = Complaints()
    logger = logging.getLogger("broker")
    logger.addHandler(complaints)
    yield complaints
    logger.removeHandler(complaints)


@given(st.one_of(st.binary(max_size=200), mutilated(requests(SERVED)).map(lambda frame: frame[4:])))
@settings(max_examples=examples(300), deadline=None)
def test_a_frame_is_a_request_or_malformed(frame: bytes) -> None:
    try:
        header, _ = read_frame(bytearray(frame))
    except MalformedRequest:
        return
    assert header.api_key in ApiKey


@given(frames=st.lists(requests(QUICK), min_size=1, max_size=3))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_is_answered_or_closes_its_connection(
    broker: ReferenceBroker, complaints: Complaints, frames: list[bytes]
) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(b"".join(frames))
        client.socket.shutdown(1)
        while client.socket.recv(65_536):
            pass
    with RawClient(broker.bootstrap) as client:
        assert client.ask(ApiKey.API_VERSIONS, 0).error_code == 0
    assert complaints.records == []


@given(frames=st.lists(mutilated(requests(QUICK)), min_size=1, max_size=3))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_requests_too(broker: ReferenceBroker, complaints: Complaints, frames: list[bytes]) -> None:
    with RawClient(broker.bootstrap) as client:
        client.socket.sendall(b"".join(frames))
        client.socket.shutdown(1)
        while client.socket.recv(65_536):
            pass
    assert complaints.records == []
