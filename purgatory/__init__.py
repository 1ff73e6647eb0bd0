"""Kafka's delayed operations: timers, purgatories, the operations that wait in them, and the replicated partition they
look at. Names, class tree and locks are Kafka's; so are the outcomes. docs/PURGATORY.md tells how they work together.

Nothing here opens a file or a socket, and no thread is started but `SystemTimerReaper`'s. Whoever drives it calls
`advance_clock(now_ms)`, or lets a `TimerDriver` do so from an event loop.
"""

from purgatory.action_queue import DelayedActionQueue
from purgatory.coordinator_timer import CoordinatorTimer
from purgatory.deferred_event_queue import DeferredEventQueue
from purgatory.delayed_future import DelayedFuture, DelayedFuturePurgatory
from purgatory.delayed_operation import DelayedOperation
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.mock_timer import MockTimer
from purgatory.reaper import SystemTimerReaper, TimerDriver
from purgatory.system_timer import SystemTimer
from purgatory.threshold_purgatory import ThresholdPurgatory, TimingWheelExpirationService
from purgatory.timer import TimerTask
from purgatory.versions import LATEST, KafkaVersion

__all__ = [
    "LATEST",
    "CoordinatorTimer",
    "DeferredEventQueue",
    "DelayedActionQueue",
    "DelayedFuture",
    "DelayedFuturePurgatory",
    "DelayedOperation",
    "DelayedOperationPurgatory",
    "KafkaVersion",
    "MockTimer",
    "SystemTimer",
    "SystemTimerReaper",
    "ThresholdPurgatory",
    "TimerDriver",
    "TimerTask",
    "TimingWheelExpirationService",
]
