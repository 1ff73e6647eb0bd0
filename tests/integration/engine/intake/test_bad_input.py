"""Records that ask for what can't be: quarantined with reason and detail, as they came, and the partition goes on."""

from typing import Any

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.integration.hostile_records import (
    GOOD_DELAY,
    GOOD_TARGET,
    MINE,
    POLICIES,
    REFUSED,
    REFUSED_RETRY,
    TARGET,
    named,
)
from tests.services.kafka import Headers
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, headers_of, own_headers, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FOUND_S = 120.0


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

    wait_until(
        all_found, FOUND_S, lambda: f"missing: {[value for _, value, _ in sent + retries if value not in found]}"
    )
    return found


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

    def arrives() -> bool:  # a "no such topic" is believed for five seconds
        site.send(site.name("strict"), headers, value=b"after")
        return bool(site.kafka.read_all(site.name(role)))

    wait_until(arrives, FOUND_S, lambda: "the new topic was never found")


@pytest.mark.apart  # the reference broker keeps no topic to itself
def test_what_is_for_a_topic_of_kafka_s_own_spoils_no_other_s_transactions(site: Site, sidecar: Sidecar) -> None:
    gold, internal = ("tenant", b"gold"), (TARGET, b"__consumer_offsets")
    before = unknown_ends(sidecar)  # where the machine stood still in an earlier test
    forbidden = [(None, b"forbidden %d" % n, [gold, internal]) for n in range(20)]
    site.kafka.produce(site.name("conditional"), forbidden[:10])
    reports = site.kafka.produce(site.name("conditional"), [(None, b"free %d" % n, [gold]) for n in range(10)])
    site.kafka.produce(site.name("conditional"), forbidden[10:])
    found: list[Message] = []

    def all_found() -> bool:
        messages = site.kafka.read_all(site.quarantine)
        found[:] = [message for message in messages if (message.value() or b"").startswith(b"forbidden")]
        return len(found) >= len(forbidden)

    wait_until(all_found, FOUND_S, lambda: f"{len(found)} found {sidecar.last_words()}")
    assert {message.value() for message in found} == {value for _, value, _ in forbidden}
    assert {dict(headers_of(message))["tickover-reason"] for message in found} == {b"target_not_allowed"}
    free = {report.value() for report in reports}
    wait_until(lambda: free <= {message.value() for message in site.kafka.read_all(site.name("strict-out"))}, FOUND_S)
    assert unknown_ends(sidecar) == before


def unknown_ends(sidecar: Sidecar) -> list[Any]:
    """Warnings of the sidecar so far about transactions whose end it doesn't know."""
    return [said for said in sidecar.messages("warning") if "end is unknown" in said["message"]]
