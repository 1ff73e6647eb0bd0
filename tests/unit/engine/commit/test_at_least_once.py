import pytest

from sidecar.ledger.block import decode
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.ledger.topic import LedgerError
from sidecar.model.record import Outcome
from tests.simulation.fake_kafka import FakeError, FakeRecord, Nowhere
from tests.simulation.replica import LEDGER
from tests.unit.engine_bench import LANE, Bench


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


def settled(bench: Bench) -> list[int]:
    return [offset for record in bench.ledger for offset in decode(record.value()).settled.offsets]


def test_first_the_report_then_the_block_then_the_mark_then_the_commit(bench: Bench) -> None:
    bench.delay_ms = 40  # there, and as long back
    bench.send(b"v", 0)
    bench.wait_until(lambda: bench.values("mail"))
    emitted_ms = bench.clock.now_ms
    assert settled(bench) == []
    bench.wait_until(lambda: settled(bench))
    assert bench.clock.now_ms - emitted_ms >= 40 + 40, "the block was sent when the emission was acknowledged"
    assert not bench.lane.offsets.is_done(0), "the block is not acknowledged yet"
    bench.wait_until(lambda: bench.lane.offsets.is_done(0))
    assert bench.group.committed[LANE][0] == 0
    bench.wait_until(lambda: bench.group.committed[LANE][0] == 1)
    state = decode_metadata(*bench.group.committed[LANE])
    assert state is not None
    assert state.block_offset == bench.ledger[-1].offset()


def test_a_slow_target_delays_only_its_own_interval(bench: Bench) -> None:
    bench.delay_ms = 2_000
    bench.send(b"slow", 0, [("tickover-target", b"other")])
    bench.run(20)
    bench.delay_ms = 1
    bench.run(100)
    bench.send(b"fast", 0)
    bench.wait_until(lambda: settled(bench))
    assert settled(bench) == [1]
    bench.wait_until(lambda: len(settled(bench)) == 2)
    assert settled(bench) == [1, 0]


def test_a_block_says_what_became_of_each_record(bench: Bench) -> None:
    now_ms = bench.clock.now_ms
    bench.send(b"a", 100, [("tickover-id", b"id-a")])
    bench.send(b"b", 100, [("tickover-expires-at", b"%d" % (now_ms + 50))])
    bench.send(b"c", headers=[("tickover-delay", b"?")])
    bench.send(b"d", 60_000, [("tickover-id", b"id-d")])
    bench.run(400)
    blocks = [decode(record.value()) for record in bench.ledger]
    facts = {
        offset: (outcome, target, block.settled.reasons.get(offset), block.settled.ids.get(offset))
        for block in blocks
        for offset, outcome, target in zip(
            block.settled.offsets, block.settled.outcomes, block.settled.targets, strict=True
        )
    }
    assert facts == {
        0: (Outcome.EMITTED, "mail", None, "id-a"),
        1: (Outcome.DEAD, "dead", "expired", None),
        2: (Outcome.QUARANTINED, "tickover.quarantine", "bad_header", None),
    }
    [change] = [block for block in blocks if block.number]
    assert (change.number, change.entries.offsets, change.entries.ids) == (1, [3], {3: "id-d"})


def test_a_refused_block_ends_the_engine(bench: Bench) -> None:
    produce = bench.replica.output.produce

    def refuse_blocks(topic: str, value: object, key: object, partition: int, report, *rest) -> None:
        if topic == LEDGER.name:
            report(FakeError("MSG_SIZE_TOO_LARGE"), None)
        else:
            produce(topic, value, key, partition, report, *rest)  # type: ignore[arg-type]

    bench.replica.output.produce = refuse_blocks  # type: ignore[method-assign]
    bench.send(b"v", 0)
    with pytest.raises(LedgerError, match=f"refused.* set max.message.bytes of topic {LEDGER.name} to 1048588"):
        bench.run(300)


def test_a_block_that_nobody_has_seen_written_ends_the_engine(bench: Bench) -> None:
    """The client infers it of a later one; a block that is missing in the ledger is a lost settlement."""
    produce = bench.replica.output.produce

    def infer_blocks(topic: str, value: object, key: object, partition: int, report, *rest) -> None:
        if topic == LEDGER.name:
            report(None, Nowhere(FakeRecord((topic, partition, 0), (2, 0), (None, None), None)))
        else:
            produce(topic, value, key, partition, report, *rest)  # type: ignore[arg-type]

    bench.replica.output.produce = infer_blocks  # type: ignore[method-assign]
    bench.send(b"v", 0)
    with pytest.raises(LedgerError, match="no offset"):
        bench.run(300)


def test_a_block_that_the_producer_has_no_room_for_waits_whole(bench: Bench) -> None:
    produce = bench.replica.output.produce
    refused: list[str] = []

    def full_for_blocks(topic: str, *record: object) -> None:
        if topic == LEDGER.name and len(refused) < 5:
            refused.append(topic)
            raise BufferError
        produce(topic, *record)  # type: ignore[arg-type]

    bench.replica.output.produce = full_for_blocks  # type: ignore[method-assign]
    bench.send(b"near", 0)
    bench.send(b"far", 60_000)
    bench.run(800)
    assert len(refused) == 5
    assert settled(bench) == [0]
    assert bench.lane.offsets.low == 2
    assert bench.lane.number == 1


def test_many_records_with_ids_are_spread_over_blocks(bench: Bench) -> None:
    for number in range(1_200):
        bench.send(b"%d" % number, 400, [("tickover-id", b"id%d" % number)])
    bench.wait_until(lambda: len(settled(bench)) == 1_200)
    assert max(len(decode(record.value()).settled.offsets) for record in bench.ledger) <= 500
