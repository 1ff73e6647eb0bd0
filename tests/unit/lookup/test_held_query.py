"""The order of held records over partitions and replicas, and how answers become a page."""

from typing import Any

from policies.headers import OFFSET_MAX
from sidecar.lookup.query import START, Answer, Key, after_in, key_of, merged
from sidecar.model.record import Position, TopicPartition

ONE, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)


def row(lane: TopicPartition, due_ms: int, tier: str = "wheel") -> dict[str, Any]:
    return {"due": due_ms, "tier": tier, "position": {"topic": lane.topic, "partition": lane.partition, "offset": 1}}


def answer(lane: TopicPartition, *dues_ms: int, reach: Key | None = None, tier: str = "wheel") -> Answer:
    rows = []
    for due_ms in dues_ms:
        rows.append(row(lane, due_ms, tier))
        rows[-1]["position"]["offset"] = due_ms
    return Answer([lane], rows, reach, {}, [0])


def dues_of(rows: list[dict[str, Any]]) -> list[int]:
    return [each["due"] for each in rows]


def test_a_page_ends_where_the_first_replica_stopped_looking() -> None:
    stopped = Key(30, *OTHER, 30)
    rows, following = merged([answer(ONE, 10, 20, 40), answer(OTHER, 15, reach=stopped)], 10)
    assert dues_of(rows) == [10, 15, 20], "40 would be before what the other may still have"
    assert following == stopped


def test_a_full_page_goes_on_behind_its_last_row() -> None:
    rows, following = merged([answer(ONE, 10, 20, 40), answer(OTHER, 15, reach=Key(99, *OTHER, 1))], 2)
    assert (dues_of(rows), following) == ([10, 15], Key(15, *OTHER, 15))


def test_the_end_is_where_all_replicas_are() -> None:
    assert merged([answer(ONE, 10), answer(OTHER)], 10)[1] is None
    assert merged([], 10) == ([], None)


def test_a_record_in_two_answers_comes_once_from_the_wheel() -> None:
    for answers in (
        [answer(ONE, 10, tier="overflow"), answer(ONE, 10)],
        [answer(ONE, 10), answer(ONE, 10, tier="overflow")],
    ):
        rows, _ = merged(answers, 10)
        assert [each["tier"] for each in rows] == ["wheel"]


def test_every_place_is_behind_or_before_a_position_of_any_lane() -> None:
    for key in (START, Key(5, "a", 0, 7), Key(5, "b", 3, 0)):
        for lane in (ONE, OTHER, TopicPartition("b", 3)):
            after = after_in(lane, key)
            assert key_of(lane, after) <= key or after.offset in (-1, OFFSET_MAX)
            for position in (Position(4, OFFSET_MAX), Position(5, 0), Position(5, 7), Position(5, 8), Position(6, 0)):
                assert (position > after) == (key_of(lane, position) > key), (key, lane, position)
