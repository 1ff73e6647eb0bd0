"""Records due and not yet handed over: at the gate, or through it, in batches as the wheels and the gate gave them."""

from collections import deque
from collections.abc import Iterator, Sequence

from sidecar.engine.emission.due_queue import Batch
from sidecar.engine.emission.rate_limit import RateLimiter
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.wheel import Load
from sidecar.model.record import Held


class Ready:
    """Batches in the order in which they are handed over."""

    def __init__(self, load: Load) -> None:
        self.batches: deque[Batch] = deque()
        self.gate = RateLimiter()
        self._load = load

    def waits_at_gate(self, lane: SourcePartition, held: Held) -> bool:
        """Keep a record there in its turn, held as before it fired; False: nothing limits its target."""
        if not self.gate.active or self.gate.sift(lane, [held]):
            return False
        self._load.add((held,))
        return True

    @property
    def count(self) -> int:
        """Records that are not handed over."""
        return sum(len(batch.records) - batch.start for batch in self.batches) + self.gate.count

    def due_of(self, lane: SourcePartition) -> list[tuple[Sequence[Held], int]]:
        """Runs of this lane's records, and the index from which on they are not handed over."""
        return [(batch.records, batch.start) for batch in self.batches if batch.lane is lane] + self.gate.runs(lane)

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest, -1 when none waits."""
        waiting = [batch.records[batch.start].due_ms for batch in self.batches]
        if self.gate.count:
            waiting.append(self.gate.oldest_due_ms())
        return min(waiting, default=-1)

    def drop(self, lanes: set[SourcePartition]) -> Iterator[list[Held]]:
        """Forget what belongs to these lanes; gives what was not handed over."""
        dropped = [batch for batch in self.batches if batch.lane in lanes]
        self.batches = deque(batch for batch in self.batches if batch.lane not in lanes)
        for batch in dropped:
            yield batch.records[batch.start :]
        yield self.gate.drop(lanes)
