"""How many records a transaction may have."""

import pytest

from sidecar.engine.commit.exactly_once import GROW_S, GROW_SLOWLY_S, TransactionSizeLimit
from sidecar.engine.commit.settlement import RECORDS_MAX


def test_after_too_many_it_is_half_of_what_was_acknowledged() -> None:
    fit = TransactionSizeLimit()
    fit.learn(8_500, 7_526, at_once=False, now_s=100.0)
    assert fit.most == 3_763
    fit.learn(3_763, 1, at_once=False, now_s=101.0)
    assert fit.most == 1


def test_it_grows_when_all_of_several_seconds_was_acknowledged_at_once() -> None:
    fit = TransactionSizeLimit()
    fit.learn(40, 20, at_once=False, now_s=100.0)
    fit.learn(10, 0, at_once=True, now_s=101.0)
    assert fit.most == 10, "a moment's luck"
    fit.learn(10, 0, at_once=False, now_s=103.0)
    fit.learn(10, 0, at_once=True, now_s=100.0 + GROW_S)
    assert fit.most == 10, "one of them took its time"
    fit.learn(9, 0, at_once=True, now_s=103.0 + GROW_S)
    assert fit.most == 10, "no more was needed"
    fit.learn(10, 0, at_once=True, now_s=103.0 + GROW_S)
    assert fit.most == 20
    fit.learn(20, 0, at_once=True, now_s=104.0 + GROW_S)
    assert fit.most == 20


@pytest.mark.parametrize(("sent", "at_once"), [(10, False), (9, True)], ids=["slow", "not full"])
def test_it_grows_slowly_where_brokers_take_their_time_or_little_is_due(sent: int, at_once: bool) -> None:
    fit = TransactionSizeLimit()
    fit.learn(40, 20, at_once=False, now_s=100.0)
    for second in range(1, int(GROW_SLOWLY_S)):
        fit.learn(sent, 0, at_once=at_once, now_s=100.0 + second)
        assert fit.most == 10
    fit.learn(sent, 0, at_once=at_once, now_s=100.0 + GROW_SLOWLY_S)
    assert fit.most == 15


def test_what_nobody_acknowledged_tells_nothing_of_size() -> None:
    fit = TransactionSizeLimit()
    fit.learn(1_000, 0, at_once=False, now_s=100.0)
    assert fit.most == RECORDS_MAX


def test_it_has_an_end() -> None:
    fit = TransactionSizeLimit()
    fit.learn(RECORDS_MAX, 0, at_once=True, now_s=100.0)
    assert fit.most == RECORDS_MAX
