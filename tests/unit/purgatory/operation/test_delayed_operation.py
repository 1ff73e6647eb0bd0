"""Delayed operations and their purgatory: what Kafka's DelayedOperationTest asks, on a clock set by hand."""

import threading

import pytest

from purgatory.locks import Rank, monitor
from purgatory.operation.delayed_operation_purgatory import PURGE_INTERVAL, SHARDS, DelayedOperationPurgatory
from purgatory.operation.watchers import WatcherList
from purgatory.timer.system_timer import SystemTimer
from purgatory.versions import KafkaVersion
from tests.unit.purgatory.timer.mock_timer import MockTimer
from tests.unit.purgatory_tasks import VERSIONS, Clock, Operation, is_held_by_this_thread


class World:
    def __init__(self, **options):
        self.clock = Clock()
        self.timer = SystemTimer(self.clock)
        self.purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", self.timer, **options)

    def watch(self, *keys, delay_ms=100_000, **options):
        operation = Operation(delay_ms, **options)
        assert not self.purgatory.try_complete_else_watch(operation, keys)
        return operation

    def at(self, now_ms):
        self.clock.now_ms = now_ms
        return self.purgatory.advance_clock(now_ms)


def test_the_check_runs_under_the_lock_and_not_through_safe_try_complete():
    class Looking(Operation):
        def try_complete(self):
            held.append(is_held_by_this_thread(self.lock))
            return False

        def safe_try_complete(self):
            pytest.fail("the lock is held already")

    held: list[bool] = []
    World().purgatory.try_complete_else_watch(Looking(), ["key"])
    assert held == [True, True]


def test_otherwise_runs_under_the_lock_only_when_the_first_check_fails():
    operation = Operation()
    held: list[bool] = []
    assert not operation.safe_try_complete_or_else(lambda: held.append(is_held_by_this_thread(operation.lock)))
    assert held == [True]
    operation.completable = True
    assert operation.safe_try_complete_or_else(lambda: pytest.fail("it was complete"))
    assert operation.completions == 1


def test_what_becomes_true_while_it_is_watched_is_seen():
    operation = Operation()
    assert operation.safe_try_complete_or_else(lambda: setattr(operation, "completable", True))
    assert (operation.tried, operation.completions) == (2, 1)


def test_what_is_completed_is_not_checked_again():
    operation = Operation()
    operation.force_complete()
    assert not operation.safe_try_complete()
    assert operation.tried == 0


def test_a_satisfied_request_completes_once():
    world = World()
    assert world.purgatory.check_and_complete("key") == 0
    one, two = world.watch("one"), world.watch("two")
    assert world.purgatory.check_and_complete("one") == 0
    one.completable = True
    assert world.purgatory.check_and_complete("one") == 1
    assert world.purgatory.check_and_complete("one") == 0
    two.completable = True
    assert world.purgatory.check_and_complete("two") == 1
    assert world.purgatory.check_and_complete("two") == 0
    assert (one.completions, two.completions) == (1, 1)
    assert (one.expirations, two.expirations) == (0, 0)


def test_a_request_that_is_complete_is_not_watched():
    world = World()
    operation = Operation()
    operation.completable = True
    assert world.purgatory.try_complete_else_watch(operation, ["key"])
    assert (world.purgatory.watched, world.purgatory.num_delayed) == (0, 0)


def test_an_operation_without_keys_is_refused():
    with pytest.raises(ValueError, match="by timeout only"):
        World().purgatory.try_complete_else_watch(Operation(), [])


@VERSIONS
def test_a_request_expires_and_is_answered_before_the_expiry_is_counted(version):
    class Ordered(Operation):
        def on_complete(self):
            order.append("complete")

        def on_expiration(self):
            order.append("expiration")
            assert not is_held_by_this_thread(self.lock)

    order: list[str] = []
    world = World()
    short = Ordered(20, version=version)
    assert not world.purgatory.try_complete_else_watch(short, ["one"])
    long = world.watch("two", delay_ms=200_000, version=version)
    world.at(19)
    assert order == []
    world.at(20)
    assert order == ["complete", "expiration"]
    assert short.is_completed()
    assert not long.is_completed()
    assert world.purgatory.num_delayed == 1


def test_completed_operations_stay_in_lists_that_nobody_walks():
    world = World()
    one = world.watch("k1")
    two, three = world.watch("k1", "k2"), world.watch("k1", "k2", "k3")
    purgatory = world.purgatory
    assert (purgatory.num_delayed, purgatory.watched) == (3, 6)
    two.force_complete()
    assert (purgatory.num_delayed, purgatory.watched) == (2, 6)
    three.force_complete()
    assert (purgatory.num_delayed, purgatory.watched) == (1, 6)
    for key, left in (("k1", 4), ("k2", 2), ("k3", 1)):
        purgatory.check_and_complete(key)
        assert purgatory.watched == left, key
    assert not one.is_completed()


def test_as_many_shards_and_as_rare_purges_as_kafka():
    purgatory = World().purgatory
    assert (SHARDS, PURGE_INTERVAL, purgatory.purge_interval) == (512, 1000, 1000)
    for key in range(512):
        purgatory.try_complete_else_watch(Operation(), [key])
    assert [len(shard.all_watchers()) for shard in purgatory._watcher_lists] == [1] * 512


def test_keys_that_nobody_waits_for_are_forgotten():
    world = World()
    for key in range(2 * SHARDS):
        world.watch(key).completable = True
        world.purgatory.check_and_complete(key)
    assert world.purgatory.watched == 0
    assert [shard.all_watchers() for shard in world.purgatory._watcher_lists] == [[]] * SHARDS


@pytest.mark.parametrize(("completed", "left"), [(10, 20), (11, 0)])
def test_a_purge_comes_when_more_than_the_interval_have_completed(completed, left):
    world = World(purge_interval=10)
    operations = [world.watch("hot", f"cold {number}") for number in range(completed)]
    for operation in operations:
        operation.force_complete()
    world.at(1)
    assert world.purgatory.watched == left
    assert sum(len(shard.all_watchers()) for shard in world.purgatory._watcher_lists) == (left and completed + 1)


def test_the_estimate_counts_an_operation_once_and_is_set_right_by_a_purge():
    world = World(purge_interval=3)
    waiting = [world.watch("a", "b", "c") for _ in range(50)]
    world.at(1)
    assert world.purgatory.watched == 150  # all wait: nothing to purge
    for operation in waiting[:4]:
        operation.force_complete()
    world.at(2)
    assert world.purgatory.watched == 138
    for operation in waiting[4:7]:
        operation.force_complete()
    world.at(3)
    assert world.purgatory.watched == 138  # three since the last purge, not seven
    waiting[7].force_complete()
    world.at(4)
    assert world.purgatory.watched == 126


def test_without_timer_the_purge_counts_what_was_watched():
    world = World(purge_interval=3, timer_enabled=False)
    for operation in [world.watch("key") for _ in range(3)]:
        operation.force_complete()
    world.at(200_000)
    assert (world.purgatory.num_delayed, world.purgatory.watched) == (0, 3)
    world.watch("key")
    world.at(200_001)
    assert world.purgatory.watched == 1


def test_cancelling_a_key_returns_its_operations_uncompleted():
    world = World()
    first, second, other = world.watch("k1"), world.watch("k1"), world.watch("k2")
    assert world.purgatory.cancel_for_key("k1") == [first, second]
    assert (world.purgatory.num_delayed, world.purgatory.watched) == (1, 1)
    world.at(200_000)
    assert (first.completions, second.completions, other.completions) == (0, 0, 1)
    assert world.purgatory.cancel_for_key("unknown") == []


@VERSIONS
def test_an_operation_that_completes_while_it_is_watched_is_watched_further_only_before_4_0(version):
    class Key:
        def __hash__(self):
            operation.force_complete()  # somebody else's doing, in the middle of the loop over the keys
            return 1

        def __eq__(self, other):
            return self is other

    world = World(version=version)
    operation = Operation(version=version)
    assert not world.purgatory.try_complete_else_watch(operation, [Key(), "second", "third"])
    assert world.purgatory.watched == (1 if version >= KafkaVersion.V4_0 else 3)
    assert world.purgatory.num_delayed == 0


@VERSIONS
def test_completion_takes_the_lock_from_4_1_on(version):
    class Completing(Operation):
        def on_complete(self):
            held.append(is_held_by_this_thread(self.lock))

    held: list[bool] = []
    operation = Completing(version=version)
    assert operation.force_complete()
    assert not operation.force_complete()
    assert held == [version >= KafkaVersion.V4_1]


@VERSIONS
def test_an_error_while_answering_leaves_it_completed_and_off_the_timer(version):
    class Failing(Operation):
        def on_complete(self):
            raise RuntimeError("no way to answer")

    world = World()
    operation = Failing(version=version)
    world.purgatory.try_complete_else_watch(operation, ["key"])
    with pytest.raises(RuntimeError, match="no way to answer"):
        operation.force_complete()
    assert operation.is_completed()
    assert world.purgatory.num_delayed == 0
    assert not operation.force_complete()


def test_a_lock_may_be_shared_with_the_state():
    group_lock = monitor(Rank.OPERATION)
    operation = Operation(lock=group_lock)
    assert operation.lock is group_lock
    with group_lock:
        assert not operation.safe_try_complete()  # reentrant
    operation.completable = True
    assert operation.safe_try_complete()


def test_an_operation_completed_between_check_and_timer_leaves_no_task():
    class Racing(SystemTimer):
        def add(self, timer_task):
            timer_task.force_complete()  # finds no entry to remove
            super().add(timer_task)

    timer = Racing(Clock())
    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", timer)
    operation = Operation()
    assert not purgatory.try_complete_else_watch(operation, ["key"])
    assert (timer.size(), operation.completions) == (0, 1)


def test_shutdown_neither_completes_nor_fails():
    world = World()
    operation = world.watch("key", delay_ms=10)
    world.purgatory.shutdown()
    world.at(1000)
    assert not operation.is_completed()


def test_the_mock_timer_expires_operations_later_than_their_time():
    timer = MockTimer()
    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", timer)
    operation, at_once = Operation(1000), Operation(0)
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.try_complete_else_watch(at_once, ["key"])
    assert at_once.expirations == 1
    timer.pass_time(1000)
    assert not operation.is_completed()
    timer.pass_time(1)
    assert operation.expirations == 1


@VERSIONS
def test_a_timeout_that_comes_second_counts_nothing(version):
    operation = Operation(version=version)
    assert operation.force_complete()
    operation.run()  # the timer had handed it over already
    assert (operation.completions, operation.expirations) == (1, 0)


@VERSIONS
def test_of_two_threads_that_see_it_open_one_completes_it(version):
    class Raced(Operation):
        raced = False

        def __setattr__(self, name, value):
            if name == "_completed" and value and not self.raced:
                self.raced = True  # exactly between the look and the mark
                thread = threading.Thread(target=self.force_complete)
                threads.append(thread)
                thread.start()
                thread.join(0.05 if version >= KafkaVersion.V4_1 else None)  # from 4.1 on it waits for the lock
            super().__setattr__(name, value)

    threads: list[threading.Thread] = []
    operation = Raced(version=version)
    assert operation.force_complete()
    threads[0].join()
    assert operation.completions == 1


def test_a_key_is_forgotten_only_if_its_watchers_are_the_same_and_empty():
    shard: WatcherList[Operation] = WatcherList()
    operation = Operation()
    shard.watch(operation, "key")
    watchers = shard.find("key")
    assert watchers is not None
    shard.remove_key_if_empty(watchers)
    assert shard.find("key") is watchers  # somebody came in between
    watchers.cancel()
    shard.remove_key_if_empty(watchers)
    assert shard.find("key") is None
    shard.watch(operation, "key")
    shard.remove_key_if_empty(watchers)  # empty, but not these any more
    assert shard.find("key") is not None
