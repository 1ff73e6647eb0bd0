"""The ledger topic: where every settlement is written, and read again after a crash.

The codec of what is written is `block.py`; what a recovery makes of it is `recovery.py`. Here is the topic itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from sidecar.ledger.block import lane_key, ledger_partition
from sidecar.model.ports import MESSAGE_BYTES_MAX, DeliveryReport, Output
from sidecar.model.record import Headers, TopicPartition

NO_HEADERS: Final[Headers] = []
WhenLost = Literal["refuse", "continue"]
BLOCK_BYTES_MAX: Final = 512 << 10
"""Of a block before it is compressed. One that is written again may have 64 KiB more: the runs of policies since then
(`lane.RUNS_MAX`, 8 bytes each). So each fits into what brokers take by default, whatever ids and topics users have.
"""


class LedgerError(Exception):
    """The ledger can't be written or read: nothing may be settled without it, so the process ends."""


class LedgerUnavailable(Exception):
    """The brokers don't answer for now: it passes."""


class CommitsHidden(LedgerUnavailable):
    """The brokers hide commits: a transaction that is open has commits of the group in it."""


@dataclass(frozen=True, slots=True)
class LedgerTopic:
    """Name, size and identity of the ledger. The partition count is fixed at creation: a lane's blocks stay together.

    `when_lost` is the operator's choice for a partition whose blocks are gone: `refuse` ends the process; `continue`
    goes on from the commit, and without one where the setting `start` says, and may repeat what was settled.
    """

    name: str
    partitions: int
    group: str  # whose ledger it is
    id: str = ""  # Kafka's id of the topic; "" where brokers have none
    when_lost: WhenLost = "refuse"
    block_bytes_max: int = BLOCK_BYTES_MAX

    def partition_of(self, lane: TopicPartition) -> int:
        """The ledger partition that holds this lane's blocks."""
        return ledger_partition(lane.topic, lane.partition, self.partitions)

    def refused(self, lane: TopicPartition, error: Any) -> LedgerError:
        """Error to end with when the brokers, or the client, don't take a block of this lane."""
        words = f"the ledger refused a block of {lane}: {error.str()}"
        if error.name() == "MSG_SIZE_TOO_LARGE":
            words += f"; set max.message.bytes of topic {self.name} to {MESSAGE_BYTES_MAX} or more"
        return LedgerError(words)

    def append(self, output: Output, lane: TopicPartition, block: bytes, report: DeliveryReport) -> None:
        """Produce one encoded block. Raises BufferError when the producer's queue is full."""
        output.produce(
            self.name,
            block,
            lane_key(lane.topic, lane.partition),
            self.partition_of(lane),
            report,
            None,
            0,
            NO_HEADERS,
        )


class LedgerRecord(NamedTuple):
    """One record of the ledger topic as read."""

    partition: int
    offset: int
    key: bytes
    value: bytes


class LedgerLog(Protocol):
    """Reading the ledger. Blocking: a recovery calls it from its own thread."""

    def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset still there, offset at which readers of committed records end)."""

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        """All committed records of these partitions from `starts` on, to their end as it is now and past `at_least`.

        A partition that `at_least` doesn't name is read past all that is written to it by now, in open transactions
        too: nobody knows how far its blocks go. Raises LedgerUnavailable while such a transaction stays open,
        LedgerError when the ledger ends before `at_least`.
        """
