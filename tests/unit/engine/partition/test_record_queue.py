"""Queues of records that no wheel has, and what they take."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.partition.exits import dead
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.record_queue import KeyedQueues, RecordQueue, size_of, topic_of
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import AwaitingTarget, Held, Position, TopicPartition

LANES = [
    SourcePartition(TopicPartition("in", number), Wheel(0, 1), PromotionWindows(Position(0, 0))) for number in range(2)
]


def held(offset: int, target: str = "mail") -> Held:
    headers: list[tuple[str, bytes | None]] = [("name", b"four"), ("null", None)]
    return Held(0, offset, target, -1, None, bytes(offset), headers, "p@1", None, 0, -1, [], -1, "", offset + 12)


def test_a_parcel_takes_its_key_value_and_headers_however_it_leaves() -> None:
    record = held(1_000)
    assert size_of(record) == size_of(AwaitingTarget(record, [])) == 1_012
    departure = dead(LANES[0], record, "dead", "expired")
    assert size_of(departure) == 1_000 + sum(len(name) + len(value or b"") for name, value in departure.headers)


@given(st.lists(st.one_of(st.integers(0, 100), st.sampled_from(["pop", "drop"]))))
def test_a_queue_knows_what_all_in_it_take(steps: list[int | str]) -> None:
    queue = RecordQueue()
    model: list[tuple[SourcePartition, Held]] = []
    for step in steps:
        if step == "drop":
            queue, model = queue.without({LANES[0]}), [item for item in model if item[0] is not LANES[0]]
        elif step == "pop":
            if model:
                assert queue.first == model[0]
                assert queue.popleft() == model.pop(0)
        else:
            assert isinstance(step, int)
            model.append((LANES[step % 2], held(step)))
            queue.append(*model[-1])
        assert list(queue) == model
        assert (len(queue), queue.bytes) == (len(model), sum(record.size for _, record in model))


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from(["mail", "push", "serve mail", "serve push", "drop"]))))
def test_each_has_a_queue_of_its_own_and_they_take_turns(steps: list[tuple[int, str]]) -> None:
    queues: KeyedQueues[str] = KeyedQueues()
    model: dict[str, list[tuple[SourcePartition, Held]]] = {}
    for number, step in steps:
        if step == "drop":
            queues.drop({LANES[0]})
            kept = {topic: [item for item in items if item[0] is not LANES[0]] for topic, items in model.items()}
            model = {topic: items for topic, items in kept.items() if items}
        elif step.startswith("serve"):
            topic = step.split()[1]
            queue, items = queues.pop(topic), model.pop(topic, [])
            assert list(queue) == items
            late = (LANES[0], held(number, topic))
            queues.append(topic, *late)
            queues.put_back(topic, queue)
            model[topic] = [*items, late]
        else:
            queues.append(step, LANES[number % 2], held(number, step))
            model.setdefault(step, []).append((LANES[number % 2], held(number, step)))
        records = [record for items in model.values() for _, record in items]
        assert list(queues.names) == list(model)
        assert (len(queues), queues.bytes) == (len(records), sum(record.size for record in records))
        assert all(topic in queues for topic in map(topic_of, records))
        assert bool(queues) == bool(records)
