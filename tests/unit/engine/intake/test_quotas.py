"""Quotas, rule by rule, on one engine between fakes. What faults do to the counts is the simulation's."""

from typing import Any

import pytest

from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.intake.quotas import uses_of
from sidecar.engine.partition.quota import Used
from sidecar.model.stats import QuotaUse
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import SOURCE, Bench

NEAR_MS, FAR_MS = 500, 30_000  # before and beyond the bench's horizon of 2 s


def limited(version: int, quota: dict[str, int] | None) -> PolicyTable:
    policy = Policy.model_validate(
        {
            "name": "reminders",
            "match": {"topics": [SOURCE]},
            "delay": {"max": "10d"},
            "target": {"topic": "mail", "allow": ["*"]},
            "quota": quota,
        }
    )
    return PolicyTable(version, {"reminders": Versioned(policy, version, "me", 0, "api")})


class QuotaBench(Bench):
    """A bench whose policy has a quota."""

    def __init__(self, quota: dict[str, int], **more: Any) -> None:
        super().__init__(**more)
        self.use(quota)

    def use(self, quota: dict[str, int] | None) -> None:
        version = max(self.tables) + 1
        self.tables[version] = self.replica.engine.table = limited(version, quota)

    def act(self, action: bytes, id: bytes, *more: tuple[str, bytes]) -> None:
        self.send(None, headers=[("tickover-action", action), ("tickover-id", id), *more])

    def refused(self) -> list[bytes | None]:
        found = self.records(QUARANTINE)
        assert {dict(record.named or ())["tickover-reason"] for record in found} <= {b"quota_exceeded"}
        return [record.value() for record in found]

    @property
    def use_now(self) -> QuotaUse:
        return uses_of(self.replica.lanes).get("reminders", QuotaUse())

    @property
    def count(self) -> int:
        return self.use_now.records


@pytest.fixture(params=[False, True], ids=["at_least_once", "exactly_once"])
def bench(request: pytest.FixtureRequest) -> QuotaBench:
    return QuotaBench({"records": 3}, trouble=(lambda: "") if request.param else None)


@pytest.mark.parametrize("delay_ms", [NEAR_MS, FAR_MS], ids=["wheel", "overflow"])
def test_what_is_too_much_is_refused_at_once_and_what_leaves_makes_room(bench: QuotaBench, delay_ms: int) -> None:
    for value in (b"1", b"2", b"3", b"4", b"5"):
        bench.send(value, delay_ms)
    bench.run(200)
    assert bench.refused() == [b"4", b"5"]
    assert bench.use_now == QuotaUse(3, bench.use_now.bytes, 1.0)
    bench.wait_until(lambda: len(bench.values("mail")) == 3)
    assert bench.values("mail") == [b"1", b"2", b"3"]
    bench.wait_until(lambda: bench.use_now == QuotaUse(0, 0, 0.0))
    bench.send(b"6", NEAR_MS)
    bench.wait_until(lambda: len(bench.values("mail")) == 4)
    assert bench.refused() == [b"4", b"5"]


def test_who_is_refused_is_told_why_and_keeps_what_it_needs_to_come_again(bench: QuotaBench) -> None:
    for _ in range(4):
        bench.send(b"v", FAR_MS, [("mine", b"1")])
    bench.wait_until(bench.refused)
    headers = dict(bench.records(QUARANTINE)[0].named or ())
    detail = headers["tickover-detail"] or b""
    assert detail.startswith(b"policy reminders@2 holds 3 records of ")
    assert detail.endswith(b" of reminders/0, its quota is 3 records")
    assert (headers["mine"], headers["tickover-source"]) == (b"1", b"reminders/0/3")
    assert b"tickover-deliver-at" in [name.encode() for name in headers]  # the very time that it was to be due


def test_bytes_are_limited_too() -> None:
    bench = QuotaBench({"bytes": 1_000})
    bench.send(b"x" * 600, FAR_MS)
    bench.send(b"y" * 600, FAR_MS)
    bench.send(b"z" * 100, FAR_MS)
    bench.wait_until(lambda: bench.count == 2 and bench.refused())
    assert [value[:1] for value in bench.refused() if value] == [b"y"]
    assert 700 < bench.use_now.bytes < 1_000


def test_a_cancelled_one_makes_room_and_a_moved_one_does_not(bench: QuotaBench) -> None:
    for name in (b"a", b"b", b"c"):
        bench.send(name, FAR_MS, [("tickover-id", name)])
    bench.run(300)
    bench.act(b"reschedule", b"a", ("tickover-delay", b"40s"))
    bench.act(b"reschedule", b"a", ("tickover-delay", b"1m"))
    bench.run(300)
    assert bench.count == 3
    bench.send(b"d", FAR_MS)
    bench.act(b"cancel", b"b")
    bench.wait_until(lambda: bench.count == 2)
    bench.send(b"e", FAR_MS)
    bench.wait_until(lambda: bench.count == 3)
    assert bench.refused() == [b"d"]


def test_after_a_crash_it_is_known_what_is_held_and_who_was_let_in_stays(bench: QuotaBench) -> None:
    bench.send(b"far", FAR_MS)
    bench.run(500)
    bench.send(b"near", 1_500)
    bench.send(b"far too", FAR_MS)
    bench.run(20)  # read, and in no block of the ledger perhaps
    bench.restart()
    bench.wait_until(lambda: bench.count == 3)
    size = bench.use_now.bytes
    bench.send(b"one more", FAR_MS)
    bench.wait_until(bench.refused)
    assert bench.use_now == QuotaUse(3, size, 1.0)
    bench.wait_until(lambda: len(bench.values("mail")) == 3)
    bench.wait_until(lambda: bench.use_now == QuotaUse(0, 0, 0.0))
    assert bench.refused() == [b"one more"]


def test_a_change_of_the_policy_applies_to_what_comes_and_counts_what_is_held(bench: QuotaBench) -> None:
    bench.use(None)
    for value in (b"1", b"2", b"3", b"4"):
        bench.send(value, FAR_MS)
    bench.run(500)
    bench.send(b"5", 1_500)
    bench.run(100)
    assert bench.lane.quota is None
    bench.use({"records": 4})
    bench.wait_until(lambda: bench.count == 5)
    bench.send(b"6", FAR_MS)
    bench.wait_until(bench.refused)
    bench.use({"records": 6})
    bench.send(b"7", FAR_MS)
    bench.wait_until(lambda: bench.count == 6)
    assert bench.refused() == [b"6"]
    assert bench.use_now.share == 1.0


def test_what_has_a_target_that_must_be_asked_for_counts_until_it_is_turned_away(bench: QuotaBench) -> None:
    bench.send(b"1", FAR_MS, [("tickover-target", b"nowhere")])
    bench.run(5)
    bench.send(b"2", FAR_MS)
    bench.wait_until(lambda: bench.values(QUARANTINE) == [b"1"])
    bench.wait_until(lambda: bench.count == 1)


def test_the_share_is_of_what_is_scarcer() -> None:
    used = Used(limited(1, {"records": 10, "bytes": 100}).policies["reminders"].policy.quota)  # type: ignore[arg-type]
    used.records, used.bytes = 1, 50
    assert used.share == 0.5
    used.records = 8
    assert used.share == 0.8
