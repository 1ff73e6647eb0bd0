"""Outcome of a change for one message that a control record was sent for. Pure.

    the control record's line    says that it hit, whom, and the new due time; or that it hit nobody
    the message's own line       says how it left, if it did, and by which control record

A batch that is sent again after a crash hits nobody that the first try has hit (`tickover-if-offset`): then the
message's own line says that it was done. It was done by this change if the control record that it names is one of the
change's own: somebody else may have been quicker.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol

from policies.decision import CANCEL, FIRE, RESCHEDULE
from sidecar.model.record import Outcome
from sidecar.operations.bulk.plan import DONE, Item

TOO_LATE: Final = "too_late"  # it had left, or somebody else had moved or cancelled it
DELETED: Final = "deleted"  # state of one that was too late: its topic was deleted, and created again
UNKNOWN: Final = "unknown"  # it wasn't hit, and nobody says why: it is being emitted, or a later one has its id
UNANSWERED: Final = "unanswered"  # the control record stands in Kafka, and will be obeyed
REFUSED: Final = "refused"  # no control record could be written, or not one that its policy allows
_DONE_AS: Final = {CANCEL: Outcome.CANCELLED, RESCHEDULE: Outcome.MOVED, FIRE: Outcome.MOVED}

Place = tuple[str, int, int]  # topic, partition, offset


class Line(Protocol):
    """One record's line in the ledger (`sidecar.lookup.receipt.Settlement`)."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def related(self) -> int: ...

    @property
    def due_ms(self) -> int: ...

    @property
    def reason(self) -> str: ...


class Lines(Protocol):
    """The ledger's lines, as far as they are remembered (`sidecar.lookup.receipts.Receipts`)."""

    @property
    def trouble(self) -> str:
        """Why nothing new is heard of; empty while all is well."""

    def outcomes(self, places: Sequence[Place], timeout_s: float) -> Sequence[Line | None]:
        """The lines of these records, waiting for them for so long."""

    def line(self, place: Place) -> Line | None:
        """The line of this one, without waiting."""


class Verdict(NamedTuple):
    """Outcome for one message: a word, what the ledger says of it, its due time, its control record."""

    word: str
    state: str
    due_ms: int
    control: Place | None

    def receipt(self, item: Item, action: str) -> dict[str, Any]:
        """As it is kept, and shown."""
        control = (
            None if self.control is None else dict(zip(("topic", "partition", "offset"), self.control, strict=True))
        )
        told = item.document()
        return {
            "id": item.id,
            "source": item.topic,
            "action": action,
            "outcome": self.word,
            "state": self.state or None,
            "due": self.due_ms,
            "position": told["position"],
            "control": control,
        }


class Found(NamedTuple):
    """A message that was sent for: its control record, the ledger's line of that one, and of the message itself."""

    control: Place | None
    answer: Line | None
    own: Line | None


def hit_by(action: str, item: Item, own: Line | None) -> Place | None:
    """The control record that did this to the message, whoever sent it; None: none did."""
    if own is None or own.related < 0 or own.outcome is not _DONE_AS[action]:
        return None
    return item.topic, item.partition, own.related


def verdict(action: str, item: Item, found: Found, lines: Lines, sent: Collection[Place]) -> Verdict:
    """`sent`: control records of this change that `hit_by` names, where it may have been sent for once before."""
    control, answer, own = found
    by = hit_by(action, item, own)
    if by is not None and (by == control or by in sent):
        answer = lines.line(by)
        due_ms = item.due_ms if action == CANCEL or answer is None else answer.due_ms
        return Verdict(DONE[action], "", due_ms, by)
    if answer is not None and answer.related >= 0:
        return Verdict(DONE[action], "", item.due_ms if action == CANCEL else answer.due_ms, control)
    if own is not None:
        return Verdict(TOO_LATE, own.outcome.name.lower(), item.due_ms, control)
    if answer is None:
        return Verdict(UNANSWERED, "", item.due_ms, control)
    if answer.outcome is Outcome.QUARANTINED:
        return Verdict(REFUSED, answer.reason, item.due_ms, control)
    return Verdict(UNKNOWN, "", item.due_ms, control)
