"""How long to wait before the next attempt, and how far records are spread. Pure: jitter and spread are hashes of the
record's identity, so that a record which is read again is decided the same.

    base   fixed         delay
           exponential   initial * factor ** (failed - 1), at most max
           list          delays[failed - 1], the last one for all later attempts
    jitter none          base
           full          uniform in 0 .. base
           equal         uniform in base / 2 .. base

Spreading herds: records that would fall due at one instant move apart, each later by a part of its tolerance.

    due asked for   |<---------- tolerance ---------->|
    due decided           ^ by a hash of the record's identity: never earlier, the same whenever it is decided again

The tolerance ends where a record would be too far, time out or expire: spreading costs no record its delivery.
"""

import math
from hashlib import blake2b
from typing import Final, NamedTuple, assert_never

from policies.model import Backoff, Delay, ExponentialBackoff, FixedBackoff, ListBackoff, Retry

_SPREADING: Final = b"spread"  # another number than jitter's, else both would move a record the same way


def base_ms(backoff: Backoff, failed_attempt: int) -> int:
    """Milliseconds to wait after attempt `failed_attempt` (1 or more), before jitter."""
    match backoff:
        case FixedBackoff():
            return backoff.delay
        case ExponentialBackoff():
            try:
                grown_ms = backoff.initial * backoff.factor ** (failed_attempt - 1)
            except OverflowError:  # beyond any float, so beyond max too
                return backoff.max if backoff.initial else 0
            # The float may be infinite by the multiplication alone; compare before rounding up.
            return backoff.max if grown_ms >= backoff.max else math.ceil(grown_ms)
        case ListBackoff():
            return backoff.delays[min(failed_attempt, len(backoff.delays)) - 1]
        case _:
            assert_never(backoff)


def delay_range_ms(backoff: Backoff, failed_attempt: int) -> tuple[int, int]:
    """The shortest and the longest wait that jitter can make of this attempt."""
    longest_ms = base_ms(backoff, failed_attempt)
    match backoff.jitter:
        case "none":
            return longest_ms, longest_ms
        case "full":
            return 0, longest_ms
        case "equal":
            return -(-longest_ms // 2), longest_ms
        case _:
            assert_never(backoff.jitter)


def delay_ms(backoff: Backoff, failed_attempt: int, identity: tuple[str, int, int]) -> int:
    """The wait of the record (topic, partition, offset) after its attempt `failed_attempt` failed."""
    shortest_ms, longest_ms = delay_range_ms(backoff, failed_attempt)
    return longest_ms if shortest_ms == longest_ms else jittered_ms(shortest_ms, longest_ms, identity)


def jittered_ms(shortest_ms: int, longest_ms: int, identity: tuple[str, int, int]) -> int:
    """Wait in this range for the record (topic, partition, offset)."""
    # 64 bits scaled to the range by multiplication: no modulo bias worth the name, and no float.
    return shortest_ms + ((hash_of(identity) * (longest_ms - shortest_ms + 1)) >> 64)


def hash_of(identity: tuple[str, int, int], purpose: bytes = b"") -> int:
    """64 bits, the same in every process and version; for another purpose (at most 16 bytes) others. A topic name has
    no slash: identities stay apart.
    """
    topic, partition, offset = identity
    text = f"{topic}/{partition}/{offset}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, person=purpose).digest(), "big")


class Spread(NamedTuple):
    """How far a policy lets records be moved, in milliseconds."""

    usual_ms: int  # of a record that says nothing
    max_ms: int  # of one that says how far it may be moved


def spread_of(part: Retry | Delay) -> Spread:
    """Spread that this part of a policy allows."""
    usual_ms = part.spread or 0
    return Spread(usual_ms, usual_ms if part.spread_max is None else part.spread_max)


def spread_due_ms(due_ms: int, spread: Spread, asked_ms: int, latest_ms: int, identity: tuple[str, int, int]) -> int:
    """When the record (topic, partition, offset) is due, spread; `asked_ms` is its own tolerance, -1: none given."""
    tolerance_ms = min(spread.usual_ms if asked_ms < 0 else asked_ms, spread.max_ms, latest_ms - due_ms)
    if tolerance_ms <= 0:
        return due_ms
    return due_ms + ((hash_of(identity, _SPREADING) * (tolerance_ms + 1)) >> 64)
