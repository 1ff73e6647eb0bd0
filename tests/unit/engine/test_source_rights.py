"""A source that may not be read for a while, as the engine meets it: in the client, and in its transactions."""

import pytest

from sidecar.engine.source_rights import SURE_MS, SourceUnreadable
from tests.unit.engine_bench import SOURCE, Bench


@pytest.fixture(name="bench", params=[None, str], ids=["at_least_once", "exactly_once"])
def bench_fixture(request: pytest.FixtureRequest) -> Bench:
    """Something was read, something is held, and then the brokers refuse the source."""
    bench = Bench(trouble=request.param)
    bench.send(b"first", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"first"])
    bench.send(b"held", 1_000)
    bench.run(200)
    bench.group.refused.add(SOURCE)
    return bench


def test_a_refusal_that_passes_loses_nothing_and_ends_nobody(bench: Bench) -> None:
    bench.run(SURE_MS // 2)
    bench.group.refused.clear()
    bench.send(b"later", 100)
    bench.wait_until(lambda: bench.lane.offsets.low == 3)
    [log] = bench.broker.logs["mail"]
    shown = [record for record in log.records if record.offset() not in log.undecided]
    assert [record.value() for record in shown] == [b"first", b"held", b"later"]
    assert bench.lane.imbalance == 0


def test_a_refusal_that_stays_ends_the_process(bench: Bench) -> None:
    with pytest.raises(SourceUnreadable, match="no right to read a source: T"):
        bench.run(3 * SURE_MS)
