"""Futures and queues beside the purgatory: delayed future, threshold, deferred events, actions, coordinator timers."""

import logging
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from purgatory.action_queue import DelayedActionQueue
from purgatory.coordinator_timer import RETRY_BACKOFF_MS, CoordinatorTimer
from purgatory.deferred_event_queue import DeferredEventQueue
from purgatory.delayed_future import DelayedFuturePurgatory
from purgatory.mock_timer import MockTimer
from purgatory.threshold_purgatory import ThresholdPurgatory, TimingWheelExpirationService


class Futures:
    def __init__(self):
        self.timer = MockTimer()
        self.submitted: list[Any] = []
        self.called = []
        self.purgatory = DelayedFuturePurgatory(self.timer, self.submitted.append)

    def wait(self, *futures, timeout_ms=2000):
        return self.purgatory.try_complete_else_watch(
            timeout_ms, futures, lambda: self.called.append(self.timer.now_ms)
        )

    def work(self):
        while self.submitted:
            self.submitted.pop(0)()


def done(value):
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_futures_that_are_done_call_back_at_once_and_need_no_executor():
    world = Futures()
    assert world.wait(done(1), done(2)).is_completed()
    assert (world.called, world.submitted) == ([0], [])


def test_pending_futures_call_back_after_the_last_one():
    world = Futures()
    first: Future[int] = Future()
    second: Future[int] = Future()
    world.wait(done(0), first, second)
    world.work()
    first.set_result(1)
    world.work()
    assert world.called == []
    second.set_result(2)
    assert world.called == []  # not in the thread that completes the future
    world.work()
    assert world.called == [0]
    assert (world.purgatory.purgatory.watched, world.timer.size()) == (0, 0)


def test_after_the_timeout_pending_futures_fail_and_the_others_keep_their_values():
    world = Futures()
    pending: Future[Any] = Future()
    kept = done("value")
    world.wait(pending, kept)
    world.timer.pass_time(2000)
    assert world.called == []
    world.timer.pass_time(1)
    world.work()
    assert world.called == [2001]
    assert isinstance(pending.exception(0), TimeoutError)
    assert kept.result(0) == "value"


def test_a_future_that_is_done_in_the_moment_of_the_timeout_keeps_its_value():
    class Racing(Future[str]):
        is_late = False

        def done(self) -> bool:
            was_done = super().done()
            if self.is_late and not was_done:
                self.set_result("value")  # after the look
            return was_done

    world = Futures()
    future = Racing()
    world.wait(future)
    future.is_late = True
    world.timer.pass_time(2001)
    assert (world.called, future.result(0)) == ([2001], "value")


class Thresholds:
    def __init__(self):
        self.timer = MockTimer()
        self.purgatory = ThresholdPurgatory(TimingWheelExpirationService(self.timer).fail_after)

    def wait(self, *thresholds):
        return [self.purgatory.await_threshold(threshold, 500) for threshold in thresholds]


def test_a_threshold_completes_all_waits_up_to_it_with_the_time():
    world = Thresholds()
    futures = world.wait(3, 1, 2, 2)
    order = []
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: order.append(number))
    world.purgatory.maybe_complete(0, 10)
    assert world.purgatory.num_waiting == 4
    world.purgatory.maybe_complete(2, 20)
    assert order == [1, 2, 3]
    assert [future.result(0) for future in futures[1:]] == [20, 20, 20]
    assert not futures[0].done()
    assert world.purgatory.num_waiting == 1
    world.purgatory.maybe_complete(3, 30)
    assert futures[0].result(0) == 30
    assert (world.purgatory.num_waiting, world.timer.size()) == (0, 0)


def test_a_wait_for_a_threshold_expires():
    world = Thresholds()
    [future] = world.wait(1)
    world.timer.pass_time(500)
    assert not future.done()
    world.timer.pass_time(1)
    assert isinstance(future.exception(0), TimeoutError)
    assert world.purgatory.num_waiting == 0


def test_all_waits_complete_or_fail_together():
    world = Thresholds()
    completed = world.wait(1, 5)
    world.purgatory.complete_all(7)
    assert [future.result(0) for future in completed] == [7, 7]
    failed = world.wait(1, 5)
    world.purgatory.complete_all_exceptionally(ConnectionError("no leader any more"))
    assert [type(future.exception(0)) for future in failed] == [ConnectionError, ConnectionError]
    assert world.purgatory.num_waiting == 0


def test_a_future_that_is_completed_outside_leaves():
    world = Thresholds()
    first, second = world.wait(1, 1)
    first.set_result(99)
    assert (world.purgatory.num_waiting, world.timer.size()) == (1, 1)
    world.purgatory.maybe_complete(1, 5)
    assert (first.result(0), second.result(0)) == (99, 5)


def test_a_callback_may_complete_the_next_wait():
    world = Thresholds()
    first, second = world.wait(1, 1)
    first.add_done_callback(lambda _: second.set_result(42))
    world.purgatory.maybe_complete(1, 5)
    assert second.result(0) == 42


class Events:
    def __init__(self, *offsets):
        self.queue = DeferredEventQueue()
        self.told: dict[int, Any] = {}
        for offset in offsets:
            self.queue.add(offset, partial(self.told.setdefault, offset))


def test_events_complete_up_to_an_offset():
    world = Events(1, 3, 3, 5)
    world.queue.complete_up_to(0)
    assert world.told == {}
    world.queue.complete_up_to(3)
    assert (world.told, len(world.queue)) == ({1: None, 3: None}, 1)
    world.queue.complete_up_to(10)
    assert (world.told, len(world.queue)) == ({1: None, 3: None, 5: None}, 0)


def test_an_event_below_the_last_offset_is_refused():
    world = Events(1, 3)
    with pytest.raises(ValueError, match="offset 2 after 3"):
        world.queue.add(2, lambda error: None)


def test_waiting_events_fail_together():
    world = Events(1, 3)
    error = ConnectionError("no leader any more")
    world.queue.complete_up_to(1)
    world.queue.fail_all(error)
    assert (world.told, len(world.queue)) == ({1: None, 3: error}, 0)


def test_actions_run_in_order_and_what_they_add_waits_for_the_next_call():
    queue = DelayedActionQueue()
    ran = []
    queue.add(lambda: (ran.append(1), queue.add(lambda: ran.append(3))))
    queue.add(lambda: ran.append(2))
    queue.try_complete_actions()
    assert ran == [1, 2]
    queue.try_complete_actions()
    assert ran == [1, 2, 3]
    assert len(queue) == 0


def test_a_failing_action_is_logged_and_stops_nobody(caplog):
    def fail():
        raise RuntimeError("this action's own")

    queue = DelayedActionQueue()
    ran = []
    queue.add(fail)
    queue.add(lambda: ran.append("next"))
    with caplog.at_level(logging.ERROR):
        queue.try_complete_actions()
    assert ran == ["next"]
    assert [entry.message for entry in caplog.records] == ["a delayed action failed"]


class Coordinator:
    """A coordinator timer whose events run when the test says so."""

    def __init__(self):
        self.clock = MockTimer()
        self.events: list[Any] = []
        self.expired = []
        self.timers = CoordinatorTimer(self.clock, self.events.append)

    def schedule(self, key, delay_ms, name):
        self.timers.schedule(key, delay_ms, lambda: self.expired.append(name))

    def work(self):
        while self.events:
            self.events.pop(0)()


def test_a_coordinator_timer_expires_by_an_event():
    world = Coordinator()
    world.schedule("member", 10, "session")
    world.clock.pass_time(11)
    assert world.expired == []
    assert world.timers.is_scheduled("member")
    world.work()
    assert world.expired == ["session"]
    assert not world.timers.is_scheduled("member")


@pytest.mark.parametrize("act", ["cancel", "cancel_all", "replace"])
def test_a_timer_that_fired_can_still_be_cancelled_or_replaced(act):
    world = Coordinator()
    world.schedule("member", 10, "first")
    world.clock.pass_time(11)
    if act == "cancel":
        world.timers.cancel("member")
    elif act == "cancel_all":
        world.timers.cancel_all()
    else:
        world.schedule("member", 10, "second")
    world.work()
    assert world.expired == []
    world.clock.pass_time(11)
    world.work()
    assert world.expired == (["second"] if act == "replace" else [])


def test_a_timer_that_is_there_is_kept_if_asked():
    world = Coordinator()
    world.schedule("join", 10, "first")
    world.timers.schedule_if_absent("join", 5, lambda: world.expired.append("second"))
    world.clock.pass_time(20)
    world.work()
    assert world.expired == ["first"]


def test_an_event_that_fails_is_set_again_only_with_retry():
    def fail():
        raise ConnectionError("not now")

    world = Coordinator()
    world.timers.schedule("one", 1, fail)
    world.clock.pass_time(2)
    with pytest.raises(ConnectionError, match="not now"):
        world.work()
    assert not world.timers.is_scheduled("one")
    world.timers.schedule("two", 1, fail, retry=True)
    world.clock.pass_time(2)
    world.work()
    assert world.timers.is_scheduled("two")
    assert world.clock.next_expiration_ms() == world.clock.now_ms + RETRY_BACKOFF_MS + 1
