"""Fetches at one broker, from read to answer: what Kafka's ReplicaManagerTest asks, and single-broker experiments."""

import logging
from typing import Any

import pytest

from purgatory.delayed.delayed_fetch import ClientMetadata, FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.log_offsets import Isolation, TopicPartition
from purgatory.replica_manager.replica_selector import ReplicaView, select_rack_aware
from tests.unit.replica_world import KEY, SIZE, Batch, World, assignment

REPLICAS = (1, 2)
OTHER = TopicPartition("topic", 1)


def follower_assignment(world, leader=2, epoch=1):
    world.manager.become(KEY, assignment(leader=leader, epoch=epoch, partition_epoch=epoch, replicas=REPLICAS))


def test_a_fetch_at_the_end_waits_for_data_or_its_time():
    world = World()
    world.lead()
    world.consume(0, max_wait_ms=500)
    assert world.answers == []
    world.pass_time(499)
    assert world.answers == []
    world.pass_time(1)
    assert (world.answer().error, world.parked) == (Errors.NONE, 0)
    world.consume(0, max_wait_ms=500)
    world.produce(acks=1)
    produced, fetched = world.answers[-1], world.answers[0]
    assert {type(produced), type(fetched)} == {dict, list}
    [(_, result)] = next(answer for answer in world.answers if isinstance(answer, list))
    assert (result.size, result.high_watermark) == (SIZE, 1)


@pytest.mark.parametrize(("max_wait_ms", "min_bytes"), [(0, 1), (-1, 1), (500, 0)])
def test_a_fetch_that_need_not_wait_is_answered_empty(max_wait_ms, min_bytes):
    world = World()
    world.lead()
    world.consume(0, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    assert (world.answer().size, world.parked) == (0, 0)


def test_a_fetch_waits_until_it_has_enough():
    world = World()
    world.lead()
    world.consume(0, min_bytes=3 * SIZE, max_wait_ms=5000)
    for _ in range(2):
        world.produce(acks=1)
        world.answers.clear()
        assert world.parked == 1
    world.produce(acks=1)
    sizes = [answer[0][1].size for answer in world.answers if isinstance(answer, list)]
    assert sizes == [3 * SIZE]


def test_a_small_partition_limit_keeps_a_fetch_waiting_although_there_is_much():
    world = World()
    world.lead()
    for _ in range(20):
        world.produce(acks=1)
    world.answers.clear()
    world.consume(0, min_bytes=5 * SIZE, wanted={"max_bytes": SIZE}, max_wait_ms=1000)
    world.pass_time(999)
    assert world.answers == []
    world.pass_time(1)
    assert world.answer().size == SIZE


def test_a_roll_completes_a_fetch_whatever_it_wants():
    world = World()
    world.lead(segment_bytes=3 * SIZE)
    for _ in range(3):
        world.produce(acks=1)
    world.answers.clear()
    world.consume(2, min_bytes=50 * SIZE, max_wait_ms=30_000)
    assert world.parked == 1
    world.produce(acks=1)
    assert [answer[0][1].size for answer in world.answers if isinstance(answer, list)] == [SIZE]


def test_a_consumer_beyond_the_high_watermark_gets_nothing_at_once_and_a_follower_its_data():
    world = World()
    world.lead(REPLICAS)
    for _ in range(3):
        world.produce(acks=1)
    world.follow(1)
    world.answers.clear()
    world.consume(1, max_wait_ms=1000)  # exactly at the high watermark: waits
    assert world.parked == 1
    world.consume(2, max_wait_ms=1000)  # above: the first check completes it, empty
    result = world.answer()
    assert (result.error, result.size, result.high_watermark) == (Errors.NONE, 0, 1)
    world.follow(1, max_wait_ms=1000)
    assert world.answer().size == 2 * SIZE


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_out_of_range_is_answered_at_once_without_offsets(offset):
    world = World()
    world.lead()
    world.produce(Batch(count=3), acks=1)
    world.answers.clear()
    world.consume(offset, max_wait_ms=2000)
    result = world.answer()
    assert (result.error, result.high_watermark, result.log_start_offset) == (Errors.OFFSET_OUT_OF_RANGE, -1, -1)


def test_what_is_deleted_is_out_of_range_for_consumers_and_followers():
    world = World()
    partition = world.lead(REPLICAS, isr=(1,))
    world.produce(Batch(), Batch(), Batch(), acks=1)
    world.answers.clear()
    partition.log.maybe_increment_log_start_offset(2)
    world.consume(1)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE
    world.follow(1)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE
    world.consume(2)
    assert world.answer().size == SIZE


def test_read_committed_stops_at_the_last_stable_offset():
    """ReplicaManagerTest's: nothing while the transaction is open, nor while its marker is not replicated."""
    world = World()
    world.lead(REPLICAS)
    committed: dict[str, Any] = {"isolation": Isolation.TXN_COMMITTED}
    for _ in range(3):
        world.produce(Batch(producer_id=9), acks=1)
    world.follow(3)
    world.answers.clear()
    world.consume(0, max_wait_ms=0, **committed)
    result = world.answer()
    assert (result.size, result.last_stable_offset, result.high_watermark) == (0, 0, 3)
    world.consume(0, max_wait_ms=100, min_bytes=1000, **committed)
    world.pass_time(100)
    assert world.answer().size == 0
    world.produce(Batch(producer_id=9, ends="commit"), acks=1)
    world.answers.clear()
    world.consume(0, max_wait_ms=0, **committed)
    assert world.answer().size == 0
    world.follow(4)
    world.answers.clear()
    world.consume(0, max_wait_ms=0, **committed)
    result = world.answer()
    assert (result.size, result.last_stable_offset, result.aborted_transactions) == (4 * SIZE, 4, ())
    world.consume(2, max_wait_ms=0)
    assert world.answer().size == 2 * SIZE


def test_a_parked_read_committed_fetch_is_answered_with_the_aborted_transactions():
    world = World()
    world.lead(REPLICAS)
    world.produce(Batch(producer_id=9), acks=1)
    world.follow(1)
    world.answers.clear()
    world.consume(0, max_wait_ms=30_000, isolation=Isolation.TXN_COMMITTED)
    world.produce(Batch(producer_id=9, ends="abort"), acks=1)
    world.answers.clear()
    world.follow(2)
    [(_, result)] = next(answer for answer in world.answers if answer[0][1].aborted_transactions)
    assert [(one.producer_id, one.first_offset) for one in result.aborted_transactions] == [(9, 0)]
    assert result.size == 2 * SIZE


@pytest.mark.parametrize("failure", ["epoch", "diverging", "unrecognised"])
def test_a_follower_whose_read_fails_has_told_nothing(failure):
    world = World()
    partition = world.lead(REPLICAS)
    world.produce(acks=1)
    partition.make_leader(assignment(epoch=3, partition_epoch=1, replicas=REPLICAS), 0)
    world.produce(acks=1)
    world.answers.clear()
    if failure == "epoch":
        world.follow(1, wanted={"current_leader_epoch": 2})
        assert world.answer().error is Errors.FENCED_LEADER_EPOCH
    elif failure == "diverging":
        world.follow(2, wanted={"current_leader_epoch": 3, "last_fetched_epoch": 1}, max_wait_ms=1000)
        result = world.answer()
        assert (result.error, result.size) == (Errors.NONE, 0)
        assert (result.diverging_epoch.epoch, result.diverging_epoch.end_offset) == (0, 1)
    else:
        world.follow(1, broker_id=7)
        assert world.answer().error is Errors.NOT_LEADER_OR_FOLLOWER
    assert partition.remote[2].log_end.offset == -1


@pytest.mark.parametrize(
    ("hosted", "asked", "expected"),
    [
        ("a", "b", Errors.INCONSISTENT_TOPIC_ID),
        ("a", "a", Errors.NONE),
        ("a", None, Errors.NONE),
        (None, "b", Errors.NONE),
    ],
)
def test_topic_ids_are_compared_if_both_are_known(hosted, asked, expected):
    world = World()
    world.lead(topic_id=hosted)
    world.consume(0, wanted={"topic_id": asked}, max_wait_ms=0)
    assert world.answer().error is expected


def test_one_unknown_follower_partition_does_not_spoil_the_other():
    world = World()
    world.lead(REPLICAS)
    world.lead((1, 3), key=OTHER)
    for key in (KEY, OTHER):
        world.produce(acks=1, key=key)
    world.answers.clear()
    params = FetchParams(replica_id=2, max_wait_ms=1000, isolation=Isolation.LOG_END)
    wanted = FetchPartition(1, current_leader_epoch=0, log_start_offset=0)
    world.manager.fetch_messages(
        params, [(KEY, wanted), (OTHER, FetchPartition(0, current_leader_epoch=0))], world.answers.append
    )
    [answer] = world.answers
    assert [result.error for _, result in answer] == [Errors.NONE, Errors.UNKNOWN_LEADER_EPOCH]
    assert answer[0][1].high_watermark == 0
    assert world.manager.partitions[KEY].log.high_watermark.offset == 1


@pytest.mark.parametrize(
    ("version_11", "epoch", "expected"),
    [(False, None, Errors.NOT_LEADER_OR_FOLLOWER), (True, None, None), (True, 0, Errors.FENCED_LEADER_EPOCH)],
)
def test_consumers_parked_when_leadership_is_lost(version_11, epoch, expected):
    """Before version 11 only leaders answer; later consumers may stay, unless their epoch is old."""
    world = World()
    world.lead(REPLICAS)
    metadata = ClientMetadata() if version_11 else None
    world.consume(0, max_wait_ms=1000, client_metadata=metadata, wanted={"current_leader_epoch": epoch})
    follower_assignment(world)
    if expected is not None:
        assert world.answer().error is expected
        return
    assert world.answers == []
    world.manager.append_as_follower(KEY, [Batch(first=0, epoch=1)], 1, 0)
    result = world.answer()
    assert (result.error, result.size, result.high_watermark) == (Errors.NONE, SIZE, 1)


def test_a_follower_answers_only_new_clients():
    world = World()
    world.lead(REPLICAS)
    follower_assignment(world)
    world.consume(0, max_wait_ms=0, client_metadata=None)
    assert world.answer().error is Errors.NOT_LEADER_OR_FOLLOWER
    world.consume(0, max_wait_ms=0)
    assert world.answer().error is Errors.NONE


def test_a_parked_follower_fetch_is_not_woken_by_the_high_watermark_alone():
    world = World()
    world.lead((1, 2, 3))
    world.produce(acks=1)
    world.follow(1, broker_id=2, max_wait_ms=30_000)
    assert world.parked == 1
    world.follow(1, broker_id=3)
    assert world.manager.partitions[KEY].log.high_watermark.offset == 1
    assert world.parked == 1
    world.follow(1, broker_id=2, max_wait_ms=30_000)  # it has never been told of it, and waits all the same
    assert world.parked == 2
    world.answers.clear()
    world.produce(acks=1)
    assert world.parked == 0
    assert [answer[0][1].high_watermark for answer in world.answers if isinstance(answer, list)] == [1, 1]


def test_truncation_completes_what_waits_beyond():
    world = World()
    world.lead(REPLICAS)
    follower_assignment(world)
    world.manager.append_as_follower(KEY, [Batch(first=0, epoch=0), Batch(first=1, epoch=0)], 2, 0)
    world.consume(2, max_wait_ms=30_000)
    world.manager.truncate_to(KEY, 1)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE


RACKS = {"rack_of": lambda broker_id: "far" if broker_id == 2 else "near", "select_replica": select_rack_aware}


@pytest.mark.parametrize(
    ("rack", "follower_at", "follower_start", "expected"),
    [
        ("far", 1, 0, 2),
        ("near", 1, 0, None),
        ("nowhere", 1, 0, None),
        ("", 1, 0, None),
        ("far", 0, 0, None),
        ("far", 2, 2, None),
    ],
)
def test_a_consumer_is_sent_to_its_rack(rack, follower_at, follower_start, expected):
    """Only to an in-sync replica that has the offset; the answer is at once, and nothing is parked."""
    world = World(**RACKS)
    world.lead(REPLICAS)
    for _ in range(follower_at or 1):
        world.produce(acks=1)
    world.follow(follower_at, wanted={"log_start_offset": follower_start})
    world.answers.clear()
    world.consume(1, max_wait_ms=5000, client_metadata=ClientMetadata(rack), min_bytes=2 * SIZE)
    if expected is None:
        world.pass_time(5000)
    result = world.answer()
    size = SIZE if follower_at == 2 else 0  # of a second record, which the leader has
    assert (result.preferred_read_replica, result.size, world.parked) == (expected, size, 0)


def test_a_replica_out_of_the_isr_is_not_preferred():
    world = World(**RACKS)
    world.lead(REPLICAS, isr=(1,))
    world.clock.now_ms += 100_000
    world.produce(acks=1)
    world.brokers.shutting_down.add(2)  # has everything, but may not join
    world.follow(1)
    world.answers.clear()
    world.consume(0, client_metadata=ClientMetadata("far"))
    result = world.answer()
    assert (result.preferred_read_replica, result.size) == (None, SIZE)


@pytest.mark.parametrize("who", ["a follower asks", "an old consumer asks", "a follower is asked"])
def test_who_is_sent_nowhere(who):
    world = World(select_replica=lambda client, replicas: pytest.fail("asked"))
    world.lead(REPLICAS)
    if who == "a follower asks":
        world.follow(0)
    elif who == "an old consumer asks":
        world.consume(0, max_wait_ms=0, client_metadata=None)
    else:
        follower_assignment(world)
        world.consume(0, max_wait_ms=0, client_metadata=ClientMetadata("far"))
    assert world.answer().preferred_read_replica is None


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(None, Errors.NOT_LEADER_OR_FOLLOWER), (1, Errors.NOT_LEADER_OR_FOLLOWER), (2, Errors.UNKNOWN_LEADER_EPOCH),
     (0, Errors.FENCED_LEADER_EPOCH)],
)  # fmt: skip
def test_a_follower_is_no_source_for_followers(epoch, expected):
    world = World()
    world.lead(REPLICAS)
    follower_assignment(world)
    world.follow(0, wanted={"current_leader_epoch": epoch})
    assert world.answer().error is expected


def test_the_furthest_of_a_rack_is_chosen():
    views = [
        ReplicaView(1, "a", 10, 0, is_leader=True),
        ReplicaView(2, "b", 7, 5, is_leader=False),
        ReplicaView(3, "b", 9, 1, is_leader=False),
    ]
    assert select_rack_aware(ClientMetadata("b"), views) == views[2]
    assert select_rack_aware(ClientMetadata("a"), views) == views[0]


def test_an_unexpected_failure_is_answered_and_spoils_no_other_partition(caplog, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk")

    world = World()
    broken = world.lead(key=OTHER)
    world.lead()
    for key in (KEY, OTHER):
        world.produce(acks=1, key=key)
    world.answers.clear()
    monkeypatch.setattr(broken.log.storage, "read", fail)
    wanted = [(key, FetchPartition(0)) for key in (OTHER, KEY)]
    with caplog.at_level(logging.ERROR):
        world.manager.fetch_messages(FetchParams(), wanted, world.answers.append)
    assert [(result.error, result.size) for _, result in world.answers[0]] == [
        (Errors.UNKNOWN_SERVER_ERROR, 0),
        (Errors.NONE, SIZE),
    ]
    assert [entry.message for entry in caplog.records] == ["a read failed"]


def test_the_read_after_a_wait_tells_nothing_about_the_follower():
    world = World()
    partition = world.lead(REPLICAS)
    world.follow(0, max_wait_ms=500)
    fetched_ms = world.clock.now_ms
    world.pass_time(500)
    assert world.answer().size == 0
    assert partition.remote[2].last_fetch_ms == fetched_ms < world.clock.now_ms


@pytest.mark.parametrize(("offset", "expected"), [(0, [0]), (1, [0]), (2, [])])
def test_only_transactions_that_reach_into_the_fetch_are_listed(offset, expected):
    world = World()
    world.lead()
    for batch in (Batch(producer_id=9), Batch(producer_id=9, ends="abort"), Batch()):
        world.produce(batch, acks=1)
    world.answers.clear()
    world.consume(offset, isolation=Isolation.TXN_COMMITTED)
    assert [one.first_offset for one in world.answer().aborted_transactions] == expected
