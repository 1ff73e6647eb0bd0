"""Earlier ends of transactions: a block written ahead of the end, and a flush while the engine has time to wait."""

from typing import Any

import pytest

from sidecar.engine.commit.interval import CommitInterval
from sidecar.engine.commit.transaction import LINGER_S, NEVER, PUSH_AGAIN_S, Transaction, begun
from sidecar.engine.engine import QUIET, Rhythm
from tests.contract.overflow_records import held
from tests.simulation.fake_transactions import FakeTransactions, TransactionError
from tests.simulation.replica import LEDGER
from tests.unit.engine.commit.test_exactly_once import seen, settlement_of
from tests.unit.engine_bench import Bench


def test_what_closes_is_sent_in_the_same_turn() -> None:
    bench = Bench(trouble=str)
    bench.delay_ms = 60_000  # unless it is flushed; this engine never has time to hasten
    bench.send(b"value", 0)
    bench.wait_until(lambda: seen(bench), 100)


def test_what_is_closing_is_hastened(slow: pytest.MonkeyPatch) -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    assert not settlement.hasten(quiet=True), "nothing is closing"
    bench.delay_ms = 200
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement._closing is not None, 100)
    slow.undo()
    bench.clock.advance(int(PUSH_AGAIN_S * 1_000))
    assert settlement.hasten(quiet=True)
    assert not settlement.hasten(quiet=True), "it is with the committer"
    bench.run(10)
    assert len(seen(bench)) == 1


def test_a_producer_that_dies_of_a_flush_is_replaced(slow: pytest.MonkeyPatch) -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.delay_ms = 200
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement._closing is not None, 100)
    closing = settlement._closing
    assert closing is not None

    def flush(_: float) -> int:
        raise FakeTransactions.refused(TransactionError("_FENCED", dies=True))

    slow.setattr(closing.output, "flush", flush)
    bench.clock.advance(int(PUSH_AGAIN_S * 1_000))
    assert settlement.hasten(quiet=True)
    assert settlement.must_start_over
    bench.run(3_000)
    assert len(seen(bench)) == 1


def written_to_ledger(bench: Bench) -> int:
    return sum(len(log.records) for log in bench.broker.logs[LEDGER.name])


def has_a_block_ahead_of_its_end(bench: Bench, within_ms: int) -> None:
    """The transaction with the one record that is emitted next."""
    settlement, blocks = settlement_of(bench), written_to_ledger(bench)
    bench.wait_until(lambda: written_to_ledger(bench) > blocks, within_ms)
    assert settlement._closing is None
    assert settlement.open.sent == 1, "it is open"
    assert seen(bench) == []
    bench.run(200)
    assert len(seen(bench)) == 1
    assert bench.lane.imbalance == 0


def test_the_ledger_has_a_block_of_a_transaction_ahead_of_its_end() -> None:
    bench = Bench(trouble=str)
    bench.run(500)
    bench.send(b"value", 0)
    has_a_block_ahead_of_its_end(bench, 100)


def test_a_partition_that_only_emits_has_a_block_ahead_too() -> None:
    bench = Bench(trouble=str)
    bench.send(b"value", 1_000)
    bench.run(500)
    has_a_block_ahead_of_its_end(bench, 1_000)


def test_a_block_that_was_written_ahead_for_a_lost_partition_is_never_committed() -> None:
    bench = Bench(trouble=str)
    settlement, now_ms = settlement_of(bench), bench.clock.now_ms
    transaction = Transaction(CommitInterval(settlement.open.output))
    bench.lane.touch()
    settlement._filling.write_ahead(transaction, [bench.lane], now_ms)
    assert [block.lane for block in transaction.blocks] == [bench.lane]
    bench.lane.dropped = True
    settlement._filling.fill(transaction, [], now_ms)
    assert transaction.doomed


@pytest.mark.usefixtures("slow")
def test_records_that_are_tried_one_by_one_wait_for_the_transaction_with_a_block_written_ahead() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement._next.blocks, 100)
    [block] = settlement._next.blocks
    bench.replica.emitter.redelivery.isolated.append("mail", bench.lane, held(0, 0))
    bench.wait_until(lambda: settlement._closing is not None, 100)
    assert settlement._closing is not None
    assert not settlement._closing.careful
    assert settlement._closing.blocks[0] is block


def test_no_block_is_written_ahead_while_records_wait_to_be_tried_one_by_one() -> None:
    bench = Bench(trouble=str)
    settlement, now_ms = settlement_of(bench), bench.clock.now_ms
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement.open.sent, 100)
    isolated = bench.replica.emitter.redelivery.isolated
    isolated.append("mail", bench.lane, held(0, 0))
    settlement.write_ahead([bench.lane], now_ms)
    assert settlement._next.blocks == []
    isolated.pop("mail")
    settlement.write_ahead([bench.lane], now_ms)
    assert len(settlement._next.blocks) == 1


@pytest.mark.usefixtures("slow")
def test_no_block_is_written_ahead_while_the_last_transaction_is_undecided() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement._closing is not None, 100)
    bench.replica.executors.pop()  # the committer comes to nothing
    bench.run(20)
    blocks = written_to_ledger(bench)
    for _ in range(10):
        bench.send(b"value", 0)
        bench.run(50)
    assert settlement.open.sent == 10
    assert written_to_ledger(bench) == blocks


class Client:
    """A producer that notes whether it was flushed or polled."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def flush(self, _: float) -> int:
        self.calls.append("flush")
        return 0

    def poll(self, _: float) -> int:
        self.calls.append("poll")
        return 0


def handed_over(count: int, at_s: float = 0.0) -> tuple[Client, Transaction]:
    """A transaction that was begun then and got so many records."""
    client = Client()
    transaction = begun(client, at_s)
    transaction.interval.sent = count
    return client, transaction


def test_what_is_open_lingers_for_so_long() -> None:
    _, transaction = handed_over(5, 1.0)
    assert not transaction.lingers(1.0 + LINGER_S - 0.001)
    assert transaction.lingers(1.0 + LINGER_S)


def test_nothing_lingers_in_an_empty_transaction() -> None:
    _, transaction = handed_over(0)
    assert not transaction.lingers(1.0)


def test_no_more_is_asked_to_be_sent_while_the_last_push_has_no_answer() -> None:
    client, transaction = handed_over(5)
    transaction.push(1.0)
    transaction.interval.sent = 8
    assert not transaction.lingers(2.0)
    transaction.push(1.0 + PUSH_AGAIN_S - 0.001)
    assert client.calls == ["flush", "poll"]
    transaction.interval.acknowledged = 5
    assert transaction.lingers(2.0)


def test_answers_let_the_next_push_be_a_flush() -> None:
    client, transaction = handed_over(5)
    transaction.push(1.0)
    transaction.interval.acknowledged = 1
    transaction.push(1.001)
    transaction.push(1.002)
    assert client.calls == ["flush", "flush", "poll"]


def test_a_flush_without_an_answer_is_tried_again() -> None:
    client, transaction = handed_over(5)
    transaction.push(1.0)
    transaction.push(1.0 + PUSH_AGAIN_S)
    assert client.calls == ["flush", "flush"]


def test_an_open_transaction_is_pushed_by_a_quiet_engine_only() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.delay_ms = 200
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement.open.sent == 1, 100)
    settlement._next.pushed = NEVER
    assert not settlement.hasten(quiet=False)
    assert settlement.open.acknowledged == 0
    assert settlement.hasten(quiet=True)
    assert settlement.open.acknowledged == 1


class Settlement:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def hasten(self, quiet: bool, most_s: float) -> bool:
        self.asked.append(quiet)
        return True


def test_a_busy_engine_hastens_at_once_and_then_from_time_to_time() -> None:
    settlement: Any = Settlement()
    nobody: Any = None  # records wait for no transaction of their own
    rhythm = Rhythm(settlement, nobody, 1_000)
    for now_ms in range(100, 120):
        rhythm._now_ms = now_ms
        rhythm.hasten(QUIET)
    assert settlement.asked == [False, False]
    rhythm.hasten(QUIET - 1)
    assert settlement.asked == [False, False, True]


def test_partitions_that_leave_do_not_wait_for_what_lingers() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.delay_ms = 60_000  # unless it is flushed
    bench.send(b"value", 0)
    bench.wait_until(lambda: settlement.open.sent == 1, 100)
    for executor in bench.replica.executors:
        bench.clock.passing.append(executor.run)
    began_ms = bench.clock.now_ms
    bench.replica.assignment.leave()
    assert bench.clock.now_ms - began_ms < 100
    assert len(seen(bench)) == 1
