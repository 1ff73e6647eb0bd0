"""Invariants, checked at every record that reaches Kafka and at every commit.

The oracle sees only what the outside sees: the topics, the commits and what the overflow stores. It knows the
contract and shares no code with the engine but the decision (`decide`) and the ledger's and commit's formats.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from policies.decide import decide
from policies.decision import Hold
from policies.table import PolicyTable
from sidecar.ledger.block import Block, decode
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.model.log_cuts import NO_CUTS, Cuts
from sidecar.model.record import Outcome, Position, TopicPartition
from tests.simulation.acts import NOT_USERS, Acts, Place, facts_of
from tests.simulation.fake_kafka import FakeRecord
from tests.simulation.fake_overflow import FakeOverflow
from tests.simulation.workload import QUARANTINE, RETRIED, SERIAL, SOURCES


class Oracle:
    """Judges one run. `table_at` gives the rulebook of a version."""

    def __init__(
        self, overflow: FakeOverflow, table_at: Callable[[int], PolicyTable], exactly_once: bool = False
    ) -> None:
        self._exactly_once = exactly_once
        self.sources: dict[Place, FakeRecord] = {}
        self.settled: dict[Place, Outcome] = {}
        self.open: dict[TopicPartition, set[int]] = defaultdict(set)  # sent and not settled
        self.emitted: Counter[Place] = Counter()
        self.excused: Counter[Place] = Counter()  # may be repeated so many times: a crash came between
        self.versions: dict[Place, int] = {}  # the table that decided, as the ledger first said
        self.entries: dict[Place, tuple[int, str]] = {}
        self.numbers: Counter[TopicPartition] = Counter()
        self.anew: set[TopicPartition] = set()  # of a source made anew: its numbers go on from somewhere above
        self.dues: dict[Place, int] = {}  # as the last emission says
        self.said: dict[Place, int] = {}  # the table that it names
        self.acts = Acts(self, table_at)
        self.latest_ms = 0  # by the brokers' clock as any process has known it: what was due by then may have fired
        self.finds_each = overflow.finds_each
        self.ordered = False  # retries come in the order of their keys
        self.cuts: dict[TopicPartition, Cuts] = {}
        self.only_redis: set[Place] = set()  # of a log that was cut back
        self.gone: set[Place] = set()
        self._latest: dict[tuple[TopicPartition, bytes], int] = {}  # emitted of a key: the highest offset
        self._serials: dict[bytes, Place] = {}
        self._overflow = overflow
        self._table_at = table_at

    def appended(self, record: FakeRecord) -> None:
        """A record is in a topic."""
        topic, partition, _ = record.place
        if topic in SOURCES:
            record = self.own(record)
            place = (TopicPartition(topic, partition), record.offset())
            self.sources[place] = record
            self.open[place[0]].add(place[1])
            self._serials[dict(record.named or ())[SERIAL] or b""] = place
        elif topic.endswith(".ledger"):
            self._block(decode(record.value()))
        else:
            self._emission(record)

    def forget(self, lane: TopicPartition) -> None:
        """The source was deleted: what came from there must not be seen again, and its offsets begin anew."""
        by_place: tuple[dict[Place, Any], ...] = (
            self.sources, self.settled, self.emitted, self.excused, self.versions, self.entries, self.dues, self.said,
        )  # fmt: skip
        for known in by_place:
            for place in [place for place in known if place[0] == lane]:
                del known[place]
        self.acts.forget(lane)
        self.open.pop(lane, None)
        self.cuts.pop(lane, None)
        self.only_redis = {place for place in self.only_redis if place[0] != lane}
        self.gone = {place for place in self.gone if place[0] != lane}
        self.anew.add(lane)
        self._latest = {key: offset for key, offset in self._latest.items() if key[0] != lane}
        self._serials = {serial: place for serial, place in self._serials.items() if place[0] != lane}

    def own(self, record: FakeRecord) -> FakeRecord:
        """A source's record, by the offset that its lane has for it."""
        topic, partition, offset = record.place
        cuts = self.cuts.get(TopicPartition(topic, partition), NO_CUTS)
        return replace(record, place=(topic, partition, cuts.lane_offset(offset)))

    def cut_back(
        self, lane: TopicPartition, removed: Iterable[FakeRecord], log_offset: int, known: tuple[int, Position]
    ) -> None:
        """A source lost these, and has others there next. `known`: how far it was read by the ledger, and W."""
        read_until, watermark = known
        for record in map(self.own, removed):
            place = (lane, record.offset())
            if record.offset() >= read_until:
                self._never_was(place)
            elif record.offset() in self.open[lane]:
                self.only_redis.add(place)
        cuts = self.cuts.get(lane, NO_CUTS)
        if cuts.log_offset(read_until) > log_offset:
            self.cuts[lane] = cuts.then(log_offset, read_until)
        # A copy that W has passed while its offset was open is never promoted.
        in_redis = {held.offset for held in self._overflow.records[lane] if held.position > watermark}
        self.give_up({place for place in self.only_redis if place[0] == lane and place[1] not in in_redis})

    def _never_was(self, place: Place) -> None:
        """Nobody but Kafka, and who emitted it without settling it, has known of this one."""
        record = self.sources.pop(place)
        for known in (self.emitted, self.excused, self.versions, self.dues, self.said):
            known.pop(place, None)
        self.open[place[0]].discard(place[1])
        self._serials.pop(dict(record.named or ())[SERIAL] or b"", None)

    def give_up(self, places: Iterable[Place]) -> None:
        """Nobody has these any more, or may have them: they may leave, once, or never."""
        for place in set(places):
            self.only_redis.discard(place)
            self.gone.add(place)
            self.open[place[0]].discard(place[1])

    def give_up_lost(self) -> None:
        """Redis has lost something where it alone had records."""
        self.give_up({place for place in self.only_redis if place[0] in self._overflow.lost_once})

    def crashed(self, lanes: Iterable[TopicPartition]) -> None:
        """Excuse one more emission of what was emitted and isn't settled in the ledger; none with transactions."""
        if self._exactly_once:
            return
        for lane in lanes:
            gone = {offset for of_lane, offset in self.gone if of_lane == lane} if self.gone else set()
            for offset in self.open[lane] | {offset for offset in gone if (lane, offset) not in self.settled}:
                place = self.acts.root((lane, offset))
                if self.emitted[place]:
                    self.excused[place] += 1

    def may_repeat(self, records: Iterable[FakeRecord]) -> None:
        """Refused before their partition was lost: read and emitted again meanwhile, they can't be told from the copies
        that were refused.
        """
        for record in records:
            if not record.topic().endswith(".ledger"):
                self.excused[self._place_of(record)] += 1

    # --- emissions ------------------------------------------------------------------------------------------------

    def _emission(self, record: FakeRecord) -> None:
        headers = record.headers() or []
        place = self._place_of(record)
        source = self.sources[place]
        assert place not in self.acts.left, f"{place} emitted again after it was {self.acts.left[place]}"
        self.emitted[place] += 1
        if self.emitted[place] > 1:
            assert self.excused[place] > 0, f"{place} was repeated"
            self.excused[place] -= 1
        assert (
            len({name for name, _ in headers if name in NOT_USERS})
            == len([name for name, _ in headers if name in NOT_USERS])
            or record.topic() == QUARANTINE
        ), f"own headers twice: {headers}"
        if record.topic() == QUARANTINE:
            self._quarantined(record, place, source)
            return
        assert record.pair == source.pair, f"{place} was changed"
        self._check_headers(headers, source)
        if record.topic().endswith("-dlq"):
            assert dict(headers)["tickover-source"] == b"%s/%d/%d" % (place[0].topic.encode(), place[0][1], place[1])
            return
        self._check_decision(record, place, source)
        if self.ordered and place[0].topic == RETRIED:
            self._check_order(place, source)

    def _check_order(self, place: Place, source: FakeRecord) -> None:
        """Of those that nobody moves: none comes after a later one of its key. Without transactions one may that was
        refused and tried again.
        """
        key, named = source.key(), dict(source.named or ())
        if key is None or "tickover-id" in named or not self._exactly_once:
            return
        latest = self._latest.get((place[0], key), -1)
        assert latest < place[1], f"{place} of {key!r} was overtaken by {latest}"
        self._latest[place[0], key] = place[1]

    def _place_of(self, record: FakeRecord) -> Place:
        headers = dict(record.named or ())
        source = headers.get("tickover-source")
        if SERIAL in headers:
            assert (headers[SERIAL] or b"") in self._serials, f"{source!r} is of a topic that was deleted"
            place = self._serials[headers[SERIAL] or b""]
            named = f"{place[0]}/{place[1]}".encode()
            assert source in (None, named), f"{place} says that it came from {source!r}"
            return place
        topic, partition, offset = (source or b"").decode().split("/")
        return TopicPartition(topic, int(partition)), int(offset)

    def _quarantined(self, record: FakeRecord, place: Place, source: FakeRecord) -> None:
        headers = record.named or []
        assert [name for name, _ in headers][-3:] == ["tickover-source", "tickover-reason", "tickover-detail"]
        reason = dict(headers)["tickover-reason"]
        if b"too large" in (dict(headers)["tickover-detail"] or b""):
            assert record.value() is None
        else:
            assert record.pair == source.pair, f"{place} was changed"
        if not source.garbled and record.value() == source.value() and reason != b"unknown_target":
            decided = decide(facts_of(place, source), self._table_at(1))
            if not isinstance(decided, Hold):
                assert headers[:-3] == source.named, f"{place}: headers changed"

    def _check_headers(self, headers: list[tuple[str, bytes | None]], source: FakeRecord) -> None:
        mine = [header for header in source.named or () if header[0] not in NOT_USERS]
        assert headers[: len(mine)] == mine, f"user headers changed: {mine} became {headers}"
        own = [name for name, _ in headers[len(mine) :]]
        assert own[:3] == ["tickover-origin", "tickover-due", "tickover-policy"]
        given = dict(source.named or ())
        for name in ("tickover-id", "tickover-error-class"):
            assert dict(headers).get(name) == given.get(name)
        message = given.get("tickover-error-message")
        assert dict(headers).get("tickover-error-message") == (message[:8_192] if message else message)
        assert dict(headers)["tickover-origin"] == given.get(
            "tickover-origin", f"{source.place[0]}/{source.place[1]}/{source.place[2]}".encode()
        )

    def _check_decision(self, record: FakeRecord, place: Place, source: FakeRecord) -> None:
        own = {name: value or b"" for name, value in record.named or ()}
        due_ms, version = int(own["tickover-due"]), int(own["tickover-policy"].rpartition(b"@")[2])
        assert record.handed_over_ms >= due_ms, f"{place} was early by {due_ms - record.handed_over_ms} ms"
        decided = decide(facts_of(place, source), self._table_at(version))
        assert isinstance(decided, Hold)
        self.dues[place], self.said[place] = due_ms, version
        assert not 0 <= decided.expires_ms < record.handed_over_ms, f"{place} was emitted after it had expired"
        assert decided.target == record.topic()
        assert decided.attempt == int(own.get("tickover-attempt", b"0"))
        if decided.target_partition >= 0:
            assert decided.target_partition == record.partition()
        if place in self.versions:
            assert version == self.versions[place], f"{place} was decided by {self.versions[place]}, then by {version}"

    # --- the ledger -----------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> None:
        lane = TopicPartition(block.topic, block.partition)
        self.acts.moved(lane, block)
        # The log has their payloads no more: after a crash nobody could put them back.
        carried = {place for place in ((lane, offset) for offset in block.carried.offsets) if self._is_cut_off(place)}
        self.give_up(carried)
        for offset, outcome in zip(block.settled.offsets, block.settled.outcomes, strict=True):
            place = (lane, offset)
            assert place not in self.settled, f"{place} was settled twice"
            self.acts.settled(place, Outcome(outcome), block.settled.related.get(offset))
            self.settled[place] = Outcome(outcome)
            self.open[lane].discard(offset)
        self._check_runs(lane, block)
        self.acts.check_misses(lane, block)
        if block.number:
            last = self.numbers[lane]
            follows = block.number == last + 1 if lane not in self.anew else block.number > last
            assert follows, f"{lane}: change {block.number} after {last}"
            self.anew.discard(lane)
            self.numbers[lane] = block.number
        for offset, due_ms, policy in zip(
            block.entries.offsets, block.entries.dues_ms, block.entries.policies, strict=True
        ):
            place = (lane, offset)
            assert place not in self.settled, f"{place} put to the overflow after it was settled"
            assert place not in self.entries, f"{place} put to the overflow twice"
            self.entries[place] = (due_ms, policy)
        lost = self._overflow.hw.get(lane, 0) < block.acknowledged  # an older copy, maybe of a former topic
        for held in () if lost else self._overflow.records[lane]:
            if held.offset in self.open[lane] and held.offset < block.low:
                assert held.position > block.watermark, f"{lane}: block's W passed unsettled {held.position}"

    def _is_cut_off(self, place: Place) -> bool:
        root = self.acts.root(place)
        return root in self.gone or root in self.only_redis

    def _check_runs(self, lane: TopicPartition, block: Block) -> None:
        for (start, version), (end, _) in zip(block.runs, block.runs[1:], strict=False):
            assert start <= end, f"{lane}: runs out of order {block.runs}"
            for offset in self.open[lane]:
                if start <= offset < end:
                    known = self.versions.setdefault((lane, offset), version)
                    assert known == version, f"{lane}/{offset}: decided by {known}, the ledger now says {version}"

    # --- commits --------------------------------------------------------------------------------------------------

    def committed(self, lane: TopicPartition, offset: int, metadata: str) -> None:
        """Everything below L is settled, or the overflow has it ahead of W: else a crash now would lose it."""
        state = decode_metadata(offset, metadata)
        assert state is not None
        offset = state.cuts.lane_offset(offset)
        kept = {held.offset for held in self._overflow.records[lane] if held.position > state.watermark}
        kept |= self.recoverable(lane, state.watermark)
        for unsettled in self.open[lane]:
            assert unsettled >= offset or unsettled in kept, f"{lane}/{unsettled} is lost by the commit {state}"
        if lane not in self._overflow.lost_once:
            assert state.acknowledged <= self._overflow.hw.get(lane, 0), f"{lane}: acknowledged more than there is"

    def recoverable(self, lane: TopicPartition, watermark: tuple[int, int]) -> set[int]:
        """Unsettled offsets that the overflow has lost, and that its rebuild finds in the ledger."""
        if lane not in self._overflow.lost_once:
            return set()
        entries = self.entries
        return {
            offset
            for offset in self.open[lane]
            if (lane, offset) in entries and (entries[lane, offset][0], offset) > watermark
        }

    def finished(self) -> None:
        """At the end: everything settled, once."""
        left = {lane: sorted(offsets) for lane, offsets in self.open.items() if offsets}
        assert not left, f"never settled: {left}"
        assert set(self.sources) - self.gone <= set(self.settled) <= set(self.sources)
        self.acts.finished()
