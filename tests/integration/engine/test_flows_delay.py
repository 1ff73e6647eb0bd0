"""Delayed records on a real Kafka: what comes out, byte for byte, where, and when."""

import re
from datetime import UTC, datetime

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.services.kafka import Headers
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of, own_headers
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: reminders
match: {topics: ["~delays"]}
delay: {default: 250ms, max: 1h}
target: {topic: "~usual", allow: ["~mail-*", "~small?"]}
"""
LATE_MS = 60_000  # lateness is measured by benchmarks; this only tells late from forgotten
FAR = 20  # records
MINUTE_MS = 60_000
DELAY = "tickover-delay"
TARGET = "tickover-target"

# From the tests of Kafka's Java client (UtilsTest.testMurmur2), and the hash of nothing.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}
HOSTILE: list[tuple[str, bytes | None]] = [
    ("a", b"1"),
    ("b", None),
    ("a", b"\xff\xfe\x00"),
    ("", b"no name"),
    ("a", b"1"),
    ("ünï", b""),
    ("tickover-unknown", b"the user's own"),
]


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("delays", 2)
    site.target("usual")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar().start()


def read_one(site: Site, topic: str) -> Message:
    """The only record of a topic, checked for being neither early nor, as far as a busy machine shows, late."""
    [message] = site.kafka.read(topic, 1)
    due_ms = due_of(message)
    assert 0 <= message.timestamp()[1] - due_ms < LATE_MS
    return message


def delayed(site: Site, target: str, *headers: tuple[str, bytes | None], **record: object) -> Message:
    return site.send(site.name("delays"), [*headers, (TARGET, target.encode())], **record)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [(b"300ms", 300), (b"0.3s", 300), (b"PT0.3S", 300), (b"300", 300), (b"0.0001s", 1), (b"0", 0)],
)
def test_a_delay_counts_from_the_record_s_timestamp(site: Site, text: bytes, delay_ms: int) -> None:
    target = site.target(f"mail-delay-{text.decode()}")
    timestamp_ms = now_ms() - 100
    report = delayed(site, target, (DELAY, text), timestamp_ms=timestamp_ms)
    message = read_one(site, target)
    assert message.headers() == own_headers(report, timestamp_ms + delay_ms, "reminders@1")
    assert (message.key(), message.value()) == (b"key", b"value")


def test_without_headers_the_policy_says_when_and_where_to(site: Site) -> None:
    report = site.send(site.name("delays"))
    message = read_one(site, site.name("usual"))
    assert message.headers() == own_headers(report, report.timestamp()[1] + 250, "reminders@1")


@pytest.mark.parametrize("form", ["epoch", "rfc 3339", "rfc 3339 with a zone"])
def test_an_absolute_time_is_kept_to_the_millisecond_and_wins_over_a_delay(site: Site, form: str) -> None:
    target = site.target(f"mail-at-{form.replace(' ', '-')}")
    due_ms = now_ms() + 400
    seconds, millis = divmod(due_ms, 1_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{millis:03d}"
    given = {"epoch": str(due_ms), "rfc 3339": f"{text}Z"}.get(form)
    if given is None:
        there = datetime.fromtimestamp(seconds + 5_400, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        given = f"{there}.{millis:03d}+01:30"
    report = delayed(site, target, ("tickover-deliver-at", given.encode()), (DELAY, b"1h"))
    assert read_one(site, target).headers() == own_headers(report, due_ms, "reminders@1")


def test_a_time_that_has_passed_means_now(site: Site) -> None:
    target = site.target("mail-passed")
    report = delayed(site, target, ("tickover-deliver-at", b"1970-01-01T00:00:01Z"))
    [message] = site.kafka.read(target, 1)
    assert message.headers() == own_headers(report, 1_000, "reminders@1")


def test_a_target_may_be_anything_the_policy_s_globs_allow(site: Site) -> None:
    target = site.target("small1")
    report = delayed(site, target, (DELAY, b"1ms"))
    message = read_one(site, target)
    assert message.headers() == own_headers(report, report.timestamp()[1] + 1, "reminders@1")


def test_the_partition_asked_for_is_taken(site: Site) -> None:
    target = site.target("mail-partition", partitions=3)
    delayed(site, target, (DELAY, b"1ms"), ("tickover-target-partition", b"2"))
    message = read_one(site, target)
    assert message.partition() == 2
    assert "tickover-target-partition" not in dict(headers_of(message))


def test_the_key_chooses_the_partition_as_in_java(site: Site) -> None:
    target = site.target("mail-murmur", partitions=7)
    for key in MURMUR2:
        delayed(site, target, (DELAY, b"1ms"), key=key)
    partitions = {message.key(): message.partition() for message in site.kafka.read(target, len(MURMUR2))}
    assert partitions == {key: (value & 0x7FFFFFFF) % 7 for key, value in MURMUR2.items()}


@pytest.mark.parametrize("delay", [b"50ms", b"2500ms"], ids=["by the wheel", "by the overflow"])
@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"v", HOSTILE),
        (None, b"v", []),
        (b"k", None, [("tombstone", b"yes")]),
        (b"", b"", []),
        (None, None, []),
        (b"\x00\xff" * 100, bytes(range(256)) * 2_000, [("h", bytes(range(256)))] * 50),
    ],
    ids=["hostile headers", "null key", "tombstone", "empty", "nothing", "large"],
)
def test_the_user_s_bytes_pass_untouched_and_in_order(
    site: Site, delay: bytes, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    target = site.target(f"mail-bytes-{now_ms()}")
    # Control headers in between: what is left keeps its order.
    mixed = [*headers[:2], (DELAY, delay), *headers[2:4], (TARGET, target.encode()), *headers[4:]]
    report = site.send(site.name("delays"), mixed, value, key)
    message = read_one(site, target)
    assert (message.key(), message.value()) == (key, value)
    due_ms = report.timestamp()[1] + int(delay[:-2])
    assert message.headers() == [*headers, *own_headers(report, due_ms, "reminders@1")]


def test_an_id_follows_and_own_headers_are_replaced(site: Site) -> None:
    target = site.target("mail-id")
    stale = [("tickover-due", b"1"), ("tickover-policy", b"old@7"), ("tickover-reason", b"expired")]
    known = [("tickover-origin", b"elsewhere/3/14"), ("tickover-id", "Bestellung-ß".encode())]
    report = delayed(site, target, (DELAY, b"10ms"), ("mine", b"1"), *stale, *known)
    own = own_headers(report, report.timestamp()[1] + 10, "reminders@1")
    assert read_one(site, target).headers() == [("mine", b"1"), known[0], *own[1:], known[1]]


def test_the_timestamp_is_the_time_of_emission(site: Site) -> None:
    target = site.topic("mail-created")
    before_ms = now_ms()
    delayed(site, target, (DELAY, b"200ms"), timestamp_ms=before_ms)
    [message] = site.kafka.read(target, 1)
    assert before_ms + 200 <= message.timestamp()[1] <= now_ms()


def test_what_expires_before_it_is_due_is_dead_at_once(site: Site) -> None:
    dead_letters = site.target("delays-dlq")
    target = site.target("mail-expired")
    expires_ms = now_ms() + 60_000
    asked = [("mine", b"1"), ("tickover-expires-at", str(expires_ms).encode()), ("tickover-id", b"x")]
    report = delayed(site, target, (DELAY, b"2m"), *asked)
    [message] = site.kafka.read(dead_letters, 1)
    sent_ms = report.timestamp()[1]
    own = own_headers(report, sent_ms + 120_000, "reminders@1")
    assert headers_of(message) == [
        ("mine", b"1"), *own, ("tickover-id", b"x"), ("tickover-reason", b"expired"), ("tickover-source", own[0][1]),
    ]  # fmt: skip
    assert (message.key(), message.value()) == (b"key", b"value")
    assert site.kafka.read_all(target) == []


def test_what_is_read_too_late_is_dead_and_what_is_not_is_emitted(site: Site) -> None:
    target = site.target("mail-expiring")
    late = ("tickover-expires-at", str(now_ms() - 1_000).encode())
    delayed(site, target, (DELAY, b"1ms"), late, value=b"late", timestamp_ms=now_ms() - 10_000)
    in_time = ("tickover-expires-at", str(now_ms() + 600_000).encode())
    delayed(site, target, (DELAY, b"1ms"), in_time, value=b"in time")
    message = read_one(site, target)
    assert message.value() == b"in time"
    assert "tickover-expires-at" not in dict(headers_of(message))
    [dead] = [found for found in site.kafka.read(site.name("delays-dlq"), 2) if found.value() == b"late"]
    assert dict(headers_of(dead))["tickover-reason"] == b"expired"


def test_far_records_wait_in_the_overflow(site: Site, sidecar: Sidecar) -> None:
    target, source = site.target("mail-far"), site.name("delays")
    dues_ms: list[int] = []

    def send_and_see(wait_ms: int) -> bool:
        dues_ms.append(now_ms() + wait_ms)
        headers = [("tickover-deliver-at", str(dues_ms[-1]).encode()), (TARGET, target.encode())]
        site.kafka.produce(source, [(b"key", b"%d" % len(dues_ms), headers, 0, 0)] * FAR)
        wait_until(lambda: in_overflow() >= FAR or now_ms() > dues_ms[-1], 2 * wait_ms / 1_000)
        return in_overflow() >= FAR

    def in_overflow() -> int:
        return int(sidecar.stats()["topics"][source]["held"]["overflow"])

    # The first are missed where nobody looks for eight seconds.
    assert any(send_and_see(wait_ms) for wait_ms in (8_000, 30_000, 90_000)), "not in the overflow"
    messages = site.kafka.read(target, FAR * len(dues_ms), 180.0)
    assert sorted(due_of(message) for message in messages) == sorted(dues_ms * FAR)
    assert all(due_of(message) == dues_ms[int(message.value() or b"") - 1] for message in messages)
    assert all(0 <= message.timestamp()[1] - due_of(message) < LATE_MS for message in messages)


def test_what_is_due_next_is_told_wherever_it_is_held(new_site: NewSite) -> None:
    site = new_site()
    source = site.topic("delays")
    site.target("usual")
    site.policies(POLICIES)
    sidecar = site.sidecar(HORIZON="10m").start()

    def next_due_ms() -> int:
        found = re.search(r"^tickover_next_due_timestamp_seconds (.+)$", sidecar.call("GET", "/metrics").text, re.M)
        return round(float(found[1]) * 1_000) if found else -1

    def wait_for(due_ms: int) -> None:
        wait_until(lambda: next_due_ms() == due_ms, otherwise=lambda: f"{next_due_ms()}, not {due_ms}")

    assert next_due_ms() == -1
    in_overflow_ms, in_wheel_ms = now_ms() + 50 * MINUTE_MS, now_ms() + 9 * MINUTE_MS
    for due_ms in (in_overflow_ms, in_wheel_ms):
        site.send(source, [("tickover-deliver-at", b"%d" % due_ms), ("tickover-id", b"%d" % due_ms)])
        wait_for(due_ms)
    wait_until(lambda: sidecar.call("DELETE", f"/v1/messages/{in_wheel_ms}").is_success, otherwise=sidecar.last_words)
    wait_for(in_overflow_ms)
    assert sidecar.stop() == 0
