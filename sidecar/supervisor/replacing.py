"""A place whose process has ended has another one after a wait that grows, or all end.

it had started                      another one, after 0.5, 1, 2 ... 30 s; 0.5 s again after a steady minute
it can't start, and none ever did   the end, with its status: so a fault of the settings is seen at once
it can't start, but others did      another one; after 5 of them in a row the end, with the last one's status
"""

from dataclasses import dataclass
from signal import Signals
from typing import Final

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
START_TRIES_MAX: Final = 5
SIGNALLED: Final = 128  # a shell's status for a command that a signal has ended is this and the signal's number


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit status, or the signal's number below 0; whether it had started, how long it ran."""

    status: int
    has_started: bool
    ran_s: float

    @property
    def exit_status(self) -> int:
        """The status as a shell tells it."""
        return self.status if self.status >= 0 else SIGNALLED - self.status

    @property
    def words(self) -> str:
        """For the log: `status 1`, `SIGKILL`."""
        return f"status {self.status}" if self.status >= 0 else Signals(-self.status).name


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of the processes that have ended in one place."""

    has_ever_started: bool = False
    unsteady: int = 0  # that ended, in a row, without a steady minute
    failed_starts: int = 0  # in a row


@dataclass(frozen=True, slots=True)
class Replace:
    """Start another one after so many seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the others, and end with this status."""

    status: int


def after(place: Place, ending: Ending) -> tuple[Place, Replace | GiveUp]:
    """The memory of this place from now on, and what to do."""
    is_steady = ending.has_started and ending.ran_s >= STEADY_S
    failed_starts = 0 if ending.has_started else place.failed_starts + 1
    has_ever_started = place.has_ever_started or ending.has_started
    unsteady = 0 if is_steady else place.unsteady
    # A signal comes from outside, from the kernel without memory say: it is no word about the settings.
    is_hopeless = not has_ever_started and ending.status > 0
    if is_hopeless or failed_starts >= START_TRIES_MAX:
        return Place(has_ever_started, unsteady, failed_starts), GiveUp(ending.exit_status)
    wait_s = min(BACKOFF_S * 2.0**unsteady, BACKOFF_MAX_S)
    return Place(has_ever_started, unsteady + 1, failed_starts), Replace(wait_s)
