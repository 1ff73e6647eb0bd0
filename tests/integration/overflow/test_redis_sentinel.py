"""Sentinels fail over under load, to a Redis that lacks what was acknowledged: nobody outside sees it."""

from pathlib import Path

import pytest

from tests.integration.conftest import NewSite
from tests.services.oracle import Traffic
from tests.services.redis_sentinel import PASSWORD, USER, watched_servers
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RATE = 200
DELAY_MAX_MS = 5_000
SOON_S = 120.0


def test_a_fail_over_of_sentinels_is_followed_without_a_restart(new_site: NewSite, tmp_path: Path) -> None:
    site = new_site()
    Traffic.prepare(site, partitions=2)
    with watched_servers(tmp_path) as group:
        login = {"REDIS__SENTINEL_USERNAME": USER, "REDIS__SENTINEL_PASSWORD": PASSWORD}
        traffic = Traffic(site, partitions=2, rate=RATE, delay_max_ms=DELAY_MAX_MS)
        sidecar = site.sidecar("only", REDIS__URL=group.url, **login).start()
        traffic.start()

        def wait_for(records: int) -> None:
            goal = traffic.arrived + records
            wait_until(lambda: traffic.arrived >= goal, SOON_S, sidecar.last_words)

        wait_for(RATE)
        group.follow(1)
        wait_for(RATE)
        group.primary.kill()
        wait_until(lambda: "127.0.0.1:" in sidecar.call("GET", "/readyz").text, SOON_S, sidecar.last_words)
        wait_until(lambda: sidecar.stats()["rebuild"]["finished"] > 0, SOON_S, sidecar.last_words)
        wait_until(sidecar.is_ready, SOON_S, sidecar.last_words)
        wait_for(RATE)
        traffic.quieten()
        stats = sidecar.stats()
        assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"\n{verdict}; {stats['rebuild']}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)
    assert (stats["rebuild"]["lost"], stats["ledger_imbalance"]) == (0, 0)
    assert sidecar.messages("critical") == []
