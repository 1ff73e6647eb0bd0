"""Share groups: fetches that wait for records to acquire, and the lock on acquired records."""

import pytest

from purgatory.action_queue import DelayedActionQueue
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.delayed_share_fetch import (
    DelayedShareFetch,
    DelayedShareFetchGroupKey,
    ShareSnapshot,
    decide_share_fetch,
)
from purgatory.mock_timer import MockTimer
from purgatory.share_acquisition import InFlightBatch, RecordState, decide_lock_timeout

KEYS = [DelayedShareFetchGroupKey("group", "id", number) for number in range(2)]
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


@pytest.mark.parametrize(
    ("min_bytes", "partitions", "expected"),
    [
        (0, [], False),
        (0, [ShareSnapshot(can_acquire=False)], False),
        (0, [ShareSnapshot(can_acquire=False), ShareSnapshot(can_acquire=True)], True),
        (10, [ShareSnapshot(can_acquire=True, readable_bytes=9)], False),
        (10, [ShareSnapshot(can_acquire=True, readable_bytes=5)] * 2, True),
        (10, [ShareSnapshot(can_acquire=False, readable_bytes=50)], False),
    ],
)
def test_when_a_share_fetch_is_answered(min_bytes, partitions, expected):
    assert decide_share_fetch(min_bytes, partitions) is expected


class Shared:
    """A share partition with records or without."""

    def __init__(self, can_acquire):
        self.can_acquire = can_acquire
        self.holder = None

    def maybe_acquire_fetch_lock(self, fetch_id):
        if self.holder is None:
            self.holder = fetch_id
        return self.holder is fetch_id

    def release_fetch_lock(self, fetch_id):
        assert self.holder is fetch_id
        self.holder = None

    def look(self):
        return ShareSnapshot(self.can_acquire, 10)


class World:
    def __init__(self, *can_acquire):
        self.partitions = {key: Shared(can) for key, can in zip(KEYS, can_acquire, strict=True)}
        self.read, self.answers, self.checked = [], [], []
        self.operation = self.fetch()

    def fetch(self, min_bytes=0):
        def read(keys):
            self.read.append(keys)
            assert all(self.partitions[key].holder is not None for key in keys)
            return dict.fromkeys(keys, "records")

        return DelayedShareFetch(
            1000, self.partitions, read, self.answers.append, self.checked.append, min_bytes=min_bytes
        )

    def locked(self):
        return [key for key, partition in self.partitions.items() if partition.holder is not None]


def test_it_waits_while_nothing_can_be_acquired():
    world = World(False, False)
    assert not world.operation.try_complete()
    assert (world.read, world.answers, world.locked()) == ([], [], [])


def test_it_reads_what_can_be_acquired_and_nothing_else():
    world = World(True, False)
    assert world.operation.try_complete()
    assert world.read == [(KEYS[0],)]
    assert world.answers == [{KEYS[0]: "records"}]
    assert (world.locked(), world.checked) == ([], [(KEYS[0],)])


def test_too_few_bytes_give_the_locks_back():
    world = World(True, False)
    operation = world.fetch(min_bytes=11)
    assert not operation.try_complete()
    assert (world.locked(), world.answers) == ([], [])
    world.partitions[KEYS[1]].can_acquire = True
    assert operation.try_complete()


def test_what_another_request_has_locked_is_left_to_it():
    world = World(True, True)
    world.partitions[KEYS[0]].holder = "another"
    assert world.operation.try_complete()
    assert world.read == [(KEYS[1],)]
    assert world.locked() == [KEYS[0]]


def test_forced_without_anything_it_answers_empty_and_reads_nothing():
    world = World(False, False)
    assert world.operation.force_complete()
    assert (world.read, world.answers, world.checked) == ([], [{}], [])


def test_forced_it_takes_what_there_is_now():
    world = World(False, False)
    world.partitions[KEYS[1]].can_acquire = True
    world.operation.run()
    assert world.answers == [{KEYS[1]: "records"}]


def test_completing_twice_does_nothing_twice():
    world = World(True, True)
    assert world.operation.try_complete()
    assert not world.operation.force_complete()
    assert not world.operation.try_complete()
    assert (len(world.read), len(world.answers), world.locked()) == (1, 1, [])


def test_locks_come_back_when_the_read_fails():
    world = World(True, True)

    def fail(keys):
        raise OSError("disk")

    operation = DelayedShareFetch(1000, world.partitions, fail, world.answers.append, world.checked.append)
    with pytest.raises(OSError, match="disk"):
        operation.try_complete()
    assert (world.locked(), world.checked) == ([], [tuple(KEYS)])


def test_the_next_request_of_the_group_gets_its_turn_through_the_action_queue():
    actions = DelayedActionQueue()
    purgatory: DelayedOperationPurgatory[DelayedShareFetch] = DelayedOperationPurgatory("ShareFetch", MockTimer())
    world = World(False, False)

    def check_later(keys):
        actions.add(lambda: [purgatory.check_and_complete(key) for key in keys])

    def new():
        return DelayedShareFetch(1000, world.partitions, lambda keys: {"read": keys}, world.answers.append, check_later)

    first, second = new(), new()
    for operation in (first, second):
        assert not purgatory.try_complete_else_watch(operation, KEYS)
    for partition in world.partitions.values():
        partition.can_acquire = True
    assert first.force_complete()
    assert not second.is_completed()
    actions.try_complete_actions()
    assert second.is_completed()


@pytest.mark.parametrize(
    ("state", "delivered", "is_below_start", "expected"),
    [
        (ACQUIRED, 1, False, AVAILABLE),
        (ACQUIRED, 4, False, AVAILABLE),
        (ACQUIRED, 5, False, ARCHIVED),
        (ACQUIRED, 1, True, ARCHIVED),
        (ACKNOWLEDGED, 1, False, ACKNOWLEDGED),
        (ARCHIVED, 1, False, ARCHIVED),
        (AVAILABLE, 1, False, AVAILABLE),
    ],
)
def test_what_an_expired_lock_leaves(state, delivered, is_below_start, expected):
    assert decide_lock_timeout(state, delivered, 5, is_below_start=is_below_start) is expected


class Locks:
    def __init__(self, delivery_count_max=5):
        self.timer = MockTimer()
        self.available: list[float] = []
        self.batch = InFlightBatch(
            range(10, 13),
            self.timer,
            self.timer.clock,
            delivery_count_max,
            lambda: self.available.append(self.timer.now_ms),
        )

    def states(self):
        return [self.batch.state(offset) for offset in self.batch.offsets]


def test_a_batch_that_is_not_acknowledged_comes_back():
    world = Locks()
    assert world.batch.acquire(1000) == [10, 11, 12]
    assert world.timer.size() == 1
    world.timer.pass_time(1000)
    assert world.states() == [ACQUIRED] * 3
    world.timer.pass_time(1)
    assert (world.states(), world.available) == ([AVAILABLE] * 3, [1001])


def test_a_split_batch_keeps_the_remaining_time():
    world = Locks()
    world.batch.acquire(1000)
    world.timer.pass_time(600)
    world.batch.acknowledge(11, ACKNOWLEDGED)
    assert world.timer.size() == 2  # one each, the batch's own is cancelled
    world.timer.pass_time(400)
    assert world.states() == [ACQUIRED, ACKNOWLEDGED, ACQUIRED]
    world.timer.pass_time(1)
    assert world.states() == [AVAILABLE, ACKNOWLEDGED, AVAILABLE]


def test_released_records_are_acquired_again_with_a_time_of_their_own():
    world = Locks()
    world.batch.acquire(1000)
    world.timer.pass_time(500)
    world.batch.acknowledge(10, AVAILABLE)
    assert world.available == [500]
    assert world.batch.acquire(1000) == [10]
    world.timer.pass_time(501)
    assert world.states() == [ACQUIRED, AVAILABLE, AVAILABLE]
    world.timer.pass_time(500)
    assert world.states() == [AVAILABLE] * 3
    with pytest.raises(ValueError, match="10 is not acquired"):
        world.batch.acknowledge(10, ACKNOWLEDGED)


def test_records_delivered_too_often_or_passed_by_are_archived():
    world = Locks(delivery_count_max=2)
    for _ in range(2):
        world.batch.acquire(100)
        world.timer.pass_time(101)
    assert world.states() == [ARCHIVED] * 3
    assert len(world.available) == 1
    world = Locks()
    world.batch.acquire(100)
    world.batch.start_offset = 12
    world.timer.pass_time(101)
    assert world.states() == [ARCHIVED, ARCHIVED, AVAILABLE]
