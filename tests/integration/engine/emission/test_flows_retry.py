"""Failed records on a real Kafka: attempts, back-off, dead letters, and what is kept over several rounds."""

from typing import Any

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.services.kafka import Headers
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of, own_headers, place

pytestmark = pytest.mark.integration

POLICIES = """
name: fixed
match: {topics: ["~fixed-retry"]}
retry: {attempts: 2, backoff: {kind: fixed, delay: 200ms}}
target: {allow: ["~other-*"]}
---
name: exponential
match: {topics: ["~exponential-retry"]}
retry: {attempts: 10, backoff: {kind: exponential, initial: 100ms, factor: 3, max: 500ms}}
---
name: list
match: {topics: ["~list-retry"]}
retry: {attempts: 10, backoff: {kind: list, delays: [50ms, 300ms, 1500ms]}}
---
name: jitter
match: {topics: ["~jitter-retry"]}
retry: {attempts: 10, backoff: {kind: fixed, delay: 400ms, jitter: full}}
---
name: equal
match: {topics: ["~equal-retry"]}
retry: {attempts: 10, backoff: {kind: fixed, delay: 400ms, jitter: equal}}
---
name: rules
match: {topics: ["~rules-retry"]}
retry: {attempts: 5, backoff: {kind: fixed, delay: 10ms}, retry_on: ["*.TimeoutError", "IO*"], give_up_on: ["IOFatal*"]}
dead_letter: {topic: ~graveyard}
---
name: timeout
match: {topics: ["~timeout-retry"]}
retry: {attempts: 100, backoff: {kind: fixed, delay: 1s}, timeout: 10s}
---
name: tenants
match: {topics: ["~tenants-retry"], headers: {tenant: "gold*"}}
retry: {attempts: 1, backoff: {kind: fixed, delay: 20ms}}
target: {topic: ~tenants-gold}
---
name: tenants-rest
match: {topics: ["~tenants-*"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 20ms}}
target: {topic: ~tenants-rest}
"""
LATE_MS = 60_000  # lateness is measured by benchmarks; this only tells late from forgotten
ROLES = ("fixed", "exponential", "list", "jitter", "equal", "rules", "timeout")
ERRORS: list[tuple[str, bytes | None]] = [
    ("tickover-error-class", b"java.io.IOException"),
    ("tickover-error-message", "Verbindung weg: ß".encode()),
]


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    for role in ROLES:
        site.topic(f"{role}-retry")
        site.target(role)
        site.target(f"{role}-dlq")
    site.target("graveyard")
    site.topic("tenants-retry")
    site.target("tenants-gold")
    site.target("tenants-rest")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar().start()


class Flow:
    """Records through one retry topic; every record is found by a value of its own."""

    def __init__(self, site: Site, role: str, policy: str = "") -> None:
        self.site, self.role, self.policy = site, role, f"{policy or role}@1"
        self._sent = 0

    def fail(self, *headers: tuple[str, bytes | None], **record: Any) -> Message:
        """A consumer gives up on a record."""
        return self.site.send(self.site.name(f"{self.role}-retry"), headers, **record)

    def back(self, report: Message, topic: str = "") -> Message:
        """The record that came of it, on the topic it came from or another one."""
        topic = self.site.name(topic or self.role)
        for count in range(1, 100):
            [message] = self.site.kafka.read(topic, count)[-1:]
            if dict(headers_of(message)).get("tickover-origin") == place(report):
                return message
        raise AssertionError("not found")

    def headers(self, report: Message, wait_ms: int, attempt: int, first_ms: int) -> list[Any]:
        counted = [("tickover-attempt", b"%d" % attempt), ("tickover-first-failure", b"%d" % first_ms)]
        return own_headers(report, report.timestamp()[1] + wait_ms, self.policy, *counted)


def check_time(message: Message) -> None:
    due_ms = due_of(message)
    assert 0 <= message.timestamp()[1] - due_ms < LATE_MS


def test_a_failed_record_goes_back_to_its_topic_with_the_next_attempt(site: Site) -> None:
    flow = Flow(site, "fixed")
    report = flow.fail(("mine", b"1"), ("mine", None), *ERRORS, value=b"v", key=None)
    message = flow.back(report)
    check_time(message)
    sent_ms = report.timestamp()[1]
    assert message.headers() == [("mine", b"1"), ("mine", None), *flow.headers(report, 200, 2, sent_ms), *ERRORS]
    assert (message.key(), message.value()) == (None, b"v")


def forwarded(message: Message, *errors: tuple[str, bytes | None]) -> Headers:
    """Headers from a consumer that fails again: as they came, with its own error."""
    kept = [header for header in headers_of(message) if not header[0].startswith("tickover-error")]
    return [*kept, *errors]


def test_origin_and_first_failure_are_kept_until_the_attempts_are_exhausted(site: Site) -> None:
    flow = Flow(site, "fixed")
    first = flow.fail(*ERRORS, value=b"rounds")
    first_ms = first.timestamp()[1]
    second_back = flow.back(first)
    second = flow.fail(*forwarded(second_back, ("tickover-error-class", b"again")), value=b"rounds")
    third_back = site.kafka.read(site.name("fixed"), 3)[-1]
    expected = flow.headers(second, 200, 3, first_ms)
    assert third_back.headers() == [
        ("tickover-origin", place(first)), *expected[1:], ("tickover-error-class", b"again"),
    ]  # fmt: skip
    third = flow.fail(*forwarded(third_back, ("tickover-error-class", b"last")), value=b"rounds")
    dead = flow.back(first, "fixed-dlq")
    third_ms = third.timestamp()[1]
    assert dead.headers() == [
        ("tickover-origin", place(first)),
        ("tickover-due", b"%d" % third_ms),
        ("tickover-policy", b"fixed@1"),
        ("tickover-attempt", b"3"),
        ("tickover-first-failure", b"%d" % first_ms),
        ("tickover-error-class", b"last"),
        ("tickover-reason", b"attempts_exhausted"),
        ("tickover-source", place(third)),
    ]
    assert (dead.key(), dead.value()) == (b"key", b"rounds")


@pytest.mark.parametrize(
    ("role", "failed", "wait_ms"),
    [
        ("exponential", 1, 100),
        ("exponential", 2, 300),
        ("exponential", 3, 500),
        ("exponential", 9, 500),
        ("list", 1, 50),
        ("list", 2, 300),
        ("list", 3, 1_500),
        ("list", 7, 1_500),
    ],
)
def test_the_back_off_grows_as_the_policy_says(site: Site, role: str, failed: int, wait_ms: int) -> None:
    flow = Flow(site, role)
    report = flow.fail(("tickover-attempt", b"%d" % failed))
    message = flow.back(report)
    check_time(message)
    assert message.headers() == flow.headers(report, wait_ms, failed + 1, report.timestamp()[1])


@pytest.mark.parametrize(("role", "least_ms"), [("jitter", 0), ("equal", 200)])
def test_jitter_spreads_the_waits(site: Site, role: str, least_ms: int) -> None:
    source = site.name(f"{role}-retry")
    timestamp_ms = now_ms()
    site.kafka.produce(source, [(b"k", b"v", (), timestamp_ms, 0)] * 40)
    messages = site.kafka.read(site.name(role), 40)
    waits = [due_of(message) - timestamp_ms for message in messages]
    assert all(least_ms <= wait <= 400 for wait in waits)
    assert len(set(waits)) > 20
    for message in messages:
        check_time(message)


@pytest.mark.parametrize(
    ("error_class", "reason"),
    [
        (b"db.TimeoutError", None),
        (b"IOError", None),
        (b"IOFatalError", b"not_retryable"),
        (b"ValueError", b"not_retryable"),
        (b"db.timeouterror", b"not_retryable"),
        (None, b"not_retryable"),
    ],
)
def test_the_error_class_decides_whether_to_go_on(site: Site, error_class: bytes | None, reason: bytes | None) -> None:
    flow = Flow(site, "rules")
    errors = [] if error_class is None else [("tickover-error-class", error_class)]
    report = flow.fail(*errors)
    if reason is None:
        message = flow.back(report)
        assert message.headers() == [*flow.headers(report, 10, 2, report.timestamp()[1]), *errors]
    else:
        message = flow.back(report, "graveyard")
        headers = flow.headers(report, 0, 1, report.timestamp()[1])
        assert message.headers() == [
            *headers, *errors, ("tickover-reason", reason), ("tickover-source", place(report)),
        ]  # fmt: skip


def test_the_timeout_counts_from_the_first_failure(site: Site) -> None:
    flow = Flow(site, "timeout")
    sent_ms = now_ms()
    kept = flow.fail(("tickover-first-failure", b"%d" % (sent_ms - 8_500)), timestamp_ms=sent_ms)
    given_up = flow.fail(("tickover-first-failure", b"%d" % (sent_ms - 9_500)), timestamp_ms=sent_ms)
    assert flow.back(kept).headers() == flow.headers(kept, 1_000, 2, sent_ms - 8_500)
    dead = flow.back(given_up, "timeout-dlq")
    assert dead.headers() == [
        *flow.headers(given_up, 1_000, 1, sent_ms - 9_500),
        ("tickover-reason", b"timeout"),
        ("tickover-source", place(given_up)),
    ]


@pytest.mark.parametrize("header", ["tickover-delay", "tickover-deliver-at"])
def test_the_consumer_may_say_when_to_try_again(site: Site, header: str) -> None:
    flow = Flow(site, "exponential")
    sent_ms = now_ms()
    given = b"50ms" if header == "tickover-delay" else b"%d" % (sent_ms + 50)
    report = flow.fail((header, given), timestamp_ms=sent_ms)
    message = flow.back(report)
    check_time(message)
    assert message.headers() == flow.headers(report, 50, 2, sent_ms)


def test_an_allowed_target_takes_it_elsewhere(site: Site) -> None:
    target = site.target("other-1", partitions=2)
    flow = Flow(site, "fixed")
    report = flow.fail(("tickover-target", target.encode()), ("tickover-target-partition", b"1"))
    message = flow.back(report, "other-1")
    assert message.partition() == 1
    assert message.headers() == flow.headers(report, 200, 2, report.timestamp()[1])


def test_long_errors_are_cut(site: Site) -> None:
    flow = Flow(site, "list")
    long = [("tickover-error-class", b"c" * 2_000), ("tickover-error-message", "ß".encode() * 5_000)]
    message = flow.back(flow.fail(*long))
    headers = dict(headers_of(message))
    assert headers["tickover-error-class"] == b"c" * 1_024
    assert headers["tickover-error-message"] == "ß".encode() * 4_096


def test_headers_choose_among_policies(site: Site) -> None:
    flow = Flow(site, "tenants", "tenants")
    gold = flow.fail(("tenant", b"golden"))
    iron = flow.fail(("tenant", b"iron"))
    assert dict(flow.back(gold, "tenants-gold").headers() or [])["tickover-policy"] == b"tenants@1"
    assert dict(flow.back(iron, "tenants-rest").headers() or [])["tickover-policy"] == b"tenants-rest@1"


def test_a_retry_that_expires_is_dead(site: Site) -> None:
    flow = Flow(site, "timeout")
    sent_ms = now_ms()
    report = flow.fail(("tickover-expires-at", b"%d" % (sent_ms + 500)), timestamp_ms=sent_ms)
    headers = dict(flow.back(report, "timeout-dlq").headers() or [])
    assert (headers["tickover-reason"], headers["tickover-attempt"]) == (b"expired", b"1")
