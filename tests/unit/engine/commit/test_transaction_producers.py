"""How the producers of transactions begin."""

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.engine.commit.committer import NAMES, PendingOffsetsFlush, make_outputs
from sidecar.model.ports import Member
from sidecar.model.record import TopicPartition
from tests.simulation.fake_transactions import TransactionError
from tests.unit.engine.commit.recording_producer import Producer

MEMBER = Member(object(), is_named=False)
PLACE = TopicPartition("ledger", 0)
SWEEP = PendingOffsetsFlush(MEMBER, PLACE)
REFUSED = TransactionError("ILLEGAL_GENERATION", aborts=True)


def made_of(producer: Any, sweep: PendingOffsetsFlush | None = None, **former: Any) -> dict[str, Any] | str:
    makers: Any = SimpleNamespace(output=lambda name: producer)
    return make_outputs(makers, former, lambda: True, sweep)


def test_each_begins_a_transaction() -> None:
    producer = Producer()
    assert made_of(producer) == dict.fromkeys(NAMES, producer)
    assert producer.calls == ["init", "begin"] * len(NAMES)


def test_former_ones_give_up_what_they_have_under_way_before_there_are_new_ones() -> None:
    former, made = Producer(), Producer()
    producers: Any = {"a": former}
    makers: Any = SimpleNamespace(output=lambda name: made if former.calls else pytest.fail("too early"))
    make_outputs(makers, producers, lambda: True)
    assert former.calls == ["give up"]
    assert producers == {}, "and nobody has them any more"


@pytest.mark.parametrize("errors", [{}, {"offsets": REFUSED}], ids=["taken", "refused"])
def test_a_sweep_is_a_commit_that_each_aborts(errors: dict[str, TransactionError]) -> None:
    producer = Producer((), **errors)
    assert made_of(producer, SWEEP) == dict.fromkeys(NAMES, producer)
    assert producer.calls == ["init", "begin", "offsets", "abort", "begin"] * len(NAMES)
    assert producer.offsets == ({} if errors else {PLACE: (0, "")})


def test_a_sweep_that_cannot_be_aborted_is_a_problem_that_may_pass() -> None:
    assert made_of(Producer(abort=TransactionError("_TIMED_OUT")), SWEEP) == "_TIMED_OUT"
