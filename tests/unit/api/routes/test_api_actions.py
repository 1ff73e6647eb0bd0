"""Cancel, reschedule and fire over REST and on the command line: each answer and each refusal."""

from typing import Any

import pytest

from api.ports import SenderRefused, SenderUnavailable
from sidecar.ledger.block import Entries
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.record import Outcome, TopicPartition
from tests.unit.api.routes.test_api_held import row
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.lookup.test_receipts import block, settled

OK, FAILED, USAGE, NOT_FOUND, CONFLICT = range(5)
CONTROL = 0  # the offset that the fake Kafka gives to what is sent first
CALLS = [("DELETE", "", None), ("PATCH", "", {"delay": "2h"}), ("POST", "/fire", None)]
MINE = {"topic": "reminders", "partition": 3, "offset": 8}
ETAG = '"reminders/3/8"'


@pytest.fixture(name="api")
def api_fixture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("api.routes.actions.AGAIN_S", ())
    monkeypatch.setattr("api.routes.actions.RECEIPT_TIMEOUT_S", 0.01)
    with world() as there:
        there.add(REMINDERS)
        there.receipts.note_trouble("")
        yield there


def hold(api: World, *offsets: int) -> None:
    api.held.rows = [row(offset, id="a") for offset in offsets]


def receipt(api: World, rows: dict[int, Outcome], related: dict[int, int]) -> None:
    told = settled(rows, dict.fromkeys(rows, "a"))._replace(related=related)
    api.receipts.add(LedgerPlace(1, 7), block({}, settled=told))


def cancelled(api: World) -> None:
    receipt(api, {CONTROL: Outcome.APPLIED}, {CONTROL: 8})


def moved(api: World) -> None:
    """The record of offset 8 goes on under the control record's offset."""
    carried = Entries([CONTROL], [90_000], ["p@1"], ["mail"], [-1], [0], [-1], [-1], [""], {CONTROL: "a"}, {CONTROL: 8})
    rows = settled({8: Outcome.MOVED})._replace(related={8: CONTROL})  # without the id: it wasn't so when it was asked
    api.receipts.add(LedgerPlace(1, 7), block({}, settled=rows, carried=carried))


def headers_of(api: World) -> dict[str, bytes | None]:
    [sent] = api.sender.sent
    assert (sent.topic, sent.partition, sent.key, sent.value) == ("reminders", 3, None, None)
    return dict(sent.headers)


def test_cancelled_with_its_receipt(api: World) -> None:
    hold(api, 8)
    cancelled(api)
    response = api.call("DELETE", "/v1/messages/a")
    assert response.status_code == 200
    assert response.json() == {
        "id": "a", "source": "reminders", "action": "cancel", "outcome": "cancelled", "due": NOW_MS + 8,
        "due_utc": "2027-01-15T08:00:00.008Z",
        "position": MINE, "place": "reminders/3/8",
        "control": {**MINE, "offset": CONTROL}, "control_place": f"reminders/3/{CONTROL}",
    }  # fmt: skip
    assert headers_of(api) == {"tickover-id": b"a", "tickover-action": b"cancel", "tickover-if-offset": b"8"}


@pytest.mark.parametrize(
    ("body", "header"), [({"delay": "2h"}, b"2h"), ({"delay": 1_499.5}, b"1500"), ({"deliver_at": NOW_MS}, None)]
)
def test_rescheduled_with_its_receipt(api: World, body: dict[str, Any], header: bytes | None) -> None:
    hold(api, 8)
    moved(api)
    response = api.call("PATCH", "/v1/messages/a", json=body)
    assert response.status_code == 200, response.text
    document = response.json()
    assert (document["outcome"], document["due"], document["position"]) == ("rescheduled", 90_000, MINE)
    headers = headers_of(api)
    assert headers["tickover-action"] == b"reschedule"
    assert headers.get("tickover-delay") == header
    assert headers.get("tickover-deliver-at") == (None if header else b"%d" % NOW_MS)


def test_a_reschedule_into_the_past_must_be_meant(api: World) -> None:
    hold(api, 8)
    moved(api)
    body = {"deliver_at": NOW_MS - 60_001}
    assert "fire" in problem(api.call("PATCH", "/v1/messages/a", json=body), 422, "in-the-past")["detail"]
    assert api.sender.sent == []
    assert api.call("PATCH", "/v1/messages/a?past=true", json=body).status_code == 200
    assert headers_of(api)["tickover-deliver-at"] == b"%d" % body["deliver_at"]


def test_fired_with_its_receipt_of_either_kind(api: World) -> None:
    hold(api, 8)
    receipt(api, {CONTROL: Outcome.EMITTED}, {CONTROL: 8})
    document = api.call("POST", "/v1/messages/a/fire").json()
    assert (document["outcome"], document["due"], document["position"]) == ("fired", 4_000, MINE)


@pytest.mark.parametrize(("method", "step", "body"), CALLS)
class TestEach:
    """Answers that are the same for all actions."""

    def test_unknown(self, api: World, method: str, step: str, body: Any) -> None:
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 404, "unknown-message")
        assert api.sender.sent == []

    def test_settled_before(self, api: World, method: str, step: str, body: Any) -> None:
        receipt(api, {8: Outcome.EMITTED}, {})
        document = problem(api.call(method, f"/v1/messages/a{step}", json=body), 409, "too-late")
        assert (document["state"], document["position"]) == ("emitted", MINE)
        assert api.sender.sent == []

    def test_too_late(self, api: World, method: str, step: str, body: Any) -> None:
        hold(api, 8)
        receipt(api, {CONTROL: Outcome.APPLIED}, {})
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 409, "too-late")

    def test_another_with_its_id_took_its_place_meanwhile(self, api: World, method: str, step: str, body: Any) -> None:
        hold(api, 8)
        receipt(api, {CONTROL: Outcome.APPLIED}, {CONTROL: -1})
        rows = settled({8: Outcome.REPLACED})._replace(related={8: 9})
        api.receipts.add(LedgerPlace(1, 6), block({}, settled=rows))
        document = problem(api.call(method, f"/v1/messages/a{step}", json=body), 409, "too-late")
        assert document["state"] == "replaced"
        assert headers_of(api)["tickover-if-offset"] == b"8"
        api.sender.sent.clear()
        named = api.call(method, f"/v1/messages/a{step}", json=body, headers={"If-Match": ETAG})
        problem(named, 412, "precondition-failed")
        assert named.headers["ETag"] == '"reminders/3/9"'

    @pytest.mark.parametrize("tag", ['"reminders/3/7"', "reminders/3/8", 'W/"reminders/3/7"', '"*"'])
    def test_another_than_is_meant(self, api: World, method: str, step: str, body: Any, tag: str) -> None:
        hold(api, 8)
        refused = api.call(method, f"/v1/messages/a{step}", json=body, headers={"If-Match": tag})
        problem(refused, 412, "precondition-failed")
        assert refused.headers["ETag"] == ETAG
        assert api.sender.sent == []

    @pytest.mark.parametrize("tag", ["*", ETAG, f'"reminders/3/1", {ETAG}', f"W/{ETAG}"])
    def test_the_one_that_is_meant(self, api: World, method: str, step: str, body: Any, tag: str) -> None:
        hold(api, 8)
        assert api.call("GET", "/v1/messages/a").headers["ETag"] == ETAG
        response = api.call(method, f"/v1/messages/a{step}", json=body, headers={"If-Match": tag})
        assert response.status_code == 202

    def test_no_receipt_in_time(self, api: World, method: str, step: str, body: Any) -> None:
        hold(api, 8)
        response = api.call(method, f"/v1/messages/a{step}", json=body)
        assert response.status_code == 202
        assert response.json()["outcome"] == "pending"
        assert response.json()["control"] == {**MINE, "offset": CONTROL}

    def test_the_ledger_is_not_read(self, api: World, method: str, step: str, body: Any) -> None:
        hold(api, 8)
        api.receipts.note_trouble("brokers away")
        assert api.call(method, f"/v1/messages/a{step}", json=body).status_code == 202

    def test_held_in_several_places(self, api: World, method: str, step: str, body: Any) -> None:
        api.held.rows = [row(8, id="a"), row(9, id="a", position={"partition": 1})]
        document = problem(api.call(method, f"/v1/messages/a{step}", json=body), 409, "held-in-several-places")
        assert [position["partition"] for position in document["positions"]] == [3, 1]
        assert api.sender.sent == []
        response = api.call(method, f"/v1/messages/a{step}?partition=3", json=body)
        assert response.status_code == 202
        assert api.call(method, f"/v1/messages/a{step}?source=elsewhere", json=body).status_code == 404

    def test_not_all_could_be_asked(self, api: World, method: str, step: str, body: Any) -> None:
        api.held.missing = [TopicPartition("reminders", 2)]
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 503, "look-up-incomplete")

    def test_what_nobody_has_read_yet_may_have_it(self, api: World, method: str, step: str, body: Any) -> None:
        api.held.unread = [TopicPartition("reminders", 2)]
        answer = problem(api.call(method, f"/v1/messages/a{step}", json=body), 503, "look-up-incomplete")
        assert answer["missing"] == [{"topic": "reminders", "partition": 2}]
        hold(api, 8)
        assert api.call(method, f"/v1/messages/a{step}", json=body).status_code == 202

    def test_nobody_can_be_asked(self, api: World, method: str, step: str, body: Any) -> None:
        api.held.down = "Redis is away"
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 503, "look-up-unavailable")

    def test_kafka_is_away_or_refuses(self, api: World, method: str, step: str, body: Any) -> None:
        hold(api, 8)
        api.sender.failures = [SenderRefused("unknown_topic", "no"), SenderUnavailable("away")]
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 503, "kafka-unavailable")
        problem(api.call(method, f"/v1/messages/a{step}", json=body), 422, "unknown-topic")

    def test_a_misspelt_parameter(self, api: World, method: str, step: str, body: Any) -> None:
        problem(api.call(method, f"/v1/messages/a{step}?partiton=1", json=body), 422, "unknown-parameter")


@pytest.mark.parametrize(("body", "kind"), [
    ({}, "invalid-body"),
    ({"delay": "1s", "deliver_at": NOW_MS}, "invalid-body"),
    ({"delay": "soon"}, "bad-header"),
    ({"deliver_at": "2030-01-01T00:00:00"}, "bad-header"),
    ({"delay": "3000d"}, "too-far"),
    ({"delay": "1s", "target": "mail"}, "invalid-body"),
])  # fmt: skip
def test_a_reschedule_that_cannot_be(api: World, body: dict[str, Any], kind: str) -> None:
    hold(api, 8)
    problem(api.call("PATCH", "/v1/messages/a", json=body), 422, kind)
    assert api.sender.sent == []


def test_an_id_may_have_slashes(api: World) -> None:
    api.held.rows = [row(8, id="order/1/fire")]
    assert api.call("POST", "/v1/messages/order%2F1%2Ffire/fire").status_code == 202
    assert headers_of(api)["tickover-id"] == b"order/1/fire"


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def tickover(api: World, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    return Terminal(api)


def test_the_commands(tickover: Terminal) -> None:
    hold(tickover.there, 8)
    cancelled(tickover.there)
    assert tickover.data("messages", "cancel", "a")["outcome"] == "cancelled"
    tickover.there.sender.sent.clear()
    assert tickover("messages", "cancel", "a").stdout.count("cancelled") == 1
    later = tickover("messages", "reschedule", "a", "--delay", "1h", "-o", "yaml", "--partition", "3")
    assert later.exit_code == OK
    assert "outcome: pending" in later.stdout
    yesterday = ("messages", "reschedule", "a", "--deliver-at", "2027-01-14T08:00:00Z", "--partition", "3")
    assert "--past" in tickover(*yesterday).stderr
    assert tickover(*yesterday, "--past").exit_code == OK
    assert "has not answered yet" in later.stderr
    assert tickover("messages", "fire", "a", "--source", "reminders").exit_code == OK


def test_exit_statuses(tickover: Terminal) -> None:
    assert tickover("messages", "cancel", "a").exit_code == NOT_FOUND
    receipt(tickover.there, {8: Outcome.EMITTED}, {})
    assert tickover("messages", "fire", "a").exit_code == CONFLICT
    assert tickover("messages", "reschedule", "a").exit_code == USAGE
    assert tickover("messages", "reschedule", "a", "--delay", "1s", "--deliver-at", "5").exit_code == USAGE
    assert tickover("messages", "reschedule", "a", "--delay", "soon").exit_code == USAGE
    assert "10s? 10ms?" in tickover("messages", "reschedule", "a", "--delay", "10").stderr
    tickover.there.held.down = "away"
    assert tickover("messages", "cancel", "b").exit_code == FAILED


def test_a_receipt_names_its_own_message_though_a_later_reschedule_has_moved_it_on(api: World) -> None:
    """Two that come within one interval: the block says that the first one's control record was moved by the second."""
    hold(api, 8)
    api.receipts.add(
        LedgerPlace(1, 7),
        block({}, settled=settled({CONTROL: Outcome.MOVED}, {CONTROL: "a"})._replace(related={CONTROL: CONTROL + 5})),
    )
    answer = api.call("PATCH", "/v1/messages/a", json={"delay": "2h"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["outcome"] == "rescheduled"
    assert answer.json()["position"] == MINE
