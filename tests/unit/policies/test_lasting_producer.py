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
        self.waiting: list[str] = []
        self.polled = 0
        self.is_lost = False
        self.raises: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.waiting)

    def poll(self, _: float) -> int:
        self.polled += 1
        return 0

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
        assert self.made == [], "nobody has sent anything"
        assert self.lasting.current is self.made[0]

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


def test_one_that_rests_is_let_go_and_the_next_record_has_another() -> None:
    world = World()
    world.lasting.produce("a")
    assert not world.lasting.rest(3_600), "it was used just now"
    world.made[0].waiting.append("a")
    assert not world.lasting.rest(0), "nobody has answered yet"
    assert world.made[0].polled == 2, "a report that nobody took would keep it for ever"
    world.made[0].waiting.clear()
    assert world.lasting.rest(0)
    assert world.lasting.rest(0)
    world.lasting.poll(0)
    world.lasting.flush(0)
    assert len(world.made) == 1, "nothing is reported, so nobody is needed"
    world.lasting.produce("b")
    assert [one.taken for one in world.made] == [["a"], ["b"]]
    assert world.worn == []
