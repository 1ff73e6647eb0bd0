"""The corpus: records that no well-meaning client sends. Each must leave by the exit that is named here, and soon.

`REFUSED` and `REFUSED_RETRY` ask for what can't be; `EXTREME` is hostile in its form: sizes, names, times, bytes.
`~` stands for the site's names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.services.kafka import Headers
from tests.services.site import Site

POLICIES = """
name: strict
match: {topics: ["~strict"]}
delay: {max: 1h}
target: {allow: ["~strict*", "~narrow", "~never-*"]}
---
name: retries
match: {topics: ["~work-retry"]}
retry: {attempts: 3, backoff: {kind: fixed, delay: 1ms}}
target: {allow: ["~never-*"]}
dead_letter: {topic: ~no-such-dead-letters}
---
name: conditional
match: {topics: ["~conditional"], headers: {tenant: "gold"}}
delay: {default: 1ms}
target: {topic: ~strict-out, allow: ["__*"]}
"""
DELAY, DELIVER_AT, TARGET = "tickover-delay", "tickover-deliver-at", "tickover-target"
PARTITION, EXPIRES, ID, ACTION = (
    "tickover-target-partition", "tickover-expires-at", "tickover-id", "tickover-action",
)  # fmt: skip
GOOD_TARGET = (TARGET, b"~strict-out")
GOOD_DELAY = (DELAY, b"1ms")
MINE: list[tuple[str, bytes | None]] = [("mine", b"\xff"), ("mine", None), ("mine", b"\xff")]

# What is asked for, the reason, and a word of the detail. `~` stands for the site's names.
REFUSED: dict[str, tuple[Headers, str, str]] = {
    "malformed delay": ([(DELAY, b"soon"), GOOD_TARGET], "bad_header", "not a duration"),
    "negative delay": ([(DELAY, b"-1s"), GOOD_TARGET], "bad_header", "negative"),
    "NaN": ([(DELAY, b"NaN"), GOOD_TARGET], "bad_header", "finite"),
    "infinite delay": ([(DELAY, b"inf"), GOOD_TARGET], "bad_header", "finite"),
    "delay of years": ([(DELAY, b"P1Y"), GOOD_TARGET], "bad_header", "days"),
    "empty delay": ([(DELAY, b""), GOOD_TARGET], "bad_header", "not a duration"),
    "overflowing delay": ([(DELAY, b"9" * 40 + b"d"), GOOD_TARGET], "bad_header", "longer than"),
    "64-bit delay": ([(DELAY, b"9223372036854775808"), GOOD_TARGET], "bad_header", "longer than"),
    "endless delay": ([(DELAY, b"9" * 10_000), GOOD_TARGET], "bad_header", "longer than"),
    "far delay": ([(DELAY, b"61m"), GOOD_TARGET], "too_far", "1h"),
    "delay that is no text": ([(DELAY, b"\xff\xfe"), GOOD_TARGET], "bad_header", "UTF-8"),
    "null delay": ([(DELAY, None), GOOD_TARGET], "bad_header", "null"),
    "delay twice": ([GOOD_DELAY, GOOD_DELAY, GOOD_TARGET], "bad_header", "more than once"),
    "no delay at all": ([GOOD_TARGET], "bad_header", "no default"),
    "malformed time": ([(DELIVER_AT, b"tomorrow"), GOOD_TARGET], "bad_header", "not a time"),
    "negative time": ([(DELIVER_AT, b"-1"), GOOD_TARGET], "bad_header", "negative"),
    "time without zone": ([(DELIVER_AT, b"2030-01-01T00:00:00"), GOOD_TARGET], "bad_header", "zone"),
    "time that is no day": ([(DELIVER_AT, b"2030-02-30T00:00:00Z"), GOOD_TARGET], "bad_header", "calendar"),
    "time after the year 9999": ([(DELIVER_AT, b"253402300800000"), GOOD_TARGET], "bad_header", "microseconds"),
    "time in seconds": ([(DELIVER_AT, b"1893456000"), GOOD_TARGET], "bad_header", "seconds"),
    "far time": ([(DELIVER_AT, b"9998-01-01T00:00:00Z"), GOOD_TARGET], "too_far", "1h"),
    "time twice": ([(DELIVER_AT, b"1"), (DELIVER_AT, b"1"), GOOD_TARGET], "bad_header", "more than once"),
    "good time, bad delay": ([(DELIVER_AT, b"0"), (DELAY, b"soon"), GOOD_TARGET], "bad_header", "not a duration"),
    "bad time, good delay": ([(DELIVER_AT, b"soon"), GOOD_DELAY, GOOD_TARGET], "bad_header", "not a time"),
    "no target": ([GOOD_DELAY], "bad_header", "no target"),
    "target that is no name": ([GOOD_DELAY, (TARGET, b"a/b c")], "bad_header", "not a topic name"),
    "null target": ([GOOD_DELAY, (TARGET, None)], "bad_header", "null"),
    "forbidden target": ([GOOD_DELAY, (TARGET, b"~elsewhere")], "target_not_allowed", "not allowed"),
    "unknown target": ([GOOD_DELAY, (TARGET, b"~never-made")], "unknown_target", "no topic"),
    "loop": ([GOOD_DELAY, (TARGET, b"~strict")], "loop", "source"),
    "unknown partition": ([GOOD_DELAY, GOOD_TARGET, (PARTITION, b"5")], "unknown_target", "partitions"),
    "negative partition": ([GOOD_DELAY, GOOD_TARGET, (PARTITION, b"-1")], "bad_header", "whole number"),
    "huge partition": ([GOOD_DELAY, GOOD_TARGET, (PARTITION, b"4294967296")], "bad_header", "larger"),
    "malformed expiry": ([GOOD_DELAY, GOOD_TARGET, (EXPIRES, b"later")], "bad_header", "not a time"),
    "empty id": ([GOOD_DELAY, GOOD_TARGET, (ID, b"")], "bad_header", "empty"),
    "long id": ([GOOD_DELAY, GOOD_TARGET, (ID, b"x" * 1_025)], "bad_header", "1024"),
    "id twice": ([GOOD_DELAY, GOOD_TARGET, (ID, b"x"), (ID, b"x")], "bad_header", "more than once"),
    "reschedule without a time": ([(ACTION, b"reschedule"), (ID, b"x")], "bad_header", "needs"),
    "reschedule too far": ([(ACTION, b"reschedule"), (ID, b"x"), (DELAY, b"61m")], "too_far", "1h"),
    "action without id": ([(ACTION, b"cancel")], "bad_header", "needs"),
    "unknown action": ([(ACTION, b"explode"), (ID, b"x")], "bad_header", "unknown"),
}
# The same for a retry policy.
REFUSED_RETRY: dict[str, tuple[Headers, str, str]] = {
    "attempt of zero": ([("tickover-attempt", b"0")], "bad_header", "from 1"),
    "attempt that is no number": ([("tickover-attempt", b"1.5")], "bad_header", "whole number"),
    "attempt twice": ([("tickover-attempt", b"1")] * 2, "bad_header", "more than once"),
    "overflowing attempt": ([("tickover-attempt", b"2147483647")], "bad_header", "larger"),
    "malformed first failure": ([("tickover-first-failure", b"yesterday")], "bad_header", "whole number"),
    "no dead-letter topic": ([("tickover-attempt", b"9")], "unknown_target", "attempts_exhausted"),
}  # fmt: skip

YEAR_10000_MS: Final = 253_402_300_800_000
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
EMITTED, EXPIRED = "emitted", "expired"  # the exits that are not quarantine


class Way(Enum):
    """How a record gets into a topic."""

    CLIENT = "as clients send it"
    PACKED = "in a batch that is small only while it is packed"
    RAW = "by a produce request made by hand"


@dataclass(frozen=True, slots=True)
class Poison:
    """One hostile record. `timestamp_ms` 0 is now; header names of raw ones may be any bytes."""

    headers: Headers
    exit: str
    word: str = ""
    role: str = "strict"
    way: Way = Way.CLIENT
    value: bytes | None = b"poison"
    key: bytes | None = b"key"
    timestamp_ms: int = 0
    raw_names: tuple[bytes, ...] = ()
    origin: bytes = b""  # where it says that it comes from, and is believed

    def raw_headers(self, site: Site) -> list[tuple[bytes, bytes | None]]:
        """As a produce request has them."""
        given = [(name.encode(), value) for name, value in named(site, self.headers)]
        return [*given, *((name, b"raw") for name in self.raw_names)]


GOOD: Final[Headers] = [GOOD_DELAY, GOOD_TARGET]


def _delays() -> Iterator[tuple[str, Poison]]:
    """Texts that a careless parser would take for a duration."""
    texts = [
        b"1_000", b"+5", b" 5", b"5 ", b"5\n", b"5\0", b"0x10", b"1e3", b"\xd9\xa3s", b"\xef\xbc\x91s", b"1s1s",
        b"1,5s", b"P", b"PT", b"P1DT", b"PT1S1M", b"-PT5S", b"-0", b"1S", b"None", b"true", b"[5]", b"$(date)", b"%s%n",
        b"1;2", b"9" * 200_000,
    ]  # fmt: skip
    for text in texts:
        yield f"delay {text[:12]!r}", Poison([(DELAY, text), GOOD_TARGET], "bad_header")


def _times() -> Iterator[tuple[str, Poison]]:
    texts = [
        b"2030-01-01T00:00:00+99:99", b"0000-01-01T00:00:00Z", b"1969-12-31T23:59:59Z",
        b"2030-01-01", b"20300101T000000Z", b"1e12", b"-1.5", b"inf", b"18446744073709551616",
        b"2030-01-01T00:00:00Z\n", b"2030-01-01T24:00:00Z",
    ]  # fmt: skip
    for text in texts:
        yield f"time {text.decode()!r}", Poison([(DELIVER_AT, text), GOOD_TARGET], "bad_header")


def _targets() -> Iterator[tuple[str, Poison]]:
    for name, exit in (
        (b"", "bad_header"), (b".", "bad_header"), (b"..", "bad_header"), (b"a\0b", "bad_header"),
        (b"x" * 250, "bad_header"), (b"x" * 70_000, "bad_header"), ("é".encode(), "bad_header"),
        (b"\xff", "bad_header"), (b"~strict-out\n", "bad_header"), (b"__consumer_offsets", "target_not_allowed"),
        (b"tickover.policies", "target_not_allowed"), (b"~work-retry", "target_not_allowed"),
    ):  # fmt: skip
        yield f"target {name[:20]!r}", Poison([GOOD_DELAY, (TARGET, name)], exit)
    for text in (b"1.0", b"0x1", b"\xef\xbc\x91", b"", b"-0", b"2147483648", b"9" * 5_000):
        yield f"partition {text[:12]!r}", Poison([*GOOD, (PARTITION, text)], "bad_header")


def _sizes() -> Iterator[tuple[str, Poison]]:
    zeros = bytes(60 << 20)
    packed = Way.PACKED
    yield "bomb of 60 MB", Poison(GOOD, "too_large", way=packed, value=zeros)
    yield "bomb that waits", Poison([(DELAY, b"1500ms"), GOOD_TARGET], "too_large", way=packed, value=zeros[: 8 << 20])
    yield "bomb in the key", Poison(GOOD, "too_large", way=packed, key=zeros[: 8 << 20])
    yield "bomb in a header", Poison([*GOOD, ("h", zeros[: 8 << 20])], "too_many_headers", way=packed)
    yield (
        "bomb with a bad header",
        Poison([(DELAY, b"x"), GOOD_TARGET], "bad_header", way=packed, value=zeros[: 4 << 20]),
    )
    dead: Headers = [("tickover-attempt", b"9"), ("tickover-target", b"~work")]  # and no topic for the dead
    yield "bomb that is dead", Poison(dead, "unknown_target", role="work-retry", way=packed, value=zeros[: 4 << 20])
    yield "a little too large", Poison(GOOD, "too_large", way=packed, value=zeros[:1_048_589])
    yield "20,000 headers", Poison([*GOOD, *[("h", b"%d" % n) for n in range(20_000)]], "too_many_headers")
    yield "1,001 headers", Poison([*GOOD, *[("h", None)] * 999], "too_many_headers")
    yield "300 kB of headers", Poison([*GOOD, *[("h", bytes(100_000))] * 3], "too_many_headers")
    yield "header name of 70 kB", Poison([*GOOD, ("n" * 70_000, b"1")], EMITTED)
    yield "header name of 300 kB", Poison([*GOOD, ("n" * 300_000, b"1")], "too_many_headers")
    yield "header value of 200 kB", Poison([*GOOD, ("h", bytes(200_000))], EMITTED)
    yield "value of 900 kB", Poison(GOOD, EMITTED, value=bytes(900_000))


def _forms() -> Iterator[tuple[str, Poison]]:
    raw = Way.RAW
    for name in (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"good\xff" * 10_000):
        yield f"header name {name[:8]!r}", Poison(GOOD, "bad_header", way=raw, raw_names=(name,))
    for at_ms in (-1, -2, INT64_MIN, YEAR_10000_MS, INT64_MAX):
        yield f"timestamp {at_ms}", Poison(GOOD, "bad_timestamp", way=raw, timestamp_ms=at_ms)
    yield "timestamp of 1970", Poison(GOOD, EMITTED, timestamp_ms=1)
    yield "no key, no value", Poison(GOOD, EMITTED, key=None, value=None)
    yield "empty key, empty value", Poison(GOOD, EMITTED, key=b"", value=b"")
    yield "endless varints for a value", Poison(GOOD, EMITTED, value=b"\xff" * 10_000)
    yield "a pickle for a value", Poison(GOOD, EMITTED, value=b"cos\nsystem\n(S'exit 1'\ntR.")
    yield "deep JSON for a value", Poison(GOOD, EMITTED, value=b"[" * 100_000)
    yield "header without a name", Poison([*GOOD, ("", b"1"), ("", None)], EMITTED)
    yield "control header in capitals", Poison([*GOOD, ("Tickover-Delay", b"soon")], EMITTED)
    yield "unknown control header", Poison([*GOOD, ("tickover-owner", b"\xff")], EMITTED)
    yield "forged origin", Poison([*GOOD, ("tickover-origin", b"../../passwd")], EMITTED, origin=b"../../passwd")
    yield "forged due", Poison([*GOOD, ("tickover-due", b"-1"), ("tickover-policy", b"\0")], EMITTED)
    leap_second: Headers = [(DELIVER_AT, b"2016-12-31T23:59:60Z"), GOOD_TARGET]
    yield "leap second", Poison(leap_second, EMITTED)
    yield "expired before it came", Poison([*GOOD, (EXPIRES, b"1970-01-01T00:00:01Z")], EXPIRED)
    yield "expiry of the year 1", Poison([*GOOD, (EXPIRES, b"-62135596800000")], "bad_header")
    yield "id that is no text", Poison([*GOOD, (ID, b"\xff")], "bad_header")
    yield "id of control characters", Poison([*GOOD, (ID, b"\0\r\n\x1b[2J")], EMITTED)
    for text in (b"-1", b"9223372036854775808", b"", b"1e1", b"9" * 100_000):
        asked: Headers = [("tickover-attempt", text), ("tickover-target", b"~work")]
        yield f"attempt {text[:12]!r}", Poison(asked, "bad_header", role="work-retry")
    cut = [("tickover-error-class", b"caf\xc3"), ("tickover-error-message", b"\xc3"), ("tickover-target", b"~work")]
    yield "error headers that are cut in a character", Poison(cut, EMITTED, role="work-retry")
    added: Headers = [(name, None) for name in ("tickover-error-class", "tickover-error-message")] * 2
    yield "error headers twice and null", Poison([*added, ("tickover-target", b"~work")], EMITTED, role="work-retry")
    ancient: Headers = [("tickover-first-failure", b"0"), ("tickover-target", b"~work")]
    yield "first failure of 1970", Poison(ancient, EMITTED, role="work-retry")


EXTREME: Final = dict([*_delays(), *_times(), *_targets(), *_sizes(), *_forms()])


def corpus() -> dict[str, Poison]:
    """All of them by name."""
    refused = {name: Poison(headers, why, word) for name, (headers, why, word) in REFUSED.items()}
    retries = {name: Poison(headers, why, word, "work-retry") for name, (headers, why, word) in REFUSED_RETRY.items()}
    return refused | retries | EXTREME


def named(site: Site, headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers with the site's names in the values."""
    group = f"{site.group}-".encode()
    return [(name, value and value.replace(b"~", group)) for name, value in headers]
