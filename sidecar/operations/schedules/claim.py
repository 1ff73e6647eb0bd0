"""Choice of the replica that writes what schedules owe, where some can't read all of them. Pure.

A schedule of a newer version, or in a time zone that this process doesn't know, can't be read here, and perhaps
elsewhere. The first choice is the replica that has a certain partition. While it can't read all of them, it says so in
the topic of schedules every few seconds, as a claim:

    /reader    {"replica": "...", "unread": ["<name>", ...], "until": ms}

Whoever can read more of them takes over, and claims so in turn, until the first choice can read as many. A claim that
is not repeated ends by itself, and the first choice writes again. None of this keeps two from writing at once: the
right to write does (`writing.py`).
"""

from collections.abc import Collection
from typing import Final, NamedTuple

KEY: Final = b"/reader"  # no schedule has an empty name
LASTS_MS: Final = 9_000  # shorter than the look-ahead: when its writer dies, all others are still in time
AGAIN_MS: Final = 3_000


class Claim(NamedTuple):
    """Claim of a writer: its replica, names of schedules that it can't read, and until when that holds."""

    replica: str = ""
    unread: tuple[str, ...] = ()  # names
    until_ms: int = 0

    def stands(self, now_ms: int) -> bool:
        """Whether it is to be heeded. One from the far future is of a clock that was wrong."""
        return now_ms < self.until_ms <= now_ms + 2 * LASTS_MS


def is_writer(me: str, is_first: bool, unread: Collection[str], last: Claim, now_ms: int) -> bool:
    """Whether this replica is to write. `unread`: what it can't read; `last`: the last claim of anybody."""
    if not last.stands(now_ms):
        return is_first
    if last.replica == me:
        return True
    return len(unread) < len(last.unread) or (is_first and len(unread) == len(last.unread))


def claim_of(me: str, is_first: bool, unread: Collection[str], last: Claim, now_ms: int) -> Claim | None:
    """Claim that a writer has to write now; None: there is nothing to say."""
    is_mine = last.replica == me
    if not last.stands(now_ms) and is_first and not unread:
        return None
    names = tuple(sorted(unread))
    if is_mine and last.unread == names and is_first and not unread:
        return None  # said once, to whoever wrote before; it ends by itself
    if is_mine and last.unread == names and last.until_ms - now_ms > LASTS_MS - AGAIN_MS:
        return None
    return Claim(me, names, now_ms + LASTS_MS)
