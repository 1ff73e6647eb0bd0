"""Outcomes of actions: each message leaves once, as cancelled, replaced or written, whatever was asked of it.

The ledger settles offsets, and a moved message changes its own: `root` is the offset under which it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from policies.decide import decide
from policies.decision import REPEATED, Act, Facts
from policies.table import PolicyTable
from sidecar.ledger.block import Block
from sidecar.model.record import Outcome, TopicPartition
from tests.simulation.fake_kafka import FakeRecord
from tests.simulation.workload import RETRIED

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle

Place = tuple[TopicPartition, int]

CONTROLS = ("deliver-at", "delay", "target", "target-partition", "action", "expires-at", "spread", "if-offset")
REWRITTEN = ("origin", "due", "policy", "attempt", "first-failure", "error-class", "error-message", "id")
WRITTEN = frozenset((Outcome.EMITTED, Outcome.DEAD, Outcome.QUARANTINED))  # a record of it is in some topic
NOT_USERS = frozenset(f"tickover-{name}" for name in (*CONTROLS, *REWRITTEN, "reason", "source", "detail"))


class Acts:
    """The oracle's part for control records and replacements."""

    def __init__(self, oracle: Oracle, table_at: Callable[[int], PolicyTable]) -> None:
        self.left: dict[Place, Outcome] = {}  # messages, by the place where they came
        self.applied: Counter[Place] = Counter()  # control records
        self._oracle = oracle
        self._table_at = table_at
        self._roots: dict[Place, Place] = {}  # of moved messages, by the offset they go by now
        self._carried_dues: dict[Place, int] = {}
        self._now: dict[Place, Place] = {}  # a message's root -> the offset it goes by now

    def forget(self, lane: TopicPartition) -> None:
        """The source was deleted."""
        by_place: tuple[dict[Place, Any], ...] = (self.left, self.applied, self._roots, self._carried_dues, self._now)
        for known in by_place:
            for place in [place for place in known if place[0] == lane]:
                del known[place]

    def root(self, place: Place) -> Place:
        """Where the message that goes by this offset came."""
        return self._roots.get(place, place)

    def moved(self, lane: TopicPartition, block: Block) -> None:
        """Take in the records that this block carries on."""
        carried = block.carried
        for offset, due_ms in zip(carried.offsets, carried.dues_ms, strict=True):
            place, source = (lane, offset), (lane, carried.sources[offset])
            assert place not in self._roots, f"{place} carries twice"
            self._roots[place] = source
            self._carried_dues[place] = due_ms
            self._now[source] = place
            act = self._act(place)
            assert act is not None, f"{place} is no control record and carries {source}"
            if act.action == "reschedule":
                assert due_ms == act.due_ms, f"{place}: carried to {due_ms}, asked for {act.due_ms}"
            assert act.action in ("reschedule", "fire")
            self.applied[place] += 1

    def settled(self, place: Place, outcome: Outcome, related: int | None) -> None:
        """A row of the ledger."""
        oracle, root = self._oracle, self.root(place)
        other = None if related is None else (place[0], related)
        if outcome is Outcome.MOVED:
            assert other is not None
            assert self._roots.get(other) == root, f"{place} moved by {other}, which carries {self._roots.get(other)}"
            self._check_pair(place, other)
            return
        if outcome is Outcome.APPLIED:
            assert self._act(place) is not None, f"{place} was applied and is no control record"
            self.applied[place] += 1
            return
        assert root not in self.left, f"{root} left as {self.left[root].name} and as {outcome.name}"
        self.left[root] = outcome
        if outcome in WRITTEN:
            assert oracle.emitted[root], f"{place} was settled before it was emitted"
            assert other == (root if root != place else None), f"{place}: came at {root}, the ledger says {other}"
            if outcome is Outcome.EMITTED:
                self._check_due(place, root)
            return
        assert other is not None
        self._check_pair(place, other)
        if outcome is Outcome.REPLACED:
            assert oracle.sources[root].key() == oracle.sources[other].key(), f"{other} replaced {root} of another key"
            copied = dict(oracle.sources[other].named or ()).get("tickover-origin")
            assert copied is None, f"{other} replaced {root} by an id that came with copied headers"
        # Without transactions it may have been emitted just before a crash, and nobody knows.
        assert oracle.emitted[root] == 0 or oracle.excused[root] > 0, f"{root} was emitted and {outcome.name}"

    def _check_due(self, place: Place, root: Place) -> None:
        due_ms = self._oracle.dues[root]
        if place in self._carried_dues:
            wanted_ms = self._carried_dues[place]
        else:
            decided = decide(facts_of(root, self._oracle.sources[root]), self._table_at(self._version_of(root)))
            wanted_ms = decided.due_ms  # type: ignore[union-attr]
        if self._oracle.ordered and root[0].topic == RETRIED:  # it may have been parked behind another one
            wanted_ms = max(wanted_ms, due_ms)
        assert due_ms == wanted_ms, f"{root} was emitted for {due_ms}, and was due {wanted_ms}"

    def _version_of(self, place: Place) -> int:
        return self._oracle.versions.get(place, self._oracle.said[place])

    def _check_pair(self, hit: Place, by: Place) -> None:
        """Check that the record that acts came later, under the same id, and meant no other offset."""
        assert by[1] > hit[1]
        wanted = _if_offset(self._oracle.sources[by])
        assert wanted in (-1, hit[1]), f"{by} acted on {hit}, and was meant for offset {wanted}"
        sources = self._oracle.sources
        assert _id(sources[self.root(hit)]) == _id(sources[by]) != b""

    def check_misses(self, lane: TopicPartition, block: Block) -> None:
        """An action that hit nothing: there was nothing that it could have hit."""
        settled = block.settled
        for offset, outcome in zip(settled.offsets, settled.outcomes, strict=True):
            if outcome is not Outcome.APPLIED or offset in settled.related:
                continue
            wanted = _id(self._oracle.sources[lane, offset])
            earlier = [
                place
                for place, record in self._oracle.sources.items()
                if place[0] == lane and place[1] < offset and _id(record) == wanted and not _action(record)
            ]
            # By contract ids are unique among what is held. If not, the one is meant that came, or was moved, last.
            now = max((self._now.get(place, place) for place in earlier), default=None)
            meant = _if_offset(self._oracle.sources[lane, offset])
            if now is not None and meant not in (-1, now[1]):
                continue  # the one that is held isn't the one that was meant
            held = [one for one in earlier if self._now.get(one, one)[1] in self._oracle.open[lane]]
            if len(held) > 1 and not self._oracle.finds_each:
                continue
            if now in self._oracle.entries and now[1] < offset and now[1] in self._oracle.open[lane]:
                fired_until_ms = max(block.written_ms, self._oracle.latest_ms)
                assert self._oracle.entries[now][0] <= fired_until_ms, f"{offset} of {lane} missed {now}"

    def finished(self) -> None:
        """At the end."""
        gone = self._oracle.gone
        for place, record in self._oracle.sources.items():
            if place in gone or self._now.get(place) in gone:
                continue
            if not _action(record):
                assert place in self.left, f"{place} never left"
            elif self._oracle.settled[place] is not Outcome.QUARANTINED or place in self._roots:
                assert self.applied[place] == 1, f"{place} was applied {self.applied[place]} times"

    def _act(self, place: Place) -> Act | None:
        decided = decide(facts_of(place, self._oracle.sources[place]), self._table_at(1))
        return decided if isinstance(decided, Act) else None


def _id(record: FakeRecord) -> bytes:
    return dict(record.named or ()).get("tickover-id") or b""


def _action(record: FakeRecord) -> bytes:
    return dict(record.named or ()).get("tickover-action") or b""


def _if_offset(record: FakeRecord) -> int:
    return int(dict(record.named or ()).get("tickover-if-offset") or b"-1")


def facts_of(place: Place, source: FakeRecord) -> Facts:
    """Facts that a decision may depend on, sorted out anew from the record's headers."""
    controls: dict[str, object] = {}
    mine = []
    for name, value in source.named or ():
        if name in NOT_USERS:
            controls[name] = REPEATED if name in controls else value
        else:
            mine.append((name, value))
    kind, at_ms = source.stamp
    return Facts(place[0].topic, place[0].partition, place[1], at_ms if kind else -1, mine, controls)  # type: ignore[arg-type]
