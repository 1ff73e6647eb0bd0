"""Kafka's delayed operations: timers, purgatories, the operations that wait in them, and the replicated partition they
look at. Names, class tree and locks are Kafka's; so are the outcomes. docs/PURGATORY.md tells how they work together.

Nothing here opens a file or a socket, and no thread is started but `SystemTimerReaper`'s. Whoever drives it calls
`advance_clock(now_ms)`, or lets a `TimerDriver` do so from an event loop.
"""

from purgatory.delayed.delayed_delete_records import DelayedDeleteRecords
from purgatory.delayed.delayed_fetch import DelayedFetch, FetchParams, FetchPartition
from purgatory.delayed.delayed_group import DelayedHeartbeat, DelayedJoin, DelayedSync, InitialDelayedJoin
from purgatory.delayed.delayed_produce import DelayedProduce
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.operation.action_queue import DelayedActionQueue
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.partition.partition import Partition, PartitionSettings
from purgatory.partition.replica_log import LogStorage, ReplicaLog
from purgatory.replica_manager.replica_manager import ReplicaManager, Surroundings
from purgatory.timer.reaper import SystemTimerReaper, TimerDriver
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.timer import TimerTask, TimerTaskList
from purgatory.timer.timing_wheel import TimingWheel
from purgatory.versions import LATEST, KafkaVersion

__all__ = [
    "LATEST",
    "ApiError",
    "DelayedActionQueue",
    "DelayedDeleteRecords",
    "DelayedFetch",
    "DelayedHeartbeat",
    "DelayedJoin",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "DelayedProduce",
    "DelayedSync",
    "Errors",
    "FetchParams",
    "FetchPartition",
    "InitialDelayedJoin",
    "KafkaVersion",
    "LogStorage",
    "Partition",
    "PartitionSettings",
    "ReplicaLog",
    "ReplicaManager",
    "Surroundings",
    "SystemTimer",
    "SystemTimerReaper",
    "TimerDriver",
    "TimerTask",
    "TimerTaskList",
    "TimingWheel",
    "TopicPartition",
]
