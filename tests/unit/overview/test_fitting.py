"""Whether what is due fits through a rate, against a naive queue of single records."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.overview.fitting import MINUTE_MS, Fit, fit

A_MINUTE = 60  # an hour: one record a minute


def test_what_fits_is_not_late() -> None:
    assert fit([1, 0, 1, 1], 0, A_MINUTE) == Fit(0, -1, -1, 0)
    assert fit([], 0, A_MINUTE) == Fit(0, -1, -1, 0)


def test_a_peak_waits_until_the_rate_has_let_it_through() -> None:
    assert fit([0, 4, 0, 0, 0, 0], 0, A_MINUTE) == Fit(3 * MINUTE_MS, 1, 4, 3 * MINUTE_MS)


def test_what_is_overdue_waits_before_it() -> None:
    assert fit([1, 1, 0, 0], 2, A_MINUTE).late_ms == 2 * MINUTE_MS


def test_a_peak_that_does_not_end_in_these_minutes() -> None:
    found = fit([0, 9], 0, A_MINUTE)
    assert (found.since, found.until, found.late_ms) == (1, -1, 8 * MINUTE_MS)


def test_more_than_a_rate_for_good_fits_with_no_spread_within_its_minutes() -> None:
    assert fit([100_000] * 3, 0, A_MINUTE).spread_ms == -1


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(0, 20), st.integers(1, 600))
def test_the_last_record_is_as_late_as_in_a_queue_of_single_records(held: list[int], overdue: int, rate: int) -> None:
    """Minutes as wholes: in each one its records come at its begin, and as many leave as the rate has by its end."""
    waiting, worst = float(overdue), 0.0
    for count in held:
        waiting = max(waiting + count - rate / 60, 0.0)
        worst = max(worst, waiting)
    assert abs(fit(held, overdue, rate).late_ms - worst / (rate / 3_600_000)) <= 1.5


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(60, 600))
def test_with_the_spread_every_minute_has_its_share_and_with_less_one_has_more(held: list[int], rate: int) -> None:
    spread = fit(held, 0, rate).spread_ms // MINUTE_MS

    def most(minutes: int) -> float:
        return max(sum(held[max(place - minutes, 0) : place + 1]) / (minutes + 1) for place in range(len(held)))

    if spread > 0:
        assert most(spread) * 60 <= rate
        assert spread == 1 or most(spread - 1) * 60 > rate
