"""Processes that come and go under load: partitions move, and every record fires once."""

import pytest

from tests.integration.conftest import NewSite
from tests.services.oracle import Traffic, Verdict
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RATE = 500
PARTITIONS = 4  # of each of the two sources
BALANCED_S = 120.0


def wait_until_shared(*sidecars: Sidecar) -> None:
    """Until these processes have all partitions among them, each at least one, recovered."""

    def is_shared() -> bool:
        shares = [sidecar.partitions() for sidecar in sidecars]
        return sum(shares) == 2 * PARTITIONS and min(shares) > 0

    wait_until(is_shared, BALANCED_S, lambda: f"shares are {[sidecar.partitions() for sidecar in sidecars]}")


def wait_until_flowing(traffic: Traffic) -> None:
    """Until this moment's records arrive: what was moved goes on at its new owner."""
    goal = traffic.arrived + RATE
    wait_until(lambda: traffic.arrived >= goal, BALANCED_S, lambda: "nothing fires any more")


def judged(traffic: Traffic, words: str, *running: Sidecar) -> Verdict:
    """Let it all arrive, stop who still runs, and judge."""
    traffic.quieten()
    for sidecar in running:
        assert sidecar.stats()["ledger_imbalance"] == 0
        assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"\n{words}: {verdict}")
    return verdict


def loaded(site: Site) -> Traffic:
    Traffic.prepare(site, PARTITIONS)
    return Traffic(site, PARTITIONS, RATE)


def check(verdict: Verdict, sidecars: list[Sidecar]) -> None:
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), verdict.faults
    for sidecar in sidecars:
        assert sidecar.messages("critical") == []


def test_two_and_three_processes_hand_partitions_to_each_other(new_site: NewSite) -> None:
    site = new_site()
    traffic = loaded(site)
    one, two, three = (site.sidecar() for _ in range(3))
    one.start()
    traffic.start()
    wait_until_flowing(traffic)
    two.start()
    wait_until_shared(one, two)
    wait_until_flowing(traffic)
    three.start()
    wait_until_shared(one, two, three)
    wait_until_flowing(traffic)
    assert one.stop() == 0, one.last_words()
    wait_until_shared(two, three)
    wait_until_flowing(traffic)
    one.start()
    wait_until_shared(one, two, three)
    assert two.stop() == 0, two.last_words()
    assert three.stop() == 0, three.last_words()
    wait_until_shared(one)
    wait_until_flowing(traffic)
    check(judged(traffic, "one to three processes, joining and leaving", one), [one, two, three])


def test_static_members_are_restarted_one_by_one(new_site: NewSite) -> None:
    """As a rolling upgrade does it: nobody else's partitions move."""
    site = new_site()
    traffic = loaded(site)
    session = {"KAFKA__CLIENT__SESSION_TIMEOUT_MS": "120000"}  # a restart takes longer than usual on a busy machine
    members = [site.sidecar(f"member-{number}", **session) for number in range(2)]
    for member in members:
        member.start()
    wait_until_shared(*members)
    traffic.start()
    wait_until_flowing(traffic)
    rebalances = members[1].stats()["rebalances"]
    assert members[0].stop() == 0, members[0].last_words()
    members[0].start()
    wait_until_shared(*members)
    assert members[1].stats()["rebalances"] == rebalances
    assert members[1].stop() == 0, members[1].last_words()
    members[1].start()
    wait_until_shared(*members)
    check(judged(traffic, "two static members, restarted one by one", *members), members)


def test_a_killed_process_is_taken_over(new_site: NewSite) -> None:
    site = new_site()
    traffic = loaded(site)
    one, two = site.sidecar(), site.sidecar()
    one.start()
    two.start()
    wait_until_shared(one, two)
    traffic.start()
    wait_until_flowing(traffic)
    one.kill()
    wait_until_shared(two)
    verdict = judged(traffic, "one of two killed", two)
    assert (verdict.lost, verdict.early, verdict.changed) == (0, 0, 0), verdict.faults
    assert verdict.repeated <= RATE
