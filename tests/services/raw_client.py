"""A client that sends exactly what it is told: requests by kio's field names, answers as kio's types."""

import socket
from select import POLLIN, poll
from struct import unpack
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from broker.clients.client_messages import encode_request
from broker.protocol.api_keys import ApiKey
from broker.records.record_batch import Buffer

ANSWER_S = 110.0
CLIENT_ID = "raw"


def encode(api_key: ApiKey, version: int, body: dict[str, Any], correlation_id: int = 1) -> bytes:
    """A whole frame."""
    return encode_request(api_key, version, body, correlation_id, CLIENT_ID)


class RawClient:
    """One connection."""

    def __init__(self, address: str) -> None:
        self.address = address.partition(",")[0]
        host, _, port = self.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, api_key: ApiKey, version: int, **body: Any) -> Any:
        """Send a request and wait for its answer."""
        self.send(api_key, version, **body)
        return self.receive(api_key, version)

    def send(self, api_key: ApiKey, version: int, **body: Any) -> None:
        self._correlation_id += 1
        self.socket.sendall(encode(api_key, version, body, self._correlation_id))

    def receive(self, api_key: ApiKey, version: int) -> Any:
        frame = self.receive_frame()
        assert unpack(">i", frame[:4])[0] == self._correlation_id
        kind = load_response_schema(api_key, version)
        start = 5 if kind.__flexible__ and api_key is not ApiKey.API_VERSIONS else 4
        answer, size = entity_reader(kind)(frame, start)
        assert start + size == len(frame)
        return answer

    def receive_frame(self) -> bytes:
        return self._exactly(unpack(">i", self._exactly(4))[0])

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        watched = poll()  # select takes no descriptor above 1,023
        watched.register(self.socket, POLLIN)
        return not watched.poll(seconds * 1000)

    def is_closed(self) -> bool:
        """Whether the other side has ended the connection, waiting for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise ConnectionError("the connection was closed")
            data += received
        return data

    # What most tests do

    def produce(self, topic: str, records: Buffer, *, acks: int = -1, version: int = 9, **more: Any) -> Any:
        """One partition's answer."""
        partition = more.pop("partition", 0)
        body = {
            "transactional_id": more.pop("transactional_id", None),
            "acks": acks,
            "timeout": more.pop("timeout_ms", 60_000),
            "topic_data": [
                {"name": topic, "partition_data": [{"index": partition, "records": bytes(records)}]},
            ],
        }
        if acks == 0:
            self.send(ApiKey.PRODUCE, version, **body)
            return None
        [answer] = self.ask(ApiKey.PRODUCE, version, **body).responses
        return answer.partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **more: Any) -> Any:
        """One partition's answer."""
        body = self.fetch_body(topic, offset, partition=partition, version=version, **more)
        [answer] = self.ask(ApiKey.FETCH, version, **body).responses
        return answer.partitions[0]

    @staticmethod
    def fetch_body(topic: str, offset: int, *, partition: int = 0, version: int = 12, **more: Any) -> dict[str, Any]:
        """For one partition; from version 13 on `topic` is an id."""
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": more.pop("bytes_max", 1 << 20)}
        if version >= 9:
            wanted["current_leader_epoch"] = more.pop("current_leader_epoch", -1)
        if version >= 12:
            wanted["last_fetched_epoch"] = more.pop("last_fetched_epoch", -1)
        if version >= 7:
            more["forgotten_topics_data"] = []
        name = "topic_id" if version >= 13 else "topic"
        more.setdefault("max_bytes", 1 << 26)
        return {
            "max_wait": more.pop("max_wait_ms", 0),
            "min_bytes": more.pop("min_bytes", 1),
            "topics": [{name: topic, "partitions": [wanted]}],
            **more,
        }

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> Any:
        """The answer for the topic; settings with _ for the dots."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replicas,
            "assignments": [],
            "configs": configs,
        }
        [answer] = self.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=60_000).topics
        return answer
