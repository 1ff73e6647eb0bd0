"""Dead letters of a running sidecar on a real Kafka: what is given up is found over REST, with why and whereto."""

from typing import Any

import pytest

from tests.integration.conftest import NewSite
from tests.services.clients import producer
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: orders
match: {topics: ["~orders-retry"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 10ms}, give_up_on: ["Fatal"]}
"""
WAIT_S = 120.0


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("orders-retry")
    site.target("orders", 3)
    site.target("orders-dlq", 3)
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar(DEAD_LETTERS__SCAN_TIME="1m").start()


def letters(sidecar: Sidecar, query: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        response = sidecar.answer("GET", f"/v1/dead-letters{query}{cursor}")
        assert response.status_code == 200, response.text
        page = response.json()
        items += page["items"]
        if not page["next"]:
            return items
        cursor = f"&cursor={page['next']}"


def test_what_is_given_up_is_found_with_its_reason(site: Site, sidecar: Sidecar) -> None:
    report = site.send(
        site.name("orders-retry"),
        [("tickover-error-class", b"Fatal"), ("tickover-error-message", b"order 4711 is void")],
        value=b'{"password": "x", "n": 1}',
    )
    query = f"?topic={site.name('orders-dlq')}&error_class=Fatal&payload=true"
    wait_until(lambda: len(letters(sidecar, query)) == 1, WAIT_S, lambda: "no dead letter is shown")
    [letter] = letters(sidecar, query)
    assert letter["reason"] == "not_retryable"
    assert letter["error"] == "order <n> is void"
    assert letter["error_message"] == "order 4711 is void"
    assert letter["source"] == letter["origin"] == place(report).decode()
    assert letter["payload"]["value"] == {"password": "***", "n": 1}
    one = sidecar.answer("GET", f"/v1/dead-letters/{letter['position']}").json()
    assert one == {name: value for name, value in letter.items() if name != "payload"}


def test_scans_pass_over_what_was_aborted_and_end(site: Site, sidecar: Sidecar) -> None:
    topic = site.topic("gaps-dlq", 3)
    transactional = producer(site.kafka.bootstrap, transactional_id=f"{site.group}-gaps", message_timeout_ms=60_000)
    transactional.init_transactions(WAIT_S)
    for commits in (True, False, True, False):
        transactional.begin_transaction()
        for n in range(5):
            transactional.produce(topic, b"v", partition=0, headers=[("tickover-reason", b"r%d" % n)])
        transactional.flush(WAIT_S)
        (transactional.commit_transaction if commits else transactional.abort_transaction)(WAIT_S)
    place = f"/v1/dead-letters/groups?topic={topic}"
    # An end of a transaction is decided before its marks are in the partitions.
    wait_until(lambda: sidecar.call("GET", place).json().get("remaining") == 0, WAIT_S, sidecar.last_words)
    response = sidecar.answer("GET", place).json()
    assert [group["count"] for group in response["items"]] == [2] * 5
    assert (response["next"], response["remaining"]) == (None, 0)
    assert len(letters(sidecar, f"?topic={topic}&limit=3")) == 10
    assert sidecar.answer("GET", f"/v1/dead-letters/{topic}/0/7").status_code == 404  # aborted


def test_no_other_topic_is_read(site: Site, sidecar: Sidecar) -> None:
    for topic in (site.name("orders"), "__consumer_offsets", f"{site.group}.policies"):
        assert sidecar.answer("GET", f"/v1/dead-letters?topic={topic}").status_code == 404
        assert sidecar.answer("GET", f"/v1/dead-letters/{topic}/0/0?payload=true").status_code == 404
