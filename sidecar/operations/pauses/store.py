"""The topic of pauses: read by every replica, written by the one that was asked.

One partition, compacted; the last record of a key counts.

    <kind>/<name>    {"schema": 1, "reason": "...", "by": "...", "since": ms, "until": ms}    null: resumed
    breaker/<target> {"schema": 1, "by": "...", "at": ms, "to": "open" or "closed"}    by hand; null: long ago

A record of a newer schema pauses all the same, as far as it can be read: what somebody has stopped must not go on
because this program is old. One of an unknown kind is passed over.
"""

import json
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from sidecar.kafka.topic_follower import Apply, LogUnavailable
from sidecar.model.condition import NO_PAUSES, NO_SWITCHES, Pausable, Pause, PauseKind, Pauses, Switch, Switches

SCHEMA: Final = 1
PAUSES_MAX: Final = 1_000
SWITCHES_MAX: Final = 1_000  # remembered: the newest
SWITCH_KEPT_MS: Final = 3_600_000  # every replica has heard of it long before
BREAKER: Final = "breaker"
_KINDS: Final = {kind.value: kind for kind in PauseKind}

Listener = Callable[[Pauses], object]
SwitchListener = Callable[[Switches], object]


class PausesUnavailable(Exception):
    """Kafka doesn't answer, or can't be written to."""


class TooManyPauses(Exception):
    """There are `PAUSES_MAX`."""


class Follower(Protocol):
    """The topic as it is read (`TopicFollower`)."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def catch_up(self) -> None: ...

    def wait_for(self, offset: int) -> None: ...


class Writer(Protocol):
    """The topic as it is written (`LogWriter`)."""

    def write(self, key: bytes, value: bytes | None) -> None: ...


class _Switch(BaseModel):
    """Value of the record of a breaker."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    at: int
    to: Literal["open", "closed"]


class _Record(BaseModel):
    """Value of a record. What is not as it should be counts as not said."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    reason: str = ""
    by: str = "?"
    since: int = 0
    until: int = -1


class PauseStore:
    """The pauses as every replica sees them. For any thread; `put` and `remove` block. `writer` makes what
    writes the topic, of what waits until an offset is read; `now_ms`: the wall clock.
    """

    def __init__(
        self,
        topic: str,
        follow: Callable[[Apply], Follower],
        writer: Callable[[Callable[[int], None]], Writer],
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self._now_ms = now_ms
        self._pauses: Pauses = NO_PAUSES  # replaced, never changed
        self._listeners: list[Listener] = []
        self._switches: Switches = NO_SWITCHES  # replaced, never changed
        self._switch_listeners: list[SwitchListener] = []
        self._follower = follow(self._apply)
        self._writer = writer(self._follower.wait_for)
        self.start = self._follower.start
        self.stop = self._follower.stop

    def on_change(self, listener: Listener) -> None:
        """Call `listener` with all pauses now, and from the reader's thread whenever there are others."""
        self._listeners.append(listener)
        listener(self._pauses)

    def on_switch(self, listener: SwitchListener) -> None:
        """Call `listener` with the breakers that were switched by hand, as `on_change` does with pauses."""
        self._switch_listeners.append(listener)
        listener(self._switches)

    def all(self) -> Pauses:
        """All pauses as read so far, also those whose time is over."""
        return self._pauses

    def alive(self) -> dict[Pausable, Pause]:
        """Pauses that are in force, by kind and name."""
        now_ms = self._now_ms()
        return {one: self._pauses[one] for one in sorted(self._pauses) if not self._pauses[one].is_over(now_ms)}

    def ages_s(self) -> dict[Pausable, float]:
        """Seconds for which each pause has been in force, by kind and name."""
        now_ms = self._now_ms()
        return {one: max(now_ms - pause.since_ms, 0) / 1_000 for one, pause in self.alive().items()}

    def is_paused(self, kind: PauseKind, name: str) -> bool:
        """Whether something is paused now."""
        pause = self._pauses.get(Pausable(kind, name))
        return pause is not None and not pause.is_over(self._now_ms())

    def catch_up(self) -> None:
        """Return when all that is in the topic now has been read. Raises PausesUnavailable."""
        try:
            self._follower.catch_up()
        except LogUnavailable as error:
            raise PausesUnavailable(str(error)) from None

    def put(self, paused: Pausable, pause: Pause) -> None:
        """Pause something, or say otherwise why and for how long; returns when this process has read it.

        Raises PausesUnavailable, TooManyPauses.
        """
        alive = self.alive()
        if paused not in alive and len(alive) >= PAUSES_MAX:
            raise TooManyPauses
        for over in [one for one in self._pauses if one not in alive and one != paused]:
            self._write(over, None)
        said = {"reason": pause.reason, "by": pause.by, "since": pause.since_ms, "until": pause.until_ms}
        self._write(paused, json.dumps({"schema": SCHEMA, **said}, ensure_ascii=False).encode())

    def remove(self, paused: Pausable) -> bool:
        """Resume something; False: it isn't paused. Raises PausesUnavailable."""
        self.catch_up()  # another replica may have paused it a moment ago
        if paused not in self._pauses:
            return False
        was_paused = paused in self.alive()
        self._write(paused, None)
        return was_paused

    def switch_breaker(self, target: str, switch: Switch, by: str) -> None:
        """Have every replica open the breaker of a target, or try it; returns when this process has read it.

        Raises PausesUnavailable.
        """
        known = self._switches
        others = sorted((one for one in known if one != target), key=lambda one: known[one].at_ms, reverse=True)
        for number, other in enumerate(others):
            if number >= SWITCHES_MAX - 1 or known[other].at_ms < switch.at_ms - SWITCH_KEPT_MS:
                self._write_key(BREAKER, other, None)
        said = {"by": by, "at": switch.at_ms, "to": "open" if switch.opens else "closed"}
        self._write_key(BREAKER, target, json.dumps({"schema": SCHEMA, **said}).encode())

    def _write(self, paused: Pausable, value: bytes | None) -> None:
        self._write_key(paused.kind, paused.name, value)

    def _write_key(self, kind: str, name: str, value: bytes | None) -> None:
        try:
            self._writer.write(f"{kind}/{name}".encode(), value)
        except LogUnavailable as error:
            raise PausesUnavailable(str(error)) from None

    def _apply(self, key: bytes, value: bytes, appended_ms: int) -> None:
        kind, _, name = key.decode(errors="replace").partition("/")
        if kind == BREAKER and name:
            self._apply_switch(name, value, appended_ms)
            return
        if kind not in _KINDS or not name:
            return
        paused, pauses = Pausable(_KINDS[kind], name), dict(self._pauses)
        if value:
            pauses[paused] = _pause_of(value)
        else:
            pauses.pop(paused, None)
        self._pauses = MappingProxyType(pauses)
        for listener in self._listeners:
            listener(self._pauses)

    def _apply_switch(self, target: str, value: bytes, appended_ms: int) -> None:
        switches = dict(self._switches)
        if value:
            switches[target] = _switch_of(value, appended_ms)
        else:
            switches.pop(target, None)
        self._switches = MappingProxyType(switches)
        for listener in self._switch_listeners:
            listener(self._switches)


def _pause_of(value: bytes) -> Pause:
    try:
        said = _Record.model_validate_json(value)
    except ValidationError:
        said = _Record(reason="it was written by another version of tickover, and can't be read here")
    return Pause(said.reason, said.by, said.since, said.until)


def _switch_of(value: bytes, appended_ms: int) -> Switch:
    """Read a record. One of another version that can't be read closes, when it was written: a few probes go at
    most, and nothing waits that should not.
    """
    try:
        said = _Switch.model_validate_json(value)
    except ValidationError:
        return Switch(opens=False, at_ms=appended_ms)
    return Switch(said.to == "open", said.at)
