"""A message as it is told of: its state now, and all that is known of its way there. Pure."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sidecar.lookup.attempts import Attempts, attempt_events, before_held, before_settled, came
from sidecar.lookup.receipt import Entry, LedgerPlace, Settlement
from sidecar.model.condition import Pausable, Pause, PauseKind, Pauses
from sidecar.model.record import Outcome, Place, with_places
from sidecar.model.times import with_times

Row = dict[str, Any]
Told = TypeVar("Told", Settlement, Entry)


def accepted_document(told: Row) -> Row:
    """A message that was sent, as it is shown: its due time in words and its place as text, too."""
    return with_places(with_times(told, "due"), "position")


def place_of_row(row: Row) -> Place:
    """Where a held record lies in its source."""
    return Place(**row["position"])


def places_document(rows: Sequence[Row]) -> Row:
    """Where several held records lie in their sources, as part of a problem."""
    return {"positions": [row["position"] for row in rows], "places": [str(place_of_row(row)) for row in rows]}


def row_document(row: Row) -> Row:
    """A held record as it is shown: the row, its times in words and its places as text, too."""
    told = with_times(row, "due", "first_failure", "expires_at")
    origin = row.get("origin") or ""
    return {**with_places(told, "position", "accepted"), "origin_place": origin if Place.of_text(origin) else None}


def held_document(row: Row, settlements: Sequence[Settlement], entries: Sequence[Entry]) -> Row:
    """A message that is held: the row, and its timeline, with the deliveries before."""
    place, before = place_of_row(row), before_held(row, settlements)
    mine, filed = _of_delivery(place, before, settlements), _of_delivery(place, before, entries)
    events = [
        *attempt_events(before, row["accepted"], row.get("first_failure")),
        accepted(row["accepted"]),
        *map(_entered, filed),
        *(_moved(one) for one in mine if one.outcome is Outcome.MOVED),
        *missed(settlements),
    ]
    if row["tier"] == "overflow" and not filed:
        events.append(_event("overflow", None))
    events.append(_event("due", row["due"]))
    return {**row_document(row), "timeline": in_time(events)}


def paused_document(paused: Pausable, pause: Pause) -> Row:
    """A pause: of what, why, by whom, since when and until when."""
    told = {
        "kind": paused.kind.value,
        "name": paused.name,
        "reason": pause.reason,
        "by": pause.by,
        "since": pause.since_ms,
        "until": pause.until_ms if pause.until_ms >= 0 else None,
    }
    return with_times(told, "since", "until")


def paused_by(row: Row, pauses: Pauses) -> Row | None:
    """The pause that a held record waits for once it is due, of its target or its policy; None: there is none."""
    target = Pausable(PauseKind.TARGET, row.get("target") or "")
    policy = Pausable(PauseKind.POLICY, (row.get("policy") or "").rpartition("@")[0])
    return next((paused_document(one, pauses[one]) for one in (target, policy) if one in pauses), None)


def with_pause(document: Row, pauses: Pauses) -> Row:
    """A held message, and the pause that it waits for: as a field, and in its timeline."""
    paused = paused_by(document, pauses)
    if paused is None:
        return {**document, "paused": None}
    event = _event("paused", paused["since"], **{name: paused[name] for name in ("kind", "name", "reason", "by")})
    return {**document, "paused": paused, "timeline": in_time([*document["timeline"], event])}


def settled_document(
    id: str | None, last: Settlement, settlements: Sequence[Settlement], entries: Sequence[Entry]
) -> Row:
    """A message that is settled, as the ledger has it. `settlements` and `entries` are all that have its id."""
    before, came_at = before_settled(last, settlements), came(last)
    mine, filed = _of_delivery(last.place, before, settlements), _of_delivery(last.place, before, entries)
    events = [
        *attempt_events(before, came_at, None),
        accepted(came_at),
        *map(_entered, filed),
        *(_moved(one) for one in mine if one.outcome is Outcome.MOVED),
        *missed(settlements),
    ]
    if last.due_ms <= last.settled_ms or last.outcome is Outcome.EMITTED:  # others may leave before
        events.append(_event("due", last.due_ms))
    told = {
        "id": id,
        "source": last.place.topic,
        "position": last.place._asdict(),
        "accepted": came_at,
        "state": last.outcome.name.lower(),
        "tier": None,
        "due": last.due_ms,
        "target": last.target,
        "policy": last.policy,
        "attempt": last.attempt or None,
        "reason": last.reason or None,
        "settled": last.settled_ms,
        "timeline": [*in_time(events), _left(last)],
    }
    return with_places(with_times(told, "due", "settled"), "position", "accepted")


def final(settlements: Sequence[Settlement]) -> Settlement | None:
    """The settlement that ended a message: the last one that is neither of a control record nor a move."""
    ends = [one for one in settlements if one.outcome not in (Outcome.APPLIED, Outcome.MOVED)]
    return ends[-1] if ends else None


def accepted(position: Row) -> Row:
    """When a record came to its source, as far as that was looked up."""
    return _event("accepted", None, position=position)


def in_time(events: list[Row]) -> list[Row]:
    """Events before it was accepted, then that one, then those whose time isn't known, then the others in order."""
    at = 1 + next(number for number, event in enumerate(events) if event["event"] == "accepted")
    known = sorted((event for event in events[at:] if event["time"] is not None), key=lambda event: event["time"])
    return [*events[:at], *(event for event in events[at:] if event["time"] is None), *known]


def _event(event: str, time_ms: int | None, **facts: Any) -> Row:
    """One line of a timeline; no time: it isn't known."""
    return with_places(with_times({"event": event, "time": time_ms, **facts}, "time"), "position", "control")


def _entered(entry: Entry) -> Row:
    return with_times(_event("overflow", entry.written_ms, due=entry.due_ms, ledger=_at(entry.ledger)), "due")


def _moved(settlement: Settlement) -> Row:
    by = settlement.place._replace(offset=settlement.related)._asdict() if settlement.related >= 0 else None
    return with_places(_event("moved", settlement.settled_ms, by=by, ledger=_at(settlement.ledger)), "by")


def missed(settlements: Sequence[Settlement]) -> list[Row]:
    """Control records for an id that found nothing, wherever: perhaps they went to another partition."""
    return [
        _event("not-found", one.settled_ms, control=one.place._asdict(), ledger=_at(one.ledger))
        for one in settlements
        if one.outcome is Outcome.APPLIED and one.related < 0
    ]


def _left(settlement: Settlement) -> Row:
    event = _event(settlement.outcome.name.lower(), settlement.settled_ms)
    if settlement.outcome is Outcome.EMITTED:
        event["target"] = settlement.target
    if settlement.reason:
        event["reason"] = settlement.reason
    if settlement.outcome in (Outcome.CANCELLED, Outcome.REPLACED) and settlement.related >= 0:
        event = with_places({**event, "by": settlement.place._replace(offset=settlement.related)._asdict()}, "by")
    return {**event, "ledger": _at(settlement.ledger)}


def _at(ledger: LedgerPlace) -> Row:
    return {"partition": ledger.partition, "offset": ledger.offset}


def with_ledger(events: Sequence[Row], topic: str) -> list[Row]:
    """Events with the place of the block that tells of each, where one does: in the ledger's topic."""
    told = []
    for event in events:
        block = event.get("ledger")
        told.append(event if block is None else {**event, "ledger_place": str(Place(topic, **block))})
    return told


def _of_delivery(place: Place, before: Attempts, known: Sequence[Told]) -> list[Told]:
    """Facts of the delivery at this place: of its partition, and behind the deliveries before it."""
    return [one for one in known if one.place[:2] == place[:2] and before.is_behind(one.place)]
