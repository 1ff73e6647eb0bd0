"""Random consumers at one group coordinator: they join, assign, commit, stall, leave, come back; the broker restarts.

Whatever happens: a member's generations only grow; all members of a generation are told the same of it; no partition
has two owners in it; nobody else's commit is taken. And when the trouble ends, all who are left have their parts.
"""

from random import Random
from typing import Any

import pytest

from broker.groups.types import CommittedOffset, JoinResult, LeavingMember, MemberClaim, OffsetCommitRequest, SyncResult
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from tests.unit.broker.group_world import GroupWorld

pytestmark = pytest.mark.slow

PARTITIONS = 7
STEPS = 600
RETRY = {Errors.UNKNOWN_MEMBER_ID, Errors.ILLEGAL_GENERATION, Errors.FENCED_INSTANCE_ID}


class Ledger:
    """Notes of each generation, by all who were told of it: no two may contradict each other."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[str, str]] = {}
        self.owners: dict[tuple[int, int], str] = {}
        self.committed = 0

    def restarted(self, generation_id: int) -> None:
        """A generation that was not assigned yet is not in the log: its number is given again."""
        self.leaders = {one: told for one, told in self.leaders.items() if one <= generation_id}

    def joined(self, result: JoinResult) -> None:
        leader_id = result.leader_id
        leader = leader_id if leader_id.startswith("client") else leader_id.rpartition("-")[0]  # by its instance id
        told = (leader, result.protocol_name or "")
        assert self.leaders.setdefault(result.generation_id, told) == told

    def synced(self, generation_id: int, name: str, parts: bytes) -> None:
        for part in parts:
            assert self.owners.setdefault((generation_id, part), name) == name

    def commit_taken(self, generation_id: int, name: str, part: int) -> None:
        self.committed += 1
        assert self.owners[generation_id, part] == name
        assert generation_id == max(self.leaders), "a commit of a former generation was taken"


class Consumer:
    """As clients are: what is refused is begun again. `stalled` sends nothing and takes nothing in."""

    def __init__(self, world: GroupWorld, ledger: Ledger, instance_id: str | None) -> None:
        self.world = world
        self.ledger = ledger
        self.instance_id = instance_id
        self.member_id = ""
        self.generation_id = 0
        self.parts: bytes | None = None
        self.life = 0  # answers of a former life are not read
        self.waits_since: float | None = None
        self.stalled = False
        self.answers: list[Any] = []

    def step(self) -> None:
        if self.stalled:
            return
        gave_up = self.waits_since is not None and self.world.clock.now_ms - self.waits_since > 70_000
        if (self.waits_since is None and self.parts is None) or gave_up:
            self.join()
        elif self.waits_since is None:
            self.after(self.world.coordinator.heartbeat(self.claim))

    @property
    def name(self) -> str:
        """A static member keeps what it has when it comes back under another id."""
        return self.instance_id or self.member_id

    @property
    def claim(self) -> MemberClaim:
        return MemberClaim("group", self.generation_id, self.member_id, self.instance_id)

    def begin(self) -> int:
        self.life += 1
        self.parts = None
        self.waits_since = self.world.clock.now_ms
        return self.life

    def join(self) -> None:
        life = self.begin()
        answers = self.world.join(
            self.member_id, group_instance_id=self.instance_id, requires_known_member_id=self.instance_id is None
        )
        self.answers = answers
        self.take_later(life)

    def take_later(self, life: int) -> None:
        """Look at what has come."""
        if life != self.life or self.stalled or not self.answers:
            return
        result = self.answers.pop()
        self.waits_since = None
        if isinstance(result, SyncResult):
            if result.error is Errors.NONE:
                self.parts = result.assignment
                self.ledger.synced(self.generation_id, self.name, result.assignment)
            else:
                self.after(result.error)
            return
        if result.error is Errors.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error is Errors.NONE:
            self.member_id = result.member_id
            assert result.generation_id >= self.generation_id
            self.generation_id = result.generation_id
            self.ledger.joined(result)
            self.sync(result)
        else:
            self.after(result.error)

    def sync(self, result: JoinResult) -> None:
        life = self.begin()
        ids = [member.member_id for member in result.members]
        parts = {one: bytes(range(index, PARTITIONS, len(ids))) for index, one in enumerate(ids)}
        self.answers = self.world.sync(
            self.member_id, self.generation_id, parts or None, group_instance_id=self.instance_id
        )
        self.take_later(life)

    def after(self, error: Errors) -> None:
        if error is Errors.NONE:
            return
        self.parts = None
        if error in RETRY:
            self.member_id = ""

    def commit(self, random: Random) -> None:
        """Also with a claim that is over: a stalled consumer that wakes commits before it asks."""
        if not self.parts:
            return
        part = random.choice(self.parts)
        key = TopicPartition("topic", part)
        name, generation_id = self.name, self.generation_id
        answers: list[dict[TopicPartition, Errors]] = []
        request = OffsetCommitRequest(self.claim, {key: CommittedOffset(self.ledger.committed)})
        self.world.offsets.commit(request, answers.append)  # type: ignore[arg-type]
        self.world.pass_time(0)
        if answers and answers[0][key] is Errors.NONE:
            self.ledger.commit_taken(generation_id, name, part)

    def leave(self) -> None:
        self.begin()
        self.world.coordinator.leave("group", [LeavingMember(self.member_id, self.instance_id)])
        self.waits_since = None
        self.member_id = ""


@pytest.mark.parametrize("seed", range(25))
def test_random_members_agree(seed: int) -> None:
    random = Random(seed)
    world = GroupWorld(initial_rebalance_delay_ms=random.choice([0, 3000]))
    ledger = Ledger()
    consumers = [Consumer(world, ledger, f"i{n}" if n % 3 == 0 else None) for n in range(random.randint(2, 6))]
    generation_id = 0
    for _ in range(STEPS):
        one = random.choice(consumers)
        match random.randrange(150):
            case 0:
                one.stalled = not one.stalled
            case 1 if one.member_id and not one.stalled:
                one.leave()
            case 2:
                world.turns.run()
                world.restart()
                stored = world.store.groups.get("group")
                generation_id = 0 if stored is None else stored.generation_id
                ledger.restarted(generation_id)
                for each in consumers:
                    each.generation_id = min(each.generation_id, generation_id)
                    each.answers = []  # with its connection
            case 3:
                world.pass_time(random.choice([5_000, 15_000]))
            case 4 if one.instance_id is not None:
                one.member_id, one.parts, one.waits_since = "", None, None  # killed, and started again
            case number if number < 60:
                one.commit(random)
            case _:
                one.step()
        for each in consumers:
            each.take_later(each.life)
        world.pass_time(random.randrange(250))
        group = world.store.groups.get("group")
        if group is not None and group.members:
            assert group.generation_id >= generation_id
            generation_id = group.generation_id
    for one in consumers:
        one.stalled = False
    for _ in range(400):
        for one in consumers:
            one.step()
            one.take_later(one.life)
        world.pass_time(1_000)
    assert world.group.state is GroupState.STABLE
    held = b"".join(one.parts or b"" for one in consumers)
    assert sorted(held) == list(range(PARTITIONS)), "every partition has one owner"
    assert ledger.committed > 0
