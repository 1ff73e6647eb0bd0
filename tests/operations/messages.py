"""Messages over REST: sent, sent again under their Idempotency-Key, and cancelled, while answers and Redis are lost."""

import json
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from api.ports import Acknowledged, Outgoing, SenderUnavailable
from policies.headers import ACTION, DELAY, ID, IF_OFFSET
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.record import Outcome, TopicPartition
from tests.unit.api.routes.test_api_held import row
from tests.unit.api_world import NOW_MS, REMINDERS, MemorySender, World
from tests.unit.lookup.test_receipts import block, settled

LANE: Final = TopicPartition("reminders", 0)
KEYS: Final = 8  # Idempotency-Keys
STEPS: Final = 60
PAUSE_MS: Final = 4_000
LONGEST_S: Final = 20


class Sender(MemorySender):
    """Kafka, whose answers are lost now and then: the record may be there or not."""

    def __init__(self, rng: Random) -> None:
        super().__init__({LANE.topic: 1})
        self._rng = rng
        self.losses = 0.0

    async def send(self, record: Outgoing) -> Acknowledged:
        chance = self._rng.random()
        if chance < self.losses / 2:
            raise SenderUnavailable("timed out")
        acknowledged = await super().send(record)
        if chance < self.losses:
            raise SenderUnavailable("timed out")
        return acknowledged


@dataclass(frozen=True, slots=True)
class Held:
    """A record in the engine's care."""

    offset: int
    id: str
    key: bytes | None
    due_ms: int


class Engine:
    """The engine of a process: reads the source in its order, late at times, and says in the ledger what it did."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.read_to = 0
        self.held: dict[int, Held] = {}
        self.emitted: Counter[str] = Counter()
        self.ended: dict[str, Outcome] = {}
        self.hit: dict[int, int] = {}  # by control record: the offset of what it has cancelled
        self._blocks = 0

    @property
    def is_behind(self) -> bool:
        return self.read_to < len(self._world.sender.sent)

    def read(self, count: int) -> None:
        for record in self._world.sender.sent[self.read_to : self.read_to + count]:
            self._take(self.read_to, record)
            self.read_to += 1
        self._show()

    def _take(self, offset: int, record: Outgoing) -> None:
        headers = dict(record.headers)
        id = (headers[ID] or b"").decode()
        found = max((one for one in self.held.values() if one.id == id), key=lambda one: one.offset, default=None)
        if headers.get(ACTION) == b"cancel":
            if found is None or headers.get(IF_OFFSET) not in (None, b"%d" % found.offset):
                self._say({offset: Outcome.APPLIED}, {offset: id}, {})
                return
            self.hit[offset] = found.offset
            del self.held[found.offset]
            self.ended[id] = Outcome.CANCELLED
            rows = {found.offset: Outcome.CANCELLED, offset: Outcome.APPLIED}
            self._say(rows, dict.fromkeys(rows, id), {found.offset: offset, offset: found.offset})
            return
        if found is not None and found.key == record.key:
            del self.held[found.offset]
            self._say({found.offset: Outcome.REPLACED}, {found.offset: id}, {found.offset: offset})
        seconds = int((headers[DELAY] or b"0s").decode().removesuffix("s"))
        self.held[offset] = Held(offset, id, record.key, record.timestamp_ms + seconds * 1_000)

    def fire(self) -> None:
        """Emit what is due."""
        for one in [one for one in self.held.values() if one.due_ms <= self._world.now_ms]:
            del self.held[one.offset]
            self.emitted[one.id] += 1
            self.ended[one.id] = Outcome.EMITTED
            self._say({one.offset: Outcome.EMITTED}, {one.offset: one.id}, {})
        self._show()

    def _say(self, rows: dict[int, Outcome], ids: dict[int, str], related: dict[int, int]) -> None:
        told = settled(rows, ids)._replace(related=related)
        self._world.receipts.add(LedgerPlace(0, self._blocks), block({}, settled=told, partition=LANE.partition))
        self._blocks += 1

    def _show(self) -> None:
        place = LANE._asdict()
        held = self._world.held
        held.rows = [
            row(one.offset, id=one.id, source=LANE.topic, position={**place, "offset": one.offset})
            for one in self.held.values()
        ]
        held.unread = [LANE] if self.is_behind else []


class Operators:
    """One run on an API. `seen` counts what happened."""

    def __init__(self, world: World, sender: Sender, rng: Random) -> None:
        self.rng = rng
        self.world = world
        self.sender = sender
        self.engine = Engine(world)
        self.seen: Counter[str] = Counter()
        self.bodies = [
            {"target": "push", "value": str(key), "delay": f"{self.rng.randint(0, LONGEST_S)}s"} for key in range(KEYS)
        ]
        self.accepted: dict[int, str] = {}  # by key: the id
        self.cancelled: set[str] = set()
        self.meant: dict[int, int] = {}  # by control record: the offset of what was held when it was asked for
        self.excused: Counter[str] = Counter()  # by id: what may come twice, and why

    def run(self) -> None:
        """All of it, and the verdict."""
        self.world.add(REMINDERS)
        self.world.receipts.note_trouble("")
        for _ in range(STEPS):
            self.sender.losses = self.rng.choice((0.0, 0.0, 0.4))
            self.rng.choice((self._send, self._send, self._send, self._cancel, self._look, self._lose_redis))()
            if self.rng.random() < 0.5:
                self.engine.read(self.rng.choice((1, 2, 100)))
            self.world.now_ms += self.rng.randint(0, PAUSE_MS)
            self.engine.fire()
        while self.engine.is_behind or self.engine.held:
            self.engine.read(100)
            self.world.now_ms += PAUSE_MS
            self.engine.fire()
        self._judge()

    def _send(self) -> None:
        key = self.rng.randrange(KEYS)
        before = len(self.sender.sent)
        answer = self.world.call("POST", "/v1/messages", json=self.bodies[key], headers={"idempotency-key": f"k{key}"})
        self.seen[f"sent: {answer.status_code}"] += 1
        for record in self.sender.sent[before:]:
            self._excuse((dict(record.headers)[ID] or b"").decode(), before)
        if answer.status_code == 202:
            told = json.loads(answer.content)["id"]
            assert self.accepted.setdefault(key, told) == told, "another id for the same request"
            self.seen["repeated"] += answer.headers.get("idempotency-replayed") == "true"
        else:
            assert answer.status_code == 503, answer.text

    def _excuse(self, id: str, before: int) -> None:
        """A copy, as the key has gone with Redis, or an answer was lost: the first one may leave before it is read."""
        unread = self.sender.sent[self.engine.read_to : before]
        is_held = any(one.id == id for one in self.engine.held.values())
        self.excused[id] += is_held or any(dict(record.headers)[ID] == id.encode() for record in unread)

    def _cancel(self) -> None:
        if not self.accepted:
            return
        id = self.rng.choice(sorted(self.accepted.values()))
        before = len(self.sender.sent)
        held = max((one.offset for one in self.engine.held.values() if one.id == id), default=-1)
        answer = self.world.call("DELETE", f"/v1/messages/{id}")
        self.seen[f"cancel: {answer.status_code}"] += 1
        if len(self.sender.sent) > before:
            self.cancelled.add(id)  # Kafka has it, whatever the answer
            self.meant[before] = held
        if answer.status_code == 409:
            assert id in self.engine.ended, f"{id} is too late, and has not left"
        elif answer.status_code == 202:
            assert len(self.sender.sent) == before + 1
        else:
            assert answer.status_code == 503, f"{id} was accepted, and is answered {answer.text}"

    def _look(self) -> None:
        if self.accepted:
            id = self.rng.choice(sorted(self.accepted.values()))
            answer = self.world.call("GET", f"/v1/messages/{id}")
            self.seen[f"look: {answer.status_code}"] += 1
            assert answer.status_code in (200, 503), f"{id} was accepted, and is answered {answer.text}"

    def _lose_redis(self) -> None:
        self.world.idempotency.kept.clear()
        self.seen["Redis lost"] += 1

    def _judge(self) -> None:
        for control, offset in self.engine.hit.items():
            assert offset == self.meant[control], (
                f"{control} has cancelled {offset}, and {self.meant[control]} was meant"
            )
        for id in self.accepted.values():
            assert id in self.engine.ended, f"{id} was accepted, and never left"
            most = 1 + self.excused[id]
            assert self.engine.emitted[id] <= most, f"{id} was emitted {self.engine.emitted[id]} times"
            if id not in self.cancelled:
                assert self.engine.emitted[id], f"{id} was accepted, and ended as {self.engine.ended[id].name}"
        self.seen["cancelled in time"] += sum(one is Outcome.CANCELLED for one in self.engine.ended.values())


def new_operators(seed: int, **parts: Any) -> Operators:
    """Over an API of their own."""
    rng = Random(seed)
    sender = Sender(rng)
    return Operators(World(sender=sender, now_ms=NOW_MS, **parts), sender, rng)
