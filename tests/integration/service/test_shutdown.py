"""How a process ends: in order on SIGTERM, loudly when it can't go on, at once when it can't start."""

import time

import pytest
from confluent_kafka import TopicPartition

from tests.integration.conftest import NewSite
from tests.services.clients import consumer
from tests.services.event_streams import following_events
from tests.services.kafka import ANSWER_TIMEOUT_S
from tests.services.oracle import Traffic
from tests.services.sidecar_process import START_S, now_ms
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: reminders
match: {topics: ["~delays"]}
delay: {max: 1h}
target: {topic: ~out}
"""
STOPPED_WITHIN_S = 20.0  # far less than the time-out: it doesn't just wait for that
DOWN_MS = 3_000
LATE_MS = 30_000  # far less than what would be forgotten, and more than a busy machine stands still


def test_sigterm_under_load_loses_and_repeats_nothing(new_site: NewSite) -> None:
    site = new_site()
    Traffic.prepare(site, partitions=2)
    traffic = Traffic(site, partitions=2, rate=400)
    sidecar = site.sidecar().start()
    traffic.start()
    stops_s = []
    for _ in range(3):
        goal = traffic.arrived + 1_500
        wait_until(lambda goal=goal: traffic.arrived >= goal, otherwise=sidecar.last_words)  # type: ignore[misc]
        asked_s = time.monotonic()
        assert sidecar.stop() == 0, sidecar.last_words()
        stops_s.append(time.monotonic() - asked_s)
        sidecar.start()
    assert min(stops_s) < STOPPED_WITHIN_S
    traffic.quieten()
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0
    verdict = traffic.verdict()
    print(f"\nstopped and started three times: {verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), verdict.faults


def test_held_records_come_back_at_their_time(new_site: NewSite) -> None:
    """Some in the wheel, some in the overflow, some that fall due while nobody runs."""
    site = new_site()
    source, target = site.topic("delays"), site.target("out")
    site.policies(POLICIES)
    asked_ms = now_ms()
    sidecar = site.sidecar().start()
    start_ms = now_ms()
    last_ms = 15_000 + 3 * (start_ms - asked_ms)  # the next start takes about as long: some must be due behind it
    dues_ms = [start_ms + wait_ms for wait_ms in range(800, last_ms, 100)]
    asked = [(b"k", b"%d" % due, [("tickover-deliver-at", b"%d" % due)], 0, 0) for due in dues_ms]
    site.kafka.produce(source, asked)
    wait_until(
        lambda: sidecar.stats()["topics"].get(source, {}).get("accepted", 0) == len(dues_ms),
        otherwise=sidecar.last_words,
    )
    assert sidecar.stop() == 0
    up_again_ms = now_ms() + DOWN_MS
    wait_until(lambda: now_ms() > up_again_ms)
    sidecar.start()
    ready_ms = now_ms()
    messages = site.kafka.read(target, len(dues_ms), ANSWER_TIMEOUT_S + last_ms / 1_000)
    assert sorted(int(message.value() or b"") for message in messages) == dues_ms
    for message in messages:
        due_ms, appended_ms = int(message.value() or b""), message.timestamp()[1]
        assert appended_ms >= due_ms
        assert due_ms < ready_ms or appended_ms < due_ms + LATE_MS
    assert any(int(message.value() or b"") > ready_ms for message in messages)
    assert sidecar.stop() == 0
    assert len(site.kafka.read_all(target)) == len(dues_ms)


def test_open_streams_of_events_and_a_second_signal_harm_no_stop(new_site: NewSite) -> None:
    site = new_site()
    site.topic("delays")
    site.target("out")
    site.policies(POLICIES)
    sidecar = site.sidecar().start()
    with following_events(sidecar):
        asked_s = time.monotonic()
        sidecar.interrupt()
        assert sidecar.stop() == 0, sidecar.last_words()
        assert time.monotonic() - asked_s < STOPPED_WITHIN_S


def test_an_engine_that_cannot_go_on_ends_the_process_with_the_cause(new_site: NewSite) -> None:
    """A commit that is ours and damaged: to go on as if there were none would repeat or lose records."""
    site = new_site()
    source, target = site.topic("delays"), site.target("out")
    site.policies(POLICIES)
    site.send(source, [("tickover-delay", b"1h")])
    client = consumer(site.kafka.bootstrap, site.group)
    client.commit(offsets=[TopicPartition(source, 0, 1, '{"tickover":1,"watermark":"?"}')], asynchronous=False)
    client.close()
    sidecar = site.sidecar()
    sidecar.launch()
    assert sidecar.wait_until_ended(START_S) == 1, sidecar.last_words()
    causes = [str(message) for message in sidecar.messages("critical")]
    assert any("LedgerFormatError" in cause for cause in causes), causes
    assert site.kafka.read_all(target) == []


def test_a_process_that_cannot_start_says_why(new_site: NewSite) -> None:
    site = new_site()
    site.policies("name: [not, a, policy]")
    sidecar = site.sidecar()
    sidecar.launch()
    assert sidecar.wait_until_ended(START_S) == 1
    assert "can't start" in sidecar.last_words()
