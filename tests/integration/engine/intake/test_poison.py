"""The whole corpus of hostile records, one by one: each leaves by its exit, and a good one behind it is on time."""

from dataclasses import dataclass, field

import pytest
import yaml
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.integration.conftest import NewSite
from tests.integration.hostile_records import EMITTED, EXPIRED, GOOD, POLICIES, Poison, Way, corpus, named
from tests.services.clients import consumer, producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Headers
from tests.services.raw_records import produce_raw
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, headers_of, place
from tests.services.waiting import wait_until
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CORPUS = corpus()
CORPUS_MIN = 80
STALL_MS_MAX = 1_000
TRIES = 20  # of what was slow: a busy machine stalls, too, but not each time
FOUND_S = 120.0
GOOD_RETRY: Headers = [("tickover-attempt", b"1")]
TARGETS = ("strict-out", "work", "strict-dlq")


@dataclass(slots=True)
class Outcome:
    """The corpus afterwards, by name: each one's place, and how many ms the good one behind it was late; all exits."""

    places: dict[str, bytes] = field(default_factory=dict)
    stalls_ms: dict[str, int] = field(default_factory=dict)
    exits: dict[bytes, list[Message]] = field(default_factory=dict)  # by origin


class Poisoner:
    """Sends hostile records by the way that each needs, and watches what comes out."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._packed: Producer = producer(site.kafka.bootstrap, compression_type="zstd", message_max_bytes=128 << 20)
        self._reader: Consumer = consumer(site.kafka.bootstrap, f"{site.group}-poison", fetch_wait_max_ms=10)
        places = [TopicPartition(site.name("strict-out"), partition, 0) for partition in range(2)]
        self._reader.assign([*places, TopicPartition(site.name("work"), 0, 0)])

    def send(self, poison: Poison) -> bytes:
        """Send a hostile record; returns its place, `topic/partition/offset`, once Kafka has it."""
        site, topic = self._site, self._site.name(poison.role)
        if poison.way is Way.RAW:
            at_ms = poison.timestamp_ms or now_ms()
            headers = poison.raw_headers(site)
            offset = produce_raw(site.kafka.bootstrap, topic, poison.value, headers, at_ms, poison.key)
            return f"{topic}/0/{offset}".encode()
        asked = named(site, poison.headers)
        if poison.way is Way.CLIENT:
            return place(site.send(topic, asked, poison.value, poison.key, poison.timestamp_ms))
        reports: list[Message] = []

        def report(error: object, message: Message) -> None:
            assert error is None, error
            reports.append(message)

        self._packed.produce(topic, poison.value, poison.key, headers=list(asked), on_delivery=report)
        assert not self._packed.flush(ANSWER_TIMEOUT_S)
        return place(reports[0])

    def stall_ms(self, role: str) -> int:
        """How late a good record is that comes right behind."""
        good = GOOD_RETRY if role == "work-retry" else named(self._site, GOOD)
        report = self._site.send(self._site.name(role), good, b"good")
        found: list[Message] = []

        def arrived() -> bool:
            found.extend(self._reader.consume(500, 0.02))
            return any(dict(headers_of(message))["tickover-origin"] == place(report) for message in found)

        wait_until(arrived, FOUND_S, lambda: f"what comes behind it on {role} never arrives")
        return max(message.timestamp()[1] for message in found) - report.timestamp()[1]

    def close(self) -> None:
        self._reader.close()


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    settings = {"max_message_bytes": 64 << 20, "message_timestamp_after_max_ms": (1 << 63) - 1}
    for role in ("strict", "work-retry"):
        site.topic(role, **settings)
    site.target("strict-out", 2)
    site.target("work")
    site.target("strict-dlq")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module")
def sidecar(site: Site) -> Sidecar:
    return site.sidecar("poisoned").start()


@pytest.fixture(scope="module")
def outcome(site: Site, sidecar: Sidecar) -> Outcome:
    outcome = Outcome()
    poisoner = Poisoner(site)
    poisoner.stall_ms("strict")
    poisoner.stall_ms("work-retry")
    for name, poison in CORPUS.items():
        where = poisoner.send(poison)
        outcome.places[name] = poison.origin or where
        outcome.stalls_ms[name] = poisoner.stall_ms(poison.role)
    poisoner.close()

    def all_left() -> bool:
        outcome.exits.clear()
        for topic in (site.quarantine, *map(site.name, TARGETS)):
            for message in site.kafka.read_all(topic):
                headers = dict(headers_of(message))
                origin = headers.get("tickover-source") or headers["tickover-origin"] or b""
                outcome.exits.setdefault(origin, []).append(message)
        return outcome.exits.keys() >= set(outcome.places.values())

    def missing() -> str:
        left = [name for name, where in outcome.places.items() if where not in outcome.exits]
        return f"never left: {left}: {sidecar.last_words()}"

    wait_until(all_left, FOUND_S, missing)
    return outcome


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= CORPUS_MIN


@pytest.mark.parametrize("name", CORPUS)
def test_it_leaves_once_by_the_exit_that_is_meant_for_it(site: Site, outcome: Outcome, name: str) -> None:
    poison = CORPUS[name]
    [message] = outcome.exits[outcome.places[name]]
    headers = dict(headers_of(message))
    reason = (headers.get("tickover-reason") or b"").decode()
    if poison.exit == EMITTED:
        assert message.topic() in (site.name("strict-out"), site.name("work"))
        assert (message.key(), message.value()) == (poison.key, poison.value)
    elif poison.exit == EXPIRED:
        assert (message.topic(), reason) == (site.name("strict-dlq"), poison.exit)
        assert (message.key(), message.value()) == (poison.key, poison.value)
    else:
        assert (message.topic(), reason) == (site.quarantine, poison.exit)
        assert poison.word in (headers["tickover-detail"] or b"").decode()


def test_no_partition_stalls(site: Site, outcome: Outcome) -> None:
    stalls_ms = dict(outcome.stalls_ms)
    poisoner = Poisoner(site)
    for _ in range(TRIES):
        for name in [name for name, stall_ms in stalls_ms.items() if stall_ms >= STALL_MS_MAX]:
            poisoner.send(CORPUS[name])
            stalls_ms[name] = poisoner.stall_ms(CORPUS[name].role)
    poisoner.close()
    worst = max(stalls_ms, key=stalls_ms.__getitem__)
    print(f"\n{len(CORPUS)} hostile records; the longest stall {stalls_ms[worst]} ms, behind: {worst}")
    assert {name: stall_ms for name, stall_ms in stalls_ms.items() if stall_ms >= STALL_MS_MAX} == {}


def test_memory_stays_below_the_chart_s_limit(outcome: Outcome, sidecar: Sidecar) -> None:
    chart = yaml.safe_load((ROOT / "charts" / "tickover" / "values.yaml").read_text())
    limit_mb = int(chart["resources"]["limits"]["memory"].removesuffix("Mi"))
    peak_mb = sidecar.peak_memory_bytes() >> 20
    print(f"\nmemory at most {peak_mb} MiB of {limit_mb} MiB")
    assert peak_mb < limit_mb


def test_the_process_outlives_it_and_misses_nothing(outcome: Outcome, sidecar: Sidecar) -> None:
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0, sidecar.last_words()
    assert sidecar.messages("critical") == []
