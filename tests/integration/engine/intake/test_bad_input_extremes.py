"""Records no ordinary client writes: too many headers, too large, names that are no text, absurd timestamps."""

import random

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.services.clients import producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Headers
from tests.services.raw_records import produce_raw
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, headers_of, own_headers
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: extremes
match: {topics: ["~extremes"]}
delay: {default: 1ms, max: 3650d}
target: {topic: ~out, allow: ["~tiny*"]}
"""
YEAR_10000_MS = 253_402_300_800_000
PRODUCER_MAX_BYTES = 1_048_588
FOUND_S = 120.0


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("extremes", max_message_bytes=8 << 20, message_timestamp_after_max_ms=(1 << 63) - 1)
    site.target("out")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar().start()


def source_of(site: Site, offset: int) -> bytes:
    return f"{site.name('extremes')}/0/{offset}".encode()


def quarantined(site: Site, offset: int) -> Message:
    """The record of this source offset in the quarantine topic."""
    found: list[Message] = []

    def is_there() -> bool:
        found[:] = [
            message
            for message in site.kafka.read_all(site.quarantine)
            if dict(headers_of(message))["tickover-source"] == source_of(site, offset)
        ]
        return bool(found)

    wait_until(is_there, FOUND_S, lambda: f"offset {offset} isn't in quarantine")
    [message] = found
    return message


def reason_of(message: Message) -> tuple[str, str]:
    headers = dict(headers_of(message))
    return (headers["tickover-reason"] or b"").decode(), (headers["tickover-detail"] or b"").decode()


def check_the_partition_goes_on(site: Site, role: str) -> None:
    """A good record after the bad one, to a target of its own."""
    target = site.target(f"tiny-{role}")
    site.send(site.name("extremes"), [("tickover-target", target.encode())], value=b"after")
    [message] = site.kafka.read(target, 1)
    assert message.value() == b"after"


def send_unpacked(site: Site, value: bytes, headers: Headers = (), key: bytes = b"key") -> int:
    """A record that is small only while its batch is packed; returns its offset."""
    client = producer(site.kafka.bootstrap, compression_type="zstd", message_max_bytes=16 << 20)
    offsets: list[int] = []

    def report(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    client.produce(site.name("extremes"), value, key, headers=list(headers), on_delivery=report)
    assert client.flush(ANSWER_TIMEOUT_S) == 0
    return offsets[0]


def test_too_many_headers_are_kept_in_quarantine(site: Site) -> None:
    headers: Headers = [("h", b"%d" % number) for number in range(20_000)]
    report = site.send(site.name("extremes"), headers, value=b"crowded")
    message = quarantined(site, report.offset() or 0)
    assert reason_of(message) == ("too_many_headers", "20000 headers, the limit is 1000")
    assert (message.key(), message.value()) == (b"key", b"crowded")
    assert headers_of(message)[:-3] == headers
    check_the_partition_goes_on(site, "many")


def test_header_bytes_are_limited_too(site: Site) -> None:
    headers: Headers = [("h", b"x" * 100_000)] * 3
    report = site.send(site.name("extremes"), headers)
    message = quarantined(site, report.offset() or 0)
    assert reason_of(message) == ("too_many_headers", "300003 bytes of headers, the limit is 262144")
    assert headers_of(message)[:-3] == headers


def test_a_thousand_headers_are_not_too_many(site: Site) -> None:
    target = site.target("tiny-thousand")
    headers: Headers = [("h", b"%d" % number) for number in range(999)]
    site.send(site.name("extremes"), [*headers, ("tickover-target", target.encode())])
    [message] = site.kafka.read(target, 1)
    assert headers_of(message)[:-3] == headers


def test_a_value_larger_than_can_be_produced_is_quarantined_by_reference(site: Site) -> None:
    offset = send_unpacked(site, b"\0" * (3 << 20), [("mine", b"1"), ("mine", None)])
    message = quarantined(site, offset)
    assert reason_of(message)[0] == "too_large"
    assert (message.key(), message.value()) == (b"key", None)
    assert headers_of(message)[:2] == [("mine", b"1"), ("mine", None)]
    check_the_partition_goes_on(site, "unpacked")


def test_a_far_value_larger_than_can_be_produced_is_quarantined_when_it_is_due(site: Site) -> None:
    offset = send_unpacked(site, b"\0" * (2 << 20), [("tickover-delay", b"2500ms")])
    assert reason_of(quarantined(site, offset))[0] == "too_large"


def test_headers_or_a_key_too_large_even_for_the_reference_are_left_out(site: Site) -> None:
    of_headers = send_unpacked(site, b"v", [("h", b"\0" * (2 << 20))])
    message = quarantined(site, of_headers)
    assert reason_of(message)[0] == "too_many_headers"
    assert [name for name, _ in headers_of(message)] == ["tickover-source", "tickover-reason", "tickover-detail"]
    assert (message.key(), message.value()) == (b"key", None)
    of_key = quarantined(site, send_unpacked(site, b"v", [("mine", b"1")], b"\0" * (2 << 20)))
    assert reason_of(of_key)[0] == "too_large"
    assert (of_key.key(), of_key.value()) == (None, None)
    assert headers_of(of_key)[0] == ("mine", b"1")


@pytest.mark.parametrize("delay", [b"1ms", b"2s"], ids=["wheel", "overflow"])
def test_a_target_that_takes_only_small_records_gets_the_small_ones(site: Site, delay: bytes) -> None:
    target = site.kafka.create_topic(site.name(f"tiny-{delay.decode()}"), 1, max_message_bytes=2_000)
    asked: Headers = [("tickover-target", target.encode()), ("tickover-delay", delay)]
    values = [b"small %d" % number for number in range(50)]
    values.insert(25, random.Random(1).randbytes(5_000))  # what packs well would fit
    reports = site.kafka.produce(site.name("extremes"), [(b"key", value, asked, 0, 0) for value in values])
    message = quarantined(site, reports[25].offset() or 0)
    assert reason_of(message)[0] == "too_large"
    assert message.value() is None
    emitted = site.kafka.read(target, 50)
    assert sorted(m.value() or b"" for m in emitted) == sorted(value for value in values if len(value) < 100)
    assert len(site.kafka.read_all(target)) == 50


def test_a_header_name_that_is_no_text_is_quarantined_without_headers(site: Site) -> None:
    # Many before it: the interpreter calls the client differently once a call is hot, and then it crashed.
    site.kafka.produce(site.name("extremes"), [(b"key", b"good", [("h", b"1")], 0, 0)] * 100)
    offset = produce_raw(site.kafka.bootstrap, site.name("extremes"), b"raw", [(b"good", b"1"), (b"\xff\xfe", b"2")])
    message = quarantined(site, offset)
    assert reason_of(message) == ("bad_header", "a header name is not UTF-8; headers left out")
    assert (message.key(), message.value()) == (None, b"raw")
    check_the_partition_goes_on(site, "names")


@pytest.mark.parametrize(
    ("timestamp_ms", "detail"),
    [
        (-1, "missing"),
        (-2, "before 1970 or after the year 9999"),
        (-(1 << 63), "before 1970 or after the year 9999"),
        (YEAR_10000_MS, "before 1970 or after the year 9999"),
        ((1 << 63) - 1, "before 1970 or after the year 9999"),
    ],
)
def test_an_absurd_timestamp_is_quarantined(site: Site, timestamp_ms: int, detail: str) -> None:
    offset = produce_raw(site.kafka.bootstrap, site.name("extremes"), b"when", [(b"h", b"1")], timestamp_ms)
    message = quarantined(site, offset)
    assert reason_of(message) == ("bad_timestamp", detail)
    assert message.value() == b"when"
    assert headers_of(message)[0] == ("h", b"1")


def test_an_old_timestamp_means_now_and_one_ahead_is_believed(site: Site) -> None:
    check_the_partition_goes_on(site, "timestamps")
    target = site.target("tiny-timestamps-2")
    ahead_ms = now_ms() + 700
    asked: Headers = [("tickover-target", target.encode())]
    old = site.send(site.name("extremes"), asked, value=b"old", timestamp_ms=1)
    ahead = site.send(site.name("extremes"), asked, value=b"ahead", timestamp_ms=ahead_ms)
    found = {message.value(): message for message in site.kafka.read(target, 2)}
    assert found[b"old"].headers() == own_headers(old, 2, "extremes@1")
    assert found[b"ahead"].headers() == own_headers(ahead, ahead_ms + 1, "extremes@1")
    assert found[b"ahead"].timestamp()[1] >= ahead_ms + 1


def test_a_timestamp_at_the_end_of_time_is_too_far_and_harms_nobody(site: Site) -> None:
    offset = produce_raw(site.kafka.bootstrap, site.name("extremes"), b"far", [], YEAR_10000_MS - 1)
    assert reason_of(quarantined(site, offset))[0] == "too_far"
    check_the_partition_goes_on(site, "end-of-time")
