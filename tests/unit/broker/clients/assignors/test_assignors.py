"""The assignors on groups that can be worked out by hand; test_client_decisions compares them with Java's."""

from collections.abc import Iterable

import pytest

from broker.clients.assignors import range_assignor, round_robin_assignor, sticky_assignor
from broker.clients.assignors.assignor import Assign, Assignment, PartitionRacks, Subscription, Subscriptions
from broker.clients.assignors.java_hash import HashSet, hash_order, string_hash
from purgatory.log_offsets import TopicPartition

NOWHERE: frozenset[str] = frozenset()


def topics(**counts: int) -> PartitionRacks:
    return {name: [NOWHERE] * count for name, count in counts.items()}


def members(*names: str, wanted: Iterable[str]) -> Subscriptions:
    return {name: Subscription(tuple(wanted)) for name in names}


def names(assignment: Assignment) -> dict[str, str]:
    """Partitions as in Kafka's own documentation: a0 is partition 0 of topic a."""
    return {member: " ".join(f"{one.topic}{one.partition}" for one in had) for member, had in assignment.items()}


def after(assignment: Assignment, subscriptions: Subscriptions, generation: int = 1) -> Subscriptions:
    """Subscriptions of the members when they join the next generation, as those of both sticky protocols send them."""
    return {
        member: Subscription(
            one.topics,
            sticky_assignor.sticky_user_data(assignment[member], generation),
            assignment[member],
            generation,
        )
        for member, one in subscriptions.items()
    }


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    assignment = range_assignor.assign(topics(a=3, b=3), members("y", "x", wanted="ab"))
    assert names(assignment) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_range_reads_equal_numbers_next_to_a_replica() -> None:
    racks = [frozenset({"east"}), frozenset({"west"})]
    there = {"x": Subscription("ab", rack_id="west"), "y": Subscription("ab", rack_id="east")}
    assert names(range_assignor.assign({"a": racks, "b": racks}, there)) == {"x": "a1 b1", "y": "a0 b0"}


def test_round_robin_passes_over_members_that_do_not_want_a_topic() -> None:
    subscriptions = {"x": Subscription("a"), "y": Subscription("ab"), "z": Subscription("abc")}
    assignment = round_robin_assignor.assign(topics(a=1, b=2, c=3), subscriptions)
    assert names(assignment) == {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"}


def test_static_members_come_first_by_their_names() -> None:
    subscriptions = {"a": Subscription("t"), "z": Subscription("t", group_instance_id="1")}
    assert names(range_assignor.assign(topics(t=1), subscriptions)) == {"z": "t0", "a": ""}


@pytest.mark.parametrize("wanted", ["ab", "ba"])
def test_sticky_moves_only_what_it_must(wanted: str) -> None:
    three = members("x", "y", "z", wanted=wanted)
    before = sticky_assignor.assign(topics(a=4, b=5), three)
    assert sorted(len(had) for had in before.values()) == [3, 3, 3]
    left = {member: one for member, one in after(before, three).items() if member != "y"}
    now = sticky_assignor.assign(topics(a=4, b=5), left)
    assert all(set(before[member]) <= set(now[member]) for member in ("x", "z"))
    assert sorted(len(had) for had in now.values()) == [4, 5]


def test_sticky_gives_a_topic_to_the_one_that_wants_it_and_the_rest_to_the_other() -> None:
    subscriptions = {"x": Subscription("a"), "y": Subscription("ab")}
    assert names(sticky_assignor.assign(topics(a=2, b=2), subscriptions)) == {"x": "a0 a1", "y": "b0 b1"}


def test_a_partition_is_free_before_a_cooperative_member_gets_it() -> None:
    alone = members("x", wanted="a")
    first = after(sticky_assignor.assign_cooperatively(topics(a=4), alone), alone)
    both = {**first, **members("y", wanted="a")}
    second = sticky_assignor.assign_cooperatively(topics(a=4), both)
    assert names(second) == {"x": "a0 a1", "y": ""}
    third = sticky_assignor.assign_cooperatively(topics(a=4), after(second, both, 2))
    assert names(third) == {"x": "a0 a1", "y": "a2 a3"}


def test_who_was_away_loses_what_another_has_now() -> None:
    had = [TopicPartition("a", 0)]
    claims = {member: Subscription("a", None, had, generation) for member, generation in (("x", 1), ("y", 2))}
    assert names(sticky_assignor.assign_cooperatively(topics(a=1), claims)) == {"x": "", "y": "a0"}


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\1\0\1a\x7f\xff\xff\xff", b"\0\0\0\1\xff\xff"]
)
def test_user_data_that_is_none_says_nothing(data: bytes) -> None:
    assert sticky_assignor.sticky_member_data(Subscription("a", data)).partitions in ((), [])


@pytest.mark.parametrize(
    "assign",
    [
        range_assignor.assign,
        round_robin_assignor.assign,
        sticky_assignor.assign,
        sticky_assignor.assign_cooperatively,
    ],
)
def test_a_topic_that_is_not_there_is_nobodys(assign: Assign) -> None:
    assert assign({}, members("x", wanted="a")) == {"x": []}


def test_java_walks_its_tables_by_hash() -> None:
    assert [string_hash(text) for text in ("", "hello", "polygenelubricants")] == [0, 99162322, 0x80000000]
    assert hash_order(["b", "a", "q"]) == ["a", "q", "b"]  # 97, 113 and 98 in 16 buckets
    numbers = HashSet[int](lambda number: number)
    for number in (17, 16, 1):
        numbers.add(number)
    assert numbers.first() == 16
    for number in range(2, 12):  # twice as many buckets
        numbers.add(number)
    numbers.remove(16)
    assert numbers.first() == 1
