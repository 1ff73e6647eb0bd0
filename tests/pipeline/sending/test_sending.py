"""The jobs that send, without Spark and Kafka: where a row goes, and what is said of each."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from api.message import Draft
from pipeline.errors import Unanswered
from sidecar.model.partitioner import source_partition
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Marks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PARTITIONS = 12
MANY = 1_000_000


class Sent(NamedTuple):
    """A record as the broker has it."""

    id: str
    topic: str
    partition: int
    job: bytes
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = 0


class Broker:
    """The brokers' side of transactions, and what goes wrong there."""

    def __init__(self) -> None:
        self.committed: list[Sent] = []
        self.open: dict[str, list[Sent]] = {}
        self.epochs: dict[str, int] = {}
        self.transactions = 0
        self.topics = {"reminders", "others"}
        self.refuses: Callable[[Sent], int | None] = lambda _: None
        self.acknowledges = True
        self.says_offsets = True
        self.answers_commits = True
        self.now_s = 1.0

    def ids(self) -> list[str]:
        return [sent.id for sent in self.committed if sent.id]


class Client:
    """A transactional producer, as librdkafka's: reports come while it is polled, and are alike in a refused batch."""

    broker: Broker

    def __init__(self, settings: dict[str, Any]) -> None:
        self._id = settings["transactional.id"]
        self._epoch = 0
        self._queue: list[tuple[Sent, Callable[..., None]]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, timeout_s: float) -> None:
        self._epoch = self.broker.epochs[self._id] = self.broker.epochs.get(self._id, 0) + 1
        self.broker.open.pop(self._id, None)

    def begin_transaction(self) -> None:
        self.broker.transactions += 1

    # tidy: as the client's own
    def produce(
        self, topic: str, value: Any, key: Any, partition: int, *, timestamp: int, headers: Any, on_delivery: Any
    ) -> None:
        named = dict(headers)
        id, job = named.get("tickover-id", b"").decode(), named.get("tickover-job", b"")
        self._queue.append((Sent(id, topic, partition, job, key, value, timestamp), on_delivery))

    def poll(self, timeout_s: float) -> int:
        self._check_epoch()
        self.broker.now_s += timeout_s
        batch = self.broker.open.setdefault(self._id, [])
        if not self.broker.acknowledges:
            batch += [sent for sent, _ in self._queue if sent not in batch]  # it comes there all the same
            return 0
        queue, self._queue = self._queue, []
        asked = {sent: self.broker.refuses(sent) for sent, _ in queue}
        refused = {(sent.topic, sent.partition): code for sent, code in asked.items() if code is not None}
        for sent, report in queue:
            if (code := refused.get((sent.topic, sent.partition))) is not None:
                report(KafkaError(code), None)
            else:
                batch.append(sent)
                offset = len(batch) if self.broker.says_offsets else None
                report(None, SimpleNamespace(partition=lambda sent=sent: sent.partition, offset=lambda at=offset: at))
        return len(queue)

    def commit_transaction(self, timeout_s: float) -> None:
        self._check_epoch()
        self.broker.committed += self.broker.open.pop(self._id, [])
        if not self.broker.answers_commits:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def abort_transaction(self, timeout_s: float) -> None:
        self._check_epoch()
        self.broker.open.pop(self._id, None)

    def purge(self, **_: bool) -> None:
        self._queue.clear()

    def close(self) -> None:
        pass

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        known = PARTITIONS if topic in self.broker.topics else 0
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(known)))})

    def _check_epoch(self) -> None:
        if self._epoch != self.broker.epochs[self._id]:
            raise KafkaException(KafkaError(KafkaError._FENCED))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    from pipeline.sending import sending

    monkeypatch.setattr(Client, "broker", Broker(), raising=False)
    monkeypatch.setattr(sending, "Producer", Client)
    monkeypatch.setattr(sending, "monotonic", lambda: Client.broker.now_s)
    return Client.broker


def row(id: str, key: bytes | None = b"k", topic: str = "reminders") -> dict[str, Any]:
    headers = [{"key": "tickover-id", "value": id.encode()}]
    return {"id": id, "topic": topic, "key": key, "value": b"v", "headers": headers, "refused": None}


def shipment(rate: float = 0.0) -> Any:
    from pipeline.sending.sending import Shipment

    return Shipment({}, "producer.0", "job/run/0", rate)


def ship(rows: list[dict[str, Any]], by: Any = None) -> dict[str, tuple[str, str | None]]:
    """By id: state and detail."""
    report = (by or shipment()).ship(rows).to_pylist()
    return {one["id"]: (one["state"], one["detail"]) for one in report}


# --- what is said of it ---------------------------------------------------------------------------------------------


def test_a_row_whose_answer_comes_too_late_is_sent_once(broker: Broker) -> None:
    rows = [row("a"), row("b")]
    broker.acknowledges = False
    assert ship(rows) == dict.fromkeys("ab", ("failed", "Kafka didn't acknowledge it within 30 s"))
    broker.acknowledges = True
    assert ship(rows) == dict.fromkeys("ab", ("sent", None))
    assert broker.ids() == ["a", "b"]


def test_of_rows_whose_commit_was_not_answered_nothing_is_said(broker: Broker) -> None:
    broker.answers_commits = False
    with pytest.raises(Unanswered, match="nobody knows"):
        ship([row("a")])
    assert broker.ids() == ["a"]  # the next run finds it


def test_a_record_that_the_broker_has_not_confirmed_is_not_taken_for_sent(broker: Broker) -> None:
    broker.says_offsets = False
    assert ship([row("a")]) == {"a": ("failed", "the broker has not said that it has the record")}
    assert broker.ids() == []


def test_one_row_that_is_refused_takes_no_other_with_it(broker: Broker) -> None:
    broker.refuses = lambda sent: KafkaError.MSG_SIZE_TOO_LARGE if sent.id in ("3", "17") else None
    states = ship([row(str(number)) for number in range(40)])
    assert {id for id, (state, _) in states.items() if state == "failed"} == {"3", "17"}
    assert "too large" in (states["3"][1] or "")
    assert broker.ids() == [str(number) for number in range(40) if number not in (3, 17)]


def test_when_all_are_refused_each_is_not_looked_for_alone_without_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.sending import sending

    monkeypatch.setattr(sending, "REFUSED_MAX", 5)
    broker.refuses = lambda _: KafkaError.INVALID_TIMESTAMP
    states = ship([row(str(number)) for number in range(1_000)])
    assert {state for state, _ in states.values()} == {"failed"}
    assert broker.transactions < 40


def test_a_topic_that_is_not_there_or_not_ours_fails_its_own_rows(broker: Broker) -> None:
    broker.refuses = lambda sent: KafkaError.TOPIC_AUTHORIZATION_FAILED if sent.topic == "others" else None
    states = ship([row("a"), row("b", topic="others"), row("c", topic="absent"), row("d")])
    assert {id: state for id, (state, _) in states.items()} == {"a": "sent", "b": "failed", "c": "failed", "d": "sent"}
    assert "no such topic" in (states["c"][1] or "")


def test_nothing_goes_before_a_row_in_whose_order_it_came(broker: Broker) -> None:
    """A row that a passing fault has hit would be sent by the next run: a message behind what cancels it."""
    rows = [{**row(id), "place": {"topic": "reminders", "partition": 1, "offset": n}} for n, id in enumerate("abc")]
    broker.refuses = lambda sent: KafkaError.NOT_ENOUGH_REPLICAS if sent.id == "b" else None
    with pytest.raises(Unanswered, match=r"[Nn]ot enough"):
        ship(rows, shipment(rate=2.0))  # a transaction each
    assert broker.ids() == ["a"]
    broker.refuses = lambda sent: KafkaError.MSG_SIZE_TOO_LARGE if sent.id == "b" else None
    assert {id: state for id, (state, _) in ship(rows[1:]).items()} == {"b": "failed", "c": "sent"}


def test_a_refused_row_is_not_sent_and_its_reason_is_reported(broker: Broker) -> None:
    assert ship([{**row("a"), "refused": "due: not a time"}, row("b")]) == {
        "a": ("refused", "due: not a time"),
        "b": ("sent", None),
    }
    assert broker.ids() == ["b"]


def test_who_takes_a_slice_up_shuts_out_its_former_producers(broker: Broker) -> None:
    from pipeline.sending.sending import Slice, fence

    former = shipment()
    assert ship([row("a")], former) == {"a": ("sent", None)}
    fence({}, Slice("job/run/0", "producer", 1))
    with pytest.raises(Unanswered, match="fenced"):
        ship([row("b")], former)
    assert broker.ids() == ["a"]


def test_a_producer_that_kafka_does_not_allow_says_what_it_needs(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Client, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    monkeypatch.setattr(Client, "init_transactions", refuse)
    with pytest.raises(Unanswered, match=r"transactional id producer\.0: .* the right to write"):
        shipment()


def test_nothing_stays_open_while_the_pace_is_kept(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction holds up all readers of the topic."""
    from pipeline.sending import sending

    pauses: list[float] = []

    class Pause:
        def wait(self, pause_s: float) -> None:
            assert not broker.open
            broker.now_s += pause_s
            pauses.append(round(pause_s, 1))

    monkeypatch.setattr(sending, "Event", Pause)
    ship([row(str(number)) for number in range(10)], shipment(rate=4.0))
    assert pauses == [0.4, 0.4, 0.5, 0.5, 0.5]  # two rows every half a second, less what it took to send them


def test_each_record_says_which_slice_has_sent_it(broker: Broker) -> None:
    ship([row("a")])
    assert [sent.job for sent in broker.committed] == [b"job/run/0"]


# --- which letters it says were sent --------------------------------------------------------------------------------

MARKS = "tickover.shop.redriven"


def letter(offset: int) -> dict[str, Any]:
    return {**row(f"{offset}"), "letter": {"topic": "orders-dlq", "partition": 1, "offset": offset}}


def marking_shipment(rate: float = 0.0) -> Any:
    from pipeline.sending.marking import Marker, Marking
    from pipeline.sending.sending import Shipment

    return Shipment({}, "producer.0", "job/run/0", rate, Marker(Marking(MARKS, {"orders-dlq": "id"}), "job/run/0/0"))


def marked(broker: Broker, offsets: range) -> list[int]:
    """Offsets of the letters, among these, that readers of the marks take for sent."""
    marks = Marks()
    for sent in broker.committed:
        if sent.topic == MARKS:
            assert sent.partition == 0
            marks.apply(sent.key or b"", sent.value or b"")
    return [offset for offset in offsets if marks.find("id", Place("orders-dlq", 1, offset))]


def test_letters_are_marked_in_the_transaction_that_sends_them_and_no_others(broker: Broker) -> None:
    broker.refuses = lambda sent: KafkaError.MSG_SIZE_TOO_LARGE if sent.id in ("3", "17") else None
    states = ship([*map(letter, range(40)), {**letter(41), "refused": "no_target"}], marking_shipment())
    assert [id for id, (state, _) in states.items() if state != "sent"] == ["3", "17", "41"]
    assert marked(broker, range(50)) == [offset for offset in range(40) if offset not in (3, 17)]


def test_nothing_is_marked_of_what_was_not_acknowledged(broker: Broker) -> None:
    broker.acknowledges = False
    ship([letter(1)], marking_shipment())
    assert broker.committed == []


def test_later_marks_of_a_task_have_its_earlier_ones(broker: Broker) -> None:
    ship([letter(offset) for offset in (4_095, 4_096, 1, 0)], marking_shipment(rate=2.0))  # a transaction each
    assert marked(broker, range(5_000)) == [0, 1, 4_095, 4_096]
    assert len({sent.key for sent in broker.committed if sent.topic == MARKS}) == 2


def test_a_letter_that_cannot_be_marked_is_not_sent(broker: Broker) -> None:
    """Nobody would know of it."""
    broker.refuses = lambda sent: KafkaError.TOPIC_AUTHORIZATION_FAILED if sent.topic == MARKS else None
    states = ship([letter(1), letter(2)], marking_shipment())
    assert {state for state, _ in states.values()} == {"failed"}
    assert f"it can't be marked as sent in topic {MARKS}: " in (states["1"][1] or "")
    assert broker.committed == []


# --- where it goes --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.none() | st.binary(max_size=20), st.text(min_size=1, max_size=20)), max_size=20))
def test_a_row_goes_where_rest_sends_the_same_message(messages: list[tuple[bytes | None, str]]) -> None:
    """Else one that replaces, cancels or moves it by REST misses it, and both fire."""
    from pipeline.sending import sending

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sending, "Producer", Client)
        patched.setattr(Client, "broker", Broker(), raising=False)
        went = [one["partition"] for one in shipment().ship([row(id, key) for key, id in messages]).to_pylist()]
    by_rest = [Draft(id, key, b"v", [], {}).record("reminders", PARTITIONS, 0).partition for key, id in messages]
    assert went == by_rest


def test_a_row_may_say_its_partition_if_there_is_one(broker: Broker) -> None:
    said = {"a": 3, "b": PARTITIONS - 1, "c": PARTITIONS, "d": -1, "e": None}
    ship([{**row(id, None), "partition": partition} for id, partition in said.items()])
    by_id = [source_partition(None, id.encode(), PARTITIONS) for id in ("c", "d", "e")]
    assert [sent.partition for sent in broker.committed] == [3, PARTITIONS - 1, *by_id]


def test_a_row_may_say_its_time_and_without_one_it_is_now(broker: Broker) -> None:
    said = {"a": 1_763_720_000_000, "b": 0, "c": -1, "d": None}
    ship([{**row(id), "timestamp_ms": timestamp_ms} for id, timestamp_ms in said.items()])
    ship([row("e")])
    assert [sent.timestamp_ms for sent in broker.committed] == [1_763_720_000_000, 0, 0, 0, 0]


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
    state: Any = np.full(len(rows), 0x9747B28C ^ length, np.uint32)
    for start in range(0, length // 4 * 4, 4):
        block = np.ascontiguousarray(rows[:, start : start + 4]).view("<u4")[:, 0] * factor
        state = state * factor ^ (block ^ block >> np.uint32(24)) * factor
    for place in reversed(range(length % 4)):
        state ^= rows[:, length // 4 * 4 + place].astype(np.uint32) << np.uint32(8 * place)
    state = state * factor if length % 4 else state
    state = (state ^ state >> np.uint32(13)) * factor
    return (state ^ state >> np.uint32(15)) & np.uint32(0x7FFFFFFF)
