"""A Redis that loses answers, cuts connections, freezes, dies and is full, under load: nothing is lost or repeated.

No process dies here, so that even at_least_once repeats nothing.
"""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from sidecar.embedded.valkey import EmbeddedValkey
from tests.integration.conftest import NewSite
from tests.services.oracle import Traffic
from tests.services.redis_proxy import RedisProxy
from tests.services.sidecar_process import Sidecar
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RATE = 500
KINDS_MIN = 5  # of commands that the overflow sends in this traffic
CUTS = 20
SOON_S = 120.0
FULL_BYTES = 1 << 20  # less than the server itself takes


@pytest.fixture
def proxy(own_redis: EmbeddedValkey) -> Iterator[RedisProxy]:
    proxy = RedisProxy(int(own_redis.url.rpartition(":")[2])).start()
    yield proxy
    proxy.stop()


def judge(new_site: NewSite, guarantee: str, url: str, faults: Callable[[Sidecar, Traffic], None]) -> None:
    """Traffic through a sidecar with this Redis while `faults` happen; then all must be well."""
    site = new_site()
    Traffic.prepare(site, partitions=2)
    traffic = Traffic(site, partitions=2, rate=RATE)
    sidecar = site.sidecar("only", GUARANTEE=guarantee, REDIS__URL=url).start()
    traffic.start()
    wait_until_arrived(traffic, RATE, sidecar)
    faults(sidecar, traffic)
    wait_until_arrived(traffic, 4 * RATE, sidecar)
    traffic.quieten()
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"\n{guarantee}: {verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)
    assert sidecar.messages("critical") == []


def wait_until_arrived(traffic: Traffic, count: int, sidecar: Sidecar) -> None:
    goal = traffic.arrived + count
    wait_until(lambda: traffic.arrived >= goal, SOON_S, lambda: f"nothing fires any more: {sidecar.last_words()}")


def test_each_command_s_answer_is_lost_once(new_site: NewSite, guarantee: str, proxy: RedisProxy) -> None:
    def lose(sidecar: Sidecar, traffic: Traffic) -> None:
        proxy.lose_each_once = True
        wait_until(lambda: len(proxy.lost) >= KINDS_MIN, SOON_S, lambda: f"lost only {dict(proxy.lost)}")
        wait_until_arrived(traffic, 10 * RATE, sidecar)

    judge(new_site, guarantee, proxy.url, lose)
    print(f"lost, once each: {sorted(proxy.lost)}")
    assert set(proxy.seen) >= set(proxy.lost)


def test_connections_are_cut_and_answers_are_slow(new_site: NewSite, guarantee: str, proxy: RedisProxy) -> None:
    def cut(sidecar: Sidecar, traffic: Traffic) -> None:
        for number in range(CUTS):
            proxy.delay_s = 0.2 * (number % 3 == 2)
            proxy.cut()
            wait_until_arrived(traffic, RATE // 4, sidecar)
        proxy.delay_s = 0.0

    judge(new_site, guarantee, proxy.url, cut)


def test_the_server_freezes_dies_restarts_and_is_full(
    new_site: NewSite, guarantee: str, own_redis: EmbeddedValkey
) -> None:
    def trouble(sidecar: Sidecar, traffic: Traffic) -> None:
        os.kill(own_redis.process_id, signal.SIGSTOP)
        wait_until(lambda: not is_ready(sidecar), SOON_S, lambda: "a frozen Redis is not noticed")
        os.kill(own_redis.process_id, signal.SIGCONT)
        wait_until(lambda: is_ready(sidecar), SOON_S, sidecar.last_words)
        own_redis.kill()
        wait_until(lambda: not is_ready(sidecar), SOON_S, lambda: "a dead Redis is not noticed")
        own_redis.start()
        wait_until(lambda: is_ready(sidecar), SOON_S, sidecar.last_words)
        with Redis.from_url(own_redis.url, protocol=2) as client:
            before = client.config_get("maxmemory")["maxmemory"]
            client.config_set("maxmemory", FULL_BYTES)
            wait_until(lambda: not is_ready(sidecar), SOON_S, lambda: "a full Redis is not noticed")
            client.config_set("maxmemory", before)
        wait_until(lambda: is_ready(sidecar), SOON_S, sidecar.last_words)
        own_redis.stop()
        own_redis.start()

    judge(new_site, guarantee, own_redis.url, trouble)


def is_ready(sidecar: Sidecar) -> bool:
    return sidecar.call("GET", "/readyz").is_success
