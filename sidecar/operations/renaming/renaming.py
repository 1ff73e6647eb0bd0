"""The rename of a group from beginning to end. It may be killed anywhere, and is repeated then.

    1  look          nobody is a member of either group, and nothing of the new one is in the way
    2  mark          the new group's commits, then the old group's: each is a mark that every sidecar stops at, and at
                     the old name it keeps the commit that it replaces. From here on neither group can start
    3  copy          topics, record by record; what is there already is passed over
    4  Redis         keys get their new names; what has one already is done
    5  look again    nobody has written to the old topics meanwhile
    6  commit        the new group's commits take the place of its marks: it can start

A sidecar that starts too early, under either name, ends with status 1 and names the command. What ends step 2 half-way
leaves an old group that starts as before, if none of its own commits was marked. The old group's marks stay: without
them somebody who starts it by mistake would repeat what is held.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidecar.ledger.block import ledger_partition
from sidecar.ledger.commit_metadata import (
    CommitState,
    RenameMark,
    decode_mark,
    decode_metadata,
    encode_mark,
    encode_metadata,
)
from sidecar.ledger.frame import LedgerFormatError
from sidecar.model.record import TopicPartition
from sidecar.operations.renaming.errors import NoSuchGroupError, RenameError, RenameRefusedError
from sidecar.operations.renaming.group_commits import Commits, GroupCommits
from sidecar.operations.renaming.group_topics import GroupTopic, TopicAdmin, TopicShape, group_topics
from sidecar.operations.renaming.redis_keys import GroupKeys
from sidecar.operations.renaming.rewriting import Places, renamed_state, wanted_places
from sidecar.operations.renaming.topic_copy import OPEN, Bounds, TopicCopier
from sidecar.settings.settings import Settings

START_OLD: Final = "speaks of: start the group under its old name first, which says how to go on"


@dataclass(frozen=True, slots=True)
class Found:
    """State of a rename, as `look` finds it. `commits`: the old group's, as they were before any mark. `done`: lanes of
    which the new group has its own commits by now. `is_begun`: some of the old group's commits are marked.
    """

    commits: Commits
    marked: frozenset[TopicPartition]
    done: frozenset[TopicPartition]
    shapes: dict[str, TopicShape]  # of the old topics
    keys: int

    @property
    def is_begun(self) -> bool:
        return bool(self.marked)

    @property
    def is_finished(self) -> bool:
        return self.marked == set(self.commits) and self.done >= self.marked


@dataclass(slots=True)
class _Ledger:
    """The ledger's copy: where everything is, by partition."""

    places: dict[int, Places] = field(default_factory=dict)
    bounds: dict[int, Bounds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that a rename works with."""

    commits: GroupCommits
    topics: TopicAdmin
    keys: GroupKeys
    copier: Callable[[], TopicCopier]


class Rename:
    """Of the group that `old` names to the one that `new` names; `say` is told of each step, before and after it."""

    def __init__(self, old: Settings, new: Settings, clients: Clients, say: Callable[[str], None]) -> None:
        self._old, self._new = old.group, new.group
        self._topics = list(group_topics(old, new))
        self._ledger, self._new_ledger = old.ledger_topic, new.ledger_topic
        self._is_signed = bool(old.redis.signing_key_file)
        self._tools = new.kafka.tools
        self._clients = clients
        self._say = say

    # --- 1 ----------------------------------------------------------------------------------------------------------

    def look(self) -> Found:
        """State of the rename now. Raises NoSuchGroupError, RenameRefusedError with what to do, RenameError."""
        self._refuse_signed()
        self._refuse_members()
        commits, marked = self._old_commits()
        found = Found(
            commits, marked, self._new_commits(bool(marked)), self._shapes(), self._clients.keys.count(self._old)
        )
        if found.is_finished:
            return found
        if self._ledger not in found.shapes:
            raise NoSuchGroupError(f"group {self._old} has commits, and its ledger {self._ledger} is gone")
        self._refuse_another_ledger(found)
        if not found.is_begun:
            self._refuse_leftovers(found)
        return found

    def _refuse_signed(self) -> None:
        if self._is_signed:
            raise RenameRefusedError(
                f"what Redis has is signed for group {self._old}, and group {self._new} would take none of it: unset "
                "redis.signing_key_file, repeat the command, and start the new group without it. Set it again when the "
                "sources still have all that is held: what Redis has is rebuilt and signed then"
            )

    def _refuse_another_ledger(self, found: Found) -> None:
        shape, id = found.shapes[self._ledger], self._clients.topics.id(self._ledger)
        for lane, (offset, text) in found.commits.items():
            state = _state_of(lane, offset, text)
            if state is None or (state.ledger_id in ("", id) and state.ledger_partitions in (0, shape.partitions)):
                continue
            raise RenameRefusedError(f"the ledger {self._ledger} isn't the one that the commit of {lane} {START_OLD}")

    def _refuse_unclean_end(self, copier: TopicCopier, found: Found) -> None:
        """While a transaction is open in the ledger, or it ends before what commits speak of, nothing is begun."""
        size = found.shapes[self._ledger].partitions
        bounds = [copier.bounds(self._ledger, partition) for partition in range(size)]
        if any(one.written > one.end for one in bounds):
            raise RenameError(f"a transaction is open in {self._ledger}: {OPEN}")
        for lane, (offset, text) in found.commits.items():
            state = _state_of(lane, offset, text)
            if state is not None and state.block_offset >= bounds[ledger_partition(*lane, size)].end:
                raise RenameRefusedError(
                    f"the ledger {self._ledger} ends before the block that the commit of {lane} {START_OLD}"
                )

    def _refuse_members(self) -> None:
        for group in (self._old, self._new):
            if count := self._clients.commits.members(group):
                raise RenameRefusedError(
                    f"{count} processes of group {group} are running: stop all of them, then repeat the command "
                    "(one that was killed, or has an instance_id, is out of the group 6 s later)"
                )

    def _old_commits(self) -> tuple[Commits, frozenset[TopicPartition]]:
        read = self._clients.commits.read(self._old)
        if not read:
            raise NoSuchGroupError(
                f"group {self._old} has no commits: nobody of this name has run, or they have expired; then run "
                "it once under its old name until /readyz is 200, stop it, and repeat"
            )
        marks = {lane: mark for lane, (_, text) in read.items() if (mark := decode_mark(text)) is not None}
        for mark in marks.values():
            if (mark.old, mark.new) != (self._old, self._new):
                raise RenameRefusedError(
                    f"group {self._old} has a part in another rename: `tickover group rename {mark.old} {mark.new}`"
                )
        commits = {lane: (at, marks[lane].state if lane in marks else text) for lane, (at, text) in read.items()}
        for lane, (offset, text) in commits.items():
            _state_of(lane, offset, text)  # what can't be read is said before anything is changed
        return commits, frozenset(marks)

    def _new_commits(self, is_begun: bool) -> frozenset[TopicPartition]:
        done = set()
        for lane, (_, text) in self._clients.commits.read(self._new).items():
            mark = decode_mark(text)
            if mark is None:
                done.add(lane)
            elif (mark.old, mark.new) != (self._old, self._new):
                raise RenameRefusedError(
                    f"group {self._new} has a part in another rename: `tickover group rename {mark.old} {mark.new}`"
                )
        if done and not is_begun:
            raise RenameRefusedError(
                f"group {self._new} has commits of its own: choose another name, or if they are of no use any more:"
                f"{self._command('kafka-consumer-groups.sh', f'--delete --group {self._new}')}"
            )
        return frozenset(done)

    def _command(self, tool: str, arguments: str) -> str:
        return f"\n{self._tools.command(tool, arguments)}{self._tools.note}"

    def _shapes(self) -> dict[str, TopicShape]:
        names = {self._ledger, *(topic.old for topic in self._topics)}
        shapes = {name: self._clients.topics.shape(name) for name in sorted(names)}
        return {name: shape for name, shape in shapes.items() if shape is not None}

    def _refuse_leftovers(self, found: Found) -> None:
        copier = self._clients.copier()
        try:
            self._refuse_unclean_end(copier, found)
            for topic in self._topics:
                shape = self._clients.topics.shape(topic.new)
                for partition in range(shape.partitions if shape else 0):
                    bounds = copier.bounds(topic.new, partition)
                    if bounds.written > bounds.first:
                        raise RenameRefusedError(
                            f"topic {topic.new} has records: choose another name, or if they are of no use any more:"
                            f"{self._command('kafka-topics.sh', f'--delete --topic {topic.new}')}"
                        )
        finally:
            copier.close()
        if count := self._clients.keys.count(self._new):
            raise RenameRefusedError(
                f"Redis has {count} keys of group {self._new}: choose another name, or delete them if of no use"
            )

    def plan(self, found: Found) -> list[str]:
        """Steps that would be done, a line each."""
        if found.is_finished:
            return [f"group {self._old} is {self._new} already: nothing is left to be done"]
        lines = [f"commits: {len(found.commits)} partitions, {len(found.done)} of them done"]
        for topic in self._topics:
            shape = found.shapes.get(topic.old)
            size = "isn't there, and is left out" if shape is None else f"{shape.partitions} partitions"
            lines.append(f"topic: {topic.old} -> {topic.new}, {size}")
        return [*lines, f"Redis: {found.keys} keys"]

    # --- 2 to 6 -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do it, or what is left of it. Raises as `look`; what has been done by then stays done."""
        found = self.look()
        if found.is_finished:
            self._say(f"group {self._old} is {self._new} already: nothing is left to be done")
            return
        self._mark(found)
        ledger, bounds = self._copy(found)
        self._say(f"Redis: {found.keys} keys")
        moved = self._clients.keys.rename(self._old, self._new, lambda keys: self._say(f"Redis: {keys} keys done"))
        self._say(f"Redis: {moved} keys renamed")
        self._look_again(found, bounds)
        self._commit(found, ledger)
        self._say(self._epilogue())

    def _mark(self, found: Found) -> None:
        commits = self._clients.commits
        open_lanes = {lane: at for lane, (at, _) in found.commits.items() if lane not in found.done}
        mark = encode_mark(RenameMark(self._old, self._new))
        self._say(f"marking {len(found.commits)} commits: from now on neither group can start until this is done")
        commits.write(self._new, {lane: (at, mark) for lane, at in open_lanes.items()})
        self._say(f"the new group {self._new} is marked")
        unmarked = {lane: found.commits[lane] for lane in found.commits.keys() - found.marked}
        commits.write(
            self._old,
            {lane: (at, encode_mark(RenameMark(self._old, self._new, text))) for lane, (at, text) in unmarked.items()},
        )
        self._say(f"the old group {self._old} is marked")
        self._refuse_members()

    def _copy(self, found: Found) -> tuple[_Ledger, dict[tuple[str, int], Bounds]]:
        """Every topic; returns where the ledger's blocks are, and how far each partition was copied."""
        ledger, all_bounds = self._wanted(found), {}
        copier = self._clients.copier()
        try:
            copier.begin()
            for topic in self._topics:
                shape = found.shapes.get(topic.old)
                if shape is None:
                    continue
                self._say(f"copying {topic.old} to {topic.new}")
                self._clients.topics.make(topic.new, shape, topic.keeps_times)
                for partition in range(shape.partitions):
                    bounds = self._copy_partition(copier, topic, partition, ledger)
                    all_bounds[topic.old, partition] = bounds
                if topic.keeps_times:
                    self._clients.topics.finish(topic.new, shape)
        finally:
            copier.close()
        return ledger, all_bounds

    def _copy_partition(self, copier: TopicCopier, topic: GroupTopic, partition: int, ledger: _Ledger) -> Bounds:
        is_ledger = topic.old == self._ledger
        places = ledger.places.setdefault(partition, Places()) if is_ledger else Places()
        bounds = copier.copy((topic.old, topic.new), partition, topic.change, places)
        if is_ledger:
            ledger.bounds[partition] = bounds
        return bounds

    def _wanted(self, found: Found) -> _Ledger:
        partitions = found.shapes[self._ledger].partitions
        wanted: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
        for lane, (offset, text) in found.commits.items():
            if (state := _state_of(lane, offset, text)) is not None:
                wanted[ledger_partition(*lane, partitions)] += wanted_places(state)
        return _Ledger({partition: Places(some) for partition, some in wanted.items()})

    def _look_again(self, found: Found, copied: dict[tuple[str, int], Bounds]) -> None:
        self._refuse_members()
        copier = self._clients.copier()
        try:
            for (topic, partition), bounds in copied.items():
                if copier.bounds(topic, partition).written != bounds.written:
                    raise RenameRefusedError(
                        f"somebody has written to {topic} meanwhile: stop what runs as group {self._old}, and repeat "
                        "the command"
                    )
        finally:
            copier.close()

    def _commit(self, found: Found, ledger: _Ledger) -> None:
        size = found.shapes[self._ledger].partitions
        is_copied = self._ledger != self._new_ledger
        new_id = self._clients.topics.id(self._new_ledger)
        commits: Commits = {}
        for lane in found.commits.keys() - found.done:
            offset, text = found.commits[lane]
            state = _state_of(lane, offset, text)
            if state is not None and is_copied:
                partition = ledger_partition(*lane, size)
                places, first = ledger.places[partition], ledger.bounds[partition].first
                text = encode_metadata(renamed_state(state, places, first, new_id, size))
            commits[lane] = (offset, text)
        self._say(f"committing {len(commits)} partitions for {self._new}")
        self._clients.commits.write(self._new, commits)

    def _epilogue(self) -> str:
        topics = ", ".join(topic.old for topic in self._topics)
        return (
            f"done: group {self._old} is {self._new} now. Start processes with TICKOVER_GROUP={self._new}. The old "
            f"commits stay as marks, so that no process starts as {self._old} by mistake. When {self._new} runs well, "
            f"these topics may be deleted: {topics}"
        )


def _state_of(lane: TopicPartition, offset: int, text: str) -> CommitState | None:
    try:
        return decode_metadata(offset, text)
    except LedgerFormatError as error:
        raise RenameRefusedError(f"the commit of {lane}: {error}") from None
