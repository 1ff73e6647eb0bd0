"""A Redis that takes its rights away one by one, under load: what needs one waits, and goes on when it is back."""

from contextlib import closing
from functools import partial

import pytest
from redis import Redis

from sidecar.doctor.acl import redis_rights
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.settings.settings import load_settings
from tests.integration.conftest import NewSite
from tests.services.acted_traffic import ActedTraffic
from tests.services.oracle import Traffic, Verdict
from tests.services.secure_redis import allow, refused
from tests.services.sidecar_process import Sidecar
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RATE, ACTED_RATE = 400, 40
PARTITIONS = 2
USER, PASSWORD = "guest", "redis-password-4c2"
# What this traffic needs of Redis every second: but for two, commands that are called within scripts.
NEEDED = (
    "-evalsha", "-get", "-hdel", "-hget", "-hset", "-set", "-zadd", "-zcount", "-zmscore", "-zrangebyscore",
    "-zremrangebyscore", "-zscore", "resetkeys", "resetchannels",
)  # fmt: skip
SOON_S = 120.0


def test_rights_are_taken_away_one_by_one(new_site: NewSite, guarantee: str, own_redis: EmbeddedValkey) -> None:
    site = new_site()
    login = {"REDIS__URL": own_redis.url, "REDIS__USERNAME": USER, "REDIS__PASSWORD": PASSWORD}
    sidecar = site.sidecar("only", GUARANTEE=guarantee, **login)
    rights = redis_rights(load_settings(None, {}, sidecar.settings))
    allow(own_redis.url, USER, PASSWORD, rights)
    Traffic.prepare(site, PARTITIONS, ActedTraffic.prepare(site, PARTITIONS))
    traffic, acted = Traffic(site, PARTITIONS, RATE), ActedTraffic(site, PARTITIONS, ACTED_RATE)
    with closing(traffic), closing(acted), Redis.from_url(own_redis.url, protocol=2) as operator:
        sidecar.start()
        traffic.start()
        acted.start()
        for rule in NEEDED:
            wait_until_flowing(traffic, sidecar)
            operator.acl_log_reset()
            operator.execute_command("ACL", "SETUSER", USER, rule)
            wait_until(lambda: bool(refused(own_redis.url, USER)), SOON_S, partial("nobody minds {}".format, rule))
            allow(own_redis.url, USER, PASSWORD, rights)
        wait_until_flowing(traffic, sidecar)
        verdict = judge(traffic, acted, sidecar)
    print(f"\n{guarantee}: {verdict}")
    assert acted.faults(guarantee == "exactly_once") == []
    assert sidecar.messages("critical") == []


def judge(traffic: Traffic, acted: ActedTraffic, sidecar: Sidecar) -> Verdict:
    """Let everything arrive, stop the process, and hold it to its promise."""
    acted.quieten()
    traffic.quieten()
    wait_until(acted.all_settled, SOON_S, sidecar.last_words)
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)
    return verdict


def wait_until_flowing(traffic: Traffic, sidecar: Sidecar) -> None:
    """Until it is ready, and a second's records have arrived."""
    goal = traffic.arrived + RATE

    def flows() -> bool:
        assert not sidecar.ended, f"it ended: {sidecar.last_words()}"
        return traffic.arrived >= goal and sidecar.is_ready()

    wait_until(flows, SOON_S, lambda: f"nothing fires any more: {sidecar.readiness} {sidecar.last_words()}")
