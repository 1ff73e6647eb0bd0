"""Promises of every timer, the one set by hand included. Time is passed one millisecond beyond each expiration, since
the mock, as Kafka's, runs only what is overdue."""

from typing import Any

import pytest

from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory.timer.mock_timer import MockTimer
from tests.unit.purgatory_tasks import Clock, Hook, Recorded


class World:
    """A timer and its clock."""

    def __init__(self, timer: Any, clock: Clock | None) -> None:
        self.timer = timer
        self.clock = clock
        self.now_ms = 0.0
        self.ran: list[int] = []

    def add(self, delay_ms: int, name: int | None = None) -> Recorded:
        task = Recorded(delay_ms, self.ran, delay_ms if name is None else name)
        self.timer.add(task)
        return task

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        if self.clock is not None:
            self.clock.now_ms = self.now_ms
        self.timer.advance_clock(self.now_ms)


@pytest.fixture(params=["mock", "system", "system, small", "system, rounding up"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "mock":
        return World(MockTimer(), None)
    clock = Clock()
    size = 3 if "small" in request.param else 20
    return World(SystemTimer(clock, wheel_size=size, round_up="up" in request.param), clock)


def test_tasks_run_once_in_the_order_of_their_expiration(world: World) -> None:
    for delay_ms in (70, 10, 500, 11, 10):
        world.add(delay_ms)
    assert world.timer.size() == 5
    for _ in range(600):
        world.pass_time(1)
    assert world.ran == [10, 10, 11, 70, 500]
    assert (world.timer.size(), world.timer.next_expiration_ms()) == (0, None)


def test_equal_expirations_run_in_the_order_of_adding(world: World) -> None:
    for name in range(5):
        world.add(30, name)
    world.pass_time(31)
    assert world.ran == [0, 1, 2, 3, 4]


def test_nothing_runs_early(world: World) -> None:
    world.add(30)
    world.pass_time(29)
    assert world.ran == []
    world.pass_time(2)
    assert world.ran == [30]


def test_one_long_pause_runs_everything(world: World) -> None:
    for delay_ms in (1, 50, 900, 12_345):
        world.add(delay_ms)
    world.pass_time(20_000)
    assert sorted(world.ran) == [1, 50, 900, 12_345]


def test_a_cancelled_task_neither_runs_nor_counts(world: World) -> None:
    task = world.add(30)
    world.add(31)
    task.cancel()
    assert world.timer.size() == 1
    world.pass_time(50)
    assert world.ran == [31]


def test_a_task_added_again_is_moved(world: World) -> None:
    task = world.add(30)
    world.timer.add(task)
    assert world.timer.size() == 1
    world.pass_time(100)
    assert world.ran == [30]


def test_without_delay_a_task_runs_soon(world: World) -> None:
    world.add(0)
    world.add(-5)
    world.pass_time(0)
    assert sorted(world.ran) == [-5, 0]


def test_a_task_may_add_tasks(world: World) -> None:
    world.timer.add(Hook(10, lambda: world.add(20)))
    world.pass_time(11)
    world.pass_time(19)
    assert world.ran == []
    world.pass_time(2)
    assert world.ran == [20]


def test_it_says_when_it_wants_to_be_called(world: World) -> None:
    world.add(17)
    while (next_ms := world.timer.next_expiration_ms()) is not None:
        world.pass_time(int(next_ms - world.now_ms))
    assert world.ran == [17]
    assert 17 <= world.now_ms <= 18


def test_a_closed_timer_runs_nothing(world: World) -> None:
    world.add(5)
    world.timer.close()
    world.timer.close()
    world.pass_time(10)
    assert world.ran == []
