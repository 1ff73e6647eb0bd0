"""Reading topics beside the engine, with a consumer that gives what the test wants."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.kafka.errors import READING_PASSES
from sidecar.kafka.topic_follower import LogUnavailable, position_after, read


def message(offset: int, code: int | None = None) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(error=lambda: error, offset=lambda: offset)


class Consumer:
    """Gives these batches, then nothing."""

    def __init__(self, *batches: list[Any]) -> None:
        self._batches = list(batches)

    def assign(self, _: Any) -> None: ...

    def unassign(self) -> None: ...

    def poll(self, _: float) -> Any:
        return self._batches[0].pop(0) if self._batches else None

    def consume(self, _: int, seconds: float) -> list[Any]:
        assert seconds == 0, "a wait would be for a whole batch"
        return self._batches.pop(0)


def offsets(consumer: Consumer, end: int) -> list[int]:
    batches = read(consumer, ("topic", 0), 0, end)  # type: ignore[arg-type]
    return [one.offset() or 0 for messages in batches for one in messages]


def test_a_reader_goes_on_behind_a_record_and_at_the_end_that_it_has_come_to() -> None:
    assert position_after(message(7)) == 8
    assert position_after(message(9, KafkaError._PARTITION_EOF)) == 9


@pytest.mark.parametrize("code", sorted(READING_PASSES))
def test_what_the_client_mends_moves_no_reader(code: int) -> None:
    assert position_after(message(-1001, code)) is None


def test_what_the_client_does_not_mend_is_raised() -> None:
    with pytest.raises(KafkaException):
        position_after(message(-1001, KafkaError.TOPIC_AUTHORIZATION_FAILED))


def test_reading_ends_where_only_marks_of_transactions_are_left() -> None:
    passing, end = message(-1001, KafkaError._TRANSPORT), message(9, KafkaError._PARTITION_EOF)
    assert offsets(Consumer([message(0), passing], [message(4)], [end]), 9) == [0, 4]


def test_what_came_later_is_not_read_and_an_error_is_told() -> None:
    assert offsets(Consumer([message(0), message(5)]), 3) == [0]
    with pytest.raises(LogUnavailable):
        offsets(Consumer([message(0, KafkaError.TOPIC_AUTHORIZATION_FAILED)]), 3)
