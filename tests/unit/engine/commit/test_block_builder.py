"""Blocks of a lane: whatever users send, each fits into a Kafka record, and they say things in their order."""

import random
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from policies.headers import ID
from sidecar.engine.commit.block_builder import (
    PendingBlock,
    build_block,
    has_news,
    restore_sealed,
    take_sealed,
    unsealed,
)
from sidecar.engine.partition.partition import RUNS_MAX, SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.recovery import Replay
from sidecar.kafka.client_settings import producer_settings
from sidecar.ledger.block import Block, body_of
from sidecar.ledger.topic import BLOCK_BYTES_MAX, LedgerTopic
from sidecar.model.ports import MESSAGE_BYTES_MAX, Start
from sidecar.model.record import Diverted, Headers, Held, Outcome, Position, TopicPartition, held_id
from sidecar.settings.settings import MESSAGE_BYTES_MIN
from tests.unit.engine.test_recovery import block, entries, recovered

LEDGER = LedgerTopic("ledger", 1, "g" * 64)
NOW_MS = 1_763_720_000_000
LONG_ID, LONG_TOPIC, LONG_POLICY = "i" * 1_024, "t" * 249, "p" * 63 + f"@{(1 << 53) - 1}"
RUNS_BYTES = RUNS_MAX * 8
OVERHEAD = 8 << 10  # of a record and its batch, and of zstd on what can't be compressed
CHANCE = random.Random(1)


@pytest.fixture(name="producer")
def producer_fixture() -> Iterator[Producer]:
    """A real one without a broker: it judges what it is given by its size."""
    producer = Producer(producer_settings({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}))
    yield producer
    producer.purge()
    producer.flush(0)


def lane_of(offsets: int) -> SourcePartition:
    lane = SourcePartition(TopicPartition("src", 0), Wheel(0), PromotionWindows(Position(-1, -1)))
    assert lane.offsets.append_run(list(range(offsets)))
    lane.note_table(0, 1)
    return lane


def held(offset: int, message_id: str = "", **other: object) -> Held:
    trailer: Headers = [(ID, message_id.encode())] if message_id else []
    record = Held(
        NOW_MS + offset, offset, "t", -1, None, None, [], "p@1", None, 0, -1, trailer, -1, "", len(message_id)
    )
    return record._replace(**other)  # type: ignore[arg-type]


def incompressible_id() -> str:
    return urlsafe_b64encode(CHANCE.randbytes(768)).decode()


def moved(record: Held, control: int) -> Diverted:
    """The record goes on under the offset of its control record."""
    carried = record._replace(offset=control, source=record.offset)
    return Diverted(
        record.due_ms, record.offset, Outcome.MOVED, "", "", None, None, [], record.policy, 0, held_id(record), control,
        carried, record.size,
    )  # fmt: skip


def sealed(lane: SourcePartition, ledger: LedgerTopic = LEDGER) -> list[PendingBlock]:
    """All that the lane has to say."""
    seals = []
    while has_news(lane):
        seals.append(build_block(lane, NOW_MS, ledger))
        take_sealed(lane, seals[-1])
    return seals


def rows(seals: list[PendingBlock]) -> tuple[list[int], list[int], list[int]]:
    """Offsets that these blocks settle, put to the overflow, and carry on."""
    blocks = [seal.block for seal in seals]
    return (
        [offset for block in blocks for offset in block.settled.offsets],
        [offset for block in blocks for offset in block.entries.offsets],
        [offset for block in blocks for offset in block.carried.offsets],
    )


@pytest.mark.parametrize("puts", [0, 2_000])
def test_a_block_fits_into_a_kafka_record_whatever_ids_users_have(producer: Producer, puts: int) -> None:
    """500 emitted and 500 moved, whose ids stand in the block twice, and those on their way to the overflow."""
    lane = lane_of(8_000)
    lane.settled = [held(offset, incompressible_id()) for offset in range(500)]
    lane.departed = [moved(held(offset, incompressible_id()), offset + 5_000) for offset in range(500, 1_000)]
    lane.put([held(offset, incompressible_id()) for offset in range(2_000, 2_000 + puts)])
    seals = sealed(lane)
    for seal in seals:
        assert len(body_of(seal.block)) < BLOCK_BYTES_MAX
        try:
            producer.produce("ledger", seal.value)
        except KafkaException as error:
            pytest.fail(f"{len(seal.value)} bytes: {error}")
    settled, put, carried = rows(seals)
    assert (sorted(settled), put) == (list(range(1_000)), list(range(2_000, 2_000 + puts)))
    assert sorted(carried) == list(range(5_500, 6_000))
    assert [seal.block.number for seal in seals if seal.change] == list(range(1, lane.number + 1))
    assert (lane.settled, lane.departed, lane.puts) == ([], [], [])


def test_topics_count_as_ids_do(producer: Producer) -> None:
    lane = lane_of(40_000)
    topics = [f"{number:05}".ljust(249, "t") for number in range(8_000)]
    lane.settled = [held(offset, target=topics[offset % 8_000]) for offset in range(20_000)]
    lane.put([held(offset, target=topics[offset % 8_000], dead_letter=topics[7]) for offset in range(20_000, 22_000)])
    seals = sealed(lane)
    assert max(len(body_of(seal.block)) for seal in seals) < BLOCK_BYTES_MAX
    settled, put, _ = rows(seals)
    assert sorted(settled + put) == list(range(22_000))


def test_what_is_usual_is_cut_nowhere() -> None:
    lane = lane_of(40_000)
    lane.settled = [held(offset, due_ms=NOW_MS + CHANCE.randrange(3_600_000)) for offset in range(0, 40_000, 2)]
    lane.put([held(offset) for offset in range(1, 4_001, 2)])
    [seal] = sealed(lane)
    assert (seal.emitted, len(seal.block.entries.offsets)) == (20_000, 2_000)


def test_a_moved_record_is_not_settled_or_put_before_the_block_that_says_so() -> None:
    lane = lane_of(200)
    small = LedgerTopic("ledger", 1, "g", block_bytes_max=3_000)
    lane.departed = [moved(held(offset, f"{offset:0150}"), offset + 100) for offset in range(40)]
    carried = [departure.carried for departure in lane.departed if departure.carried is not None]
    lane.settled = carried[:20]
    lane.put(carried[20:])
    said: set[int] = set()
    for seal in sealed(lane, small):
        block = seal.block
        assert len(body_of(block)) < 3_000
        assert {offset - 100 for offset in block.carried.offsets} == {o for o in block.settled.offsets if o < 100}
        said |= set(block.carried.offsets)
        assert {*(offset for offset in block.settled.offsets if offset >= 100), *block.entries.offsets} <= said
    assert said == set(range(100, 140))


def test_a_change_that_is_written_again_is_the_same_and_fits_after_all_changes_of_policies(producer: Producer) -> None:
    lane = lane_of(8_000)
    lane.put([held(offset, incompressible_id()) for offset in range(900)])
    seal = build_block(lane, NOW_MS, LEDGER)
    take_sealed(lane, seal)
    restore_sealed(lane, seal)
    assert BLOCK_BYTES_MAX / 2 < len(seal.value) < BLOCK_BYTES_MAX
    lane.runs = [(number * 100_000, number * 100_000) for number in range(RUNS_MAX)]
    lane.settled = [held(7_000, LONG_ID)]
    again = build_block(lane, NOW_MS, LEDGER)
    assert (again.block.number, again.block.entries, again.emitted) == (1, seal.block.entries, 0)
    assert len(body_of(again.block)) < BLOCK_BYTES_MAX + RUNS_BYTES
    producer.produce("ledger", again.value)


def test_a_change_that_is_redone_after_a_crash_is_in_the_ledger_already() -> None:
    lane = recovered([block(entries_part=entries((11, 90), (12, 80)), number=1)])
    assert [change.number for change in lane.changes] == [1]
    assert unsealed(lane) is None


def largest() -> SourcePartition:
    """A lane with the largest record of each kind that limits allow, and all runs of policies."""
    lane = lane_of(8)
    lane.runs = [(number * 100_000, number * 100_000) for number in range(RUNS_MAX)]
    names = {"policy": LONG_POLICY, "target": LONG_TOPIC, "dead_letter": LONG_TOPIC}
    lane.settled = [held(0, LONG_ID, **names)]
    lane.departed = [moved(held(1, LONG_ID, **names), 5)]
    lane.put([held(2, LONG_ID, **names)])
    return lane


def test_one_record_of_each_kind_fits_easily() -> None:
    [seal] = sealed(largest())
    assert len(body_of(seal.block)) < BLOCK_BYTES_MAX / 4
    assert [len(offsets) for offsets in rows([seal])] == [2, 1, 1]


def test_a_block_is_as_small_as_it_can_be_where_even_that_is_too_much() -> None:
    seals = sealed(largest(), LedgerTopic("ledger", 1, "g", block_bytes_max=100))
    assert [rows([seal]) for seal in seals] == [([0, 1], [2], [5])]


def test_blocks_and_batches_of_them_fit_where_brokers_take_what_they_do_by_default() -> None:
    assert BLOCK_BYTES_MAX + RUNS_BYTES + OVERHEAD < MESSAGE_BYTES_MIN
    settings = producer_settings({})
    assert int(settings["batch.size"]) + OVERHEAD < MESSAGE_BYTES_MAX == int(settings["message.max.bytes"])


def counted(lane: SourcePartition, *blocks: Block, hw: int) -> tuple[int, int]:
    """Records that a recovery from these blocks takes for held by the overflow: by its count, and by its marks."""
    replay = Replay(lane.id, Start(0, "", ""), None, hw)
    for place, one in enumerate(blocks):
        replay.block(place, one)
    again = replay.lane(0, 1, len(blocks))
    return again.overflow_held, sum(not again.offsets.is_open(offset) for offset in range(lane.offsets.next))


@pytest.mark.parametrize("applied", [False, True])
def test_a_recovery_counts_what_was_overtaken_as_often_as_it_takes_it_for_held_by_the_overflow(applied: bool) -> None:
    """Else its count is too low for ever, and a topic that must be emptied first looks empty."""
    lane = lane_of(3)
    lane.put([held(0), held(1), held(2)])
    [first] = sealed(lane)
    assert first.change is not None
    first.change.committed = True
    assert lane.overtake(NOW_MS) == [held(0)]
    if applied:
        lane.applied(lane.changes.popleft())
    lane.touched = True
    [second] = sealed(lane)
    assert counted(lane, first.block, second.block, hw=1) == (3, 3)
    lane.settled = [held(0)]
    lane.promotion.cursor = Position(NOW_MS - 1, 0)
    [third] = sealed(lane)
    lane.touched = True
    [fourth] = sealed(lane)
    for last in (third, fourth):
        assert last.block.overflow_held == 2 * applied
    restore_sealed(lane, third)
    lane.settled = []
    lane.promotion.cursor = Position(NOW_MS, 0)
    [fifth] = sealed(lane)
    assert counted(lane, first.block, second.block, fifth.block, hw=1) == (2, 2), "W has passed it"


def test_a_copy_is_struck_out_only_beside_the_settlement_of_its_record() -> None:
    """Else a record that is held on after an aborted transaction, its target being silent, is nowhere after a kill."""
    lane = lane_of(3)
    lane.put([held(0)])
    [first] = sealed(lane)
    assert first.change is not None
    first.change.committed = True
    lane.applied(lane.changes.popleft())
    lane.promotion.strike(held(0), is_open=False)
    lane.settled, lane.puts = [held(0)], [held(1)]
    [aborted] = sealed(lane)
    assert aborted.change is not None
    assert [copy.position.offset for copy in aborted.change.struck] == [0]
    restore_sealed(lane, aborted)
    [again] = sealed(lane)
    assert again.change is aborted.change
    assert (again.block.settled.offsets, aborted.change.struck) == ([], [])
    lane.settled = [held(0)]
    [last] = sealed(lane)
    assert last.change is not None
    assert (last.block.settled.offsets, [copy.position.offset for copy in last.change.struck]) == ([0], [0])
