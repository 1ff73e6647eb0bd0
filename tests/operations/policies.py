"""Policies put, changed and deleted over replicas that come and go: nothing that the group has is left behind."""

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException

from policies.model import Policy
from sidecar.model.stats import Left
from sidecar.service.sources import LEFT_LOOKS, Sources
from tests.unit.policy_world import DELAY, table
from tests.unit.service.test_sources import Cluster, MemoryLeftovers, sources

TOPICS: Final = ("a", "b", "c", "a-dlq")
NAMES: Final = ("one", "two", "three")
STEPS: Final = 60
CALM_STEPS: Final = 4 * LEFT_LOOKS


class Replica:
    """One process, and what it consumes."""

    def __init__(self, operators: "Operators", setting: Collection[str]) -> None:
        self.cluster = Cluster(*TOPICS)
        self.cluster.leftovers = operators.leftovers
        self.setting = setting
        self.looking: Sources = sources(self.cluster, operators.table, sources=tuple(setting))

    def look(self, operators: "Operators") -> bool:
        """Housekeeping comes by; False: the brokers are away."""
        self.cluster.policies = operators.table
        with suppress(KafkaException):
            self.looking.look()
            return True
        return False

    @property
    def consumes(self) -> set[str]:
        return set(self.cluster.subscribed[-1]) if self.cluster.subscribed else set()

    @property
    def retired(self) -> frozenset[str]:
        return self.cluster.retired[-1] if self.cluster.retired else frozenset()


class Operators:
    """One run. `seen` counts what happened."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.leftovers = MemoryLeftovers(TOPICS)
        self.seen: Counter[str] = Counter()
        self.documents: dict[str, dict[str, Any]] = {}
        self.table = table()
        self.unread: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.begun: set[str] = set()  # the group has commits for them
        settings = self.rng.choice(((), (), ("a", "b")))
        self.replicas = [Replica(self, settings), Replica(self, () if not settings else ("c", "a-dlq"))]

    def run(self) -> None:
        """All of it, and the verdict."""
        for _ in range(STEPS):
            self.rng.choice((self._put, self._put, self._delete, self._send, self._send, self._send, self._restart))()
            self._drain(self.rng.choice((0, 0, 1, 3)))
            self._go_on(away=self.rng.random() < 0.1)
        for _ in range(CALM_STEPS):
            self._go_on(away=False)
            self._drain(1 << 30)
        left = {topic: count for topic in self.begun if (count := self.held[topic] + self.unread[topic])}
        assert not left, (
            f"left behind: {left}, policies {self.documents}, consumed {[r.consumes for r in self.replicas]}"
        )
        for replica in self.replicas:
            extra = replica.consumes - self._matched(replica)
            assert not extra, f"still consumed though nothing is left: {extra}"

    # --- what operators do ----------------------------------------------------------------------------------------

    def _put(self) -> None:
        name, rng = self.rng.choice(NAMES), self.rng
        document = {**DELAY, "name": name, "match": {"topics": rng.sample(TOPICS[:3], rng.randint(1, 2))}}
        if rng.random() < 0.2:
            document["dead_letter"] = {"topic": rng.choice(("a-dlq", "b"))}
        self._change({**self.documents, name: document})
        self.seen["put"] += 1

    def _delete(self) -> None:
        if self.documents:
            name = self.rng.choice(sorted(self.documents))
            self._change({one: document for one, document in self.documents.items() if one != name})
            self.seen["deleted"] += 1

    def _change(self, documents: dict[str, dict[str, Any]]) -> None:
        """As REST does: first it is asked what would be left behind."""
        replica = self.rng.choice(self.replicas)
        replica.cluster.away = False
        told = set(replica.looking.would_leave([Policy.model_validate(one) for one in documents.values()]))
        before = self._sources()
        self.documents, self.table = documents, table(*documents.values())
        left = {topic for topic in before - self._sources() if topic in self.leftovers.of(TOPICS)}
        assert told == left, f"told of {told}, and {left} is left behind"
        self.seen["something left behind"] += bool(left)

    def _restart(self) -> None:
        number = self.rng.randrange(len(self.replicas))
        self.replicas[number] = Replica(self, self.replicas[number].setting)
        self.seen["restarted"] += 1

    # --- what happens by itself -----------------------------------------------------------------------------------

    def _send(self) -> None:
        self.unread[self.rng.choice(TOPICS)] += self.rng.randint(1, 3)
        self._tell()

    def _drain(self, count: int) -> None:
        """Let up to `count` held records of each topic fall due, where a process consumes it."""
        for topic in {topic for replica in self.replicas for topic in replica.consumes}:
            self.held[topic] -= min(count, self.held[topic])
        self._tell()

    def _go_on(self, away: bool) -> None:
        for replica in self.replicas:
            replica.cluster.away = away
            if not replica.look(self):
                self.seen["brokers away"] += 1
                continue
            for topic in replica.consumes:
                self._read(replica, topic)
        self._tell()

    def _read(self, replica: Replica, topic: str) -> None:
        self.begun.add(topic)
        if topic in self._sources():
            self.held[topic] += self.unread[topic]
            assert topic not in replica.retired, f"{topic} has a policy, and is quarantined"
        elif self.unread[topic] and topic not in replica.setting:  # those are consumed, and decided, without any policy
            assert topic in replica.retired, f"{topic} has no policy, and what comes there is no quarantine's"
            self.seen["quarantined"] += 1
        self.unread[topic] = 0

    def _tell(self) -> None:
        """The brokers know what the group has of each topic that it has read."""
        self.leftovers.has = {topic: Left(self.held[topic], self.unread[topic]) for topic in self.begun}

    def _sources(self) -> set[str]:
        """Topics that policies match by name: each is meant, though another policy sends its dead letters there."""
        return {topic for document in self.documents.values() for topic in document["match"]["topics"]}

    def _matched(self, replica: Replica) -> set[str]:
        return set(replica.setting) or self._sources()
