"""A ladder of retry topics is left as its page says, by the page's policy and programs: each order once, none lost."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest
import yaml
from confluent_kafka import OFFSET_STORED, Message, TopicPartition

from sidecar.model.partitioner import partition_of
from tests.integration.conftest import NewSite
from tests.migration_page import policy, programs, rungs
from tests.services.clients import consumer, producer
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, headers_of
from tests.services.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAITS_MS = (150, 300, 450)  # in place of the page's
POLL_S = 0.005
PARTITIONS = 2  # of `orders`
ALWAYS = 99
AT_ONCE = {"rate": 0, "watch": 0, "confirm_all": True}
INTERRUPTED = """
    if any(place.offset > 0 for place in offsets):
        producer.flush()
        consumer.close()
        os._exit(9)
    producer.commit_transaction()
"""

Forward = Callable[[Message, Callable[[Message], None], Any], None]


class Order(NamedTuple):
    """An order that fails so often, then succeeds; its value is its name."""

    name: str
    failures: int
    deliveries: int  # expected, until it is done or dead


ORDERS = {
    order.name.encode(): order
    for order in (
        # on the ladder alone
        Order("past fine", 0, 1),
        Order("past late", 3, 4),
        Order("past dead", ALWAYS, 4),
        # carried over: from the first topic, the second, the third
        *(Order(f"carried {n}", 3, 4) for n in range(6)),
        Order("carried dead", ALWAYS, 4),
        # while both run: to an old instance, to a new one, to both
        Order("old", 2, 3),
        Order("new", 3, 4),
        Order("new dead", ALWAYS, 4),
        Order("both", 3, 4),
        Order("both dead", ALWAYS, 5),  # counted by both: one attempt more
    )
}


class Shop:
    """Handling of orders, in whichever consumer, with counts of deliveries and of successes."""

    def __init__(self) -> None:
        self.delivered: Counter[bytes] = Counter()
        self.done: Counter[bytes] = Counter()
        self.is_mended = False

    def handle(self, record: Message) -> None:
        """Raises ConnectionError where the order fails."""
        name = record.value() or b""
        self.delivered[name] += 1
        if not self.is_mended and self.delivered[name] <= ORDERS[name].failures:
            raise ConnectionError("the warehouse does not answer")
        self.done[name] += 1


class Reader:
    """An instance of a consumer: reads its partitions from where its group has committed, a record at a time."""

    def __init__(
        self, site: Site, group: str, places: Sequence[tuple[str, int]], forward: Forward, wait_ms: int
    ) -> None:
        self._consumer = consumer(site.kafka.bootstrap, site.name(group))
        self._consumer.assign([TopicPartition(site.name(role), partition, OFFSET_STORED) for role, partition in places])
        self._producer = producer(site.kafka.bootstrap)
        self._forward = forward
        self._wait_ms = wait_ms
        self._next: Message | None = None

    def step(self, shop: Shop) -> bool:
        """Handle or forward one record, and commit it; False: none is there, or it isn't old enough."""
        if self._next is None:
            self._next = self._consumer.poll(POLL_S)
        record = self._next
        if record is None:
            return False
        assert record.error() is None, record.error()
        if now_ms() < record.timestamp()[1] + self._wait_ms:
            return False
        self._forward(record, shop.handle, self._producer)
        self._consumer.commit(message=record, asynchronous=False)
        self._next = None
        return True

    def close(self) -> None:
        """Leave what isn't committed to others."""
        self._consumer.close()


class Rehearsal:
    """The shop with its topics, before, during and after."""

    def __init__(self, site: Site, sidecar: Sidecar) -> None:
        self.site = site
        self.sidecar = sidecar
        self.shop = Shop()
        before, after, self._carry = (text.replace('"orders-', f'"{site.name("orders-")}') for text in programs())
        self._before, self._after = self._function(before), self._function(after)
        self.ladder = [
            Reader(site, "orders-ladder", [(rung.topic, 0)], self._before, wait_ms)
            for rung, wait_ms in zip(rungs(), WAITS_MS, strict=True)
        ]

    def old(self, *partitions: int) -> Reader:
        """An old instance of the consumer of `orders`."""
        return Reader(self.site, "shop", [("orders", partition) for partition in partitions], self._before, 0)

    def new(self, *partitions: int) -> Reader:
        """A new instance."""
        return Reader(self.site, "shop", [("orders", partition) for partition in partitions], self._after, 0)

    def send(self, name: str, partition: int, returns_to: int = 0) -> None:
        """Send the order; when it comes back, its key leads to `returns_to`."""
        key = next(key for n in count() if partition_of(key := b"%d" % n, PARTITIONS) == returns_to)
        self.site.kafka.produce(self.site.name("orders"), [(key, name.encode(), (), 0, partition)])

    def pump(self, readers: Sequence[Reader], until: Callable[[], bool]) -> None:
        """Let these work until the condition holds. AssertionError when it doesn't in time."""
        deadline_s = time.monotonic() + WAIT_S
        while not until():
            assert time.monotonic() < deadline_s, (self.shop.delivered, self.shop.done, self.sidecar.last_words())
            for reader in readers:
                reader.step(self.shop)

    def climb(self, reader: Reader, records: int) -> None:
        """Let a reader handle so many."""
        handled: list[bool] = []
        self.pump([], lambda: handled.append(reader.step(self.shop)) or sum(handled) == records)

    def carry(self, interrupted: bool = False) -> int:
        """Run the page's program; its exit status. `interrupted`: it ends before it commits what it has sent."""
        told = {
            self.site.name(rung.topic): (rung.failed, wait_ms) for rung, wait_ms in zip(rungs(), WAITS_MS, strict=True)
        }
        text, found = re.subn(r"^LADDER = \{.*?^\}$", f"LADDER = {told}", self._carry, flags=re.MULTILINE | re.DOTALL)
        assert found == 1
        if interrupted:
            assert text.count("\n    producer.commit_transaction()\n") == 1
            text = text.replace("\n    producer.commit_transaction()\n", INTERRUPTED)
        environment = {**os.environ, "TICKOVER_KAFKA__BOOTSTRAP_SERVERS": self.site.kafka.bootstrap}
        return subprocess.run([sys.executable, "-c", text], env=environment, timeout=WAIT_S, check=False).returncode

    def read(self, role: str) -> list[Message]:
        """All committed records of a topic."""
        return self.site.kafka.read_all(self.site.name(role))

    def dead(self) -> Counter[bytes | None]:
        """How often each order lies among the dead letters."""
        return Counter(letter.value() for letter in self.read("orders-dlq"))

    def lag(self) -> int:
        """Records that the ladder's group hasn't read."""
        with consumer(self.site.kafka.bootstrap, self.site.name("orders-ladder")) as asking:
            places = asking.committed([TopicPartition(self.site.name(rung.topic), 0) for rung in rungs()], WAIT_S)
            return sum(asking.get_watermark_offsets(place, WAIT_S)[1] - place.offset for place in places)

    def redrive(self) -> dict[str, Any]:
        """Plan and run over all letters, each where it belongs; the plan at its end."""
        asked = {"topic": self.site.name("orders-dlq"), **AT_ONCE}
        place = f"/v1/redrives/{self.sidecar.answer('POST', '/v1/redrives', json=asked).json()['id']}"
        self._until(place, "planned")
        assert self.sidecar.answer("POST", f"{place}/run").status_code == 202
        return self._until(place, "done")

    def _until(self, place: str, state: str) -> dict[str, Any]:
        seen: list[dict[str, Any]] = []
        wait_until(
            lambda: seen.append(self.sidecar.answer("GET", place).json()) or seen[-1]["state"] == state,
            otherwise=lambda: f"{seen[-1]} is not {state}",
        )
        return seen[-1]

    @staticmethod
    def _function(text: str) -> Forward:
        names: dict[str, Any] = {}
        exec(text, names)  # noqa: S102 - the page's own
        forward: Forward = names["handle_or_forward"]
        return forward


@pytest.fixture
def rehearsal(new_site: NewSite) -> Rehearsal:
    site = new_site()
    for role in ("orders-retry", "orders-dlq", *(rung.topic for rung in rungs())):
        site.topic(role)
    site.target("orders", PARTITIONS)
    document = policy()
    document["retry"]["backoff"]["delays"] = [f"{wait_ms}ms" for wait_ms in WAITS_MS]
    text = re.sub(r"\borders\b", "~orders", yaml.safe_dump({**document, "name": "retries"}))
    site.policies(text)
    sidecar = site.sidecar("one", REDRIVE__RAMP="0ms")
    sidecar.launch()  # it starts while the ladder still does all the work
    return Rehearsal(site, sidecar)


def test_a_ladder_is_left_and_each_order_is_done_once(rehearsal: Rehearsal) -> None:
    shop, ladder = rehearsal.shop, rehearsal.ladder
    old = rehearsal.old(0, 1)
    for name in ("past fine", "past late", "past dead"):
        rehearsal.send(name, partition=0)
    rehearsal.pump([old, *ladder], lambda: shop.delivered.total() == 1 + 4 + 4)
    [letter] = rehearsal.read("orders-dlq")
    assert [name for name, _ in headers_of(letter)] == ["x-failed", "x-error"]

    # What the cut-over finds on the ladder: records on each of its topics, and others that were handled there.
    for order in ORDERS.values():
        if order.name.startswith("carried"):
            rehearsal.send(order.name, partition=1)
    rehearsal.climb(old, 7)
    rehearsal.climb(ladder[0], 4)
    rehearsal.climb(ladder[1], 2)
    assert rehearsal.lag() == 7

    # Both in parallel: an old instance has partition 0, a new one partition 1.
    rehearsal.sidecar.wait_until_ready()
    old.close()
    old, new = rehearsal.old(0), rehearsal.new(1)
    rehearsal.send("old", partition=0)
    for name in ("new", "new dead"):
        rehearsal.send(name, partition=1, returns_to=1)
    for name in ("both", "both dead"):
        rehearsal.send(name, partition=1, returns_to=0)
    rehearsal.pump([old, new], lambda: shop.delivered[b"both"] == shop.delivered[b"both dead"] == 2)
    rehearsal.pump([old, new], lambda: shop.delivered[b"old"] == 1)
    assert rehearsal.lag() == 7 + 3

    # Cut-over.
    for reader in (old, new, *ladder):
        reader.close()
    new, before = rehearsal.new(0, 1), len(rehearsal.read("orders-retry"))
    assert rehearsal.carry(interrupted=True) == 9
    assert (rehearsal.carry(), rehearsal.lag()) == (0, 0)
    carried = rehearsal.read("orders-retry")[before:]
    attempts = Counter(value for record in carried for name, value in headers_of(record) if name == "tickover-attempt")
    assert attempts == {b"1": 3 + 3, b"2": 2, b"3": 2}
    dead = {order.name.encode() for order in ORDERS.values() if order.failures == ALWAYS}
    rehearsal.pump([new], lambda: len(shop.done) == len(ORDERS) - len(dead) and len(rehearsal.dead()) == len(dead))
    assert shop.delivered == {name: order.deliveries for name, order in ORDERS.items()}

    # Old letters and new ones go where they belong.
    shop.is_mended = True
    redriven = rehearsal.redrive()
    assert (redriven["sent"], redriven["targets"]) == (len(dead), {rehearsal.site.name("orders"): len(dead)})
    rehearsal.pump([new], lambda: len(shop.done) == len(ORDERS))
    assert shop.done == dict.fromkeys(ORDERS, 1)
    assert rehearsal.dead() == dict.fromkeys(dead, 1)
    on_the_ladder = 3 + 3 + 4 + 2  # deliveries of "past late", "past dead" and what climbed
    deliveries = sum(order.deliveries for order in ORDERS.values()) + len(dead)
    assert len(rehearsal.read("orders")) == deliveries - on_the_ladder
    assert rehearsal.site.kafka.read_all(rehearsal.site.quarantine) == []
