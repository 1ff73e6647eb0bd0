"""One group of dead letters that failed alike, the times of its trend, and its document. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sidecar.model.record import Place, with_places
from sidecar.model.times import with_times
from sidecar.operations.dead_letters.groups.notes import GroupNote, GroupState

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
MINUTES: Final = 60
HOURS: Final = 24
FATES: Final = ("redriven", "discarded")  # of letters that are open no more


class Frame(NamedTuple):
    """Times of a trend: each minute of the last hour, each hour of the last day; `now_ms` is in the last of both."""

    now_ms: int

    def minute(self, time_ms: int) -> int | None:
        """Place of a time among the minutes; None: it is of none."""
        return _place(self.now_ms, time_ms, MINUTE_MS, MINUTES)

    def hour(self, time_ms: int) -> int | None:
        """Place of a time among the hours; None: it is of none."""
        return _place(self.now_ms, time_ms, HOUR_MS, HOURS)

    def document(self) -> dict[str, Any]:
        """When the first minute and the first hour begin."""
        begins = {
            "minutes_from": (self.now_ms // MINUTE_MS - MINUTES + 1) * MINUTE_MS,
            "hours_from": (self.now_ms // HOUR_MS - HOURS + 1) * HOUR_MS,
        }
        return with_times(begins, *begins)


def _place(now_ms: int, time_ms: int, width_ms: int, places: int) -> int | None:
    place = places - 1 - (now_ms // width_ms - time_ms // width_ms)
    return place if 0 <= place < places else None


@dataclass(slots=True)
class Group:
    """Letters of one topic that failed alike. `note`: what people have said of it."""

    topic: str
    reason: str
    error_class: str
    error: str
    fingerprint: str
    example: Place
    note: GroupNote | None
    frame: Frame | None  # of the trend; None: nobody asks
    first_ms: int
    last_ms: int
    state: GroupState = GroupState.NEW
    count: int = 0
    redriven: int = 0
    discarded: int = 0
    minutes: list[int] = field(default_factory=lambda: [0] * MINUTES)
    hours: list[int] = field(default_factory=lambda: [0] * HOURS)

    def add(self, partition: int, offset: int, time_ms: int, redriven: int, discarded: int) -> None:
        """One letter more, and whether (1 or 0) it was sent again or discarded."""
        self.count += 1
        self.redriven += redriven
        self.discarded += discarded
        if time_ms < self.first_ms:
            self.first_ms = time_ms
        elif time_ms > self.last_ms:
            self.last_ms = time_ms
        if self.note is not None and self.state is not GroupState.BACK_AGAIN:
            self.state = self.note.state_with(partition, offset)
        if self.frame is not None:
            for counts, place in ((self.minutes, self.frame.minute(time_ms)), (self.hours, self.frame.hour(time_ms))):
                if place is not None:
                    counts[place] += 1

    def document(self) -> dict[str, Any]:
        """As REST shows it."""
        told = {
            "topic": self.topic,
            "reason": self.reason or None,
            "error_class": self.error_class or None,
            "error": self.error or None,
            "fingerprint": self.fingerprint,
            "count": self.count,
            "redriven": self.redriven,
            "discarded": self.discarded,
            "open": self.count - self.redriven - self.discarded,
            "first_seen": self.first_ms,
            "last_seen": self.last_ms,
            "example": str(self.example),
            "state": self.state,
            **note_document(self.note),
        }
        if self.frame is not None:
            told["trend"] = {"minutes": self.minutes, "hours": self.hours}
        return with_places(with_times(told, "first_seen", "last_seen"), "example")


def note_document(note: GroupNote | None) -> dict[str, Any]:
    """Words of people about a group, by whom and since when; null: nobody has said anything."""
    said = None if note is None else note.time_ms
    told = {"note": (note.note or None) if note else None, "said_by": note.author if note else None, "said": said}
    return with_times(told, "said")


def added_up(pieces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents of groups, which several pages may have had a part of, each once."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for group in pieces:
        key = (group["topic"], group["reason"] or "", group["fingerprint"])
        found[key] = group if key not in found else _sum(found[key], group)
    return list(found.values())


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    # A sidecar of the version before tells of none that are discarded, and of no state.
    told = {**one, **{name: one.get(name, 0) + other.get(name, 0) for name in ("count", "open", *FATES)}}
    told["first_seen"] = min(one["first_seen"], other["first_seen"])
    told["last_seen"] = max(one["last_seen"], other["last_seen"])
    if GroupState.BACK_AGAIN in (one.get("state"), other.get("state")):
        told["state"] = GroupState.BACK_AGAIN.value
    if "trend" in one:
        both = {name: zip(counts, other["trend"][name], strict=True) for name, counts in one["trend"].items()}
        told["trend"] = {name: [a + b for a, b in pairs] for name, pairs in both.items()}
    return with_times(told, "first_seen", "last_seen")
