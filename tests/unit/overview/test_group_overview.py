"""A look at the whole group: who answers, who only lives, lag, and what is left of it when Redis or Kafka is away."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from sidecar.conditions.attribution import Sign
from sidecar.engine.engine import EngineError
from sidecar.kafka.backlog import BacklogUnavailable
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.report import MINUTE_MS, MINUTES, DueMinute, Overview, Replica
from sidecar.model.condition import Pausable, Pause, PauseKind
from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.overview.group_overview import ENDS_KEPT_S, Asked, GroupOverview
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import LANE, NOW_MS, report, report_of

PAUSES = {Pausable(PauseKind.TARGET, "mail"): Pause("moving", "ops", NOW_MS)}


@dataclass
class Group:
    """Replicas, their signs and the ends of their partitions, as a test says them."""

    answering: list[Replica] = field(default_factory=list)
    given: list[Sign] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    redis_problem: str = ""
    kafka_away: bool = False
    others: int = -1
    ends_asked: int = 0
    now_s: float = 0.0

    def overview(self, until_ms: int, others: int) -> Overview:
        self.others = others
        return Overview(self.answering, {}, [], self.redis_problem)

    def signs(self) -> Sequence[Sign]:
        if self.redis_problem:
            raise OverflowUnavailable(self.redis_problem)
        return self.given

    def ends_of(self, lanes: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.ends_asked += 1
        if self.kafka_away:
            raise BacklogUnavailable("no broker answers")
        return {lane: self.ends[lane] for lane in lanes if lane in self.ends}


def looking(group: Group) -> GroupOverview:
    asked = Asked(group, group.signs, group.ends_of, lambda: PAUSES)
    return GroupOverview("payments", "exactly_once", asked, lambda: NOW_MS, lambda: group.now_s)


def test_who_gives_signs_and_does_not_answer_is_silent() -> None:
    signs = [Sign(f"run-of-{name}", name, NOW_MS) for name in ("c", "a", "b")]
    group = Group([Replica(report("a"), {})], signs)
    seen = looking(group).look()
    assert [sign.replica for sign in seen.silent] == ["b", "c"]
    assert group.others == 2
    assert seen.pauses == PAUSES


def test_a_process_that_was_started_again_under_its_name_is_another_one() -> None:
    """The former one is gone, and the present one answers."""
    group = Group([Replica(report("a"), {})], [Sign("an earlier run", "a", NOW_MS - 30_000)])
    assert [sign.run for sign in looking(group).look().silent] == ["an earlier run"]


def test_lag_is_what_is_not_read_yet() -> None:
    behind, ahead, unknown = LANE, TopicPartition("t", 0), TopicPartition("t", 1)
    group = Group([Replica(report(), {behind: 5, ahead: 9, unknown: 1})], ends={behind: 12, ahead: 7})
    assert looking(group).look().lags == {behind: 7, ahead: 0}


def test_ends_are_asked_for_now_and_then_and_for_a_partition_that_is_new() -> None:
    group = Group([Replica(report(), {LANE: 5})], ends={LANE: 12, TopicPartition("t", 0): 3})
    look = looking(group)
    look.look()
    look.look()
    assert group.ends_asked == 1
    group.answering = [Replica(report(), {TopicPartition("t", 0): 1})]
    assert look.look().lags == {TopicPartition("t", 0): 2}
    group.now_s += ENDS_KEPT_S
    look.look()
    assert group.ends_asked == 3


def test_without_kafka_there_is_no_lag_and_all_else() -> None:
    group = Group([Replica(report(), {LANE: 5})], kafka_away=True)
    seen = looking(group).look()
    assert (seen.lags, len(seen.reports)) == ({}, 1)


def test_without_redis_this_process_tells_of_itself_and_says_why() -> None:
    group = Group([Replica(report("a"), {})], redis_problem="connection refused")
    seen = looking(group).look()
    assert (seen.overview.problem, [one.replica for one in seen.reports]) == ("connection refused", ["a"])


# --- as a replica asks ----------------------------------------------------------------------------------------------


class Away:
    """A Redis that is away."""

    def publish(self, channel: str, data: bytes) -> int:
        raise RedisConnectionError("refused")


class Local:
    """A process with one partition, or whose engine has ended."""

    def __init__(self, *, lives: bool) -> None:
        self._lives = lives

    def views(self) -> list[Any]:
        if not self._lives:
            raise EngineError("the engine has ended")
        return [SimpleNamespace(lane=LANE, next=4)]

    def due(self, views: Sequence[Any], until_ms: int) -> tuple[Counter[int], Counter[int]]:
        this = until_ms // MINUTE_MS - MINUTES
        return Counter({this: 2, this - 1: 1}), Counter({this: 3})


def test_a_replica_without_redis_or_engine_still_says_what_it_knows() -> None:
    this = NOW_MS // MINUTE_MS - MINUTES
    for lives, problem, minutes in ((True, "", {this: 5, this - 1: 1}), (False, "the engine has ended", {})):
        local: Any = Local(lives=lives)
        away: Any = Away()
        asked = GroupLookUp(lambda: local, Meeting(away, "g"), lambda: {LANE.topic: 4}, FakeBacklog(), report_of)  # noqa: B023
        seen = asked.overview(NOW_MS, 3)
        (one,) = seen.replicas
        assert (one.report.forecast_problem, seen.minutes) == (problem, minutes)
        assert one.report.near == ((DueMinute(minute=this, held=2),) if lives else ()), "overdue: of no minute"
        assert seen.problem
        assert (LANE in seen.missing) is not lives
        assert len(seen.missing) == 4 - lives
        asked.stop()
