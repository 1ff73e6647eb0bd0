"""The reference clients decide as Java's do: for random groups that live through generations, and random keys."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from broker.clients import ASSIGNORS, Subscription, TopicPartition
from broker.clients.assignors import sticky_assignor
from broker.clients.assignors.assignor import Assignment
from broker.clients.assignors.java_hash import string_hash
from sidecar.model.partitioner import murmur2
from tests.services.client_decisions import Case, Decisions, ask_java
from tests.services.fixtures import missing

pytestmark = [pytest.mark.integration, pytest.mark.apart]

SEEDS: Final = 80  # groups of each assignor
GENERATIONS: Final = 5
KEYS: Final = 500
RACKS: Final = ("rack-a", "rack-b", "rack-c")
JAVA_GENERATION: Final = 7  # of the user data that Java is asked for


@dataclass
class Member:
    """Knowledge of a member between rebalances; `is_old`: a client that tells less."""

    topics: list[str]
    rack: str | None
    instance: str | None
    is_old: bool
    generation: int = -1
    assigned: list[TopicPartition] = field(default_factory=list)


class Group:
    """A random group: members come, go, sleep through generations, change what they want; topics come, go and grow."""

    def __init__(self, assignor: str, seed: int) -> None:
        self.assignor = assignor
        self.seed = seed
        self.chance = random.Random(f"{assignor} {seed}")
        self.has_racks = self.chance.random() < 0.5
        self.is_uniform = self.chance.random() < 0.5
        self.topics: dict[str, list[frozenset[str]]] = {}
        self.topics_ever = 0
        self.members: dict[str, Member] = {}
        for _ in range(self.chance.randint(1, 5)):
            self.add_topic()
        for _ in range(self.chance.randint(1, 8)):
            self.add_member()

    def racks(self) -> frozenset[str]:
        return frozenset(self.chance.sample(RACKS, self.chance.randint(1, 2))) if self.has_racks else frozenset()

    def add_topic(self) -> None:
        self.topics_ever += 1  # no name comes twice, with fewer partitions: then Java assigns some twice
        name = f"topic-{string_hash(str((self.topics_ever, self.seed)))}"
        self.topics[name] = [self.racks() for _ in range(self.chance.choice((1, 2, 3, 3, 6, 9)))]

    def wanted(self) -> list[str]:
        everything = [*self.topics, "nowhere"]
        return (
            everything if self.is_uniform else self.chance.sample(everything, self.chance.randint(1, len(everything)))
        )

    def add_member(self) -> None:
        number = self.chance.randrange(1 << 32)
        rack = self.chance.choice((*RACKS, None)) if self.has_racks else None
        instance = f"instance-{number}" if self.chance.random() < 0.2 else None
        self.members[f"consumer-{number:x}"] = Member(self.wanted(), rack, instance, self.chance.random() < 0.1)

    def change(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            match self.chance.randrange(5):
                case 0:
                    self.add_member()
                case 1 if len(self.members) > 1:
                    del self.members[self.chance.choice(list(self.members))]
                case 2:
                    self.add_topic()
                case 3 if len(self.topics) > 1:
                    del self.topics[self.chance.choice(list(self.topics))]
                case _:
                    grown = self.topics[self.chance.choice(list(self.topics))]
                    grown += [self.racks() for _ in range(self.chance.randint(1, 3))]
        for member in self.members.values():
            if self.is_uniform or self.chance.random() < 0.3:
                member.topics = self.wanted()

    def subscription(self, member: Member) -> Subscription:
        about: dict[str, Any] = {"rack_id": member.rack, "group_instance_id": member.instance}
        match self.assignor:
            case sticky_assignor.NAME if member.generation >= 0:
                data = sticky_assignor.sticky_user_data(member.assigned, member.generation)
                return Subscription(member.topics, data[:-4] if member.is_old else data, **about)
            case sticky_assignor.COOPERATIVE_NAME:
                data = sticky_assignor.cooperative_user_data(member.generation)
                told = -1 if member.is_old else member.generation
                return Subscription(member.topics, data, member.assigned, told, **about)
        return Subscription(member.topics, **about)

    def generations(self) -> Iterator[Case]:
        """Each with what the members know of our assignment of the generation before."""
        for generation in range(GENERATIONS):
            order = self.chance.sample(list(self.members), len(self.members))
            subscriptions = {name: self.subscription(self.members[name]) for name in order}
            case = Case(self.assignor, {name: list(racks) for name, racks in self.topics.items()}, subscriptions)
            yield case
            assignment = decide(case)
            for name, assigned in assignment.items():
                if self.chance.random() < 0.85:  # else it sleeps, and still believes what it had
                    self.members[name].assigned = assigned
                    self.members[name].generation = generation
            self.change()


def decide(case: Case) -> Assignment:
    return ASSIGNORS[case.assignor](case.partitions, case.subscriptions)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case for name in ASSIGNORS for seed in range(SEEDS) for case in Group(name, seed).generations()]


@pytest.fixture(scope="module")
def keys() -> list[bytes]:
    chance = random.Random(1)
    return [b"", *(chance.randbytes(chance.randint(1, 40)) for _ in range(KEYS))]


@pytest.fixture(scope="module")
def decisions(cases: list[Case], keys: list[bytes]) -> Decisions:
    try:
        return ask_java(cases, keys)
    except LookupError as error:
        missing("Java's clients", error)
        raise


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_partitions_go_to_the_same_members(assignor: str, cases: list[Case], decisions: Decisions) -> None:
    of_one = [number for number, case in enumerate(cases) if case.assignor == assignor]
    compared = [number for number in of_one if decisions.assignments[number] is not None]
    for number in compared:
        assert decide(cases[number]) == decisions.assignments[number], cases[number]
    assert len(of_one) == SEEDS * GENERATIONS
    assert len(compared) > 0.99 * len(of_one)  # Java's sticky assignor throws now and then


def test_members_of_sticky_groups_say_the_same_of_what_they_have(cases: list[Case], decisions: Decisions) -> None:
    compared = 0
    for case, javas, said in zip(cases, decisions.assignments, decisions.user_data, strict=True):
        if javas is not None:
            assigned = javas[next(iter(case.subscriptions))]
            compared += said is not None
            match case.assignor:
                case sticky_assignor.NAME:
                    assert said == sticky_assignor.sticky_user_data(assigned, JAVA_GENERATION)
                case sticky_assignor.COOPERATIVE_NAME:
                    assert said == sticky_assignor.cooperative_user_data(JAVA_GENERATION)
                case _:
                    assert said is None
    assert compared


def test_keys_have_the_same_hash(keys: list[bytes], decisions: Decisions) -> None:
    assert [murmur2(key) for key in keys] == decisions.hashes
