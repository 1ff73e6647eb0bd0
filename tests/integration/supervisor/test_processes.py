"""Two processes of one supervisor share a group under load; one is killed, and all are stopped in order."""

import os
from signal import SIGKILL

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import NewSite
from tests.services.event_streams import following_events
from tests.services.oracle import Traffic
from tests.services.sidecar_process import ANSWER_S, Sidecar
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RATE = 200
PARTITIONS = 4
RECORDS = 200.0  # of each process: so many that it has its share


def emitted(sidecar: Sidecar) -> dict[str, float]:
    """Records that each process has emitted since it started, by one scrape; of one that is away nothing."""
    text = httpx.get(f"{sidecar.url}/metrics", timeout=ANSWER_S).text
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples if family.name == "tickover_emitted" else ():
            counts[one.labels["process"]] = counts.get(one.labels["process"], 0.0) + one.value
    return counts


def wait_until_both_emit(sidecar: Sidecar) -> None:
    def is_shared() -> bool:
        counts = emitted(sidecar)
        return sorted(counts) == ["1", "2"] and min(counts.values()) >= RECORDS

    wait_until(is_shared, otherwise=lambda: f"{emitted(sidecar)} {sidecar.last_words()}")


def process_ids(sidecar: Sidecar) -> dict[int, int]:
    """The process that is in each place, by what the log says of starts."""
    started = [one for one in sidecar.messages("info") if one["message"] == "started a process"]
    return {one["number"]: one["pid"] for one in started}


def test_two_processes_fire_each_record_once_though_one_is_killed(new_site: NewSite) -> None:
    site = new_site()
    Traffic.prepare(site, PARTITIONS)
    traffic = Traffic(site, PARTITIONS, RATE)
    sidecar = site.sidecar("row", PROCESSES="2").start()
    traffic.start()
    wait_until_both_emit(sidecar)
    first = process_ids(sidecar)

    os.kill(first[2], SIGKILL)
    wait_until(lambda: process_ids(sidecar)[2] != first[2], otherwise=sidecar.last_words)
    [told] = sidecar.messages("error")
    assert (told["message"], told["number"], told["ending"]) == ("a process has ended, and is replaced", 2, "SIGKILL")
    sidecar.wait_until_ready()
    wait_until_both_emit(sidecar)
    now = process_ids(sidecar)
    assert now[1] == first[1]

    traffic.quieten()
    with following_events(sidecar):
        assert sidecar.stop() == 0, sidecar.last_words()
    for pid in now.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{sidecar.url}/livez")
    stopped = {one.get("process") for one in sidecar.messages("info") if one["message"] == "stopped"}
    assert stopped == {1, 2, None}  # each in order, and the supervisor
    verdict = traffic.verdict()
    print(f"\none of two processes killed: {verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), verdict.faults
