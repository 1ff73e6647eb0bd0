"""One transaction: who is at fault where it fails, and the question before its commit."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.operations.jobs import transactional_sender
from sidecar.operations.jobs.transactional_sender import (
    LOOK_S,
    NoTransactions,
    OutgoingRecord,
    Refused,
    ShipmentFailed,
    TakenOver,
    TransactionalSender,
    Unanswered,
    Unfinished,
)

PARCELS = [OutgoingRecord(target, b"k", b"v") for target in ("well", "silent", "well")]
FACT = [OutgoingRecord("topic", b"p/progress", b"{}")]


class Client:
    """confluent-kafka's producer, as far as it is used."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.silent: set[str] = set()
        self.errors: dict[str, int] = {}
        self.ends: list[str] = []
        self.fails: dict[str, int] = {}
        self.passing: list[int] = []  # errors of the next tries to begin, by which it may be tried again
        self.seconds: list[float] = []  # given to each of them

    def begin_transaction(self) -> None: ...

    def init_transactions(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._end("init")

    def commit_transaction(self, _: float) -> None:
        self._end("commit")

    def abort_transaction(self, _: float) -> None:
        self._end("abort")

    def produce(self, topic: str, *_: Any, on_delivery: Any, headers: Any) -> None:
        error = KafkaError(self.errors[topic]) if topic in self.errors else None
        message = SimpleNamespace(offset=lambda: 7)
        self.waiting.append((lambda: None) if topic in self.silent else lambda: on_delivery(error, message))

    def poll(self, _: float) -> None:
        for report in self.waiting:
            report()
        if not self.silent:
            self.waiting.clear()

    def __len__(self) -> int:
        return len(self.waiting)

    def _end(self, how: str) -> None:
        self.ends.append(how)
        if how == "init" and self.passing:
            raise KafkaException(KafkaError(self.passing.pop(0), "not yet", retriable=True))
        if how in self.fails:
            raise KafkaException(KafkaError(self.fails[how]))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def pen(client: Client, monkeypatch: pytest.MonkeyPatch) -> TransactionalSender:
    monkeypatch.setattr(transactional_sender, "Producer", lambda _: client)
    return TransactionalSender({}, "id", "topic")


def test_what_is_not_acknowledged_in_time_is_named_and_nothing_of_it_is_sent(
    pen: TransactionalSender, client: Client
) -> None:
    client.silent = {"silent"}
    with pytest.raises(Unanswered) as caught:
        pen.write(PARCELS, FACT, seconds=0.01)
    assert caught.value.indexes == {1}
    assert client.ends == ["abort"]


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS])
def test_so_is_what_a_partition_can_not_take_now_also_where_it_can_not_be_aborted(
    pen: TransactionalSender, client: Client, code: int
) -> None:
    client.errors = {"silent": code}
    client.fails = {"abort": KafkaError._TIMED_OUT}
    with pytest.raises(Unanswered) as caught:
        pen.write(PARCELS, FACT)
    assert caught.value.indexes == {1}


def test_a_record_that_is_refused_beside_a_silent_one_is_refused(pen: TransactionalSender, client: Client) -> None:
    client.errors = {"silent": KafkaError._MSG_TIMED_OUT, "well": KafkaError.MSG_SIZE_TOO_LARGE}
    with pytest.raises(Refused) as caught:
        pen.write(PARCELS, FACT)
    assert caught.value.codes.keys() == {0, 2}


def test_it_is_asked_when_all_is_acknowledged_and_before_the_commit(pen: TransactionalSender, client: Client) -> None:
    asked: list[tuple[int, list[str]]] = []
    pen.write(PARCELS, FACT, lambda: asked.append((len(client), list(client.ends))))
    assert asked == [(0, [])]
    assert client.ends == ["commit"]


def test_who_is_told_no_commits_nothing(pen: TransactionalSender, client: Client) -> None:
    def refuse() -> None:
        raise TakenOver

    client.fails = {"abort": KafkaError._TIMED_OUT}
    with pytest.raises(TakenOver):
        pen.write(PARCELS, FACT, refuse)
    assert client.ends == ["abort"]


@pytest.mark.parametrize(
    ("code", "kind"), [(KafkaError.CONCURRENT_TRANSACTIONS, Unfinished), (KafkaError._TIMED_OUT, ShipmentFailed)]
)
def test_an_id_whose_last_transaction_has_not_ended_is_told_from_brokers_that_are_away(
    pen: TransactionalSender, client: Client, code: int, kind: type[Exception]
) -> None:
    client.fails = {"init": code}
    with pytest.raises(ShipmentFailed) as caught:
        pen.init(1.0)
    assert type(caught.value) is kind


@pytest.mark.parametrize("code", [KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE])
def test_brokers_without_transactions_are_found_out_soon(pen: TransactionalSender, client: Client, code: int) -> None:
    client.passing = [code]
    with pytest.raises(NoTransactions, match="schedules, redrives and changes"):
        pen.init(30.0)
    assert client.seconds == [LOOK_S]


def test_brokers_that_do_not_answer_yet_are_asked_for_as_long_as_was_said(
    pen: TransactionalSender, client: Client
) -> None:
    client.passing = [KafkaError._TIMED_OUT, KafkaError.CONCURRENT_TRANSACTIONS]
    pen.init(30.0)
    assert len(client.seconds) == 3
    client.passing = [KafkaError._TIMED_OUT]
    with pytest.raises(ShipmentFailed):
        pen.init(0.0)
