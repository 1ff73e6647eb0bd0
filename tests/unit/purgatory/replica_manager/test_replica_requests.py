"""Produce and delete requests at one broker, from append to answer: ReplicaManagerTest, and experiments."""

import logging

import pytest

from purgatory.delayed.delayed_fetch import ClientMetadata
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import AlterPartitionReply
from purgatory.versions import KafkaVersion
from tests.unit.replica_world import KEY, SIZE, Batch, World, assignment

REPLICAS = (1, 2)
OTHER = TopicPartition("topic", 1)


def follower_assignment(world, leader=2, epoch=1):
    world.manager.become(KEY, assignment(leader=leader, epoch=epoch, partition_epoch=epoch, replicas=REPLICAS))


@pytest.mark.parametrize("acks", [-2, 2, 3])
def test_illegal_acks_append_nothing(acks):
    world = World()
    partition = world.lead()
    world.produce(acks=acks)
    result = world.answer()
    assert (result.error, result.base_offset) == (Errors.INVALID_REQUIRED_ACKS, -1)
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize(("acks", "replicas"), [(-1, (1,)), (1, REPLICAS), (0, REPLICAS)])
def test_a_produce_that_need_not_wait_is_answered_at_once(acks, replicas):
    world = World()
    world.lead(replicas)
    world.produce(Batch(), Batch(count=3), acks=acks)
    result = world.answer()
    assert (result.error, result.base_offset, result.required_offset) == (Errors.NONE, 0, 4)
    assert world.parked == 0


def test_acks_all_waits_for_the_follower():
    world = World()
    world.lead(REPLICAS)
    world.produce()
    assert (world.answers, world.parked) == ([], 1)
    world.follow(1)
    produced, fetched = world.answers
    assert (produced[KEY].error, produced[KEY].base_offset) == (Errors.NONE, 0)
    assert fetched[0][1].high_watermark == 0  # as it was before this fetch
    assert world.parked == 0
    world.answers.clear()
    world.follow(1)
    assert world.answer().high_watermark == 1


@pytest.mark.parametrize("timeout_ms", [-1, 0, 500])
def test_acks_all_times_out_with_the_real_offset(timeout_ms):
    world = World()
    world.lead(REPLICAS)
    world.produce(Batch(count=2), timeout_ms=500)
    world.pass_time(500)
    world.answers.clear()
    world.produce(timeout_ms=timeout_ms)
    world.pass_time(max(timeout_ms, 0))
    result = world.answer()
    assert (result.error, result.base_offset) == (Errors.REQUEST_TIMED_OUT, 2)


def test_acks_all_without_time_is_still_answered_if_there_is_nothing_to_wait_for():
    world = World()
    world.lead()
    world.produce(timeout_ms=0)
    assert world.answer().error is Errors.NONE


def test_too_few_in_sync_replicas_refuse_acks_all_only():
    world = World()
    partition = world.lead(REPLICAS, isr=(1,), min_insync_replicas=2)
    world.produce()
    result = world.answer()
    assert (result.error, result.base_offset, partition.log.log_end_offset) == (Errors.NOT_ENOUGH_REPLICAS, -1, 0)
    world.produce(acks=1)
    assert (world.answer().error, partition.log.log_end_offset) == (Errors.NONE, 1)


def test_one_partition_waits_while_another_failed():
    world = World()
    world.lead(REPLICAS)
    world.manager.append_records(100, -1, {KEY: [Batch()], OTHER: [Batch()]}, world.answers.append)
    assert world.answers == []
    world.pass_time(100)
    [answer] = world.answers
    assert answer[KEY].error is Errors.REQUEST_TIMED_OUT
    assert answer[OTHER].error is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("follower", Errors.NOT_LEADER_OR_FOLLOWER),
        ("stopped", Errors.NOT_LEADER_OR_FOLLOWER),
        ("deleted", Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("offline", Errors.KAFKA_STORAGE_ERROR),
    ],
)
@pytest.mark.parametrize("request_", ["produce", "consumer fetch", "old consumer fetch", "delete"])
def test_what_waits_is_answered_when_the_replica_goes(event, expected, request_):
    world = World()
    world.lead(REPLICAS)
    if request_ == "delete":
        world.produce(acks=1)
        world.follow(1)
        world.answers.clear()
        world.manager.delete_records_before(1000, {KEY: 1}, world.answers.append)
    elif request_ == "produce":
        world.produce(timeout_ms=1000)
    else:
        metadata = None if request_ == "old consumer fetch" else ClientMetadata()
        epoch = {"current_leader_epoch": 0} if request_ == "consumer fetch" else {}
        world.consume(0, client_metadata=metadata, wanted=epoch, max_wait_ms=1000)
    assert (world.answers, world.parked) == ([], 1)
    if event == "follower":
        follower_assignment(world)
    elif event == "offline":
        world.manager.mark_offline(KEY)
    else:
        if event == "deleted":
            world.brokers.known.clear()
        world.manager.stop_replica(KEY)
    if event == "follower" and request_ == "consumer fetch":
        expected = Errors.FENCED_LEADER_EPOCH
    assert world.answer().error is expected
    assert world.parked == 0


def test_a_shrink_answered_by_the_controller_completes_acks_all():
    world = World()
    partition = world.lead(REPLICAS)
    world.produce(timeout_ms=100_000)
    world.clock.now_ms += 30_001
    world.manager.maybe_shrink_isr()
    [proposal] = world.proposals
    assert world.answers == []
    world.manager.alter_partition_answered(KEY, proposal, AlterPartitionReply(Errors.NETWORK_EXCEPTION))
    assert world.proposals == [proposal, proposal]
    reply = AlterPartitionReply(Errors.NONE, partition.leader_epoch, 1, frozenset({1}))
    world.manager.alter_partition_answered(KEY, proposal, reply)
    assert world.answer().error is Errors.NONE


def test_a_shrink_under_min_isr_leaves_acks_all_waiting_to_its_end():
    world = World()
    partition = world.lead(REPLICAS, min_insync_replicas=2)
    world.produce(timeout_ms=40_000)
    world.clock.now_ms += 30_001
    world.manager.maybe_shrink_isr()
    reply = AlterPartitionReply(Errors.NONE, partition.leader_epoch, 1, frozenset({1}))
    world.manager.alter_partition_answered(KEY, world.proposals[0], reply)
    assert world.answers == []
    world.pass_time(10_000)
    assert world.answer().error is Errors.REQUEST_TIMED_OUT


def test_deleting_waits_for_every_living_replica():
    world = World()
    partition = world.lead(REPLICAS)
    world.produce(Batch(count=5), acks=1)
    world.follow(5)
    world.answers.clear()
    world.manager.delete_records_before(3000, {KEY: 3}, world.answers.append)
    assert (world.answers, partition.log.log_start_offset) == ([], 3)
    world.follow(5, wanted={"log_start_offset": 3})
    result = next(answer[KEY] for answer in world.answers if isinstance(answer, dict))
    assert (result.error, result.low_watermark) == (Errors.NONE, 3)


def test_deleting_times_out_with_the_low_watermark_of_the_request():
    world = World()
    world.lead(REPLICAS)
    world.produce(Batch(count=5), acks=1)
    world.follow(5)
    world.answers.clear()
    world.manager.delete_records_before(3000, {KEY: -1}, world.answers.append)
    world.pass_time(3000)
    result = world.answer()
    assert (result.error, result.low_watermark, result.requested_offset) == (Errors.REQUEST_TIMED_OUT, 0, 5)
    assert world.manager.expirations.delete_records == 1


@pytest.mark.parametrize(("offset", "expected"), [(3, 1), (6, 1), (-2, 1), (2, 0), (-1, 0)])
def test_deleting_on_one_replica_is_answered_at_once(offset, expected):
    world = World()
    world.lead()
    world.produce(Batch(count=2), acks=1)
    world.answers.clear()
    world.manager.delete_records_before(3000, {KEY: offset}, world.answers.append)
    assert world.answer().error == expected


def test_a_deletion_wakes_no_parked_fetch():
    """Measured: the fetch answers that its offset is gone only at its timeout."""
    world = World()
    world.lead()
    world.produce(Batch(count=2), acks=1)
    world.answers.clear()
    world.consume(0, min_bytes=5 * SIZE, max_wait_ms=1000)
    world.manager.delete_records_before(3000, {KEY: 2}, lambda answer: None)
    assert world.answers == []
    world.pass_time(1000)
    assert world.answer().error is Errors.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("error", "log_start"),
    [
        (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, 2),
        (Errors.INVALID_PRODUCER_EPOCH, 2),
        (Errors.INVALID_RECORD, 2),
        (Errors.NOT_ENOUGH_REPLICAS, 2),
        (Errors.MESSAGE_TOO_LARGE, -1),
        (Errors.RECORD_LIST_TOO_LARGE, -1),
        (Errors.CORRUPT_MESSAGE, -1),
    ],
)
def test_a_refused_record_is_answered_with_the_log_start_a_refused_request_without(error, log_start):
    world = World()
    world.lead()
    world.produce(Batch(count=3))
    world.manager.delete_records_before(0, {KEY: 2}, world.answers.append)
    world.answers.clear()
    world.produce(Batch(refused=error))
    result = world.answer()
    assert (result.error, result.base_offset, result.log_start_offset) == (error, -1, log_start)


def test_expirations_are_counted_by_partition_and_by_who_fetches():
    world = World()
    world.lead(REPLICAS)
    for _ in range(2):
        world.produce(timeout_ms=10)
    world.consume(0, max_wait_ms=10)
    world.follow(2, max_wait_ms=10, wanted={"log_start_offset": 0})
    counts = world.manager.expirations
    assert counts.produce == 0  # the follower's fetch has replicated both
    world.pass_time(10)
    assert (counts.produce, counts.consumer_fetch, counts.follower_fetch) == (0, 0, 1)
    world.produce(timeout_ms=10)
    world.consume(3, max_wait_ms=10)
    world.consume(2, max_wait_ms=10)
    world.pass_time(10)
    assert (counts.produce, counts.produce_by_partition, counts.consumer_fetch) == (1, {KEY: 1}, 1)


def test_a_partition_takes_its_count_along_and_leaves_the_sum():
    world = World()
    world.lead(REPLICAS)
    world.produce(timeout_ms=10)
    world.pass_time(10)
    world.manager.stop_replica(KEY)
    counts = world.manager.expirations
    assert (counts.produce, counts.produce_by_partition) == (1, {})
    counts.remove_partition(OTHER)
    assert counts.produce == 1


def test_a_high_watermark_that_was_written_down_is_taken_up_again():
    restarted = World().lead(REPLICAS)
    restarted.log.append_as_follower([Batch(count=5, first=0, epoch=0)])
    assert restarted.log.high_watermark.offset == 0
    restarted.log.update_high_watermark(5)
    assert restarted.log.high_watermark.offset == 5


def test_a_shrink_under_min_isr_fails_acks_all_at_once_up_to_3_6():
    world = World()
    partition = world.lead(REPLICAS, min_insync_replicas=2, version=KafkaVersion.V3_6)
    world.produce(timeout_ms=40_000)
    world.clock.now_ms += 30_001
    world.manager.maybe_shrink_isr()
    reply = AlterPartitionReply(Errors.NONE, partition.leader_epoch, 1, frozenset({1}))
    world.manager.alter_partition_answered(KEY, world.proposals[0], reply)
    result = world.answer()
    assert (result.error, result.base_offset) == (Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)


def test_an_unexpected_failure_is_answered_and_spoils_no_other_partition(caplog, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("disk")

    world = World()
    world.lead()
    broken = world.lead(key=OTHER)
    monkeypatch.setattr(broken.log.storage, "append", fail)
    with caplog.at_level(logging.ERROR):
        world.manager.append_records(1000, 1, {OTHER: [Batch()], KEY: [Batch()]}, world.answers.append)
    [answer] = world.answers
    assert [answer[key].error for key in (OTHER, KEY)] == [Errors.UNKNOWN_SERVER_ERROR, Errors.NONE]
    assert [entry.message for entry in caplog.records] == ["an append failed"]


def test_an_append_wakes_others_only_at_the_end_of_its_request():
    """Inside, the caller may hold what their checks want."""
    world = World()
    world.lead()
    world.consume(0, max_wait_ms=1000)
    world.manager.append_records(1000, 1, {KEY: [Batch()]}, lambda answer: None)
    assert (world.answers, world.parked) == ([], 1)
    world.manager.try_complete_actions()
    assert world.answer().size == SIZE


WAKERS = ("produce", "fetch", "delete_records")
BY_APPEND = ["produce", "fetch", "delete_records"]
BY_FOLLOWER = ["fetch", "produce", "delete_records"]


class Woken:
    """A broker whose purgatories only note that they were asked to look."""

    def __init__(self, replicas=REPLICAS, isr=None, **options):
        self.world = World()
        self.partition = self.world.lead(replicas, isr=isr, **options)
        self.order = []
        for name in WAKERS:
            getattr(self.world.manager, name).check_and_complete = self.note(name)

    def note(self, name):
        def check_and_complete(key):
            assert key == KEY
            self.order.append(name)

        return check_and_complete

    def since(self):
        order, self.order[:] = list(self.order), []
        return order


@pytest.mark.parametrize(
    ("row", "replicas", "batch", "expected"),
    [
        ("INCREASED", (1,), Batch(), BY_APPEND),
        ("SAME", REPLICAS, Batch(), ["fetch"]),
        ("NONE", (1,), Batch(refused=Errors.INVALID_RECORD), []),
    ],
)
def test_whom_an_append_wakes(row, replicas, batch, expected):
    woken = Woken(replicas)
    woken.world.produce(batch, acks=1)
    assert woken.since() == expected, row


def test_whom_a_followers_fetch_wakes():
    woken = Woken()
    woken.world.produce(Batch(count=5), acks=1)
    woken.since()
    woken.world.follow(5)
    assert woken.since() == BY_FOLLOWER
    woken.world.follow(5)
    assert woken.since() == []
    woken.partition.delete_records_on_leader(3)
    woken.world.follow(5, wanted={"log_start_offset": 3})  # the low watermark alone
    assert woken.since() == BY_FOLLOWER


def test_whom_an_answer_about_the_isr_wakes():
    woken = Woken()
    woken.world.produce(acks=1)
    woken.since()
    woken.world.clock.now_ms += 30_001
    woken.world.manager.maybe_shrink_isr()
    reply = AlterPartitionReply(Errors.NONE, 0, 1, frozenset({1}))
    woken.world.manager.alter_partition_answered(KEY, woken.world.proposals[0], reply)
    assert woken.since() == BY_FOLLOWER


@pytest.mark.parametrize("event", ["follower", "stopped", "offline"])
def test_all_are_woken_when_the_replica_goes(event):
    woken = Woken()
    if event == "follower":
        follower_assignment(woken.world)
    elif event == "offline":
        woken.world.manager.mark_offline(KEY)
    else:
        woken.world.manager.stop_replica(KEY)
    assert woken.since() == list(WAKERS)


def test_how_often_each_purgatory_forgets_what_has_completed():
    assert {one.name: one.purge_interval for one in World().manager.purgatories} == {
        "Produce": 1000, "Fetch": 1000, "DeleteRecords": 1,
    }  # fmt: skip
