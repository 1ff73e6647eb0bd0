"""The pace of a redrive, its end by itself, and what a redriven record carries."""

from hypothesis import given
from hypothesis import strategies as st

from policies.headers import ATTEMPT, ERROR_CLASS, ERROR_MESSAGE, FIRST_FAILURE, ORIGIN, REASON, SOURCE
from sidecar.model.record import Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.redrive_routing import redriven_headers
from sidecar.operations.jobs.pace import BURST_S, RAMP_START, STOP_SAMPLE, Pace, must_stop

STEPS = st.lists(st.floats(0.001, 3.0), min_size=1, max_size=60)
NAMES = st.sampled_from([ATTEMPT, FIRST_FAILURE, ERROR_CLASS, ERROR_MESSAGE, REASON, SOURCE, ORIGIN, "mine", "other"])
HEADERS = st.lists(st.tuples(NAMES | st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=12)


@given(steps=STEPS, rate=st.floats(1, 10_000), ramp_s=st.floats(0, 60), most=st.integers(1, 5_000))
def test_never_faster_than_the_rate(steps: list[float], rate: float, ramp_s: float, most: int) -> None:
    pace, now_s, sent = Pace(rate, ramp_s, 0.0), 0.0, 0
    for step in steps:
        now_s += step
        count = pace.allowed(now_s, most)
        assert 0 <= count <= min(most, max(rate * BURST_S, 1.0))
        pace.sent(count)
        sent += count
        share = min(1.0, RAMP_START + (1 - RAMP_START) * now_s / ramp_s) if ramp_s else 1.0
        assert sent <= rate * share * now_s + 1


@given(rate=st.floats(10, 10_000), ramp_s=st.floats(0, 10))
def test_in_the_end_as_fast_as_the_rate(rate: float, ramp_s: float) -> None:
    pace, sent = Pace(rate, ramp_s, 0.0), 0
    turns = [ramp_s + n * 0.01 for n in range(1, 1_001)]
    for now_s in (ramp_s, *turns):
        count = pace.allowed(now_s, 1 << 30)
        pace.sent(count)
        sent += count
    assert sent >= rate * 10 * 0.95 - 1


def test_no_rate_is_no_limit() -> None:
    assert Pace(0, 30.0, 0.0).allowed(0.0, 2_000) == 2_000


@given(sent=st.integers(0, 10_000), failed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_it_stops_when_more_than_the_share_failed(sent: int, failed: int, share: float) -> None:
    stops = must_stop(sent, failed, share, is_canary=False)
    if sent >= STOP_SAMPLE:
        assert stops == (failed > share * sent)
    assert must_stop(sent, failed, share, is_canary=True) >= stops
    assert not must_stop(sent, 0, share, is_canary=True)


@given(headers=HEADERS, to_source=st.booleans())
def test_a_redriven_record_begins_anew_and_keeps_what_is_the_users(
    headers: list[tuple[str, bytes | None]], to_source: bool
) -> None:
    letter = DeadLetter(Place("t", 1, 2), 0, None, None, headers)
    kept = redriven_headers(letter, to_source, "p/1")
    own = [header for header in headers if not header[0].startswith("tickover-")]
    assert [header for header in kept if not header[0].startswith("tickover-")] == own
    assert [header for header in kept if header[0] == ORIGIN] == [header for header in headers if header[0] == ORIGIN]
    names = [name for name, _ in kept]
    assert REASON not in names
    assert SOURCE not in names
    if not to_source:
        assert not {ATTEMPT, FIRST_FAILURE, ERROR_CLASS, ERROR_MESSAGE} & set(names)
    assert kept[-3:] == [
        ("tickover-redrive-plan", b"p/1"),
        ("tickover-redrive-count", b"1"),
        ("tickover-redrive-source", b"t/1/2"),
    ]
    again = redriven_headers(letter._replace(headers=kept), to_source, "q/2")
    assert dict(again)["tickover-redrive-count"] == b"2"
    assert len(again) == len(kept)  # replaced, not added
