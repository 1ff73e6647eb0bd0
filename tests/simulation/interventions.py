"""Acts of operators, retention and broken brokers on a group: commits, ledger and sources change while it is down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.engine.partition.progress import NOWHERE
from sidecar.engine.recovery_reader import RecoveryWorker
from sidecar.ledger.block import Block, decode, encode, lane_key
from sidecar.ledger.commit_metadata import CommitState, decode_metadata
from sidecar.ledger.topic import LedgerError, LedgerTopic, LedgerUnavailable
from sidecar.model.log_cuts import NO_CUTS
from sidecar.model.ports import mark_of
from sidecar.model.record import Position, TopicPartition
from sidecar.overflow.interface import OverflowUnavailable
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_group import FakeStarts
from tests.simulation.fake_kafka import LOG_APPEND_TIME, FakeLedgerLog, FakeRecord
from tests.simulation.replica import LEDGER

if TYPE_CHECKING:
    from tests.simulation.replica import Replica
    from tests.simulation.world import World

SOON_MS = 6_500  # the dead are out of the group, and their transactions are still open
LONG_MS = 30_000  # whatever was open has timed out
PARTITIONS_MAX = 3
COMMITS_WATCHED = 60  # steps
REBUILD_TRIES = 4
STEPS_OF_REBUILD = 60
COPIED_EACH = 12  # steps of these
TRIES_MAX = 50  # of a recovery whose commits aren't known for now


@contextmanager
def all_down(world: World, wait_ms: int) -> Iterator[None]:
    """Every replica is killed; the same number starts again when this is done."""
    count = len(world.replicas)
    for replica in list(world.replicas):
        world.take_down(replica)
    world.clock.advance(wait_ms)
    yield
    for _ in range(count):
        world.start()


def lose_commits(world: World) -> None:
    """Commits have expired, all or some; or the group was deleted.

    Not where nothing at all would be left of a partition, which is refused (`_lose_beginning`).
    """
    share = world.rng.choice((0.5, 1.0))
    with all_down(world, world.rng.choice((SOON_MS, LONG_MS))):
        committed = world.group.committed
        unknown = [lane for lane in world.group.lanes if _needs_its_commit(world, lane)]
        kept = {lane for lane in unknown if lane in committed} or set(list(committed)[: len(unknown)])
        for lane in list(committed):
            if world.rng.random() < share and lane not in kept:
                del committed[lane]


def _needs_its_commit(world: World, lane: TopicPartition) -> bool:
    """The commit alone knows of this partition, where its numbers begin (else nobody could tell an older copy of Redis
    that has a former topic's records), or how far a log was read that was cut back since.
    """
    log, state = world.broker.logs[LEDGER.name][LEDGER.partition_of(lane)], _state(world, lane)
    if _has_unseen_cut(world, lane) and _known_by_ledger(world, lane)[0] < world.oracle.cuts[lane].pairs[-1][0]:
        return True
    has_former = state is not None and state.first_change > 0
    return log.start > 0 and (has_former or all(record.key() != lane_key(*lane) for record in log.records))


def _has_unseen_cut(world: World, lane: TopicPartition) -> bool:
    """The log was cut back since anybody committed."""
    cuts, state = world.oracle.cuts.get(lane, NO_CUTS), _state(world, lane)
    return bool(cuts) and (state is None or state.cuts != cuts)


def _back_to(world: World, lane: TopicPartition, offset: int) -> int:
    """Where an operator sets an offset who passes nothing over that nobody has read."""
    return min(offset, world.oracle.cuts[lane].pairs[-1][1]) if _has_unseen_cut(world, lane) else offset


def set_commits_back(world: World) -> None:
    """An operator sets offsets back, as soon as the group is empty or later."""
    rng, committed = world.rng, world.group.committed
    to_beginning = rng.random() < 0.5
    with all_down(world, rng.choice((SOON_MS, LONG_MS))):
        for lane, (offset, _) in list(committed.items()):
            if not _needs_its_commit(world, lane):
                back_to = 0 if to_beginning else _back_to(world, lane, rng.randint(0, offset))
                committed[lane] = (0 if _is_of_former(world, lane) else back_to, "")


def _is_of_former(world: World, lane: TopicPartition) -> bool:
    """The commit is of a former topic, and the ledger has blocks of the present one: its offset is no way back."""
    state, topic_id = _state(world, lane), world.broker.topic_id(lane.topic)
    return (state is None or state.topic_id != topic_id) and bool(_blocks_of(world, lane, topic_id))


def trim_ledger(world: World) -> None:
    """Retention takes all of the ledger that no recovery needs, be it with a commit or without."""
    needed: dict[int, int] = {}
    for lane in world.group.lanes:
        partition, state = LEDGER.partition_of(lane), _state(world, lane)
        place = 0
        if state is not None and state.block_offset >= 0:
            place = min(state.recovery_pointer, state.rebuild_pointer, _needed_without_commit(world, lane))
        needed[partition] = min(place, needed.get(partition, place))
    for partition, place in needed.items():
        log = world.broker.logs[LEDGER.name][partition]
        until = min(place, log.stable_end())
        if until > log.start:
            world.broker.delete_before(LEDGER.name, partition, until)
            world.seen["a ledger trimmed"] += 1


def _needed_without_commit(world: World, lane: TopicPartition) -> int:
    """The first block with anything that the last one's low watermark doesn't cover."""
    log = world.broker.logs[LEDGER.name][LEDGER.partition_of(lane)]
    own = [record for record in log.records if record.key() == lane_key(*lane) and record.offset() not in log.undecided]
    blocks = [(record.offset(), decode(record.value())) for record in own]
    if not blocks:
        return 0
    low = blocks[-1][1].low
    return next(
        (
            offset
            for offset, block in blocks
            if max([*block.settled.offsets, *block.entries.offsets, *block.carried.offsets], default=-1) >= low
        ),
        blocks[-1][0],
    )


def damage_ledger(world: World) -> None:
    """The ledger is cut, or cut and grown again, or has more partitions: each recovery that needs it refuses to begin.

    Then it is put back as it was.
    """
    with all_down(world, LONG_MS):
        world.complete_transactions()
        kind = world.rng.choice((_cut, _regrow, _add_partition, _lose_beginning))
        kept = world.broker.logs[LEDGER.name]
        world.broker.logs[LEDGER.name] = [copy(log) for log in kept]
        ledger, hit = kind(world)
        for lane in hit:
            assert _is_refused(world, ledger, lane), f"{lane} is recovered from a ledger that has lost its blocks"
            world.seen["a damaged ledger refused"] += 1
        world.broker.logs[LEDGER.name] = kept


def make_source_anew(world: World) -> None:
    """A source is deleted and created again under its name."""
    topic = world.rng.choice(world.group.topics)
    with all_down(world, LONG_MS):
        world.complete_transactions()
        world.broker.create(topic, world.broker.partition_count(topic))
        for lane in world.group.lanes:
            if lane.topic == topic:
                world.oracle.forget(lane)
                world.group.seen.discard(lane)
                world.overflow.lost_once.add(lane)  # what is there of the former one is cleared
        world.seen["a source made anew"] += 1


def cut_source_back(world: World) -> None:
    """A source loses the end of its log, as by an unclean election: what is sent next has offsets that were read."""
    lane = world.rng.choice(world.group.lanes)
    with all_down(world, LONG_MS):
        world.complete_transactions()
        if lane in world.group.committed and _state(world, lane) is None:
            return  # an operator has set its offset: it is taken as it is, whatever the log is by then
        log = world.broker.logs[lane.topic][lane.partition]
        kept = world.rng.randint(max(len(log.records) - 20, 0), len(log.records))
        removed, log.records = log.records[kept:], log.records[:kept]
        log.end = log.records[-1].offset() + 1 if log.records else log.start
        log.epoch += 1
        read_until, watermark = _known_of(world, lane)
        if _lost_nothing_read(world, lane):
            read_until = min(read_until, world.oracle.cuts.get(lane, NO_CUTS).lane_offset(log.end))
        world.oracle.cut_back(lane, removed, log.end, (read_until, watermark))
        world.send_to(lane, world.rng.choice((0, 1, 10, 30)))
        world.seen["a source cut back"] += 1


def _known_of(world: World, lane: TopicPartition) -> tuple[int, Position]:
    """Behind the last offset that ledger and commit know of, and W as they have it."""
    known, state = _known_by_ledger(world, lane), _state(world, lane)
    if state is None or state.topic_id != world.broker.topic_id(lane.topic):
        return known
    low = state.low
    if state.read:  # what followed the last one was passed as it had no record, and may have one now
        low = min(low, max(state.read[-1].offset + 1, state.cuts.pairs[-1][1] if state.cuts else 0))
    return max(known[0], state.cuts.lane_offset(low)), max(known[1], state.watermark)


def _lost_nothing_read(world: World, lane: TopicPartition) -> bool:
    """The log still has the record that was read last, as far as ledger and commit tell: what it lost behind that was
    room without records.
    """
    log, topic_id = world.broker.logs[lane.topic][lane.partition], world.broker.topic_id(lane.topic)
    state = _state(world, lane)
    marks = list(state.read) if state is not None and state.topic_id == topic_id else []
    marks += [block.read for block in _blocks_of(world, lane, topic_id) if block.read is not None]
    last = max(marks, default=None)
    return last is not None and any(mark_of(record) == last for record in log.records)


def _known_by_ledger(world: World, lane: TopicPartition) -> tuple[int, Position]:
    """`_known_of` without a commit."""
    own = _blocks_of(world, lane, world.broker.topic_id(lane.topic))
    read_to = max((start for block in own for start, _ in block.runs), default=0)
    return read_to, max((block.watermark for block in own), default=NOWHERE)


def make_all_anew(world: World) -> None:
    """The cluster is set up again: the topics are empty, and the group knows nothing. Redis has what it had."""
    with all_down(world, LONG_MS):
        world.complete_transactions()
        for topic in (*world.group.topics, LEDGER.name):
            world.broker.create(topic, world.broker.partition_count(topic))
        for lane in world.group.lanes:
            world.oracle.forget(lane)
            world.overflow.lost_once.add(lane)
        world.oracle.numbers.clear()
        world.group.committed.clear()
        world.group.seen.clear()
        world.copy = ({}, {}, {}, {}, {})  # nothing tells an older copy of Redis from one of this cluster
        world.seen["all topics made anew"] += 1


def add_partition(world: World) -> None:
    """A source gets one more partition.

    Not while nothing of the group says that it was there before: then a partition without a block is refused.
    """
    topic = world.rng.choice(world.group.topics)
    count = world.broker.partition_count(topic)
    trimmed = any(log.start for log in world.broker.logs[LEDGER.name])
    if count < PARTITIONS_MAX and (world.group.committed or not trimmed):
        world.broker.add_partition(topic)
        world.group.add(TopicPartition(topic, count))
        for replica in world.replicas:
            replica.emitter.gate.sources = {**replica.emitter.gate.sources, topic: count + 1}
        world.seen["a partition added"] += 1


EVENTS: tuple[Callable[[World], None], ...] = (
    lose_commits, set_commits_back, trim_ledger, damage_ledger, make_source_anew, make_all_anew, add_partition,
    cut_source_back,
)  # fmt: skip


def die_in_a_commit(world: World) -> None:
    """The transaction that says what W has passed takes long, Redis is tidied meanwhile, and the process dies."""
    if (replica := _committing_past_what_is_held(world)) is not None:
        _stall(world, replica)


def rebuild_in_a_commit(world: World) -> None:
    """As `die_in_a_commit`, and meanwhile Redis has lost everything and is rebuilt."""
    tries = (_committing_past_what_is_held(world) for _ in range(REBUILD_TRIES))
    if (replica := next(filter(None, tries), None)) is None:
        return
    replica.commits_stand = True
    world.overflow.wipe()
    world.weather.overflow_flaky = 0.0
    was_lost = False
    for _ in range(STEPS_OF_REBUILD):
        is_lost = any(lane.loss is not None for lane in replica.lanes)
        if replica not in world.replicas or (was_lost and not is_lost):
            break
        was_lost = was_lost or is_lost
        world.step(world.rare.choice((50, 200, 700)))
    if replica in world.replicas:
        world.bury(replica)
        world.seen["rebuilt in a commit"] += was_lost


def _committing_past_what_is_held(world: World) -> Replica | None:
    """Records that waited for Redis have fallen due when Redis is back. A replica of which W has passed them, and of
    which the transaction that says so is under way; None: it didn't come to that.
    """
    rng = world.rare
    world.weather.overflow_down = True
    until_ms = world.clock.now_ms + world.shape.horizon_ms + rng.randint(-1_000, 2_000)
    while world.clock.now_ms < until_ms:
        world.send(rng.choice((0, 1, 5)))
        world.step(rng.choice((50, 200, 300)))
    world.weather.overflow_down = world.weather.overflow_full = False
    for _ in range(COMMITS_WATCHED):
        world.step(rng.choice((3, 10, 50)))
        hit = [one for one in world.replicas if one.is_committing and _passes_what_is_held(world, one)]
        if hit:
            return rng.choice(hit)
    return None


def _passes_what_is_held(world: World, replica: Replica) -> bool:
    """W has passed a record that is on its way from the wheel, and no commit says so yet."""
    for lane in replica.lanes:
        state, watermark = _state(world, lane.id), lane.promotion.watermark
        reached = state.watermark if state is not None else NOWHERE
        skip, is_done = lane.promotion.skip, lane.offsets.is_done
        if any(reached < place <= watermark and not is_done(offset) for offset, place in skip.items()):
            return True
    return False


def _stall(world: World, replica: Replica) -> None:
    """The thread that commits stands still while all others go on, until the process is gone."""
    replica.commits_stand = True
    for _ in range(world.rare.randint(1, 8)):
        if replica in world.replicas:
            replica.engine.tidy()
            world.step(world.rare.choice((3, 10, 50, 200)))
    if replica in world.replicas:
        world.bury(replica)
        world.seen["died in a commit"] += 1


def set_commits_and_redis_back(world: World) -> None:
    """Redis has lost its last writes, and an operator sets offsets to where they are, or to a little before."""
    rng, committed = world.rare, world.group.committed
    for step in range(COMMITS_WATCHED):
        if step % COPIED_EACH == 0:
            world.copy = world.overflow.copy()
            world.send(rng.randint(0, 5))
        world.step(rng.choice((3, 10, 50)))
        if any(_is_said_by_commits_alone(world, lane) for lane in world.group.lanes):
            break
    with all_down(world, rng.choice((SOON_MS, LONG_MS))):
        world.overflow.restore(world.copy)
        for lane, (offset, _) in list(committed.items()):
            if not _needs_its_commit(world, lane) and not _is_of_former(world, lane):
                committed[lane] = (max(_back_to(world, lane, offset) - rng.choice((0, 0, 0, 1)), 0), "")
        world.seen["Redis and offsets set back"] += 1


def _is_said_by_commits_alone(world: World, lane: TopicPartition) -> bool:
    """Redis has got a held record since its copy was made, and only the commit says so: no block was written since."""
    state, copied = _state(world, lane), world.copy[0].get(lane, 0)
    if state is None or state.acknowledged <= copied:
        return False
    blocks = _blocks_of(world, lane)
    if not blocks or blocks[-1].acknowledged > copied:
        return False
    fresh = [offset for block in blocks if block.number > copied for offset in block.entries.offsets]
    return any(offset < state.low and offset in world.oracle.open[lane] for offset in fresh)


RARE_EACH = 7  # no divisor of what else goes by the seed
RARE: dict[int, tuple[Callable[[World], None], ...]] = {  # by what is left of the seed: in all other runs none
    4: (die_in_a_commit, set_commits_and_redis_back),
    5: (die_in_a_commit, set_commits_and_redis_back),
    6: (rebuild_in_a_commit,),
}


def _state(world: World, lane: TopicPartition) -> CommitState | None:
    committed = world.group.committed.get(lane)
    return decode_metadata(*committed) if committed is not None else None


def _blocks_of(world: World, lane: TopicPartition, topic_id: str | None = None) -> list[Block]:
    """The ledger's blocks of a lane, in order; `topic_id`: those of this topic alone."""
    log = world.broker.logs[LEDGER.name][LEDGER.partition_of(lane)]
    blocks = [decode(record.value()) for record in log.records if record.key() == lane_key(*lane)]
    return [block for block in blocks if topic_id is None or block.topic_id == topic_id]


def _own_blocks(world: World) -> dict[int, dict[TopicPartition, int]]:
    """By partition of the ledger: where the last block of each lane's commit is."""
    places: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for lane in world.group.lanes:
        state = _state(world, lane)
        if state is not None and state.block_offset >= 0 and state.topic_id == world.broker.topic_id(lane.topic):
            places[LEDGER.partition_of(lane)][lane] = state.block_offset
    return places


def _cut(world: World) -> tuple[LedgerTopic, list[TopicPartition]]:
    """A partition loses its end, as in an unclean election."""
    hit: list[TopicPartition] = []
    for partition, places in _own_blocks(world).items():
        log = world.broker.logs[LEDGER.name][partition]
        log.end = world.rng.randint(log.start, log.end)
        log.records = [record for record in log.records if record.offset() < log.end]
        hit += [lane for lane, place in places.items() if place >= max(log.end, log.start)]
    return LEDGER, hit


def _regrow(world: World) -> tuple[LedgerTopic, list[TopicPartition]]:
    """As `_cut`, and others have written beyond the former end since."""
    _, hit = _cut(world)
    for partition, log in enumerate(world.broker.logs[LEDGER.name]):
        until = max((place for place in _own_blocks(world)[partition].values()), default=-1) + 2
        value = next((record.value() for record in log.records), None)
        while value is not None and log.end < until:
            stranger = replace(decode(value), topic="stranger")
            pair = (b"stranger/0", encode(stranger))
            log.records.append(FakeRecord((LEDGER.name, partition, log.end), (LOG_APPEND_TIME, 0), pair, []))
            log.end += 1
    return LEDGER, hit


def _add_partition(world: World) -> tuple[LedgerTopic, list[TopicPartition]]:
    """The ledger has one more partition, so blocks are looked for elsewhere."""
    world.broker.add_partition(LEDGER.name)
    grown = replace(LEDGER, partitions=LEDGER.partitions + 1)
    return grown, [lane for places in _own_blocks(world).values() for lane in places]


def _lose_beginning(world: World) -> tuple[LedgerTopic, list[TopicPartition]]:
    """A stop was so long that all commits have expired, and all blocks as well."""
    kept, world.group.committed = world.group.committed, {}
    try:
        known = [lane for lane in world.group.lanes if lane in world.group.seen]
        for log in world.broker.logs[LEDGER.name]:
            log.records, log.start = [], log.end
        for lane in known:
            assert _is_refused(world, LEDGER, lane), f"{lane} begins as if it were new"
    finally:
        world.group.committed = kept
    return LEDGER, []


def _is_refused(world: World, ledger: LedgerTopic, lane: TopicPartition) -> bool:
    worker = RecoveryWorker(
        FakeStarts(world.group), ledger, FakeLedgerLog(world.broker, ledger.name), world.overflow, 1, StepExecutor()
    )
    for _ in range(TRIES_MAX):
        try:
            if worker.recover([lane], world.clock.now_ms):
                return False
        except LedgerError:
            return True
        except (LedgerUnavailable, OverflowUnavailable):
            world.clock.advance(1_000)
    return True  # nobody could be asked: nothing was recovered
