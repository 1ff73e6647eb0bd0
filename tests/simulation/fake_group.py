"""A consumer group in memory: who has which partition, committed offsets, cooperative rebalances."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from random import Random

from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.model.log_cuts import ReadMark
from sidecar.model.ports import GroupEvents, Member, Start, mark_of
from sidecar.model.record import TopicPartition
from tests.simulation.fake_kafka import Broker, FakeRecord, Fate

NOBODY = -1  # in place of a generation: as a client has it that has lost its place

OnCommit = Callable[[TopicPartition, int, str], None]


class Group:
    """The coordinator. A partition goes to its next owner only when the former one has let go of it."""

    def __init__(self, broker: Broker, topics: Sequence[str], rng: Random) -> None:
        self.broker = broker
        self.rng = rng
        self.topics = topics
        self.lanes = [
            TopicPartition(topic, partition) for topic in topics for partition in range(broker.partition_count(topic))
        ]
        self.owner: dict[TopicPartition, FakeIntake | None] = dict.fromkeys(self.lanes)
        self.wanted: dict[TopicPartition, FakeIntake | None] = dict.fromkeys(self.lanes)
        self.members: list[FakeIntake] = []
        self.static = False  # members have names that survive a restart
        self.absent: dict[str, FakeIntake] = {}  # static members that are gone, by name: their partitions wait for them
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self.on_commit: OnCommit | None = None
        self.unstable: Callable[[], set[TopicPartition]] = set  # their committed offset is part of an open transaction
        self.starts_latest = False  # the setting `start`, for what the ledger knows: else what is sent first is skipped
        self.seen: set[TopicPartition] = set()  # the ledger has a block of them
        self.refused: set[str] = set()  # sources that nobody may read, for now
        self.commits_lost = 0.0  # share of commits that the coordinator refuses

    def join(self, member: "FakeIntake", name: str = "") -> None:
        """A static member that comes back has what it had before, and nobody else hears of it."""
        self.members.append(member)
        member.name = name if self.static else ""
        before = self.absent.pop(member.name, None)
        if before is None:
            self.rebalance()
            return
        for lane in self.lanes:
            if self.wanted[lane] is before:
                self.wanted[lane] = member

    def leave(self, member: "FakeIntake") -> None:
        """Gone, by its own will or not: its partitions are free, or wait for a static member to come back."""
        self.members.remove(member)
        for lane in self.lanes:
            if self.owner[lane] is member:
                self.owner[lane] = None
        if member.name:
            self.absent[member.name] = member
        else:
            self.rebalance()

    def rebalance(self) -> None:
        """Deal the partitions out anew; most stay where they are. Sessions of members that are absent have ended."""
        self.absent.clear()
        for lane in self.lanes:
            stays = self.owner[lane] in self.members and self.rng.random() < 0.5 and self.wanted[lane] in self.members
            if self.members and not stays:
                self.wanted[lane] = self.rng.choice(self.members)

    def add(self, lane: TopicPartition) -> None:
        """A partition was added to a source."""
        self.lanes.append(lane)
        self.owner[lane] = self.wanted[lane] = None
        self.rebalance()

    def take_away(self, member: "FakeIntake") -> list[TopicPartition]:
        """Partitions that this member is to let go of."""
        return [lane for lane in self.lanes if self.owner[lane] is member and self.wanted[lane] is not member]

    def give(self, member: "FakeIntake") -> list[TopicPartition]:
        """Free partitions meant for this member: they are its own from now on."""
        given = [lane for lane in self.lanes if self.owner[lane] is None and self.wanted[lane] is member]
        self.owner.update(dict.fromkeys(given, member))
        return given

    def commit(self, lane: TopicPartition, offset: int, metadata: str) -> None:
        self.committed[lane] = (offset, metadata)
        if self.on_commit is not None:
            self.on_commit(lane, offset, metadata)


class FakeStarts:
    """`Starts`: the group's commits. Now and then one of them can't be known for a while."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def starts(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        """See `Starts.starts`."""
        unstable = self._group.unstable()
        known = [lane for lane in lanes if lane not in unstable and self._group.rng.random() < 0.9]
        return {lane: self._start(lane) for lane in known}

    def has_commits(self) -> bool:
        """See `Starts.has_commits`."""
        return bool(self._group.committed)

    def records(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
        """See `Starts.records`."""
        logs = self._group.broker.logs
        return {
            lane: self._first(logs[lane.topic][lane.partition].records, offset)
            for lane, offset in places.items()
            if self._group.rng.random() < 0.9
        }

    def may_read(self, topic: str) -> bool:
        """See `Starts.may_read`."""
        return topic not in self._group.refused

    @staticmethod
    def _first(records: Sequence[FakeRecord], offset: int) -> ReadMark | None:
        index = bisect_left(records, offset, key=FakeRecord.offset)
        return mark_of(records[index]) if index < len(records) else None

    def _start(self, lane: TopicPartition) -> Start:
        broker, committed = self._group.broker, self._group.committed.get(lane)
        topic_id, log = broker.topic_id(lane.topic), broker.logs[lane.topic][lane.partition]
        if committed is None:
            if self._group.starts_latest and lane in self._group.seen:
                return Start(log.end, "", topic_id, earliest=log.start, log_start=log.start, log_end=log.end)
            return Start(log.start, "", topic_id, log_start=log.start, log_end=log.end)
        offset, metadata = committed
        state = decode_metadata(offset, metadata)
        if (state is None and offset > log.end) or (state is not None and state.topic_id != topic_id):
            return Start(log.start, "", topic_id, made_anew=True, log_start=log.start, log_end=log.end)
        return Start(offset, metadata, topic_id, log_start=log.start, log_end=log.end)


class FakeIntake:
    """`Intake`: one member of the group. Commits without waiting arrive later, in order, or never after a crash."""

    events: GroupEvents

    def __init__(self, group: Group, delay_ms: Callable[[], int], fate: Fate) -> None:
        self._fate = fate
        self._group = group
        self._delay_ms = delay_ms
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._commits: list[tuple[int, dict[TopicPartition, tuple[int, str]]]] = []
        self.name = ""  # of a static member
        self.epoch = 0  # the generation of the group as this member knows it; NOBODY: none
        self._generation = 0  # the last one it had
        self._told: set[str] = set()  # sources of which the engine knows that they are refused: the client says it once
        self._untold = 0  # at so many more calls of `take` the engine is told that it has lost all; 0: it has not

    def member(self) -> Member:
        return Member((self, self.epoch), self.epoch != NOBODY)

    def take(self, count: int) -> list[FakeRecord]:
        """See `Intake.take`."""
        self._fate.strike()
        if self._untold:
            self._untold -= 1
            if not self._untold:
                self._tell()
            return []
        self._arrive(self._group.broker.clock.now_ms)
        if leaving := self._group.take_away(self):
            self.events.revoked(leaving)
            self._renew()
            self._release(leaving)
        if given := self._group.give(self):
            self._assign(given)
        records: list[FakeRecord] = []
        refused = {lane.topic for lane in self._positions} & self._group.refused
        for topic in sorted(refused - self._told):
            self.events.unreadable(topic, "Topic authorization failed")
        self._told = refused
        lanes = [lane for lane in self._positions if lane not in self._paused and lane.topic not in refused]
        self._group.rng.shuffle(lanes)
        for lane in lanes:
            records += self._read(lane, self._group.rng.randint(0, count - len(records)))
        return records

    def wait(self, seconds: float) -> bool:
        """See `Intake.wait`: time passes until there is something."""
        clock = self._group.broker.clock
        until_ms = clock.now_ms + round(seconds * 1_000)
        while not (comes := self._comes()) and clock.now_ms < until_ms:
            clock.advance(1)
        return comes

    def _comes(self) -> bool:
        group = self._group
        if self._untold or group.take_away(self):
            return True
        if any(group.owner[lane] is None and group.wanted[lane] is self for lane in group.lanes):
            return True
        logs = group.broker.logs
        return any(
            bool(records := logs[lane.topic][lane.partition].records) and records[-1].offset() >= position
            for lane, position in self._positions.items()
            if lane not in self._paused and lane.topic not in group.refused
        )

    def _read(self, lane: TopicPartition, count: int) -> list[FakeRecord]:
        log = self._group.broker.logs[lane.topic][lane.partition]
        position = self._positions[lane]
        first = bisect_left(log.records, position, key=FakeRecord.offset)
        found = log.records[first : first + count]
        if found:
            self._positions[lane] = found[-1].offset() + 1
        return found

    def _assign(self, lanes: list[TopicPartition]) -> None:
        for lane in lanes:
            self._positions[lane] = 0
            self._paused.add(lane)
        self.events.assigned(lanes)

    def _release(self, lanes: Sequence[TopicPartition]) -> None:
        for lane in lanes:
            del self._positions[lane]
            self._paused.discard(lane)
            self._let_go(lane)

    def _let_go(self, lane: TopicPartition) -> None:
        if self._group.owner[lane] is self:  # else others have it already
            self._group.owner[lane] = None

    def lose(self, turns: int = 0) -> None:
        """The group gave up on this member: others have its partitions. Its client knows at once, and the engine is
        told after so many turns.
        """
        lanes = list(self._positions)
        self.epoch = NOBODY
        self._commits.clear()
        for lane in lanes:
            self._let_go(lane)
        self._untold = turns + 1
        if not turns:
            self._tell()

    def _tell(self) -> None:
        lanes, self._untold = list(self._positions), 0
        self.events.lost(lanes)
        self._release(lanes)
        self._renew()

    def _renew(self) -> None:
        """Enter the group's next generation."""
        self.epoch = self._generation = self._generation + 1

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert set(offsets) <= set(self._positions) & self._paused, "begun what isn't assigned, or is being read"
        self._positions.update(offsets)

    def positions(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Intake.positions`. Nothing is known of what isn't read."""
        found = {}
        for lane in lanes:
            position = self._positions.get(lane, 0)
            log = self._group.broker.logs[lane.topic][lane.partition]
            if lane in self._paused or not position:
                continue
            following = bisect_left(log.records, position, key=FakeRecord.offset)
            found[lane] = log.end if following == len(log.records) else position
        return found

    def pause(self, lanes: Sequence[TopicPartition]) -> None:
        assert set(lanes) <= set(self._positions), "paused what isn't assigned"
        self._paused.update(lanes)

    def resume(self, lanes: Sequence[TopicPartition]) -> None:
        assert set(lanes) <= set(self._positions), "resumed what isn't assigned"
        self._paused.difference_update(lanes)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], wait: bool) -> None:
        """See `Intake.commit`."""
        self._fate.strike()
        if self.epoch == NOBODY:
            return
        now_ms = self._group.broker.clock.now_ms
        if wait:
            self._arrive(1 << 60)
            self._apply(offsets)
            self.events.committed(offsets)
        else:
            last_ms = self._commits[-1][0] if self._commits else 0
            self._commits.append((max(now_ms + self._delay_ms(), last_ms), dict(offsets)))

    def _arrive(self, until_ms: int) -> None:
        while self._commits and self._commits[0][0] <= until_ms:
            _, offsets = self._commits.pop(0)
            if self._group.rng.random() < self._group.commits_lost:
                continue
            self._apply(offsets)
            self.events.committed({lane: one for lane, one in offsets.items() if self._group.owner[lane] is self})

    def _apply(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        for lane, (offset, metadata) in offsets.items():
            if self._group.owner[lane] is self:
                self._group.commit(lane, offset, metadata)

    @property
    def is_committing(self) -> bool:
        """Commits are under way."""
        return bool(self._commits)

    def crash(self) -> None:
        """Of the commits under way a prefix arrives."""
        for _, offsets in self._commits[: self._group.rng.randint(0, len(self._commits))]:
            self._apply(offsets)
        self._group.leave(self)

    def close(self) -> None:
        """See `Intake.close`."""
        lanes = list(self._positions)
        self.events.revoked(lanes)
        self._arrive(1 << 60)
        self._release(lanes)
        self._group.leave(self)
