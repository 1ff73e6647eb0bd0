"""Sending one quarantined record to its source again, by hand and corrected: once, whoever repeats it, on any replica.

The record and the mark that it was sent (`redriven_log.py`) are one transaction, under an id of the record's own:

    begin under the id       ends or fences off whoever was sending this record
    read the marks           up to now: what was committed before is known
    sent?                    then no more; else write record and mark
    read the marks           so that whoever has asked sees here what they did

A plan that redrives the same letters marks them in the same topic, so neither sends what the other has sent. While one
sends, nothing is sent by hand.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Final, Protocol

from confluent_kafka import KafkaError

from sidecar.model.record import Headers, Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.redrive_plan import SENDING, Redrive
from sidecar.operations.dead_letters.redrive_routing import redriven_headers
from sidecar.operations.dead_letters.redriven_log import RedrivenLog
from sidecar.operations.jobs.runner import JobRefused
from sidecar.operations.jobs.transactional_sender import (
    NoTransactions,
    OutgoingRecord,
    Refused,
    Sendable,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
)

SENT: Final = "This record was sent to its source already, by {plan}. `redrive plan --again` sends records once more."


class Shipping(Protocol):
    """A transactional producer (`TransactionalSender`)."""

    def init(self) -> None: ...

    def write(self, parcels: Sequence[Sendable], facts: Sequence[Sendable]) -> None: ...

    def close(self) -> None: ...


def plan_id(place: Place) -> str:
    """By which a record is marked that was sent by hand."""
    return f"by-hand-{place.partition}-{place.offset}"


def corrected_headers(letter: DeadLetter, given: Headers, without: Iterable[str]) -> Headers:
    """Headers of the letter as it is sent to its source: `given` take the place of all of their names, and those
    `without` are gone. All others stay, in order.
    """
    gone, names, placed = frozenset(without), {name for name, _ in given}, set[str]()
    corrected: Headers = []
    for name, value in redriven_headers(letter, to_its_source=True, leg=f"{plan_id(letter.place)}/1"):
        if name not in names:
            corrected += [] if name in gone else [(name, value)]
        elif name not in placed:
            placed.add(name)
            corrected += [header for header in given if header[0] == name]
    return corrected + [header for header in given if header[0] not in placed]


class Resending:
    """Sends single records. `begin` makes a producer under a transactional id; its last step is a plan's id."""

    def __init__(
        self,
        begin: Callable[[str], Shipping],
        redriven: RedrivenLog,
        redrives: Callable[[], Iterable[Redrive]],
        now_ms: Callable[[], int],
    ) -> None:
        self._begin = begin
        self._redriven = redriven
        self._redrives = redrives
        self._now_ms = now_ms

    def send(self, letter: DeadLetter, record: OutgoingRecord) -> None:
        """Send `record` in place of the letter, and read that it was sent. Blocks.

        Raises JobRefused, LogUnavailable.
        """
        place, plan = letter.place, plan_id(letter.place)
        for redrive in self._redrives():
            plans = redrive.plan
            if plans.topic == place.topic and redrive.progress.state in SENDING and plans.means(letter):
                detail = f"The redrive {plans.id} sends letters, this one maybe, too: wait for it, or abort it."
                raise JobRefused("letters-busy", detail)
        with closing(self._begin(plan)) as shipping:
            try:
                shipping.init()
                pen = self._redriven.pen(plan, place.topic)
                if (sent := pen.sent(place)) is not None:
                    raise JobRefused("already-sent", SENT.format(plan=sent.plan))
                shipping.write([record], pen.records([place], self._now_ms()))
            except (Refused, TargetRefused, TakenOver, ShipmentFailed) as error:
                raise _refusal(error, record) from None
        with suppress(LettersUnavailable):  # sent it is, whoever can read so now
            self._redriven.catch_up()


def _refusal(error: Exception, record: OutgoingRecord) -> JobRefused:
    match error:
        case Refused(codes=codes) if KafkaError.MSG_SIZE_TOO_LARGE in codes.values():
            return JobRefused("too-large", f"The record is larger than {record.target} takes. Nothing was sent.")
        case Refused() | TargetRefused():
            return JobRefused("target-gone", f"{record.target} doesn't take the record: {error}. Nothing was sent.")
        case TakenOver():
            return JobRefused("request-in-progress", "Somebody else sends this record at the moment; look again.")
        case NoTransactions():
            return JobRefused("transactions-unsupported", f"Nothing was sent: {error}.")
        case _:
            detail = f"Kafka doesn't answer: {error}. Whether the record was sent isn't known; repeat it, it goes once."
            return JobRefused("kafka-unavailable", detail)
