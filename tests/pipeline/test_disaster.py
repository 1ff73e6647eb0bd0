"""A cluster is gone with its sidecar: the second one goes on from the pipeline's tables, as the page says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.second_cluster import SOURCES, arrivals, judge, two_clusters, value_of
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import Site, due_of, headers_of, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
HORIZON = "2m"  # what is due sooner is in memory alone
FAR = ("far-0", "far-1", "far-2")
NEAR = ("near-0", "near-1", "near-2", "near-3")
AGAIN = ("near-0", "near-1")
UNSEEN = ("unseen-0", "unseen-1")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    with two_clusters(tmp_path) as both:
        yield both


def remind(site: Site, id: str, delay: bytes) -> None:
    site.send(site.name("reminders"), [("tickover-id", id.encode()), ("tickover-delay", delay)], value=id.encode())


def fire(sidecar: Sidecar, ids: tuple[str, ...]) -> None:
    for id in ids:
        wait_until(lambda id=id: sidecar.call("POST", f"/v1/messages/{id}/fire").status_code in (200, 409))  # type: ignore[misc]


def held(sidecar: Sidecar) -> dict[str, int]:
    return {one["id"]: one["due"] for one in sidecar.call("GET", "/v1/messages").json()["items"]}


def taken_in(warehouse: Any, site: Site) -> None:
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    topics = [site.name(role) for role in SOURCES]
    ingest(warehouse, KafkaPlace(site.kafka.bootstrap), f"tickover.{site.group}.ledger", topics)


def gone_on(warehouse: Any, site: Site) -> dict[str, Any]:
    """`rebuild`, `schedule`, `resend`, the last two a second time: nothing may come of that."""
    from pipeline import jobs
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.sending import resend, schedule
    from pipeline.sending.dispatch import Errand, dispatch

    made = jobs.rebuild(warehouse)
    kafka = KafkaPlace(site.kafka.bootstrap)
    for _ in range(2):
        held = warehouse.read_report("gold/overflow")
        rows = schedule.messages(held, site.name("reminders"), "back", 0)
        dispatch(warehouse, kafka, Errand("schedule", "back", schedule.mark_of(held)), rows)
        dispatch(warehouse, kafka, Errand("resend", "back", resend.MARK), jobs.resend_rows(warehouse))
    return made


def test_the_page_lets_nobody_send_before_all_is_sent_again() -> None:
    """A record that is sent again behind a newer message of its id replaces it."""
    page = (ROOT / "docs/how-to/prepare-for-a-disaster.md").read_text()
    steps = page.split("### Go on at a second cluster")[1].split("###")[0]
    told = [step for step in re.split(r"\n(?=\d\. )", steps) if step[:1].isdigit()]
    [sent] = [n for n, step in enumerate(told) if "pipeline resend" in step]
    [let_in] = [n for n, step in enumerate(told) if re.search(r"(let in|send the) producers", step, re.IGNORECASE)]
    assert sent < let_in
    assert re.search(r"let in producers and callers of REST", told[let_in])


def test_a_second_cluster_goes_on_with_all_that_was_taken_in(sites: tuple[Site, Site], warehouse: Any) -> None:
    first, second = sites
    sidecar = first.sidecar("one", HORIZON=HORIZON).start()
    for id in ("done-0", "done-1"):
        remind(first, id, b"0s")
    for id in NEAR:
        remind(first, id, b"50s")
    for id in (*FAR, "moved"):
        remind(first, id, b"1h")
    failed = [("tickover-attempt", b"2"), ("tickover-error-class", b"shop.Timeout")]
    first.send(first.name("orders-retry"), failed, value=b"retried")
    plain = first.send(first.name("reminders"), [("tickover-delay", b"50s")], value=b"plain")
    sent = ["done-0", "done-1", *NEAR, *FAR, "moved", "retried", "plain", *UNSEEN]
    wait_until(lambda: held(sidecar).keys() >= {*NEAR, *FAR, "moved"}, otherwise=sidecar.last_words)
    soon_ms = now_ms() + 45_000
    answer = sidecar.call("PATCH", "/v1/messages/moved", json={"deliver_at": soon_ms})
    assert answer.is_success, answer.text
    wait_until(lambda: len(arrivals(first)) == 2, otherwise=sidecar.last_words)
    was_due = held(sidecar)
    seen = set(map(value_of, arrivals(first)))
    taken_in(warehouse, first)

    # From here on the tables know of nothing.
    fire(sidecar, AGAIN)
    for id in UNSEEN:
        remind(first, id, b"1h")
    wait_until(lambda: set(map(value_of, arrivals(first))) >= set(AGAIN))
    there = arrivals(first)
    sidecar.kill()
    first.kafka.kill()

    successor = second.sidecar("one", HORIZON=HORIZON).start()
    made = gone_on(warehouse, second)
    assert (made["held"], made["without_payload"], made["unknown"]) == (len(FAR) + 1, 0, 0), "those in Redis, and moved"
    assert made["unsettled"] == len(NEAR) + 2, "those in memory, the retry among them"
    wait_until(lambda: held(successor).keys() >= set(FAR), otherwise=successor.last_words)
    assert {id: held(successor)[id] for id in FAR} == {id: was_due[id] for id in FAR}
    wait_until(lambda: len(arrivals(second)) == len(NEAR) + 3, otherwise=successor.last_words)
    fire(successor, FAR)
    wait_until(lambda: len(arrivals(second)) == len(NEAR) + 3 + len(FAR), otherwise=successor.last_words)
    assert successor.stop() == 0, successor.last_words()
    here = arrivals(second)
    verdict = judge(sent, there, here)
    print(f"\ntables: sent {len(sent)}, {verdict}")
    again = set(map(value_of, there)) - seen  # with those that fell due meanwhile, on a busy machine
    assert again >= set(AGAIN)
    assert verdict == (set(UNSEEN), again, 0)

    by_value = {value_of(message): message for message in here}
    assert {id: due_of(by_value[id]) for id in NEAR} == {id: was_due[id] for id in NEAR}
    assert due_of(by_value["moved"]) == soon_ms
    retried = dict(headers_of(by_value["retried"]))
    assert (retried["tickover-attempt"], retried["tickover-error-class"]) == (b"3", b"shop.Timeout")
    assert dict(headers_of(by_value["plain"]))["tickover-origin"] == place(plain), "who gets it twice can tell"
    for id in (*NEAR, *FAR, "moved"):
        assert dict(headers_of(by_value[id]))["tickover-id"] == id.encode()
