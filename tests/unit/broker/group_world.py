"""A group coordinator over a log in memory, with a clock set by hand and turns of an event loop taken one by one."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from broker.groups.coordinator import GroupCoordinator
from broker.groups.coordinator_log import Appended
from broker.groups.group import Group
from broker.groups.offset_coordinator import OffsetCoordinator
from broker.groups.rebalance import GroupRebalance
from broker.groups.store import GroupStore
from broker.groups.types import (
    Client,
    CommittedOffset,
    GroupSettings,
    JoinRequest,
    JoinResult,
    MemberClaim,
    OffsetCommitRequest,
    Protocol,
    SyncRequest,
    SyncResult,
)
from broker.records.record_batch import BatchHeader, Buffer, assign, read_header
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.timer import Driven
from tests.unit.purgatory_tasks import Clock

START_MS = 1_000_000
KEY = TopicPartition("orders", 0)


class Turns:
    """Calls that an event loop would make next."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def post(self, function: Callable[[], None]) -> None:
        self._waiting.append(function)

    def run(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def take(self, count: int) -> None:
        """Run `count` of the waiting calls, or all if there are fewer."""
        for _ in range(count):
            if self._waiting:
                self._waiting.popleft()()

    def forget(self) -> None:
        """The process was killed."""
        self._waiting.clear()


class MemoryLog:
    """`CoordinatorLog` in lists. `error` is what appends end with; held ones end when they are let go."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self.batches_of: dict[TopicPartition, list[bytes]] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.error = Errors.NONE
        self.is_held = False
        self._held: list[Callable[[], None]] = []
        self._post = post

    def append(self, key: TopicPartition, batch: Buffer, then: Callable[[Appended], None]) -> None:
        def append_now() -> None:
            if self.error is not Errors.NONE:
                error = self.error
                self._post(lambda: then(Appended(error)))
                return
            stamped = bytearray(batch)
            base = self.ends.get(key, 0)
            assign(stamped, 0, base, 0)
            self.ends[key] = base + read_header(stamped).record_count
            self.batches_of.setdefault(key, []).append(bytes(stamped))
            self._post(lambda: then(Appended(Errors.NONE, base)))

        if self.is_held:
            self._held.append(append_now)
        else:
            self._post(append_now)

    def let_go(self) -> None:
        self.is_held = False
        while self._held:
            self._post(self._held.pop(0))

    def batches(self, key: TopicPartition) -> Iterator[tuple[BatchHeader, bytes]]:
        for data in self.batches_of.get(key, []):
            yield read_header(data), data


class GroupWorld:
    """One broker's groups. `restart` makes a new broker on the same log."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock(START_MS)
        self.turns = Turns()
        self.log = MemoryLog(self.turns.post)
        self.settings = GroupSettings(**{"offsets_partitions": 5, "initial_rebalance_delay_ms": 0, **settings})
        self.ids = 0
        self.also_driven: list[Driven] = []
        self.start()

    def start(self) -> None:
        self.store = GroupStore(self.settings, self.log, self.clock, self.turns.post)
        self.rebalance = GroupRebalance(self.store, lambda: SystemTimer(self.clock))
        self.coordinator = GroupCoordinator(self.store, self.rebalance, self.new_id)
        self.offsets = OffsetCoordinator(self.store, self.rebalance)
        for partition in range(self.settings.offsets_partitions):
            self.store.on_election(partition, 0, self.coordinator.on_loaded)
        self.turns.run()

    restart = start

    def new_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    @property
    def group(self) -> Group:
        return self.store.groups["group"]

    def state(self) -> GroupState:
        return self.group.state

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; whatever falls due on the way happens when it is due."""
        end = self.clock.now_ms + milliseconds
        while True:
            self.turns.run()
            driven = [*self.rebalance.purgatories, *self.also_driven]
            next_ms = min((one.next_expiration_ms() or end + 1 for one in driven), default=end + 1)
            if next_ms > end:
                break
            self.clock.now_ms = max(self.clock.now_ms, next_ms)
            for one in driven:
                one.advance_clock(self.clock.now_ms)
        self.clock.now_ms = end

    # Requests

    def join(self, member_id: str = "", **about: Any) -> list[JoinResult]:
        """The list gets the answer when it comes."""
        answers: list[JoinResult] = []
        given = {
            "group_id": "group",
            "client": Client("client", "/127.0.0.1"),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (Protocol("range", b"r"), Protocol("roundrobin", b"rr")),
            **about,
        }
        self.coordinator.join(JoinRequest(member_id=member_id, **given), answers.append)
        self.pass_time(0)
        return answers

    def sync(
        self, member_id: str, generation_id: int | None = None, assignments: Any = None, **about: Any
    ) -> list[SyncResult]:
        answers: list[SyncResult] = []
        claim = self.claim(member_id, generation_id, about.pop("group_instance_id", None))
        self.coordinator.sync(SyncRequest(claim, assignments=assignments, **about), answers.append)
        self.pass_time(0)
        return answers

    def heartbeat(self, member_id: str, generation_id: int | None = None, instance_id: str | None = None) -> Errors:
        error = self.coordinator.heartbeat(self.claim(member_id, generation_id, instance_id))
        self.pass_time(0)
        return error

    def commit(self, offset: int = 1, claim: MemberClaim | None = None, **about: Any) -> Errors | None:
        """None while it is not answered."""
        answers: list[Any] = []
        key = about.pop("key", KEY)
        offsets = {key: CommittedOffset(offset, metadata=about.pop("metadata", ""))}
        request = OffsetCommitRequest(claim or MemberClaim("group"), offsets, **about)
        transactional = request.producer_id >= 0
        (self.offsets.commit_transactional if transactional else self.offsets.commit)(request, answers.append)
        self.pass_time(0)
        return answers[0][key] if answers else None

    def committed(self, key: TopicPartition = KEY, *, require_stable: bool = False) -> Any:
        found = self.offsets.fetch("group", [key], require_stable=require_stable)[key]
        return found.offset if found.error is Errors.NONE else found.error

    def claim(self, member_id: str, generation_id: int | None = None, instance_id: str | None = None) -> MemberClaim:
        group = self.store.groups.get("group")
        current = group.generation_id if group is not None else 0
        return MemberClaim("group", current if generation_id is None else generation_id, member_id, instance_id)

    # Whole groups

    def stable(self, count: int = 1, **about: Any) -> list[str]:
        """A group of so many members who all have their parts. Their ids, the leader's first."""
        answers = [self.join(**about)]
        self.pass_time(self.settings.initial_rebalance_delay_ms)
        for _ in range(count - 1):
            answers.append(self.join(**about))
            for former in answers[:-1]:
                former.extend(self.join(former.pop().member_id, **about))
        ids = [one[0].member_id for one in answers]
        leader = next(one[0].leader_id for one in answers)
        ids.sort(key=lambda one: one != leader)
        for member_id in reversed(ids):
            parts = {one: one.encode() for one in ids} if member_id == leader else None
            self.sync(member_id, assignments=parts)
        assert self.state() is GroupState.STABLE
        return ids
