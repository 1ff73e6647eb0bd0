"""A cluster starts as a whole, and its first broker knows of no broker yet, not even of itself.

What clients are told then lets some of them lose their brokers for good: which ones is up to chance.
"""

from pathlib import Path

import pytest

from tests.services.errant_broker import ErrantServer
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: reminders
match: {topics: ["~in"]}
delay: {max: 1h}
target: {topic: ~out}
"""
TOLD = 40  # several times by each client
RECOVERY_S = 150.0


def test_a_process_goes_on_whatever_its_clients_are_told(redis_url: str, tmp_path: Path) -> None:
    with own_broker(ErrantServer(tmp_path / "kafka")) as server:
        kafka = Kafka(server)
        site = Site(kafka, redis_url, tmp_path)
        site.policies(POLICIES)
        source, target = site.topic("in", 2), site.target("out")
        sidecar = site.sidecar("one").start()
        try:
            site.send(source, [("tickover-delay", b"20s")], b"before")
            server.stop()
            server.errand.forget_brokers()
            server.start()
            wait_until(lambda: server.errand.told_alone > TOLD, RECOVERY_S, sidecar.last_words)
            server.errand.learn_brokers()
            wait_until(sidecar.is_ready, RECOVERY_S, sidecar.last_words)
            site.send(source, [("tickover-delay", b"1s")], b"after")
            values = {message.value() for message in kafka.read(target, 2, RECOVERY_S)}
            assert values == {b"before", b"after"}
            assert sidecar.stop() == 0, sidecar.last_words()
        finally:
            site.close()
