"""The wheel against a list: whatever the order of inserts, cancels and advances, wherever time jumps."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Held

START_MS = 1_000_000
TICKS_MS = st.sampled_from([1, 2, 5, 10])
INSERT = st.tuples(st.just("insert"), st.integers(-300, 3_000))
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 50))
ADVANCE = st.tuples(st.just("advance"), st.integers(0, 40) | st.sampled_from([0, 1, 1_000, 10_000_000, -1, -7, -2_000]))


def held(offset: int, due_ms: int) -> Held:
    return Held(due_ms, offset, "t", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


class Model:
    """Model of a wheel: the due time of each offset, in a plain dict."""

    def __init__(self, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.waiting: dict[int, int] = {}
        self.now_ms = START_MS
        self.seen: set[int] = set()

    def must_fire(self, now_ms: int) -> set[int]:
        """Offsets that have reached their tick, once the clock has: nothing fires twice within one tick."""
        if now_ms // self.tick_ms <= self.now_ms // self.tick_ms:
            return set()
        return {
            offset for offset, due_ms in self.waiting.items() if -(-due_ms // self.tick_ms) <= now_ms // self.tick_ms
        }


@given(TICKS_MS, st.lists(INSERT | CANCEL | ADVANCE, max_size=120))
def test_everything_fires_once_and_never_early(tick_ms: int, steps: list[tuple[str, int]]) -> None:
    wheel, model = Wheel(START_MS, tick_ms), Model(tick_ms)
    for offset, (what, amount) in enumerate(steps):
        if what == "insert":
            wheel.insert(held(offset, model.now_ms + amount))
            model.waiting[offset] = model.now_ms + amount
        elif what == "cancel" and model.waiting:
            gone = sorted(model.waiting)[amount % len(model.waiting)]
            wheel.cancel(gone)
            del model.waiting[gone]
        elif what == "advance":
            now_ms = model.now_ms + amount
            fired = wheel.advance(now_ms)
            assert all(record.due_ms <= now_ms for record in fired), "early"
            assert {record.offset for record in fired} == model.must_fire(now_ms)
            assert len({record.offset for record in fired} | model.seen) == len(fired) + len(model.seen), "twice"
            ticks = [max(-(-record.due_ms // tick_ms), model.now_ms // tick_ms + 1) for record in fired]
            assert ticks == sorted(ticks), "out of order"
            model.seen |= {record.offset for record in fired}
            for record in fired:
                del model.waiting[record.offset]
            model.now_ms = now_ms
        assert wheel.count == wheel.recount() == len(model.waiting)
    assert {record.offset for record in wheel.advance(model.now_ms + 10**12)} == set(model.waiting)
    assert not wheel.buckets


@given(TICKS_MS, st.lists(st.tuples(st.integers(-100, 5_000), st.booleans()), min_size=1))
def test_the_next_due_time_is_when_something_fires(tick_ms: int, records: list[tuple[int, bool]]) -> None:
    wheel = Wheel(START_MS, tick_ms)
    for offset, (delay_ms, is_cancelled) in enumerate(records):
        wheel.insert(held(offset, START_MS + delay_ms))
        if is_cancelled:
            wheel.cancel(offset)
    next_ms = wheel.next_due_ms()
    assert (next_ms == -1) == (wheel.count == 0)
    assert not wheel.advance(next_ms - 1)
    assert bool(wheel.advance(next_ms)) == (next_ms != -1)
