"""Backoff and durations, for any numbers."""

from hypothesis import given
from hypothesis import strategies as st

from policies.backoff import base_ms, delay_ms, delay_range_ms
from policies.duration import DURATION_MAX_MS, format_duration, parse_duration
from policies.model import Backoff, ExponentialBackoff, FixedBackoff, Jitter, ListBackoff

durations = st.integers(0, DURATION_MAX_MS)
jitters: st.SearchStrategy[Jitter] = st.sampled_from(["none", "full", "equal"])
attempts = st.integers(1, (1 << 31) - 1)
identities = st.tuples(
    st.text("abcdefghijklmnopqrstuvwxyz.-_", min_size=1), st.integers(0, 1 << 31), st.integers(0, 1 << 62)
)


@st.composite
def exponentials(draw: st.DrawFn) -> ExponentialBackoff:
    initial, longest = sorted((draw(durations), draw(durations)))
    factor = draw(st.floats(1, 1_000))
    return ExponentialBackoff(kind="exponential", initial=initial, factor=factor, max=longest, jitter=draw(jitters))


backoffs: st.SearchStrategy[Backoff] = st.one_of(
    st.builds(FixedBackoff, kind=st.just("fixed"), delay=durations, jitter=jitters),
    exponentials(),
    st.builds(
        ListBackoff,
        kind=st.just("list"),
        delays=st.lists(durations, min_size=1, max_size=9).map(tuple),
        jitter=jitters,
    ),
)


@given(backoffs, attempts, identities)
def test_a_wait_is_within_its_bounds_and_always_the_same(
    backoff: Backoff, attempt: int, identity: tuple[str, int, int]
) -> None:
    base = base_ms(backoff, attempt)
    shortest, longest = delay_range_ms(backoff, attempt)
    wait = delay_ms(backoff, attempt, identity)
    assert shortest <= wait <= longest == base <= DURATION_MAX_MS
    assert wait == delay_ms(backoff, attempt, identity)
    match backoff.jitter:
        case "none":
            assert wait == base
        case "full":
            assert shortest == 0
        case "equal":
            assert shortest * 2 in (base, base + 1)


@given(exponentials(), st.integers(1, 10_000))
def test_an_exponential_wait_starts_at_initial_and_never_shrinks(backoff: ExponentialBackoff, attempt: int) -> None:
    assert base_ms(backoff, 1) == backoff.initial
    assert base_ms(backoff, attempt) <= base_ms(backoff, attempt + 1) <= backoff.max


def test_a_huge_attempt_does_not_overflow() -> None:
    backoff = ExponentialBackoff(kind="exponential", initial=1, factor=1_000, max=5_000)
    assert base_ms(backoff, (1 << 31) - 1) == 5_000
    # 1000 ** 102 is still a float, times initial it is infinite
    nearly = ExponentialBackoff(kind="exponential", initial=10**6, factor=1_000, max=10**7)
    assert base_ms(nearly, 103) == 10**7
    nothing = ExponentialBackoff(kind="exponential", initial=0, factor=1_000, max=5_000)
    assert base_ms(nothing, 500) == 0


def test_a_fraction_of_a_millisecond_is_rounded_up() -> None:
    backoff = ExponentialBackoff(kind="exponential", initial=1, factor=1.5, max=1_000)
    assert [base_ms(backoff, attempt) for attempt in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_a_list_repeats_its_last_wait() -> None:
    backoff = ListBackoff(kind="list", delays=(1, 10, 60))
    assert [base_ms(backoff, attempt) for attempt in (1, 2, 3, 4, 999)] == [1, 10, 60, 60, 60]


def test_jitter_is_pinned_because_other_processes_and_versions_must_agree() -> None:
    full = FixedBackoff(kind="fixed", delay=10_000, jitter="full")
    equal = FixedBackoff(kind="fixed", delay=10_000, jitter="equal")
    found = [delay_ms(full, 1, ("orders-retry", 2, offset)) for offset in range(4)]
    assert found == [5262, 7769, 9552, 948]
    assert delay_ms(equal, 1, ("orders-retry", 2, 0)) == 7631


def test_jitter_spreads_over_the_whole_range() -> None:
    backoff = FixedBackoff(kind="fixed", delay=9, jitter="full")
    counts = [0] * 10
    for offset in range(10_000):
        counts[delay_ms(backoff, 1, ("t", 0, offset))] += 1
    # Ten equal parts of 10,000: a standard deviation is 30, and the hash is fixed, so this never flakes.
    assert all(850 < count < 1_150 for count in counts), counts


@given(durations)
def test_a_duration_shown_reads_back_the_same(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h"]))
def test_rounding_a_duration_never_loses_time(whole: int, fraction: int, unit: str) -> None:
    unit_ms = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[unit]
    exact_millionths = (whole * 10**7 + fraction) * unit_ms
    text = f"{whole}.{fraction:07d}{unit}"
    if exact_millionths <= DURATION_MAX_MS * 10**7:
        found = parse_duration(text)
        assert 0 <= found * 10**7 - exact_millionths < 10**7
