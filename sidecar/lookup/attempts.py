"""Deliveries of a message before the one that is told of, as the ledger remembers them under its id. Pure.

Each delivery that failed came back as a record of the retry topic of its own, and was held and emitted like any other:
what links them is the id, and a number that tickover counts in headers. No topic is read for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from policies.decision import ATTEMPTS_EXHAUSTED, NOT_RETRYABLE, TIMEOUT
from sidecar.lookup.receipt import Settlement
from sidecar.model.record import Outcome, Place, with_places
from sidecar.model.times import with_times

Row = dict[str, Any]
EARLIER_MAX: Final = 50  # of those that are known, and of dead ones: the last
# Reasons for which a record is dead as it comes: the delivery that it counts was made. Of others that isn't sure.
OF_FAILED: Final = frozenset({ATTEMPTS_EXHAUSTED, NOT_RETRYABLE, TIMEOUT})


class Attempts(NamedTuple):
    """Deliveries that failed before. `made`: how many; `known`: those that tickover made and that are remembered, by
    number; `dead`: earlier messages with this id that were given up.
    """

    made: int
    known: Sequence[Settlement]
    dead: Sequence[Settlement]

    def is_behind(self, place: Place) -> bool:
        """Whether a record of this place came after the last known delivery, if that was of its partition."""
        last = self.known[-1].place if self.known else None
        return last is None or last[:2] != place[:2] or place.offset > last.offset


def before_held(row: Row, settlements: Sequence[Settlement]) -> Attempts:
    """Deliveries before that of a held record, whose row has the number of the next one."""
    next = row.get("attempt") or 0
    return _attempts(settlements, row["source"], max(next - 1, 0), next - 1)


def before_settled(last: Settlement, settlements: Sequence[Settlement]) -> Attempts:
    """Deliveries before that of a record whose end is `last`; a dead one may count one that was made."""
    made = max(last.attempt - (last.outcome is not Outcome.DEAD or last.reason not in OF_FAILED), 0)
    highest = last.attempt - (last.outcome is not Outcome.DEAD)
    return _attempts([one for one in settlements if one != last], last.place.topic, made, highest)


def _attempts(settlements: Sequence[Settlement], topic: str, made: int, highest: int) -> Attempts:
    """Read backwards, each number lower than the one behind it, none behind a dead letter: so what an earlier message
    with this id had isn't taken for this one's.
    """
    known: list[Settlement] = []
    dead: list[Settlement] = []
    for one in reversed([one for one in settlements if one.place.topic == topic]):
        if one.outcome is Outcome.DEAD:
            dead.append(one)
        elif one.outcome is Outcome.EMITTED and 1 < one.attempt <= highest and not dead:
            known.append(one)
            highest = one.attempt - 1
    known, dead = known[:EARLIER_MAX], dead[:EARLIER_MAX]
    made = max(made, known[0].attempt) if known else made
    return Attempts(made, known[::-1], dead[::-1])


def came(settlement: Settlement) -> Row:
    """Where a settled record came to its source: before it was moved, if it was."""
    position = settlement.place._asdict()
    moved = settlement.related >= 0 and settlement.outcome not in (Outcome.CANCELLED, Outcome.REPLACED)
    return {**position, "offset": settlement.related} if moved else position


def attempt_events(attempts: Attempts, accepted: Row, first_failure_ms: int | None) -> Iterator[Row]:
    """Lines of a timeline before the record was accepted. `first`, `last` are numbers of deliveries that failed and of
    which no more is known.
    """
    for one in attempts.dead:
        yield _event("dead-before", one.settled_ms, one, reason=one.reason or None)
    if not attempts.made:
        return
    first = next((came(one) for one in attempts.known if one.attempt == 2), accepted if attempts.made == 1 else None)
    told = {"event": "first-failure", "time": first_failure_ms, "attempt": 1, "position": first}
    yield with_places(with_times(told, "time"), "position")
    expected = 2
    for one in attempts.known:
        yield from _unknown(expected, one.attempt - 1)
        yield _event("attempt", one.settled_ms, one, attempt=one.attempt)
        expected = one.attempt + 1
    yield from _unknown(expected, attempts.made)


def _unknown(first: int, last: int) -> Iterator[Row]:
    if first <= last:
        yield with_times({"event": "attempts-unknown", "time": None, "first": first, "last": last}, "time")


def _event(event: str, time_ms: int, one: Settlement, **facts: Any) -> Row:
    ledger = {"partition": one.ledger.partition, "offset": one.ledger.offset}
    told = {"event": event, "time": time_ms, **facts, "position": came(one), "target": one.target, "ledger": ledger}
    return with_places(with_times(told, "time"), "position")
