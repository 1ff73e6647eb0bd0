import pytest

from sidecar.engine.emission.target_health import TRY_MAX_MS, UNNEEDED_MS
from sidecar.engine.emission.targets import ABSENT_MAX, ANSWER_AGE_MAX_MS, ASK_AGAIN_MS, Targets
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.ports import NO_ANSWER
from sidecar.model.record import Held, Position, TargetPartition, TopicPartition
from tests.simulation.fake_executor import StepExecutor

NOW_MS = 1_000_000
LANE = SourcePartition(TopicPartition("t", 0), Wheel(0), PromotionWindows(Position(0, -1)))
OTHER = SourcePartition(TopicPartition("t", 1), Wheel(0), PromotionWindows(Position(0, -1)))


def held(offset: int, partition: int = -1) -> Held:
    return Held(0, offset, "mail", partition, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


class Cluster:
    """Answers from a dict, and counts the questions."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.asked: list[str] = []
        self.executor = StepExecutor()
        self.targets = Targets(self.ask, self.executor)

    def ask(self, topic: str) -> int:
        self.asked.append(topic)
        return self.topics.get(topic, 0)

    def settle(self, now_ms: int) -> list[int]:
        """Ask what has to be asked; offsets of the records that have their answer, or may be tried."""
        released = [*self.targets.step(now_ms)]
        self.executor.run()
        released += [*self.targets.step(now_ms), *self.targets.trials()]
        return [parcel.offset for _, parcel in released]


@pytest.fixture(name="cluster")
def cluster_fixture() -> Cluster:
    return Cluster()


def test_many_records_one_question(cluster: Cluster) -> None:
    cluster.topics["mail"] = 3
    for offset in range(5):
        cluster.targets.wait(LANE, held(offset))
    assert cluster.targets.count == 5
    assert cluster.settle(NOW_MS) == [0, 1, 2, 3, 4]
    assert cluster.asked == ["mail"]
    assert cluster.targets.partitions == {"mail": 3}
    assert cluster.targets.count == 0


def test_no_is_believed_for_a_while(cluster: Cluster) -> None:
    cluster.targets.wait(LANE, held(1))
    assert cluster.settle(NOW_MS) == [1]
    assert cluster.targets.absent("mail", NOW_MS + ANSWER_AGE_MAX_MS - 1)
    assert not cluster.targets.absent("mail", NOW_MS + ANSWER_AGE_MAX_MS)
    cluster.targets.wait(LANE, held(2))
    assert cluster.settle(NOW_MS + 1) == []
    cluster.topics["mail"] = 1
    assert cluster.settle(NOW_MS + ANSWER_AGE_MAX_MS) == [2]
    assert not cluster.targets.absent("mail", NOW_MS + ANSWER_AGE_MAX_MS)


def test_what_records_name_that_is_not_there_is_not_remembered_for_ever(cluster: Cluster) -> None:
    now_ms = NOW_MS
    for offset in range(3 * ABSENT_MAX):
        cluster.targets.wait(LANE, held(offset)._replace(target=f"no-{offset}"))
        if offset % 100 == 0:
            cluster.settle(now_ms)
            now_ms += ANSWER_AGE_MAX_MS
    assert len(cluster.targets._absent_ms) <= ABSENT_MAX + 100
    cluster.targets.wait(LANE, held(1))
    cluster.settle(now_ms)
    assert cluster.targets.absent("mail", now_ms)


def test_no_answer_is_no_no(cluster: Cluster) -> None:
    cluster.topics["mail"] = NO_ANSWER
    cluster.targets.wait(LANE, held(1))
    assert cluster.settle(NOW_MS) == []
    assert not cluster.targets.absent("mail", NOW_MS)
    assert cluster.settle(NOW_MS + 1) == []
    assert cluster.asked == ["mail"], "not at once again"
    cluster.topics["mail"] = 2
    assert cluster.settle(NOW_MS + ASK_AGAIN_MS) == [1]


def test_a_topic_that_seems_gone_is_asked_about_again(cluster: Cluster) -> None:
    cluster.targets.partitions["mail"] = 3
    cluster.targets.forget("mail")
    assert "mail" not in cluster.targets.partitions
    cluster.topics["mail"] = 4
    cluster.targets.wait(LANE, held(1))
    assert cluster.settle(NOW_MS) == [1]
    assert cluster.targets.partitions["mail"] == 4


def test_revoked_lanes_take_their_records_with_them(cluster: Cluster) -> None:
    cluster.topics["mail"] = 1
    cluster.targets.wait(LANE, held(1))
    cluster.targets.wait(OTHER, held(2))
    cluster.targets.drop({LANE})
    assert cluster.settle(NOW_MS) == [2]
    cluster.targets.stop()
    cluster.targets.stop()


def test_a_partition_that_was_not_there_is_asked_about_again(cluster: Cluster) -> None:
    wanted = held(1)._replace(target_partition=2)
    cluster.topics["mail"] = 1
    cluster.targets.wait(LANE, wanted)
    assert cluster.settle(NOW_MS) == [1]
    assert cluster.targets.count_for(wanted, NOW_MS + ANSWER_AGE_MAX_MS - 1) == 1, "believed for a while"
    assert cluster.targets.count_for(held(2), NOW_MS + ANSWER_AGE_MAX_MS) == 1, "who asks for none has no question"
    assert cluster.targets.count_for(wanted, NOW_MS + ANSWER_AGE_MAX_MS) is None
    cluster.topics["mail"] = 3
    cluster.targets.wait(LANE, wanted)
    assert cluster.settle(NOW_MS + ANSWER_AGE_MAX_MS) == [1]
    assert cluster.targets.count_for(wanted, NOW_MS + ANSWER_AGE_MAX_MS) == 3


def test_a_partition_that_does_not_acknowledge_is_tried_again_after_a_while_that_grows(cluster: Cluster) -> None:
    cluster.targets.partitions["mail"] = 2
    cluster.targets.step(NOW_MS)
    place, well = TargetPartition("mail", 1), TargetPartition("mail", 0)
    waits: list[int] = []
    now_ms = NOW_MS
    trial = held(1, 1)
    for _ in range(6):
        cluster.targets.step(now_ms)
        cluster.targets.suspend("mail", {1})
        assert not cluster.targets.holds_up(well, LANE, trial)
        assert cluster.targets.holds_up(place, LANE, trial)
        started_ms = now_ms
        while not cluster.settle(now_ms):
            assert cluster.targets.suspended(now_ms) == {"mail"}
            now_ms += 100
        waits.append(now_ms - started_ms)
        assert not cluster.targets.holds_up(place, LANE, trial)
    assert waits == [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]
    assert cluster.targets.holds_up(place, LANE, held(2, 1)), "one is enough to see"
    assert cluster.settle(now_ms) == []
    assert cluster.targets.acknowledged([well]) == set()
    assert cluster.targets.acknowledged([place, well]) == {"mail"}
    assert cluster.targets.suspended(now_ms) == {"mail"}
    assert cluster.settle(now_ms) == [2]
    assert cluster.targets.suspended(now_ms) == set()
    assert cluster.targets.place_of(held(1)) == TargetPartition("mail", -1)
    cluster.targets.suspend("mail", {1})
    assert cluster.targets.holds_up(place, LANE, trial)
    assert cluster.settle(now_ms + 4_900) == []
    assert cluster.settle(now_ms + 5_000) == [1]


def test_of_a_topic_s_partitions_one_is_tried_at_a_time_and_when_it_is_well_the_next_at_once(cluster: Cluster) -> None:
    cluster.targets.partitions["mail"] = 3
    cluster.targets.step(NOW_MS)
    cluster.targets.suspend("mail", {-1})  # some that nobody knows
    for number in range(6):
        assert cluster.targets.holds_up(TargetPartition("mail", number % 3), LANE, held(number, number % 3))
    now_ms = NOW_MS + 5_000
    assert cluster.settle(now_ms) == [0]
    assert cluster.settle(now_ms) == []
    assert cluster.targets.place_of(held(7)) == TargetPartition("mail", 0), "what has no key goes with what is tried"
    cluster.targets.suspend("mail", {0})
    assert cluster.targets.holds_up(TargetPartition("mail", 0), LANE, held(0, 0))
    assert cluster.settle(now_ms + 9_900) == []
    now_ms += 10_000
    assert cluster.settle(now_ms) == [1], "the one that was tried comes last"
    assert cluster.targets.acknowledged([TargetPartition("mail", 1)]) == {"mail"}
    assert cluster.targets.place_of(held(7)) == TargetPartition("mail", 1), (
        "what has no key goes where it is acknowledged"
    )
    assert cluster.settle(now_ms) == [4, 2], "all that is for who acknowledges, and the next trial"
    assert cluster.settle(now_ms + TRY_MAX_MS - 1) == []
    assert cluster.settle(now_ms + TRY_MAX_MS) == [3], "what became of 2 nobody says any more"


def test_what_may_go_to_another_partition_is_no_trial_and_waits_no_longer(cluster: Cluster) -> None:
    """All were silent, as where brokers were: what has no key waited for one of them."""
    cluster.targets.partitions["mail"] = 2
    cluster.targets.step(NOW_MS)
    cluster.targets.suspend("mail", {0, 1})
    for number in range(4):
        keyless = held(number)
        assert cluster.targets.holds_up(cluster.targets.place_of(keyless), LANE, keyless)
    assert cluster.targets.holds_up(TargetPartition("mail", 0), LANE, held(4, 0))
    assert cluster.targets.holds_up(TargetPartition("mail", 1), LANE, held(5, 1))
    now_ms = NOW_MS + 5_000
    assert cluster.settle(now_ms) == [0], "one of them will do where nobody acknowledges"
    assert cluster.targets.acknowledged([TargetPartition("mail", 1)]) == {"mail"}
    assert cluster.settle(now_ms) == [5, 1, 2, 3]
    assert all(cluster.targets.place_of(held(number)) == TargetPartition("mail", 1) for number in range(4))
    assert cluster.settle(now_ms) == [4], "at once the trial, not after that of a record that went elsewhere"


def test_one_for_which_nothing_waits_any_more_is_forgotten(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.targets.partitions["mail"] = 2
    cluster.targets.step(NOW_MS)
    cluster.targets.suspend("mail", {1})
    place, now_ms = TargetPartition("mail", 1), NOW_MS
    for _ in range(100):
        assert cluster.targets.holds_up(place, LANE, held(1, 1))
        now_ms += 4_000
        assert cluster.settle(now_ms) in ([], [1])
        cluster.targets.step(now_ms)
    cluster.targets.drop({LANE})  # it is somebody else's
    cluster.targets.step(now_ms)
    cluster.targets.step(now_ms + UNNEEDED_MS - 1)
    assert cluster.targets.is_suspended(place), "it may be the same lane that comes back"
    with caplog.at_level("INFO"):
        cluster.targets.step(now_ms + UNNEEDED_MS)
    assert not cluster.targets.is_suspended(place)
    assert caplog.messages[-1] == "nothing waits any more for a target that did not acknowledge"
    cluster.targets.await_answers([place])
    cluster.targets.step(now_ms + 100 * UNNEEDED_MS)
    assert cluster.targets.is_suspended(place), "what is under way says when it acknowledges"


def test_a_trial_whose_lane_was_dropped_is_over(cluster: Cluster) -> None:
    cluster.targets.partitions["mail"] = 2
    cluster.targets.step(NOW_MS)
    cluster.targets.suspend("mail", {1})
    place = TargetPartition("mail", 1)
    assert cluster.targets.holds_up(place, LANE, held(1, 1))
    assert cluster.settle(NOW_MS + 5_000) == [1]
    assert cluster.targets.holds_up(place, OTHER, held(2, 1))
    cluster.targets.drop({OTHER})
    assert cluster.targets.holds_up(place, OTHER, held(2, 1))
    assert cluster.settle(NOW_MS + 5_000) == [], "its answer may still come"
    cluster.targets.drop({LANE})  # the engine starts over from what Kafka has
    assert cluster.settle(NOW_MS + 5_000) == [2]


def test_a_topic_without_an_answer_is_named_and_one_that_is_gone_is_forgotten(cluster: Cluster) -> None:
    cluster.topics["mail"] = NO_ANSWER
    cluster.targets.wait(LANE, held(1))
    cluster.settle(NOW_MS)
    assert cluster.targets.suspended(NOW_MS) == {"mail"}
    cluster.targets.suspend("mail", {0})
    cluster.topics["mail"] = 0
    assert cluster.settle(NOW_MS + ASK_AGAIN_MS) == [1]
    assert cluster.targets.suspended(NOW_MS + ASK_AGAIN_MS) == set()
    assert not cluster.targets.is_suspended(TargetPartition("mail", 0))
