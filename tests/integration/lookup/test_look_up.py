"""Looking up and listing with two replicas: any of them answers for both, from acceptance to the end."""

from typing import Any, NamedTuple

import httpx
import pytest

from tests.integration.conftest import NewSite
from tests.services.sidecar_process import START_S, Sidecar, now_ms
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 4
HOUR_MS = 3_600_000
POLICY = """
name: reminders
match: {topics: ["~reminders"]}
delay: {max: 400d}
target: {allow: ["~mail"]}
"""


class Pair(NamedTuple):
    site: Site
    source: str
    target: str
    replicas: tuple[Sidecar, Sidecar]


@pytest.fixture(scope="module")
def pair(new_site: NewSite) -> Pair:
    """Two replicas that share four partitions, and 200 messages: near ones and far ones on all of them.

    The near ones stay held for as long as the tests may take, and a replica that is slow keeps its partitions.
    """
    site = new_site()
    source, target = site.topic("reminders", PARTITIONS), site.target("mail")
    site.policies(POLICY)
    settings = {"HORIZON": "10m", "KAFKA__CLIENT__SESSION_TIMEOUT_MS": "60000"}
    one, other = site.sidecar("one", **settings).start(), site.sidecar("other", **settings)
    records = []
    for number in range(200):
        delay = "9m" if number % 2 else f"{2 + number}h"
        headers = [("tickover-delay", delay), ("tickover-target", target), ("tickover-id", f"id-{number}")]
        named = [(name, value.encode()) for name, value in headers]
        records.append((b"key-%d" % number, b"secret", named, 0, number % PARTITIONS))
    site.kafka.produce(source, records)
    other.start()
    both = (one, other)
    wait_until(lambda: sorted(each.partitions() for each in both) == [2, 2], START_S, lambda: "partitions not shared")
    wait_until(lambda: all(total(each, topic=source) == 200 for each in both), START_S, lambda: "not all are held")
    return Pair(site, source, target, both)


def answered(sidecar: Sidecar, path: str, whole: bool = True, **query: object) -> httpx.Response:
    """The first answer; `whole`: to which all replicas have contributed, for a slow one isn't waited for long."""
    found: list[httpx.Response] = []

    def is_told() -> bool:
        found.append(sidecar.call("GET", path, params=query))
        document = found[-1].json()
        if document.get("type") == "/problems/look-up-unavailable":
            return False
        return not whole or not (document.get("partial") or document.get("missing"))

    wait_until(is_told, START_S, lambda: found[-1].text)
    return found[-1]


def get(sidecar: Sidecar, path: str, **query: Any) -> Any:
    answer = answered(sidecar, path, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def listed(sidecar: Sidecar, **query: object) -> list[Any]:
    """All pages."""
    items: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = get(sidecar, "/v1/messages", **query, **cursor)
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = {"cursor": page["next"]}


def total(sidecar: Sidecar, **query: object) -> int:
    return len(get(sidecar, "/v1/messages", limit=500, **query)["items"])


def test_both_replicas_list_the_same_of_both(pair: Pair) -> None:
    lists = [listed(each, limit=30) for each in pair.replicas]
    assert lists[0] == lists[1]
    assert sorted(item["id"] for item in lists[0]) == sorted(f"id-{number}" for number in range(200))
    dues = [item["due"] for item in lists[0]]
    assert dues == sorted(dues)
    assert {item["position"]["partition"] for item in lists[0]} == set(range(PARTITIONS))
    assert {item["tier"] for item in lists[0]} == {"wheel", "overflow"}
    assert "secret" not in str(lists[0])


def test_filters_hold_over_both(pair: Pair) -> None:
    _, other = pair.replicas
    far = listed(other, due_from=now_ms() + HOUR_MS, limit=50)
    assert sorted(item["id"] for item in far) == sorted(f"id-{number}" for number in range(0, 200, 2))
    assert {item["id"] for item in listed(other, key_prefix="key-11")} == {f"id-{n}" for n in (11, *range(110, 120))}
    assert {item["position"]["partition"] for item in listed(other, partition=3)} == {3}
    assert listed(other, topic="nothing") == []
    assert listed(other, policy="reminders@2") == []
    assert len(listed(other, policy="reminders", target=pair.target)) == 200


def test_the_forecast_has_all_of_both(pair: Pair) -> None:
    for each in pair.replicas:
        forecast = get(each, "/v1/forecast", minutes=10, topic=pair.source)
        assert (sum(item["held"] for item in forecast["items"]), forecast["later"]) == (100, 100)


def test_the_overview_is_of_both(pair: Pair) -> None:
    """Whichever is asked: what both hold, and when it is due."""
    for each in pair.replicas:
        overview = get(each, "/v1/overview")
        assert overview["replicas"] == {"answered": 2, "silent": []}
        assert overview["held"]["wheel"] + overview["held"]["overflow"] == 200
        due = overview["due"]
        assert (due["overdue"], due["hour"], due["later"]) == (0, 100, 100)
        assert overview["partitions"]["assigned"] == PARTITIONS
        replicas = get(each, "/v1/replicas")["items"]
        assert [item["partitions"]["assigned"] for item in replicas] == [2, 2]
        assert len({item["run"] for item in replicas}) == 2
        assert all(item["memory_bytes"] > 10_000_000 and item["state"] == "running" for item in replicas)
        assert [item["lag"] for item in replicas] == [0, 0]


def test_a_message_is_found_on_any_replica_from_its_acceptance_to_its_end(pair: Pair) -> None:
    one, other = pair.replicas
    near = get(other, "/v1/messages/id-1")
    assert (near["state"], near["tier"], near["source"]) == ("held", "wheel", pair.source)
    assert get(one, "/v1/messages/id-1") == near
    far = get(one, "/v1/messages/id-2")
    assert (far["state"], far["tier"]) == ("held", "overflow")
    assert [event["event"] for event in far["timeline"]] == ["accepted", "overflow", "due"]

    for seconds in (2, 20, 60):  # nobody may have looked in time, or the ledger be read late, on a busy machine
        id = f"soon-{seconds}"
        body = {"source": pair.source, "target": pair.target, "delay": f"{seconds}s", "id": id, "key": "k"}
        sent = one.call("POST", "/v1/messages", json=body).json()
        words = words_until_emitted(other, id)
        if "held" in words and set(words[words.index("held") :]) == {"held", "emitted"}:
            break
    assert set(words[words.index("held") :]) == {"held", "emitted"}  # never unknown in between
    for each in pair.replicas:
        words_until_emitted(each, id)
        document = get(each, f"/v1/messages/{id}")
        assert (document["position"], document["due"]) == (sent["position"], sent["due"])
        assert [event["event"] for event in document["timeline"]][-2:] == ["due", "emitted"]
        assert document["timeline"][-1]["time"] >= document["due"]
    assert answered(one, "/v1/messages/nobody").status_code == 404


def words_until_emitted(sidecar: Sidecar, id: str) -> list[str]:
    """All that a replica says of this message until it is emitted, look by look: its state, else the HTTP status."""
    words: list[str] = []

    def ended() -> bool:
        answer = answered(sidecar, f"/v1/messages/{id}")
        words.append(answer.json()["state"] if answer.status_code == 200 else str(answer.status_code))
        return words[-1] == "emitted"

    wait_until(ended, START_S, lambda: f"not emitted: {words[-5:]}")
    return words


def test_a_message_that_was_acted_on_tells_of_it(pair: Pair) -> None:
    one, other = pair.replicas

    def act(number: int, *headers: tuple[str, bytes]) -> None:
        named = [("tickover-id", b"id-%d" % number), *headers]
        pair.site.kafka.produce(pair.source, [(b"key-%d" % number, None, named, 0, number % PARTITIONS)])

    def told(sidecar: Sidecar, number: int) -> Any:
        answer = answered(sidecar, f"/v1/messages/id-{number}")
        return answer.json() if answer.status_code == 200 else {}

    before = {number: told(one, number) for number in (10, 11, 12, 13)}
    for number in (10, 11):  # one in the overflow, one in the wheel
        act(number, ("tickover-action", b"cancel"))
    for number in (12, 13):
        act(number, ("tickover-action", b"reschedule"), ("tickover-delay", b"3h"))

    def acted_on() -> bool:
        documents = {number: [told(each, number) for each in pair.replicas] for number in before}
        cancelled = all(document.get("state") == "cancelled" for number in (10, 11) for document in documents[number])
        return cancelled and all(
            d.get("accepted") != d.get("position") for number in (12, 13) for d in documents[number]
        )

    wait_until(acted_on, START_S, lambda: "not acted on")
    for each in pair.replicas:
        for number in (10, 11):
            assert [event["event"] for event in told(each, number)["timeline"]][-1] == "cancelled"
        for number in (12, 13):
            document = told(each, number)
            assert (document["state"], document["accepted"]) == ("held", before[number]["position"])
            assert "moved" in [event["event"] for event in document["timeline"]]
            assert document["due"] > now_ms() + 2 * HOUR_MS
    assert [item["id"] for item in listed(other, limit=100) if item["id"] in ("id-10", "id-11")] == []
    assert sum(item["id"] in ("id-12", "id-13") for item in listed(other, limit=100)) == 2


def test_an_id_in_two_partitions_is_a_conflict_that_can_be_narrowed(pair: Pair) -> None:
    one, _ = pair.replicas
    headers = [("tickover-delay", b"1h"), ("tickover-target", pair.target.encode()), ("tickover-id", b"twice")]
    pair.site.kafka.produce(pair.source, [(b"k", b"v", headers, 0, partition) for partition in (0, 3)])
    wait_until(lambda: answered(one, "/v1/messages/twice").status_code == 409, START_S, lambda: "both are not held")
    positions = answered(one, "/v1/messages/twice").json()["positions"]
    assert sorted(at["partition"] for at in positions) == [0, 3]
    assert get(one, "/v1/messages/twice", partition=3)["position"]["partition"] == 3


def test_a_replica_that_hangs_is_missing_and_said_to_be(pair: Pair) -> None:
    one, other = pair.replicas
    other.freeze()
    try:
        page = answered(one, "/v1/messages", whole=False, limit=500).json()
        assert page["partial"] is True
        missing = {at["partition"] for at in page["missing"]}
        assert len(missing) == 2
        assert {item["position"]["partition"] for item in page["items"]} == set(range(PARTITIONS)) - missing
        answer = answered(one, "/v1/messages/nobody", whole=False)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/look-up-incomplete")
        assert {at["partition"] for at in answer.json()["missing"]} == missing
    finally:
        other.thaw()
    wait_until(lambda: total(one, due_from=now_ms() + HOUR_MS) >= 100, START_S, lambda: "still partial")
