"""The gate before emission: what is due for a limited target waits here, apart from others and in order of due.

    due -> limits for its target? -- no -----------------------------> ready
                 | yes                                                   ^
                 +--> waits, held like any record --> as many as may go -+

Replicas share a target's rate without talking: each takes as much of it as it has of the partitions of the sources
that lead there. Waiting records count against the wheel's limits; they can be cancelled and moved until they are let
through. Then they are emitted and settled as any other; one that comes back from an aborted transaction waits no more.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from policies.table import EMPTY_TABLE, PolicyTable, TargetLimits, is_limiting, limits_of
from sidecar.engine.emission.circuit_breaker import CircuitBreaker, State
from sidecar.engine.emission.due_queue import DueQueue
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.condition import Switches
from sidecar.model.record import Held
from sidecar.model.stats import TargetFlow

TARGETS_MAX: Final = 10_000  # remembered with what limits them; more are found out again

log = logging.getLogger(__name__)


class TokenBucket:
    """At most `burst` tokens, full at first; `rate` new ones a second. Over any time what is taken is at most
    burst + rate * seconds. Times are epoch milliseconds; one that goes back adds nothing and takes nothing.
    """

    __slots__ = ("_at_ms", "_burst", "_tokens", "rate")

    def __init__(self, rate: float, burst: float, now_ms: int) -> None:
        self.rate = rate
        self._burst = max(burst, 1.0)  # of less than one token nothing would ever go
        self._tokens = self._burst
        self._at_ms = now_ms

    def resize(self, rate: float, burst: float, now_ms: int) -> None:
        """Another rate from now on. What is left stays, as far as it fits."""
        self.available(now_ms)
        self.rate, self._burst = rate, max(burst, 1.0)
        self._tokens = min(self._tokens, self._burst)

    def available(self, now_ms: int) -> int:
        """How many may be taken."""
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if passed_ms > 0:
            self._tokens = min(self._burst, self._tokens + passed_ms * self.rate / 1_000)
        return int(self._tokens)

    def take(self, count: int) -> None:
        """At most as many as were available."""
        self._tokens -= count


class TargetWait(NamedTuple):
    """A target for which something waits: the earliest due time, epoch ms, and whether the breaker holds it up."""

    target: str
    due_ms: int
    for_breaker: bool


class TargetQueue:
    """Records that wait for one target, and why they do."""

    __slots__ = ("breaker", "bucket", "queue", "retries", "said")

    def __init__(self) -> None:
        self.bucket: TokenBucket | None = None
        self.breaker: CircuitBreaker | None = None
        self.said = State.CLOSED  # in the log
        self.queue = DueQueue()
        self.retries = DueQueue()  # what a breaker holds up

    @property
    def count(self) -> int:
        """How many records wait here."""
        return self.queue.count + self.retries.count

    def resize(self, limits: TargetLimits, share: float, now_ms: int) -> None:
        """The limits now, of which this replica has a share (0..1)."""
        if limits.breaker is None:
            self.breaker = None
        elif self.breaker is None or self.breaker.rule != limits.breaker:
            self.breaker = CircuitBreaker(limits.breaker)
        limit = limits.limit
        if limit is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = TokenBucket(limit.rate * share, limit.burst * share, now_ms)
        else:
            self.bucket.resize(limit.rate * share, limit.burst * share, now_ms)

    @property
    def is_over(self) -> bool:
        """Nothing limits this target any more, and nothing waits."""
        return self.is_free and not self.count

    @property
    def is_free(self) -> bool:
        """Nothing limits this target."""
        return self.bucket is None and self.breaker is None

    def put(self, lane: SourcePartition, records: list[Held]) -> None:
        """Add records that are due and must wait."""
        if self.breaker is None:
            self.queue.put(lane, records)
            return
        for queue, part in (
            (self.retries, [held for held in records if held.attempt]),
            (self.queue, [held for held in records if not held.attempt]),
        ):
            if part:
                queue.put(lane, part)

    def let_through(self, room: int, now_ms: int) -> list[tuple[SourcePartition, list[Held]]]:
        """Records that may go now, at most `room`."""
        bucket = self.bucket
        allowed = room if bucket is None else min(room, bucket.available(now_ms))
        if self.retries.count:
            through, counted = self._take_both(allowed, now_ms)
        else:
            through, counted = self.queue.take(allowed, now_ms)
        if bucket is not None:
            bucket.take(counted)
        return through

    def _take_both(self, allowed: int, now_ms: int) -> tuple[list[tuple[SourcePartition, list[Held]]], int]:
        """Take at most `allowed` records of both queues, first from the one whose first record is due first."""
        through: list[tuple[SourcePartition, list[Held]]] = []
        total = 0
        others_first = 0 <= self.queue.oldest_due_ms() < self.retries.oldest_due_ms()
        for queue in (self.queue, self.retries) if others_first else (self.retries, self.queue):
            some = allowed - total
            if queue is self.retries and self.breaker is not None:
                some = min(some, self.breaker.allowed(now_ms))
            records, counted = queue.take(some, now_ms)
            if queue is self.retries and self.breaker is not None:
                self.breaker.emitted(counted, now_ms)
            through += records
            total += counted
        return through, total


class RateLimiter:
    """Owned by the engine's thread. Times are epoch milliseconds."""

    def __init__(self) -> None:
        self.active = False  # some policy limits a target
        self.sources: Mapping[str, int] = {}  # partitions of each source that the group consumes
        self._table = EMPTY_TABLE
        self._limited: dict[str, TargetQueue] = {}  # by target
        self._free: set[str] = set()  # targets that nothing limits
        self._owned: Mapping[str, int] = {}  # partitions of each source that this process has
        self._seen: Mapping[str, int] = {}  # `sources`, as of the last look
        self._now_ms = 0
        self._switches: Switches | None = None  # of breakers, as of the last look

    @property
    def count(self) -> int:
        """How many records wait here."""
        return sum(line.count for line in self._limited.values())

    # --- what limits whom -----------------------------------------------------------------------------------------

    def follow(self, table: PolicyTable, owned: Mapping[str, int], now_ms: int) -> None:
        """Keep up with the policies, and with how many partitions of each source this process has."""
        self._now_ms = now_ms
        if table is not self._table:
            self.active = is_limiting(table)
        elif not self.active and not self._limited:
            return
        self._limited = {target: line for target, line in self._limited.items() if not line.is_over}
        if table is self._table and owned == self._owned and self.sources is self._seen:
            return
        self._table, self._owned, self._seen = table, owned, self.sources
        self._free.clear()
        for target, line in self._limited.items():
            self._resize(target, line)

    def switch_breakers(self, switches: Switches, now_ms: int) -> None:
        """Open breakers that somebody has opened since the last look; let those that somebody has closed try now.

        No clock is compared: who has switched one has another clock. The first look does nothing: all are closed when
        a process begins, and what is known then is of before.
        """
        if switches is self._switches:
            return
        before, self._switches = self._switches, switches
        if before is None:
            return
        for target, switch in switches.items():
            if before.get(target) == switch:
                continue
            line = self._limited.get(target) or (self._learn(target) if switch.opens else None)
            if line is None or line.breaker is None:
                continue
            if switch.opens:
                line.breaker.open_now(now_ms)
            else:
                line.breaker.try_now(now_ms)
            self._say(target, line)

    def _learn(self, target: str) -> TargetQueue | None:
        """A target that was not met before; None: nothing limits it."""
        if len(self._free) + len(self._limited) >= TARGETS_MAX:
            self._free.clear()
            self._limited = {name: line for name, line in self._limited.items() if line.count}
        line = TargetQueue()
        self._resize(target, line)
        if line.is_free:
            self._free.add(target)
            return None
        self._limited[target] = line
        return line

    def _resize(self, target: str, line: TargetQueue) -> None:
        limits = limits_of(target, self._seen, self._table)
        everywhere = sum(max(self._seen[source], self._owned.get(source, 0)) for source in limits.sources)
        here = sum(self._owned.get(source, 0) for source in limits.sources)
        # With a share of nothing, a record that was decided by a former policy would wait for ever.
        line.resize(limits, max(here, 1) / max(everywhere, 1), self._now_ms)

    # --- records --------------------------------------------------------------------------------------------------

    def sift(self, lane: SourcePartition, due: Sequence[Held]) -> list[Held]:
        """Keep what must wait; returns the others."""
        limited, free = self._limited, self._free
        passing: list[Held] = []
        kept: dict[TargetQueue, list[Held]] = {}
        for held in due:
            target = held.target
            if target in free or (line := limited.get(target) or self._learn(target)) is None:
                passing.append(held)
            else:
                kept.setdefault(line, []).append(held)
        for line, records in kept.items():
            line.put(lane, records)
        return passing

    def limits(self, target: str) -> bool:
        """Whether records for this target may have to wait."""
        return self.active and target not in self._free and (target in self._limited or self._learn(target) is not None)

    def failed(self, target: str, timestamp_ms: int) -> None:
        """A retry that was emitted to this target came back at this time."""
        line = self._limited.get(target)
        if line is None or line.breaker is None:
            return
        if timestamp_ms > self._now_ms - line.breaker.rule.window_ms:  # else it is old news
            line.breaker.failed(self._now_ms)
            self._say(target, line)

    def let_through(self, now_ms: int, room_of: Callable[[str], int]) -> Iterator[tuple[SourcePartition, list[Held]]]:
        """Records that may go now; `room_of` says how many a target could take at all."""
        for target, line in self._limited.items():
            if line.count:
                yield from line.let_through(room_of(target), now_ms)
                self._say(target, line)

    def _say(self, target: str, line: TargetQueue) -> None:
        if line.breaker is not None and line.breaker.state is not line.said:
            line.said = line.breaker.state
            log.warning("circuit breaker", extra={"target": target, "state": line.said, "waiting": line.retries.count})

    def withdraw(self, lane: SourcePartition, held: Held) -> bool:
        """Take a record out: it is cancelled, or moved. False: it doesn't wait here."""
        line = self._limited.get(held.target)
        return line is not None and (line.queue.remove(lane, held) or line.retries.remove(lane, held))

    def take_out(self, wanted: Callable[[Held], bool]) -> list[tuple[SourcePartition, list[Held]]]:
        """Take out the records of which this is true, by lane."""
        return [taken for queue in self._queues() for taken in queue.take_out(wanted)]

    def drop(self, lanes: set[SourcePartition]) -> list[Held]:
        """Forget the records of lanes that were revoked; returns them."""
        return [held for queue in self._queues() for held in queue.drop(lanes)]

    # --- to be seen -----------------------------------------------------------------------------------------------

    def pass_time(self, now_ms: int) -> None:
        """Let breakers move on for which nothing waits: else they would show for ever what they were then."""
        for target, line in self._limited.items():
            if line.breaker is not None:
                line.breaker.pass_time(now_ms)
                self._say(target, line)

    def runs(self, lane: SourcePartition) -> list[tuple[Sequence[Held], int]]:
        """Runs of a lane's waiting records: records, and the index from which on they wait."""
        return [run for queue in self._queues() for run in queue.runs(lane)]

    def _queues(self) -> list[DueQueue]:
        return [queue for line in self._limited.values() for queue in (line.queue, line.retries)]

    def oldest_due_ms(self) -> int:
        """Due time of what has waited longest, -1 when nothing waits."""
        return min((queue.oldest_due_ms() for queue in self._queues() if queue.count), default=-1)

    def waits(self) -> Iterator[TargetWait]:
        """Targets for which something waits. Queues are in order of due: whatever is due later waits as well."""
        for target, line in self._limited.items():
            is_closed = line.breaker is None or line.breaker.state is State.CLOSED
            if line.retries.count and (line.bucket is None or not is_closed):
                yield TargetWait(target, line.retries.oldest_due_ms(), for_breaker=True)
            queues = (line.queue, line.retries) if is_closed else (line.queue,)
            dues_ms = [queue.oldest_due_ms() for queue in queues if queue.count]
            if line.bucket is not None and dues_ms:
                yield TargetWait(target, min(dues_ms), for_breaker=False)

    def by_topic(self) -> Counter[str]:
        """How many records wait, by source."""
        return sum((queue.by_topic() for queue in self._queues()), Counter[str]())

    def forget(self, targets: Container[str]) -> None:
        """There are no such topics any more. One for which records wait stays, until these have left."""
        self._limited = {target: line for target, line in self._limited.items() if line.count or target not in targets}
        self._free = {target for target in self._free if target not in targets}

    def flows(self) -> dict[str, TargetFlow]:
        """Figures of each limited target, by its topic."""
        return {
            target: TargetFlow(
                line.count,
                0.0 if line.bucket is None else line.bucket.rate,
                "" if line.breaker is None else line.breaker.state.value,
            )
            for target, line in self._limited.items()
        }
