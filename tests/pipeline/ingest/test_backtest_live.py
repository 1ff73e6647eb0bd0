"""`backtest` under the policies that were live decides every record of a real run as the engine did."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.backtest import ASKED, FAILED, OTHER_POLICIES, POLICIES, TARGETS, failure, request
from sidecar.model.record import Headers
from tests.services.kafka import Kafka
from tests.services.sidecar_process import now_ms
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

COUNT = 3_000
SEED = 7
SETTLED_S = 600.0  # of 15 s: a busy machine takes its time
OUTCOMES = ("emitted", "dead", "quarantined")


def test_every_decision_is_the_live_one(kafka: Kafka, new_site: Callable[[], Site], warehouse: Any) -> None:
    site = new_site()
    live, other = (text.replace("bench-", f"{site.group}-") for text in (POLICIES, OTHER_POLICIES))
    site.policies(live)
    sources = [site.topic(name.removeprefix("bench-"), 2) for name in (FAILED, ASKED)]
    for name in TARGETS:
        site.target(name.removeprefix("bench-"))
    sidecar = site.sidecar().start()
    chance = random.Random(SEED)
    for source, made in zip(sources, (failure, request), strict=True):
        headers = [renamed(made(chance, number, now_ms()), site) for number in range(COUNT // 2)]
        kafka.produce(source, [(b"%d" % number, b"value", of_one) for number, of_one in enumerate(headers)])

    def settled() -> dict[str, int]:
        topics = sidecar.stats()["topics"].values()
        return {word: sum(topic.get(word, 0) for topic in topics) for word in OUTCOMES}

    wait_until(lambda: sum(settled().values()) == COUNT, SETTLED_S, lambda: f"{settled()}: {sidecar.last_words()}")
    assert min(settled().values()) > COUNT // 20
    assert sidecar.stop() == 0
    from pipeline import jobs
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.ingest.lifecycle import LIFECYCLE

    ingest(warehouse, KafkaPlace(kafka.bootstrap), f"tickover.{site.group}.ledger", sources)
    ended = warehouse.read("silver/lifecycle", LIFECYCLE)
    # Decisions know no clock: what is due before it expires is held, and dead if it is read or emitted after that.
    assert ended.where("reason = 'expired' AND due_ms <> accepted_ms").count() > 0
    assert ended.where("reason = 'unknown_target'").count() > 0
    same, differing = jobs.backtest(warehouse, sources, {"live": live, "other": other})["policies"]
    assert (same["policies"], same["recorded"], same["same"]) == ("live", COUNT, COUNT)
    assert (differing["policies"], differing["recorded"]) == ("other", COUNT)
    assert differing["same"] < COUNT


def renamed(headers: Headers, site: Site) -> Headers:
    """With the topics of this site instead of the benchmark's."""
    return [(name, value and value.replace(b"bench-", site.group.encode() + b"-")) for name, value in headers]
