"""When a process that has ended has a successor, and when its supervisor ends with it."""

from collections.abc import Iterable
from signal import SIGKILL

from sidecar.supervisor.replacing import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    START_TRIES_MAX,
    STEADY_S,
    Ending,
    GiveUp,
    Place,
    Replace,
    after,
)

SHORT_S = STEADY_S / 10
CRASH = Ending(-SIGKILL, has_started=True, ran_s=SHORT_S)
FAILED_START = Ending(1, has_started=False, ran_s=SHORT_S)
KILLED_AT_START = Ending(-SIGKILL, has_started=False, ran_s=SHORT_S)


def verdicts(endings: Iterable[Ending], place: Place = Place()) -> list[Replace | GiveUp]:  # noqa: B008 - frozen
    told = []
    for ending in endings:
        place, verdict = after(place, ending)
        told.append(verdict)
    return told


def test_who_ends_again_and_again_waits_longer_each_time_up_to_a_limit() -> None:
    waits_s = [told.wait_s for told in verdicts([CRASH] * 12) if isinstance(told, Replace)]
    assert waits_s[:4] == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S, 8 * BACKOFF_S]
    assert len(waits_s) == 12
    assert waits_s == sorted(waits_s)
    assert waits_s[-1] == BACKOFF_MAX_S


def test_after_a_steady_minute_the_next_one_comes_soon_again() -> None:
    steady = Ending(-SIGKILL, has_started=True, ran_s=STEADY_S)
    *_, last, after_it = verdicts([CRASH, CRASH, CRASH, steady, CRASH])
    assert (last, after_it) == (Replace(BACKOFF_S), Replace(2 * BACKOFF_S))


def test_a_long_start_is_no_steady_minute() -> None:
    """Brokers that are away hold a start up for a quarter of an hour: that is no sign of health."""
    waited = Ending(-SIGKILL, has_started=False, ran_s=10 * STEADY_S)
    assert verdicts([CRASH, waited]) == [Replace(BACKOFF_S), Replace(2 * BACKOFF_S)]


def test_one_that_never_could_start_ends_all_with_its_status() -> None:
    assert verdicts([Ending(3, has_started=False, ran_s=0.1)]) == [GiveUp(3)]


def test_one_whose_predecessor_had_started_may_fail_a_few_times() -> None:
    told = verdicts([CRASH, *[FAILED_START] * START_TRIES_MAX])
    assert all(isinstance(one, Replace) for one in told[:-1])
    assert told[-1] == GiveUp(1)


def test_failed_starts_are_counted_in_a_row() -> None:
    almost = [FAILED_START] * (START_TRIES_MAX - 1)
    told = verdicts([CRASH, *almost, CRASH, *almost])
    assert all(isinstance(one, Replace) for one in told)


def test_a_signal_during_the_first_start_says_nothing_about_the_settings_but_not_for_ever() -> None:
    told = verdicts([KILLED_AT_START] * START_TRIES_MAX)
    assert all(isinstance(one, Replace) for one in told[:-1])
    assert told[-1] == GiveUp(128 + SIGKILL)


def test_one_that_somebody_stopped_in_order_is_replaced_too() -> None:
    assert verdicts([Ending(0, has_started=True, ran_s=1.0)]) == [Replace(BACKOFF_S)]


def test_endings_are_told_in_words() -> None:
    assert (CRASH.words, FAILED_START.words) == ("SIGKILL", "status 1")
