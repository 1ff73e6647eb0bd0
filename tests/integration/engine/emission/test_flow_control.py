"""A limited target on a real Kafka: two replicas share its rate, and one is killed while records wait."""

from typing import Any

import pytest

from tests.integration.conftest import NewSite
from tests.services.site import due_of
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

POLICIES = """
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 100ms}
target: {topic: "~mail", rate: 40/s, burst: 4}
"""
RECORDS = 800  # twenty seconds of it: enough to be killed in between
PARTITIONS = 4
ARRIVED_S = 200.0


def test_two_replicas_share_a_rate_and_a_kill_loses_and_repeats_nothing(new_site: NewSite) -> None:
    site = new_site()
    source = site.topic("reminders", partitions=PARTITIONS)
    # Timestamps are of the hand-over, which is what a rate is about: a broker that stands still takes many at once.
    target = site.topic("mail")
    site.policies(POLICIES)
    first, second = (site.sidecar(name, GUARANTEE="exactly_once").start() for name in ("a", "b"))
    wait_until(
        lambda: first.stats()["partitions"]["assigned"] == second.stats()["partitions"]["assigned"] == 2,
        otherwise=lambda: f"{first.stats()} {second.stats()}",
    )
    records: list[Any] = [(None, b"%d" % number, [], 0, number % PARTITIONS) for number in range(RECORDS)]
    site.kafka.produce(source, records)

    def flow() -> Any:
        return first.stats()["targets"].get(target, {"rate": 0.0, "waiting": 0})

    # Half of the partitions, half of the rate.
    wait_until(lambda: flow()["rate"] == 20.0 and flow()["waiting"] > 0, otherwise=lambda: str(first.stats()))
    site.kafka.read(target, 50)
    second.kill()
    assert len(site.kafka.read_all(target)) < RECORDS, "nothing waited any more when it was killed"
    second.launch()
    arrived = site.kafka.read(target, RECORDS, ARRIVED_S)
    second.wait_until_ready()

    assert sorted(message.value() or b"" for message in arrived) == sorted(b"%d" % number for number in range(RECORDS))
    times = sorted(message.timestamp()[1] for message in arrived)
    assert min(message.timestamp()[1] - due_of(message) for message in arrived) >= 0
    # In any two seconds the rate, a burst of each replica, one more of the replica that began anew, and what a
    # transaction gives back that was aborted at the rebalance: that has its tokens, and goes at once.
    most = max(sum(start <= time < start + 2_000 for time in times) for start in times)
    assert most <= 2 * 40 + 3 * 4 + 40, f"{most} in two seconds"
    assert (first.stop(), second.stop()) == (0, 0)
