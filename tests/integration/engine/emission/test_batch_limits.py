"""Targets whose `max.message.bytes` is less than a producer's batch: small records aren't late there."""

import random

import pytest

from tests.integration.conftest import NewSite
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, due_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

POLICIES = """
name: bursts
match: {topics: ["~in"]}
delay: {default: 1h, max: 10h}
target: {allow: ["~*"]}
"""
RECORDS = 3_000
VALUE_BYTES = 300  # which don't compress
AHEAD_MS = 4_000
SLACK_MS = 5_000  # on a busy machine; by one record a batch it took more than 10 s


def lateness_ms(site: Site, target: str) -> tuple[int, int]:
    """Of a burst for a target, due at one instant: how late its records were appended, median and most."""
    chance, due_ms = random.Random(1), now_ms() + AHEAD_MS
    headers = [("tickover-target", target.encode()), ("tickover-deliver-at", b"%d" % due_ms)]
    values = [b"%d:" % number + chance.randbytes(VALUE_BYTES) for number in range(RECORDS)]
    site.kafka.produce(site.name("in"), [(b"key", value, headers, 0, 0) for value in values])
    arrived = site.kafka.read(target, RECORDS)
    assert sorted(message.value() or b"" for message in arrived) == sorted(values)
    late = sorted(message.timestamp()[1] - due_of(message) for message in arrived)
    assert late[0] >= 0
    return late[RECORDS // 2], late[-1]


def test_a_burst_for_a_target_of_small_batches_is_about_as_soon_as_for_any(new_site: NewSite) -> None:
    site = new_site()
    site.topic("in")
    wide = site.target("wide")
    narrow = site.kafka.create_topic(
        site.name("narrow"), max_message_bytes=20_000, message_timestamp_type="LogAppendTime"
    )
    site.policies(POLICIES)
    sidecar = site.sidecar("one", GUARANTEE="exactly_once").start()
    usual, small = lateness_ms(site, wide), lateness_ms(site, narrow)
    print(f"ms late, median and most: {usual} with the default limit, {small} with a small one")
    assert small[1] <= 2 * usual[1] + SLACK_MS
    said = sidecar.log.read_text()
    assert "a transaction was aborted" not in said
    assert "does not acknowledge" not in said
