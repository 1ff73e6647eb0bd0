"""Traffic through a site, and the oracle that knows what must come of every record of it.

What is sent is known to the byte and to the millisecond, so each record that arrives is right, or it is one of:

    lost        sent, acknowledged, and never arrived
    early       appended to its target by the broker before it was due
    changed     another key, value, header, or place than it must have
    repeated    arrived again
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple
from weakref import WeakSet

from confluent_kafka import Message, TopicPartition

from tests.services.clients import consumer, producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Headers
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, headers_of
from tests.services.waiting import wait_until

POLICIES: Final = """
name: load
match: {topics: ["~load"]}
delay: {max: 1h}
target: {topic: ~load-out}
---
name: work
match: {topics: ["~work-retry"]}
retry: {attempts: 5, backoff: {kind: list, delays: [300ms, 1500ms]}}
target: {topic: ~work}
"""
TARGETS: Final = ("load-out", "work")
DELAY_MAX_MS: Final = 4_000
RETRY_SHARE: Final = 0.1
INTERVAL_S: Final = 0.02
FLUSH_S: Final = 0.2
BEHIND_S: Final = 30.0  # of sending: with more to catch up, nothing is sent until there is less
SILENT_S: Final = 60.0  # a backlog takes as long as the machine needs, but while there is one something arrives
BACKLOG_S: Final = 600.0


class Expected(NamedTuple):
    """Message that must arrive for one record; the origin's offset is known when the source has it."""

    topic: str
    key: bytes | None
    value: bytes | None
    due_ms: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class Verdict:
    """The oracle's figures."""

    sent: int
    arrived: int
    lost: int
    early: int
    changed: int
    repeated: int
    late_ms_median: int
    late_ms_most: int
    faults: tuple[str, ...]  # the first few, for people

    def __str__(self) -> str:
        return (
            f"sent {self.sent:,}, arrived {self.arrived:,}: lost {self.lost}, early {self.early}, "
            f"changed {self.changed}, repeated {self.repeated}; late by {self.late_ms_median} ms in the median, "
            f"{self.late_ms_most} ms at most"
        )


class Traffic:
    """Sends on one thread and watches the targets on another, from `start` to `verdict`, or to `close`."""

    known: ClassVar["WeakSet[Traffic]"] = WeakSet()  # all: what a failed test has left flowing is ended after it

    # tidy: what flows where, and by what clients
    def __init__(
        self,
        site: Site,
        partitions: int,
        rate: int,
        seed: int = 1,
        delay_max_ms: int = DELAY_MAX_MS,
        client: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.expected: dict[int, Expected] = {}
        self.counts: Counter[int] = Counter()
        self.arrived = 0
        self._site = site
        self._partitions = partitions
        self._per_interval = int(rate * INTERVAL_S)
        self._outstanding_max = rate * (delay_max_ms / 1_000 + BEHIND_S)
        self._random = random.Random(seed)
        self._delay_max_ms = delay_max_ms
        self._offsets: dict[int, bytes] = {}
        self._unproven: set[int] = set()  # reported as written, at no offset: some are nowhere
        self._origins: Counter[tuple[int, bytes | None]] = Counter()  # perhaps before the sender's own report
        self._lates_ms: list[int] = []
        self._early = self._changed = 0
        self._faults: list[str] = []
        self._failure: BaseException | None = None
        self._places = [TopicPartition(site.name(role), partition, 0) for role in TARGETS for partition in range(2)]
        self._quiet = threading.Event()
        self._over = threading.Event()
        self._producer = producer(site.kafka.bootstrap, linger_ms=5, **client)
        self._consumer = consumer(site.kafka.bootstrap, f"{site.group}-oracle", fetch_wait_max_ms=20, **client)
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._watcher = threading.Thread(target=self._watch_all, daemon=True)
        Traffic.known.add(self)

    @staticmethod
    def prepare(site: Site, partitions: int, more_policies: str = "") -> None:
        """Make the topics and the policies."""
        site.topic("load", partitions)
        site.topic("work-retry", partitions)
        for role in TARGETS:
            site.target(role, 2)
        site.policies(POLICIES + more_policies)

    # --- sending --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let it flow."""
        self._consumer.assign(self._places)
        self._sender.start()
        self._watcher.start()

    def _send_all(self) -> None:
        next_s = time.monotonic()
        while not self._quiet.wait(max(0.0, next_s - time.monotonic())):
            next_s += INTERVAL_S
            if self.outstanding < self._outstanding_max:
                for _ in range(self._per_interval):
                    self._send(len(self.expected))
            self._producer.poll(0)
        while len(self._producer) and not self._over.is_set():
            self._producer.flush(FLUSH_S)

    def _send(self, number: int) -> None:
        chance, sent_ms = self._random, now_ms()
        key = b"key %d" % (number % 50) if number % 7 else None
        value = b"%d " % number + chance.randbytes(chance.randrange(200))
        mine: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("twice", None), ("twice", b"\xff")]
        if chance.random() < RETRY_SHARE:
            failed = chance.randint(1, 3)
            due_ms = sent_ms + (300 if failed == 1 else 1_500)
            role, target, policy = "work-retry", "work", "work@1"
            errors = [("tickover-error-class", b"Oops")]
            asked = [*mine, ("tickover-attempt", b"%d" % failed), *errors]
            counted = [("tickover-attempt", b"%d" % (failed + 1)), ("tickover-first-failure", b"%d" % sent_ms)]
            tail = [*counted, *errors]
        else:
            delay_ms = chance.randint(0, self._delay_max_ms)
            due_ms = sent_ms + delay_ms
            role, target, policy = "load", "load-out", "load@1"
            asked, tail = [*mine, ("tickover-delay", b"%dms" % delay_ms)], []
        own = [("tickover-due", b"%d" % due_ms), ("tickover-policy", policy.encode())]
        self.expected[number] = Expected(self._site.name(target), key, value, due_ms, [*mine, *own, *tail])

        def report(error: object, message: Message, number: int = number) -> None:
            assert error is None, error
            self._acknowledge(number, message)

        self._producer.produce(
            self._site.name(role), value, key, chance.randrange(self._partitions), report, None, sent_ms, list(asked)
        )

    def _acknowledge(self, number: int, message: Message) -> None:
        if message.offset() is None:
            self._unproven.add(number)
        self._offsets[number] = f"{message.topic()}/{message.partition()}/{message.offset()}".encode()

    # --- watching -------------------------------------------------------------------------------------------------

    def _watch_all(self) -> None:
        try:
            while not self._over.is_set():
                for message in self._consumer.consume(500, 0.05):
                    self._see(message)
        except BaseException as error:
            self._failure = error
            raise

    def _see(self, message: Message) -> None:
        assert message.error() is None, message.error()
        headers = headers_of(message)
        number = int(dict(headers)["n"] or b"-1")
        expected = self.expected[number]
        self.counts[number] += 1
        self.arrived += 1
        appended_ms = message.timestamp()[1]
        self._lates_ms.append(appended_ms - expected.due_ms)
        if appended_ms < expected.due_ms:
            self._early += 1
            self._note(f"{number} is {expected.due_ms - appended_ms} ms early")
        found = Expected(
            message.topic() or "", message.key(), message.value(), expected.due_ms,
            [header for header in headers if header[0] != "tickover-origin"],
        )  # fmt: skip
        self._origins[number, dict(headers)["tickover-origin"]] += 1
        if found != expected:
            self._changed += 1
            self._note(f"{number} is {found}, not {expected}")

    def _note(self, fault: str) -> None:
        if len(self._faults) < 20:
            self._faults.append(fault)

    @property
    def outstanding(self) -> int:
        """Records sent that have not arrived: those not yet due, and a backlog if there is one."""
        return len(self.expected) - len(self.counts)

    @property
    def repeated(self) -> int:
        """Arrivals so far of records that had arrived before. One that the sender's client wrote twice is two."""
        return self.arrived - len(self._origins)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End both threads, whatever has arrived. Twice is harmless, as it is after `verdict`."""
        self._quiet.set()
        self._over.set()
        for thread in (self._sender, self._watcher):
            if thread.is_alive():
                thread.join(ANSWER_TIMEOUT_S)

    def quieten(self) -> None:
        """Send no more, and wait until everything sent has arrived; what hasn't when nothing comes any more is lost."""
        self._quiet.set()
        self._sender.join(ANSWER_TIMEOUT_S)
        last, last_s = self.arrived, time.monotonic()

        def is_over() -> bool:
            nonlocal last, last_s
            if self.arrived != last:
                last, last_s = self.arrived, time.monotonic()
            return not self.outstanding or time.monotonic() > last_s + SILENT_S or bool(self._failure)

        wait_until(is_over, BACKLOG_S, lambda: f"{self.outstanding} of {len(self.expected)} are still on their way")

    def verdict(self) -> Verdict:
        """Read every target to its end, and judge. Call it when no sidecar runs any more."""
        self._over.set()
        self._watcher.join(ANSWER_TIMEOUT_S)
        wait_until(self._reads_to_the_end, ANSWER_TIMEOUT_S, lambda: "the targets are not read to their end")
        self._consumer.close()
        assert self._failure is None, self._failure
        known = self._places_in_sources()
        lost = [number for number in self.expected if number not in self.counts]
        for number in lost[:10]:
            self._note(f"{number} of {self._offsets[number]!r} is lost; due {self.expected[number].due_ms}")
        for number, origin in self._origins.keys() - known:
            self._changed += 1
            self._note(f"{number} comes from {self._offsets[number]!r}, not from {origin!r}")
        lates_ms = sorted(self._lates_ms)
        return Verdict(
            sent=len(self.expected),
            arrived=self.arrived,
            lost=len(lost),
            early=self._early,
            changed=self._changed,
            repeated=self.repeated,
            late_ms_median=lates_ms[len(lates_ms) // 2],
            late_ms_most=lates_ms[-1],
            faults=tuple(self._faults),
        )

    def _places_in_sources(self) -> set[tuple[int, bytes | None]]:
        """Where each record is. Looked up for those that the sender's client wrote without knowing where, and those it
        wrote twice: it does so when it loses the answer of a leader that goes. What is nowhere counts as not sent.
        """
        places: set[tuple[int, bytes | None]] = set(self._offsets.items())
        if not self._unproven and self._origins.keys() <= places:
            return places
        for role in ("load", "work-retry"):
            for message in self._site.kafka.read_all(self._site.name(role)):
                number = int(dict(headers_of(message))["n"] or b"-1")
                places.add((number, f"{message.topic()}/{message.partition()}/{message.offset()}".encode()))
                self._unproven.discard(number)
        for number in self._unproven:
            del self.expected[number]
        return places

    def _reads_to_the_end(self) -> bool:
        for message in self._consumer.consume(500, 0.05):
            self._see(message)
        return all(
            place.offset >= self._consumer.get_watermark_offsets(place, ANSWER_TIMEOUT_S)[1]
            for place in self._consumer.position(self._places)
        )
