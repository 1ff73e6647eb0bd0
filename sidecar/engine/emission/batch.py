"""Due records on their way to the producer."""

from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import Held


class Batch:
    """Records of one lane, and from which on they are not handed over."""

    __slots__ = ("lane", "records", "start")

    def __init__(self, lane: SourcePartition, records: list[Held]) -> None:
        self.lane = lane
        self.records = records
        self.start = 0
