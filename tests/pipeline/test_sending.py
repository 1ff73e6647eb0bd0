"""The jobs that send, without Spark and Kafka: where a row goes, and what is said of each."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.message import Draft
from sidecar.partitioner import source_partition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 12
MANY = 1_000_000


class Taking:
    """A producer whose broker takes everything."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.sent: list[Any] = []
        self._reports: list[Callable[[], None]] = []

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, *, headers: Any, on_delivery: Callable[..., None]
    ) -> None:
        message = SimpleNamespace(partition=lambda: partition, offset=lambda: len(self.sent))
        self.sent.append(SimpleNamespace(topic=topic, key=key, value=value, headers=headers, partition=partition))
        self._reports.append(lambda: on_delivery(None, message))

    def poll(self, timeout_s: float) -> int:
        for report in self._reports:
            report()
        self._reports.clear()
        return 0

    def flush(self, timeout_s: float) -> int:
        return self.poll(timeout_s)

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        known = SimpleNamespace(error=None, partitions=dict.fromkeys(range(PARTITIONS)))
        return SimpleNamespace(topics={topic: known})


def row(id: str, key: bytes | None = b"k", **more: Any) -> dict[str, Any]:
    headers = [{"key": "tickover-id", "value": id.encode()}]
    return {"id": id, "topic": "reminders", "key": key, "value": b"v", "headers": headers, "refused": None, **more}


def shipped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The report of these rows, by a broker that takes all of them."""
    from pipeline import sending

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sending, "Producer", Taking)
        report: list[dict[str, Any]] = sending.Shipment({}, 0.0).ship(rows).to_pylist()
        return report


# --- where it goes --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.none() | st.binary(max_size=20), st.text(min_size=1, max_size=20)), max_size=20))
def test_a_row_goes_where_rest_sends_the_same_message(messages: list[tuple[bytes | None, str]]) -> None:
    """Else one that replaces, cancels or moves it by REST misses it, and both fire."""
    went = [one["partition"] for one in shipped([row(id, key) for key, id in messages])]
    by_rest = [Draft(id, key, b"v", [], {}).record("reminders", PARTITIONS, 0).partition for key, id in messages]
    assert went == by_rest


def test_a_million_ids_go_where_java_puts_them() -> None:
    import numpy as np

    ids = [b"order-%07d" % number for number in range(MANY)]
    wanted = murmur2_of_all(np.frombuffer(b"".join(ids), np.uint8).reshape(MANY, -1)) % PARTITIONS
    assert [source_partition(None, id, PARTITIONS) for id in ids] == wanted.tolist()


def murmur2_of_all(rows: Any) -> Any:
    """Java's positive murmur2 of each row of bytes, for all rows at once."""
    import numpy as np

    factor = np.uint32(0x5BD1E995)
    length = rows.shape[1]
    state = np.full(len(rows), 0x9747B28C ^ length, np.uint32)
    for start in range(0, length // 4 * 4, 4):
        block = np.ascontiguousarray(rows[:, start : start + 4]).view("<u4")[:, 0] * factor
        state = state * factor ^ (block ^ block >> np.uint32(24)) * factor
    for place in reversed(range(length % 4)):
        state ^= rows[:, length // 4 * 4 + place].astype(np.uint32) << np.uint32(8 * place)
    state = state * factor if length % 4 else state
    state = (state ^ state >> np.uint32(13)) * factor
    return (state ^ state >> np.uint32(15)) & np.uint32(0x7FFFFFFF)
