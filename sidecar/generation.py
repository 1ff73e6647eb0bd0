"""A generation: the records handed to the producer within one settle interval, until Kafka has answered for all."""

from typing import Any, NamedTuple, Protocol

from sidecar.lane import Lane
from sidecar.record import Departure, Held


class Failure(NamedTuple):
    """A delivery that Kafka refused: the client's error and message, and whether the record was alone in its batch."""

    error: Any
    message: Any
    alone: bool


class Generation:
    """Records handed to the producer within one interval, and how many of them Kafka has acknowledged."""

    __slots__ = ("acknowledged", "batches", "departures", "failures", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.batches: list[tuple[Lane, list[Held]]] = []
        self.departures: list[tuple[Lane, Departure]] = []
        self.failures: list[Failure] = []

    def report(self, error: Any, message: Any) -> None:
        """Delivery report of any record of this generation: one shared bound method, as it runs once a record."""
        self.acknowledged += 1
        if error is not None:
            self.failures.append(Failure(error, message, alone=False))

    def report_alone(self, error: Any, message: Any) -> None:
        """Delivery report of a record that was sent in a batch of its own."""
        self.acknowledged += 1
        if error is not None:
            self.failures.append(Failure(error, message, alone=True))

    @property
    def complete(self) -> bool:
        """Every record has its report."""
        return self.acknowledged == self.sent


class Refusals(Protocol):
    """Where a generation's failed deliveries go: they are emitted again or leave another way."""

    def refused(self, generation: Generation) -> None:
        """Take the failed records out of the generation and see to them."""
