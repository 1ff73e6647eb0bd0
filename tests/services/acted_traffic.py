"""Messages that are acted on while they are held, and the oracle that knows what must become of each.

    nothing asked           emitted when due
    cancelled               never emitted
    moved                   emitted once, when the control record says
    asked too late          emitted when first due, and the action found nothing

Which of them it was is the ledger's to say, and the targets must agree with it.
"""

import random
import threading
import time
from collections import defaultdict
from heapq import heappop, heappush
from typing import Final, NamedTuple

from confluent_kafka import Message

from sidecar.ledger.block import decode
from sidecar.model.record import Outcome
from tests.services.clients import producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Headers
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, headers_of

POLICY: Final = """
---
name: acted
match: {topics: ["~acted"]}
delay: {max: 1h}
target: {topic: ~acted-out}
"""
DELAY_MAX_MS: Final = 4_000
ACTED_SHARE: Final = 0.6
ACTIONS: Final = ("cancel", "reschedule", "fire")
INTERVAL_S: Final = 0.05
FLUSH_S: Final = 0.2
TURN_MAX_MS: Final = 2_000  # `fire` means the time of the turn that reads it, which may begin before it was sent

Place = tuple[str, int, int]  # topic, partition, offset


class Said(NamedTuple):
    """Outcome of an offset by the ledger, and which other offset had to do with it; -1: none."""

    outcome: Outcome
    related: int


class _Message(NamedTuple):
    partition: int
    due_ms: int


class _Action(NamedTuple):
    action: str
    sent_ms: int
    due_ms: int  # of a reschedule


class ActedTraffic:
    """Sends on a thread of its own; judged from the topics when no sidecar runs any more."""

    def __init__(self, site: Site, partitions: int, rate: int, seed: int = 1) -> None:
        self._site = site
        self._partitions = partitions
        self._per_interval = max(int(rate * INTERVAL_S), 1)
        self._random = random.Random(seed)
        self._messages: dict[int, _Message] = {}
        self._actions: dict[int, _Action] = {}
        self._places: dict[Place, int] = {}  # of messages and of the control records for them
        self._origins: dict[int, Place] = {}
        self._controls: dict[int, Place] = {}
        self._unproven: list[tuple[int, dict[int, Place]]] = []  # reported as written, at no offset
        self._to_act: list[tuple[float, int]] = []
        self._quiet = threading.Event()
        self._over = threading.Event()
        self._producer = producer(site.kafka.bootstrap, linger_ms=5)
        self._sender = threading.Thread(target=self._send_all, daemon=True)

    @staticmethod
    def prepare(site: Site, partitions: int) -> str:
        """Make the topics; returns the policy to be added to the others."""
        site.topic("acted", partitions)
        site.target("acted-out", 2)
        return POLICY

    def start(self) -> None:
        """Let it flow."""
        self._sender.start()

    def quieten(self) -> None:
        """Send no more."""
        self._quiet.set()
        self._sender.join(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Send no more, and wait for no answers. Twice is harmless."""
        self._over.set()
        self._quiet.set()
        if self._sender.is_alive():
            self._sender.join(ANSWER_TIMEOUT_S)

    def _send_all(self) -> None:
        while not self._quiet.wait(INTERVAL_S):
            for _ in range(self._per_interval):
                self._send(len(self._messages))
            while self._to_act and self._to_act[0][0] <= time.monotonic():
                self._act(heappop(self._to_act)[1])
            self._producer.poll(0)
        while len(self._producer) and not self._over.is_set():
            self._producer.flush(FLUSH_S)

    def _send(self, number: int) -> None:
        chance, sent_ms = self._random, now_ms()
        delay_ms = chance.randint(0, DELAY_MAX_MS)
        self._messages[number] = _Message(chance.randrange(self._partitions), sent_ms + delay_ms)
        self._produce(number, [("tickover-delay", b"%dms" % delay_ms)], sent_ms, self._origins)
        if chance.random() < ACTED_SHARE:
            heappush(self._to_act, (time.monotonic() + chance.random() * DELAY_MAX_MS / 1_000, number))

    def _act(self, number: int) -> None:
        chance, sent_ms = self._random, now_ms()
        action = _Action(chance.choice(ACTIONS), sent_ms, sent_ms + chance.randint(0, DELAY_MAX_MS))
        self._actions[number] = action
        headers: Headers = [("tickover-action", action.action.encode())]
        if action.action == "reschedule":
            headers = [*headers, ("tickover-deliver-at", b"%d" % action.due_ms)]
        self._produce(number, headers, sent_ms, self._controls)

    def _produce(self, number: int, headers: Headers, sent_ms: int, places: dict[int, Place]) -> None:
        def report(error: object, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            if offset is None:
                self._unproven.append((number, places))
            else:
                self._note_place(number, places, (message.topic() or "", message.partition() or 0, offset))

        named = [("tickover-id", b"m%d" % number), *headers]
        key = b"key %d" % (number % 20)
        partition = self._messages[number].partition
        self._producer.produce(
            self._site.name("acted"), b"%d" % number, key, partition, report, None, sent_ms, list(named)
        )

    def _note_place(self, number: int, places: dict[int, Place], place: Place) -> None:
        places[number] = place
        self._places[place] = number

    # --- the end --------------------------------------------------------------------------------------------------

    def _find_unproven(self) -> None:
        """Look for the records of which the client doesn't know where they are. Some are nowhere: they count as not
        sent.
        """
        if not self._unproven:
            return
        lying: dict[tuple[int, bool], Place] = {}
        for message in self._site.kafka.read_all(self._site.name("acted")):
            place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
            lying[int(message.value() or b"-1"), "tickover-action" in dict(headers_of(message))] = place
        while self._unproven:
            number, places = self._unproven.pop()
            is_control = places is self._controls
            found = lying.get((number, is_control))
            if found is not None:
                self._note_place(number, places, found)
            elif is_control:
                del self._actions[number]
            else:
                del self._messages[number]

    @property
    def count(self) -> int:
        """Messages sent."""
        return len(self._messages)

    def all_settled(self) -> bool:
        """Whether the ledger has an outcome for everything sent."""
        self._find_unproven()
        return self._places.keys() <= outcomes_of(self._site).keys()

    def faults(self, exactly_once: bool) -> list[str]:
        """Faults found, a line for each message. Call it when no sidecar runs any more."""
        self._find_unproven()
        outcomes = outcomes_of(self._site)
        met = {said.outcome for place in self._places for said in outcomes.get(place, ())}
        assert {Outcome.EMITTED, Outcome.CANCELLED, Outcome.MOVED} <= met, f"nothing was acted on in time: {met}"
        arrived: dict[int, list[Message]] = defaultdict(list)
        for message in self._site.kafka.read_all(self._site.name("acted-out")):
            arrived[int(message.value() or b"-1")].append(message)
        found = {number: self._fault(number, outcomes, arrived[number], exactly_once) for number in self._messages}
        return [
            f"message {number} at {self._origins[number]} with {self._actions.get(number)} at"
            f" {self._controls.get(number)}: {fault}; {outcomes.get(self._origins[number])}"
            for number, fault in found.items()
            if fault
        ]

    # tidy: one message and all that can be wrong with it
    def _fault(self, number: int, outcomes: dict[Place, list[Said]], arrived: list[Message], exactly_once: bool) -> str:
        action, due_ms = self._actions.get(number), self._messages[number].due_ms
        said = outcomes.get(self._origins[number], [])
        of_control = outcomes.get(self._controls[number], []) if action is not None else []
        if not told_well(said, exactly_once):
            return f"the ledger has {said} of it"
        if action is not None and not told_well(of_control, exactly_once):
            return f"the ledger has {of_control} of the control record"
        ending = said[0].outcome
        hit = action is not None and of_control[0].related == self._origins[number][2]
        if hit and ending is Outcome.EMITTED:
            return "it was hit, and emitted all the same"
        if ending is Outcome.CANCELLED:
            wanted = 0
            if action is None or action.action != "cancel":
                return "cancelled, and nobody asked"
        elif ending is Outcome.MOVED:
            wanted = 1
            if action is None or action.action == "cancel":
                return "moved, and nobody asked"
            due_ms = action.due_ms if action.action == "reschedule" else action.sent_ms - TURN_MAX_MS
        elif ending is Outcome.EMITTED:
            wanted = 1
        else:
            return f"it was {ending.name}"
        if len(arrived) != wanted and (exactly_once or len(arrived) < wanted):
            return f"{ending.name}, and it arrived {len(arrived)} times"
        for message in arrived:
            said_ms = int(dict(headers_of(message))["tickover-due"] or b"-1")
            if message.timestamp()[1] < said_ms:
                return f"{said_ms - message.timestamp()[1]} ms early"
            fired = ending is Outcome.MOVED and action is not None and action.action == "fire"
            if exactly_once and (said_ms < due_ms if fired else said_ms != due_ms):
                return f"{ending.name} for {said_ms}, not for {due_ms}"
        return ""


def told_well(said: list[Said], exactly_once: bool) -> bool:
    """Whether the ledger tells once how a record left. Without transactions one whose partitions were taken from it
    may still write its last block, which tells again what the next owner has told.
    """
    return len(said) == 1 if exactly_once else len(set(said)) == 1


def outcomes_of(site: Site) -> dict[Place, list[Said]]:
    """Outcomes of all records that have left, by place, as the ledger says them."""
    outcomes: dict[Place, list[Said]] = defaultdict(list)
    for record in site.kafka.read_all(f"tickover.{site.group}.ledger"):
        block = decode(record.value())
        for offset, outcome in zip(block.settled.offsets, block.settled.outcomes, strict=True):
            said = Said(Outcome(outcome), block.settled.related.get(offset, -1))
            outcomes[block.topic, block.partition, offset].append(said)
    return outcomes
