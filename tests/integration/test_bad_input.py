"""Records that ask for what can't be: quarantined with reason and detail, as they came, and the partition goes on."""

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.services.kafka import Headers
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, headers_of, own_headers, place
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

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
target: {topic: ~strict-out}
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
    "time after the year 9999": ([(DELIVER_AT, b"253402300800000"), GOOD_TARGET], "bad_header", "9999"),
    "far time": ([(DELIVER_AT, b"9998-01-01T00:00:00Z"), GOOD_TARGET], "too_far", "1h"),
    "time twice": ([(DELIVER_AT, b"1"), (DELIVER_AT, b"1"), GOOD_TARGET], "bad_header", "more than once"),
    "good time, bad delay": ([(DELIVER_AT, b"1"), (DELAY, b"soon"), GOOD_TARGET], "bad_header", "not a duration"),
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
    "cancel": ([(ACTION, b"cancel"), (ID, b"x")], "unsupported_action", "not available"),
    "reschedule": ([(ACTION, b"reschedule"), (ID, b"x"), (DELAY, b"1s")], "unsupported_action", "not available"),
    "fire": ([(ACTION, b"fire"), (ID, b"x")], "unsupported_action", "not available"),
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
    "error class that is no text": ([("tickover-error-class", b"\xff")], "bad_header", "UTF-8"),
    "null error message": ([("tickover-error-message", None)], "bad_header", "null"),
    "no dead-letter topic": ([("tickover-attempt", b"9")], "unknown_target", "attempts_exhausted"),
}  # fmt: skip


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    for role in ("strict", "work-retry", "conditional"):
        site.topic(role)
    site.target("strict-out", 2)
    site.target("work")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar().start()


@pytest.fixture(scope="module")
def quarantined(site: Site, sidecar: Sidecar) -> dict[bytes, Message]:
    """All of them are sent at once, each followed by one that is right: by value, what came out."""
    good: Headers = [GOOD_DELAY, named(site, [GOOD_TARGET])[0]]
    sent = [(b"key", f"strict {case}".encode(), [*MINE, *named(site, REFUSED[case][0])]) for case in REFUSED]
    records = [record for bad in sent for record in (bad, (b"good", bad[1], good))]
    site.kafka.produce(site.name("strict"), [(*record, 0, 0) for record in records])
    retries = [(b"key", f"retry {case}".encode(), [*MINE, *REFUSED_RETRY[case][0]]) for case in REFUSED_RETRY]
    site.kafka.produce(site.name("work-retry"), [(*record, 0, 0) for record in retries])
    assert len(site.kafka.read(site.name("strict-out"), len(REFUSED))) == len(REFUSED)
    found: dict[bytes, Message] = {}

    def all_found() -> bool:
        found.update({message.value() or b"": message for message in site.kafka.read_all(site.quarantine)})
        return len(found) == len(sent) + len(retries)

    wait_until(all_found, 20.0, lambda: f"missing: {[value for _, value, _ in sent + retries if value not in found]}")
    return found


def named(site: Site, headers: Headers) -> list[tuple[str, bytes | None]]:
    group = f"{site.group}-".encode()
    return [(name, value and value.replace(b"~", group)) for name, value in headers]


def check(message: Message, asked: Headers, reason: str, word: str) -> None:
    *kept, source, why, detail = headers_of(message)
    assert (source[0], why) == ("tickover-source", ("tickover-reason", reason.encode()))
    assert detail[0] == "tickover-detail"
    assert word in (detail[1] or b"").decode()
    assert message.key() == b"key"
    assert kept == [*MINE, *asked]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_quarantined_as_it_came(site: Site, quarantined: dict[bytes, Message], case: str) -> None:
    asked, reason, word = REFUSED[case]
    message = quarantined[f"strict {case}".encode()]
    check(message, named(site, asked), reason, word)
    offset = 2 * list(REFUSED).index(case)
    assert dict(headers_of(message))["tickover-source"] == f"{site.name('strict')}/0/{offset}".encode()


@pytest.mark.parametrize("case", [case for case in REFUSED_RETRY if case != "no dead-letter topic"])
def test_a_retry_that_cannot_be_is_quarantined_as_it_came(quarantined: dict[bytes, Message], case: str) -> None:
    check(quarantined[f"retry {case}".encode()], *REFUSED_RETRY[case])


def test_without_a_dead_letter_topic_the_dead_go_to_quarantine(quarantined: dict[bytes, Message]) -> None:
    headers = headers_of(quarantined[b"retry no dead-letter topic"])
    assert dict(headers)["tickover-reason"] == b"unknown_target"
    assert b"attempts_exhausted" in (dict(headers)["tickover-detail"] or b"")
    assert headers[:3] == MINE
    assert dict(headers)["tickover-attempt"] == b"9"


def test_a_topic_s_records_that_no_policy_wants_are_quarantined(site: Site) -> None:
    report = site.send(site.name("conditional"), [("tenant", b"iron")], value=b"unwanted")
    wanted = site.send(site.name("conditional"), [("tenant", b"gold")], value=b"wanted")
    message = site.kafka.read(site.quarantine, len(REFUSED) + len(REFUSED_RETRY) + 1)[-1]
    assert message.value() == b"unwanted"
    assert message.headers() == [
        ("tenant", b"iron"),
        ("tickover-source", place(report)),
        ("tickover-reason", b"no_policy"),
        ("tickover-detail", b"no policy matches the topic and headers"),
    ]
    emitted = site.kafka.read(site.name("strict-out"), len(REFUSED) + 1)
    [found] = [m for m in emitted if m.value() == b"wanted"]
    assert found.headers() == [
        ("tenant", b"gold"), *own_headers(wanted, wanted.timestamp()[1] + 1, "conditional@1"),
    ]  # fmt: skip


def test_headers_that_the_policy_does_not_read_are_not_checked(site: Site) -> None:
    target = site.target("strict-unread")
    unread: Headers = [("tickover-attempt", b"x"), ("tickover-first-failure", None), ("tickover-error-class", b"\xff")]
    site.send(site.name("strict"), [*unread, GOOD_DELAY, (TARGET, target.encode())])
    [message] = site.kafka.read(target, 1)
    assert [header for header in headers_of(message) if header in unread] == unread


def test_a_target_made_later_is_found(site: Site) -> None:
    role = f"never-{now_ms()}"
    headers = [GOOD_DELAY, (TARGET, site.name(role).encode())]
    site.send(site.name("strict"), headers, value=b"before")
    site.target(role)
    for number in range(200):  # a "no such topic" is believed for five seconds
        site.send(site.name("strict"), headers, value=b"%d" % number)
        if site.kafka.read_all(site.name(role)):
            return
    pytest.fail("the new topic was never found")
