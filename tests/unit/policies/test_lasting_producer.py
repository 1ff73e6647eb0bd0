"""A producer that is made anew after a fatal error, however many threads meet that error."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from policies.kafka_clients import LastingProducer

FATAL = KafkaException(KafkaError(KafkaError._FATAL))


class Producer:
    """Takes records, or raises; `meanwhile` is called first, as another thread might."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.raises: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def produce(self, record: str) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        if self.raises is not None:
            raise self.raises
        self.taken.append(record)


class World:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self.worn: list[Any] = []
        self.lasting = LastingProducer(self._make, lambda worn, _: self.worn.append(worn))

    def _make(self) -> Any:
        self.made.append(Producer())
        return self.made[-1]


def test_who_meets_a_fatal_error_sends_with_another() -> None:
    world = World()
    world.made[0].raises = FATAL
    for record in ("a", "b"):
        world.lasting.produce(record)
    assert [one.taken for one in world.made] == [[], ["a", "b"]]
    assert world.worn == world.made[:1]


def test_threads_that_meet_one_error_make_one_producer() -> None:
    world = World()
    world.made[0].raises = FATAL
    world.made[0].meanwhile = lambda: world.lasting.produce("b")
    world.lasting.produce("a")
    assert [one.taken for one in world.made] == [[], ["b", "a"]]
    assert world.worn == world.made[:1]


@pytest.mark.parametrize("error", [BufferError(), KafkaException(KafkaError(KafkaError._QUEUE_FULL))])
def test_an_error_that_passes_is_told_and_the_producer_stays(error: Exception) -> None:
    world = World()
    world.made[0].raises = error
    with pytest.raises(type(error)):
        world.lasting.produce("a")
    assert world.lasting.current is world.made[0]
    assert world.worn == []
