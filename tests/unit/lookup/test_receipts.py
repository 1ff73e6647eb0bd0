"""Receipts: whoever asks gets the outcome, before or after it; memory is bounded; who goes away harms nobody."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block, Entries, LedgerFormatError, Settled, encode
from sidecar.lookup import receipts as receipts_module
from sidecar.lookup.receipt import LedgerPlace, Settlement
from sidecar.lookup.receipts import Receipts, ReceiptsUnavailable, TooManyWaiting
from sidecar.model.log_cuts import Cuts
from sidecar.model.record import Outcome, Place, Position

EMPTY = Block("g", "reminders", "i", 3, 5_000, 2, Position(4, 5), 6, 7, (), 8, NOTHING_SETTLED, NO_ENTRIES)
SOON_S = 30.0


def settled(rows: dict[int, Outcome], ids: dict[int, str] | None = None) -> Settled:
    count = len(rows)
    return Settled(
        offsets=sorted(rows),
        dues_ms=[4_000 + offset for offset in sorted(rows)],
        outcomes=[rows[offset] for offset in sorted(rows)],
        in_overflow=[0] * count,
        policies=["p@1"] * count,
        targets=["mail"] * count,
        attempts=[0] * count,
        ids=ids or {},
        reasons={offset: "expired" for offset, outcome in rows.items() if outcome is Outcome.DEAD},
    )


def entries(ids: dict[int, str]) -> Entries:
    count = len(ids)
    columns = (["p@1"] * count, ["mail"] * count, [-1] * count, [2] * count, [-1] * count, [-1] * count, [""] * count)
    return Entries(sorted(ids), [90_000] * count, *columns, ids)


def block(rows: dict[int, Outcome], ids: dict[int, str] | None = None, **other: object) -> bytes:
    return encode(replace(EMPTY, **({"settled": settled(rows, ids)} | other)))  # type: ignore[arg-type]


def emitted(*offsets: int) -> dict[int, Outcome]:
    return dict.fromkeys(offsets, Outcome.EMITTED)


@pytest.fixture
def receipts() -> Receipts:
    made = Receipts(1 << 20)
    made.note_trouble("")
    return made


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def place(offset: int, partition: int = 3) -> Place:
    return Place("reminders", partition, offset)


async def wait_until_asked(receipts: Receipts, count: int = 1) -> None:
    for _ in range(1_000):
        if receipts._waiting_count >= count:
            return
        await asyncio.sleep(0)
    pytest.fail("nobody waits")


def outcome_of(settlement: Settlement | None) -> Outcome:
    assert settlement is not None
    return settlement.outcome


def test_an_outcome_that_comes_while_one_waits(receipts: Receipts, runner: asyncio.Runner) -> None:
    async def ask():
        waiting = asyncio.create_task(receipts.outcome(place(8), SOON_S))
        other = asyncio.create_task(receipts.outcome(place(8, partition=2), SOON_S))
        await wait_until_asked(receipts, 2)
        await asyncio.to_thread(receipts.add, LedgerPlace(1, 77), block({7: Outcome.EMITTED, 8: Outcome.DEAD}))
        found = await waiting
        assert not other.done()
        other.cancel()
        return found

    found = runner.run(ask())
    assert found == receipts.settlement(place(8))
    assert (found.place, found.outcome, found.reason) == (place(8), Outcome.DEAD, "expired")
    assert (found.due_ms, found.settled_ms, found.ledger) == (4_008, 5_000, LedgerPlace(1, 77))


def test_all_who_wait_for_one_record_are_answered(receipts: Receipts, runner: asyncio.Runner) -> None:
    async def ask():
        waiting = [asyncio.create_task(receipts.outcome(place(8), SOON_S)) for _ in range(3)]
        await wait_until_asked(receipts, 3)
        receipts.add(LedgerPlace(1, 77), block(emitted(8)))
        return await asyncio.gather(*waiting)

    assert {found.place for found in runner.run(ask())} == {place(8)}


def test_an_outcome_that_came_before_it_was_asked_for(receipts: Receipts, runner: asyncio.Runner) -> None:
    receipts.add(LedgerPlace(0, 1), block({5: Outcome.CANCELLED, 9: Outcome.APPLIED}, {5: "a", 9: "a"}))
    for offset in range(100, 200):
        receipts.add(LedgerPlace(0, offset), block(emitted(offset - 100, offset)))
    assert outcome_of(runner.run(receipts.outcome(place(9), 0.0))) is Outcome.APPLIED
    assert outcome_of(receipts.settlement(place(5))) is Outcome.CANCELLED
    assert outcome_of(receipts.settlement(place(99))) is Outcome.EMITTED
    assert receipts.settlement(place(1_000)) is None


def test_no_answer_in_time_is_none_and_leaves_nothing_behind(receipts: Receipts, runner: asyncio.Runner) -> None:
    assert runner.run(receipts.outcome(place(8), 0.01)) is None
    assert receipts._waiting == {}
    assert receipts._waiting_count == 0
    receipts.add(LedgerPlace(0, 1), block(emitted(8)))  # and nobody is harmed


def test_a_request_that_goes_away_while_it_waits(receipts: Receipts, runner: asyncio.Runner) -> None:
    async def ask():
        leaving = asyncio.create_task(receipts.outcome(place(8), SOON_S))
        staying = asyncio.create_task(receipts.outcome(place(8), SOON_S))
        await wait_until_asked(receipts, 2)
        leaving.cancel()
        receipts.add(LedgerPlace(1, 77), block(emitted(8)))
        return await staying

    assert runner.run(ask()).outcome is Outcome.EMITTED
    assert receipts._waiting_count == 0


def test_while_the_ledger_is_not_read_nobody_waits(runner: asyncio.Runner) -> None:
    receipts = Receipts(1 << 20)
    with pytest.raises(ReceiptsUnavailable, match="not read yet"):
        runner.run(receipts.outcome(place(8), SOON_S))
    receipts.add(LedgerPlace(1, 77), block(emitted(8)))
    assert outcome_of(runner.run(receipts.outcome(place(8), SOON_S))) is Outcome.EMITTED  # what is known is known
    receipts.note_trouble("no broker answers")
    with pytest.raises(ReceiptsUnavailable, match="no broker answers"):
        runner.run(receipts.outcome(place(9), SOON_S))


def test_at_the_end_those_who_wait_hear_of_it(receipts: Receipts, runner: asyncio.Runner) -> None:
    async def ask():
        waiting = asyncio.create_task(receipts.outcome(place(8), SOON_S))
        await wait_until_asked(receipts)
        receipts.end()
        receipts.end()
        return await waiting

    with pytest.raises(ReceiptsUnavailable, match="ending"):
        runner.run(ask())
    with pytest.raises(ReceiptsUnavailable):
        runner.run(receipts.outcome(place(8), SOON_S))


def test_only_so_many_may_wait(receipts: Receipts, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts_module, "WAITING_MAX", 2)

    async def ask():
        waiting = [asyncio.create_task(receipts.outcome(place(offset), SOON_S)) for offset in (1, 2, 3)]
        await wait_until_asked(receipts, 2)
        receipts.add(LedgerPlace(1, 77), block(emitted(1, 2)))
        return await asyncio.gather(*waiting, return_exceptions=True)

    first, second, third = runner.run(ask())
    assert (first.place.offset, second.place.offset) == (1, 2)
    assert isinstance(third, TooManyWaiting)


def test_ids_are_found_in_every_block_that_has_them(receipts: Receipts) -> None:
    receipts.add(LedgerPlace(0, 1), encode(replace(EMPTY, entries=entries({4: "a", 6: "b"}))))
    receipts.add(LedgerPlace(0, 2), block(emitted(3, 6), {6: "b"}))
    receipts.add(LedgerPlace(0, 3), block({4: Outcome.CANCELLED, 7: Outcome.APPLIED}, {4: "a", 7: "a"}))
    entry = receipts.entries("a")[0]
    assert (entry.place, entry.due_ms, entry.written_ms, entry.attempt) == (place(4), 90_000, 5_000, 2)
    assert [(row.place.offset, row.outcome) for row in receipts.settlements("a")] == [
        (4, Outcome.CANCELLED),
        (7, Outcome.APPLIED),
    ]
    assert [row.place.offset for row in receipts.settlements("b")] == [6]
    assert receipts.entries("c") == []
    assert receipts.settlements("c") == []


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    receipts = Receipts(50_000)
    receipts.note_trouble("")
    for offset in range(1_000):
        rows = {offset: Outcome.CANCELLED, offset + 5_000: Outcome.EMITTED}
        receipts.add(LedgerPlace(0, offset), block(rows, {offset: f"id-{offset}", offset + 5_000: "every"}))
    assert receipts._bytes <= 50_000
    assert receipts.settlements("id-0") == []
    assert receipts.settlement(place(0)) is None
    assert len(receipts.settlements("id-999")) == 1
    kept = len(receipts._blocks)
    assert 10 < kept < 200
    of_every = [row.place.offset for row in receipts.settlements("every")]
    assert of_every == list(range(6_000 - kept, 6_000))
    assert len(receipts._by_id) == kept + 1
    assert len(receipts._by_action) == len(receipts._by_lane[("reminders", 3)]) == kept  # type: ignore[index]


def test_empty_blocks_take_no_room_and_garbage_is_refused(receipts: Receipts) -> None:
    receipts.add(LedgerPlace(0, 1), encode(EMPTY))
    assert not receipts._blocks
    with pytest.raises(LedgerFormatError):
        receipts.add(LedgerPlace(0, 2), b"TL\x01\x00rubbish")


def test_a_receipt_is_found_where_a_log_was_cut_back(receipts: Receipts, runner: asyncio.Runner) -> None:
    """The producer is told the offset in the log, and the ledger has the lane's own."""
    at = Place("reminders", 3, 95)

    async def both() -> tuple[Settlement | None, Settlement | None]:
        waiting = asyncio.create_task(receipts.outcome(at, SOON_S))
        await wait_until_asked(receipts)
        receipts.add(LedgerPlace(0, 1), block({104: Outcome.CANCELLED, 105: Outcome.APPLIED}, cuts=Cuts(((100, 90),))))
        return await waiting, await receipts.outcome(at, SOON_S)

    receipts.add(LedgerPlace(0, 0), block(emitted(80)))
    early, late = runner.run(both())
    assert early == late
    assert early is not None
    assert (early.place.offset, early.outcome) == (105, Outcome.APPLIED)
    assert receipts.own(at).offset == 105
    assert receipts.own(Place("reminders", 4, 95)).offset == 95
    assert receipts.settlement(Place("reminders", 3, 80)) is not None


def moved(*steps: tuple[int, int], **more: Outcome) -> Settled:
    """Records of one block, each moved by the control record at the second offset."""
    rows = {offset: Outcome.MOVED for offset, _ in steps} | {int(name[1:]): outcome for name, outcome in more.items()}
    return settled(rows)._replace(related=dict(steps))


def test_a_moved_record_is_followed_within_a_block_and_behind_it(receipts: Receipts) -> None:
    receipts.add(LedgerPlace(0, 1), block({}, settled=moved((3, 7), (7, 9), (20, 21), _9=Outcome.EMITTED)))
    receipts.add(LedgerPlace(0, 2), block({}, settled=moved((21, 22), _22=Outcome.DEAD)))
    for offset, last in ((3, 9), (7, 9), (9, 9), (20, 22), (22, 22)):
        found = receipts.search(place(offset))
        assert found is not None
        assert (found.place.offset, found.is_move) == (last, False)
    assert receipts.search(place(4)) is None


def test_a_record_that_seems_to_be_moved_by_an_earlier_one_ends_the_search(receipts: Receipts) -> None:
    receipts.add(LedgerPlace(0, 1), block({}, settled=moved((3, 7), (7, 3), (8, 8))))
    for offset in (3, 7, 8):
        assert outcome_of(receipts.search(place(offset))) is Outcome.MOVED


def test_a_reader_rests_while_nobody_waits_and_goes_on_when_somebody_does(
    receipts: Receipts, runner: asyncio.Runner
) -> None:
    async def ask() -> Settlement | None:
        resting = asyncio.create_task(asyncio.to_thread(receipts.rest, SOON_S))
        waiting = asyncio.create_task(receipts.outcome(place(8), SOON_S))
        await asyncio.wait_for(resting, SOON_S / 2)
        await asyncio.to_thread(receipts.rest, SOON_S)  # somebody still waits
        receipts.add(LedgerPlace(0, 1), block(emitted(8)))
        return await waiting

    assert outcome_of(runner.run(ask())) is Outcome.EMITTED
    began_s = time.monotonic()
    receipts.rest(0.05)
    assert time.monotonic() - began_s >= 0.04, "nobody waits any more"


def test_the_end_is_not_rested_through(receipts: Receipts) -> None:
    receipts.end()
    receipts.rest(3_600)
