"""A Redis that others may write to: what has no signature of ours is rebuilt, and nothing of theirs is emitted."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.model.record import Held, TopicPartition
from sidecar.overflow.interface import Change
from sidecar.overflow.redis_overflow import open_overflow
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POLICIES = """
name: reminders
match: {topics: ["~in"]}
delay: {max: 1d}
target: {allow: ["~out", "~payments"]}
"""
RECORDS = 40


@pytest.fixture(name="site")
def site_fixture(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("in")
    for role in ("out", "payments", "in-dlq"):
        site.target(role)
    site.policies(POLICIES)
    return site


def held(sidecar: Sidecar) -> int:
    answer = sidecar.call("GET", "/v1/messages?limit=500").json()
    return -1 if answer.get("partial", True) else len(answer["items"])


def send(site: Site, delay: bytes) -> list[bytes]:
    values = [b"%s-%02d" % (delay, number) for number in range(RECORDS)]
    target = site.name("out").encode()
    for value in values:
        site.send(site.name("in"), [("tickover-target", target), ("tickover-delay", delay)], value=value)
    return values


def test_with_a_key_a_neighbour_has_nothing_emitted_and_what_was_unsigned_is_rebuilt(
    site: Site, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef" * 2 + "\n")
    unsigned = site.sidecar("one", HORIZON="1s").start()
    soon, late = send(site, b"25s"), send(site, b"1h")
    wait_until(lambda: held(unsigned) == 2 * RECORDS, WAIT_S, unsigned.last_words)
    assert unsigned.stop() == 0

    signed = site.sidecar("one", HORIZON="1s", REDIS__SIGNING_KEY_FILE=str(keys)).start()
    other = site.sidecar("two", HORIZON="1s", REDIS__SIGNING_KEY_FILE=str(keys)).start()
    assert sorted(message.value() or b"" for message in site.kafka.read(site.name("out"), RECORDS)) == sorted(soon)
    for sidecar in (signed, other):  # each answers the other
        wait_until(lambda: held(sidecar) == len(late), WAIT_S, sidecar.last_words)  # noqa: B023
    said = signed.log.read_text() + other.log.read_text()
    assert "none of our keys has signed" in said
    assert "the overflow of a partition is rebuilt" in said

    items = signed.call("GET", "/v1/messages?limit=1").json()["items"]
    lane = TopicPartition(items[0]["position"]["topic"], items[0]["position"]["partition"])
    with closing(open_overflow(site.redis_url, site.group)) as neighbour:
        number = neighbour.last_applied(lane)
        due_ms = time.time_ns() // 1_000_000 + 5_000
        offset = items[0]["position"]["offset"]
        forged = Held(
            due_ms, offset, site.name("payments"), -1, None, b"forged", [], "reminders@1", None, 0, -1, [], -1, "", 6
        )  # fmt: skip
        neighbour.apply([Change(lane, number + 1, [forged])], due_ms)
    rebuilds = said.count("the overflow of a partition is rebuilt")

    def is_rebuilt() -> bool:
        text = signed.log.read_text() + other.log.read_text()
        return text.count("the overflow of a partition is rebuilt") > rebuilds

    wait_until(is_rebuilt, WAIT_S, signed.last_words)
    wait_until(lambda: held(signed) == len(late), WAIT_S, signed.last_words)
    assert site.kafka.read_all(site.name("payments")) == []
    assert (signed.stop(), other.stop()) == (0, 0)
