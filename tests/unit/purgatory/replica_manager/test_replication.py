"""Three brokers, one partition, any order of produce, replication, lag, shrink, leader change and restart: what was
acknowledged to acks=-1 is never lost, watermarks never lie. The seed names the run."""

import random
from functools import partial
from typing import Any

import pytest

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.log_offsets import Isolation
from purgatory.partition.isr import AlterPartitionReply, PartitionAssignment
from purgatory.replica_manager.partition_reader import ReadingSettings
from purgatory.replica_manager.replica_manager import ReplicaManager, Surroundings
from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory_tasks import Clock
from tests.unit.replica_world import KEY, Batch, Brokers, new_partition

BROKERS = (1, 2, 3)
SEEDS = 20
STEPS = 120
LAG_MS = 1000


class Cluster:
    """Replica managers, a controller that answers when it is asked to, and an oracle of what was acknowledged."""

    def __init__(self, seed: int, min_isr: int) -> None:
        self.chance = random.Random(seed)
        self.clock = Clock(1_000_000)
        self.metadata = Brokers()
        self.proposals: list[tuple[int, Any]] = []
        self.assignment = PartitionAssignment(1, 0, 0, BROKERS, frozenset(BROKERS))
        self.acknowledged: dict[int, int] = {}  # offset -> size, which is unique and so names the batch
        self.sent = 0
        self.managers = {broker_id: self.broker(broker_id, min_isr) for broker_id in BROKERS}
        self.tell_all()

    def broker(self, broker_id: int, min_isr: int) -> ReplicaManager:
        manager = ReplicaManager(
            broker_id,
            Surroundings(
                self.clock,
                lambda: SystemTimer(self.clock),
                self.metadata,
                lambda key, proposal: self.proposals.append((broker_id, proposal)),
                ReadingSettings(),
            ),
        )
        settings: dict[str, Any] = {"min_insync_replicas": min_isr, "replica_lag_time_max_ms": LAG_MS}
        manager.host(new_partition(self.metadata, broker_id=broker_id, **settings))
        return manager

    def partition(self, broker_id: int) -> Any:
        return self.managers[broker_id].partition(KEY)

    @property
    def leader(self) -> ReplicaManager:
        return self.managers[self.assignment.leader_id]

    def tell_all(self) -> None:
        for manager in self.managers.values():
            manager.become(KEY, self.assignment)

    def produce(self) -> None:
        self.sent += 1
        size = self.sent

        def respond(answer: Any) -> None:
            result = answer[KEY]
            if result.error is Errors.NONE:
                assert result.base_offset not in self.acknowledged
                self.acknowledged[result.base_offset] = size

        self.leader.append_records(self.chance.choice((0, 50, 5000)), -1, {KEY: [Batch(size=size)]}, respond)
        self.leader.try_complete_actions()

    def replicate(self) -> None:
        """One follower's fetch, with what the leader answers to it."""
        broker_id = self.chance.choice([one for one in BROKERS if one != self.assignment.leader_id])
        log = self.partition(broker_id).log
        wanted = FetchPartition(
            log.log_end_offset,
            log_start_offset=log.log_start_offset,
            current_leader_epoch=self.assignment.leader_epoch,
            last_fetched_epoch=log.epochs.epoch_of(log.log_end_offset - 1) if log.log_end_offset else None,
        )
        params = FetchParams(replica_id=broker_id, max_wait_ms=0, isolation=Isolation.LOG_END)
        self.leader.fetch_messages(params, [(KEY, wanted)], partial(self.take_in, broker_id))

    def take_in(self, broker_id: int, answer: Any) -> None:
        result = answer[0][1]
        manager, log = self.managers[broker_id], self.partition(broker_id).log
        if result.diverging_epoch is not None:
            own = log.epochs.end_offset_for(result.diverging_epoch.epoch, log.log_end_offset).end_offset
            manager.truncate_to(KEY, min(own, result.diverging_epoch.end_offset))
        elif result.error is Errors.NONE:
            source = self.partition(self.assignment.leader_id).log.storage.batches
            batches = [batch for batch in source if batch.first >= log.log_end_offset][: self.chance.randint(1, 3)]
            manager.append_as_follower(KEY, batches if result.size else [], result.high_watermark, 0)
        else:
            assert result.error is Errors.OFFSET_OUT_OF_RANGE, result.error
            manager.truncate_to(KEY, self.leader.partition(KEY).log.log_end_offset)

    def time(self) -> None:
        self.clock.now_ms += self.chance.choice((1, 60, LAG_MS + 1))
        for manager in self.managers.values():
            for purgatory in manager.purgatories:
                purgatory.advance_clock(self.clock.now_ms)
        self.leader.maybe_shrink_isr()

    def control(self) -> None:
        """The controller answers the oldest proposal, as Kafka's does: only of the leader and state it knows."""
        if not self.proposals:
            return
        broker_id, proposal = self.proposals.pop(0)
        known = self.assignment
        if (proposal.leader_epoch, proposal.partition_epoch) != (known.leader_epoch, known.partition_epoch):
            reply = AlterPartitionReply(Errors.INVALID_UPDATE_VERSION)
        elif self.chance.random() < 0.2:
            reply = AlterPartitionReply(self.chance.choice((Errors.INELIGIBLE_REPLICA, Errors.NETWORK_EXCEPTION)))
        else:
            isr = frozenset(member for member, _ in proposal.isr)
            epoch = known.partition_epoch + 1
            self.assignment = PartitionAssignment(known.leader_id, known.leader_epoch, epoch, BROKERS, isr)
            reply = AlterPartitionReply(Errors.NONE, known.leader_epoch, epoch, isr)
        self.managers[broker_id].alter_partition_answered(KEY, proposal, reply)

    def elect(self) -> None:
        """Another leader, of the in-sync replicas as they are committed."""
        known = self.assignment
        leader = self.chance.choice(sorted(known.isr))
        self.assignment = PartitionAssignment(
            leader, known.leader_epoch + 1, known.partition_epoch + 1, BROKERS, known.isr
        )
        self.tell_all()

    def check(self) -> None:
        logs = {broker_id: self.partition(broker_id).log for broker_id in BROKERS}
        leading = logs[self.assignment.leader_id]
        held = {batch.first: batch.size for batch in leading.storage.batches}
        assert self.acknowledged.items() <= held.items(), "acknowledged and lost"
        committed = {batch.first: batch.size for batch in leading.storage.batches[: leading.high_watermark.offset]}
        for broker_id in self.assignment.isr:
            of_member = {batch.first: batch.size for batch in logs[broker_id].storage.batches}
            assert committed.items() <= of_member.items(), f"{broker_id} is in sync without what is committed"
        for log in logs.values():
            assert log.log_start_offset <= log.last_stable.offset <= log.high_watermark.offset <= log.log_end_offset
            starts = [start for _, start in log.epochs.entries]
            assert starts == sorted(set(starts))
            assert not starts or starts[-1] <= log.log_end_offset


@pytest.mark.slow
def test_nothing_acknowledged_is_ever_lost() -> None:
    acknowledged = elections = shrunk = truncated = 0
    for seed in range(SEEDS):
        cluster = Cluster(seed, min_isr=seed % 3 + 1)
        steps = (cluster.produce, cluster.replicate, cluster.time, cluster.control, cluster.elect)
        try:
            for _ in range(STEPS):
                ends = [cluster.partition(broker_id).log.log_end_offset for broker_id in BROKERS]
                step = cluster.chance.choices(steps, (6, 12, 2, 3, 1))[0]
                step()
                cluster.check()
                shrunk += len(cluster.assignment.isr) < 3
                elections += step == cluster.elect
                now = [cluster.partition(broker_id).log.log_end_offset for broker_id in BROKERS]
                truncated += any(after < before for before, after in zip(ends, now, strict=True))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        acknowledged += len(cluster.acknowledged)
    # The runs do meet what they are about.
    assert min(acknowledged, elections, shrunk) > 50
    assert truncated > 3
