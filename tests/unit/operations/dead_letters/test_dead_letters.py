"""Dead letters: what their headers say, which are meant, where they go, what is shown of them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from policies.headers import CONTROL_PREFIX, ERROR_CLASS, ERROR_MESSAGE, ID
from policies.model import Policy, Versioned
from sidecar.model.record import Place
from sidecar.operations.dead_letters import browse as browse_module
from sidecar.operations.dead_letters.browse import Browser, Limits, Look
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.groups.counting import GroupCounter
from sidecar.operations.dead_letters.groups.digests import Digests
from sidecar.operations.dead_letters.masking import (
    CAUSE_LENGTH_MAX,
    MASK,
    OWN_WORDS,
    SHOWN_BYTES_MAX,
    Masking,
    Search,
)
from sidecar.operations.dead_letters.reading import letter_topics
from sidecar.operations.dead_letters.redrive_routing import destination
from tests.pages.headers import defined
from tests.unit.letter_world import NOW_MS, MemoryLetterLog, dead

RETRY = {"name": "orders", "match": {"topics": ["orders-retry"]}, "retry": {"attempts": 5}}
RETRY["retry"]["backoff"] = {"kind": "fixed", "delay": "1s"}  # type: ignore[index]
DELAY = {"name": "orders", "match": {"topics": ["orders-retry"]}, "delay": {"default": "1s"}}


def letter(headers: Any, topic: str = "orders-dlq", value: bytes | None = b"v") -> DeadLetter:
    return DeadLetter(Place(topic, 1, 5), NOW_MS, b"k", value, headers)


def versions_of(*documents: dict[str, Any]) -> Any:
    def versions(name: str) -> Sequence[Versioned]:
        policies = [Policy.model_validate(document) for document in documents]
        return [Versioned(policy, n, "a", 0, "api") for n, policy in enumerate(policies, 1) if policy.name == name]

    return versions


def test_a_letter_says_why_it_is_dead() -> None:
    headers = dead(error_class="IOError", error_message="port 80 closed", origin="o/0/1", first_failure="12", id="i")
    document = letter([("mine", b"x"), *headers]).document()
    assert document["position"] == "orders-dlq/1/5"
    assert [document[name] for name in ("attempt", "first_failure", "reason", "origin", "id", "redrives")] == [
        6, 12, "attempts_exhausted", "o/0/1", "i", 0,
    ]  # fmt: skip
    assert document["key_bytes"] == document["value_bytes"] == 1


@pytest.mark.parametrize(
    "headers",
    [None, [], [("tickover-reason", None)], [("tickover-attempt", b"\xff")], [("tickover-redrive-count", b"9" * 99)]],
)
def test_letters_of_others_have_gaps(headers: Any) -> None:
    document = letter(headers).document()
    json.dumps(document)
    assert document["redrives"] == 0
    assert document["attempt"] is None


def cause(headers: Any, *rules: str, with_addresses: bool = False) -> dict[str, str | None]:
    return Masking(rules).cause(letter(headers), with_addresses=with_addresses)


def test_a_letter_says_what_it_died_of_as_it_came() -> None:
    message = 'order 4711 is "void", see /var/log/a'
    assert cause(dead(error_message=message)) == {
        "error": "order <n> is <text>, see <path>", "error_message": message, "detail": None,
    }  # fmt: skip
    detail = "tickover-delay: 'x' at db.prod.internal is no duration"
    assert cause(dead("bad_header", detail=detail))["detail"] == detail
    assert cause(dead("bad_header", detail=detail, error_message="e 1"))["error_message"] == "e 1"
    assert cause([]) == cause(None) == {"error": None, "error_message": None, "detail": None}
    assert cause([(ERROR_MESSAGE, b"first"), (ERROR_MESSAGE, b"last")])["error_message"] == "last"
    assert cause([(ERROR_MESSAGE, b"n\xe3o 1")])["error_message"] == "n\ufffdo 1"
    assert cause([(ERROR_MESSAGE, b"[" * 100_000)])["error_message"] == "(100000 bytes)"
    assert cause([(ERROR_MESSAGE, b"x" * (CAUSE_LENGTH_MAX + 1))])["error_message"] == "x" * CAUSE_LENGTH_MAX


def test_addresses_in_what_it_died_of_are_hidden_where_the_payload_is() -> None:
    headers = dead(error_message="amqp://me:word@mq/v: alice@corp.example was refused by 10.0.0.3:5432")
    assert cause(headers)["error_message"] == "<address>: <address> was refused by <address>"
    assert cause(headers, with_addresses=True)["error_message"] == headers[-1][1].decode()  # type: ignore[union-attr]


def test_rules_mask_what_it_died_of() -> None:
    headers = dead(error_message="card 4711 is void")
    for rule in (ERROR_MESSAGE, "*MESSAGE", "*"):
        assert cause(headers, rule, with_addresses=True) == {"error": MASK, "error_message": MASK, "detail": None}
    assert cause(headers, "*card*", "error_message")["error_message"] == "card 4711 is void"  # rules are of names
    structured = dead(error_message='{"code": 1, "password": "word"}')
    assert cause(structured, ERROR_MESSAGE, with_addresses=True)["error_message"] == MASK, "also what is JSON"
    letter = DeadLetter(Place("a-dlq", 0, 1), 1, None, None, structured)
    assert [ERROR_MESSAGE, MASK] in Masking((ERROR_MESSAGE,)).payload(letter)["headers"]
    assert json.loads(cause(structured, "*password*")["error_message"] or "") == {"code": 1, "password": MASK}
    assert cause(structured)["error_message"] == '{"code": 1, "password": "word"}'
    twice = dead(error_message='{"password": "first-word", "password": 1}')
    assert "first-word" not in (cause(twice, "*password*")["error_message"] or "")
    assert cause(dead("loop", detail="t is its own target"), "*")["detail"] == "t is its own target"
    log = MemoryLetterLog()
    log.add("a-dlq", headers)
    counter = GroupCounter(log, Limits(9, 9.0), lambda: 0.0, Digests(Masking((ERROR_MESSAGE,))), {}, lambda *_: None)
    [group], _ = counter.count(["a-dlq"], Look(Selection()), None)
    assert group.error == MASK


@pytest.mark.parametrize(
    ("search", "rules", "found"),
    [
        ({"error": "CARD 4711"}, (), True),
        ({"error": "paymenterror"}, (), True),
        ({"error": "card 4712"}, (), False),
        ({"error": "void at <ADDRESS>"}, (), True),
        ({"error": "db.prod"}, (), False),  # hidden from who asks
        ({"error": "card"}, (ERROR_MESSAGE,), False),
        ({"error": "paymenterror"}, (ERROR_MESSAGE,), True),  # a class is shown, whatever the rules
        ({"id": "m-7"}, (), True),
        ({"id": "m-"}, (), False),
        ({"key_prefix": "cust"}, (), True),
        ({"key_prefix": "ust"}, (), False),
        ({"key_prefix": "cust"}, ("key",), False),
        ({"header": "trace=t=1"}, (), True),
        ({"header": "trace=t"}, (), False),
        ({"header": "trace=t=1"}, ("tra*",), False),
        ({"header": 'box={"a": 1}'}, (), True),
        ({"header": 'box={"a": 1}'}, ("box",), False),
        ({"header": 'box={"a": 1}'}, ("a",), False),
        ({"header": "tickover-reason=attempts_exhausted"}, ("*",), True),
        ({"error": "card", "id": "m-7", "key_prefix": "c", "header": "trace=t=1"}, (), True),
        ({"error": "card", "id": "m-8"}, (), False),
    ],
)
def test_searches_find_what_may_be_shown(search: dict[str, str], rules: Sequence[str], found: bool) -> None:
    words = dead(error_class="app.PaymentError", error_message="Card 4711 is void at db.prod.internal:5432", id="m-7")
    one = letter([*words, ("trace", b"t=1"), ("box", b'{"a": 1}')])._replace(key=b"customer-7")
    assert Masking(rules).finds(one, Search(**search), with_addresses=False) == found


def test_who_is_shown_addresses_finds_them() -> None:
    one = letter(dead(error_message="db.prod.internal:5432 refused"))
    search = Search(error="PROD.internal:5432 ref")
    assert Masking(()).finds(one, search, with_addresses=True)
    assert not Masking(()).finds(one, search, with_addresses=False)
    assert not Masking((ERROR_MESSAGE,)).finds(one, search, with_addresses=True)


def test_searches_of_letters_without_anything_find_nothing() -> None:
    for search in (Search(error="x"), Search(id="x"), Search(key_prefix="x"), Search(header="a=x")):
        for headers in (None, [], [("a", None)]):
            assert not Masking(()).finds(letter(headers)._replace(key=None), search, with_addresses=True)


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({}, True),
        ({"reason": "attempts_exhausted"}, True),
        ({"reason": "expired"}, False),
        ({"error_class": "*.IOError"}, True),
        ({"error_class": "IOError"}, False),
        ({"policy": "orders"}, True),
        ({"policy": "order"}, False),
        ({"since": NOW_MS, "until": NOW_MS + 1}, True),
        ({"since": NOW_MS + 1}, False),
        ({"until": NOW_MS}, False),
        ({"fingerprint": "0" * 16}, False),
        ({"reason": "attempts_exhausted", "policy": "else"}, False),
    ],
)
def test_selections(given: dict[str, Any], fits: bool) -> None:
    one = letter(dead(error_class="java.IOError", error_message="n 1"))
    selection = Selection(**given)
    assert selection.fits(one) == fits
    assert selection.is_everything == (not given)
    assert Selection(fingerprint=letter(dead(error_class="java.IOError", error_message="n 2")).fingerprint).fits(one)


@pytest.mark.parametrize(
    ("headers", "topic", "policy", "expected"),
    [
        (dead(), "orders-dlq", {**RETRY}, "orders"),
        (dead(), "elsewhere", {**RETRY}, None),  # its name doesn't tell
        (dead(), "grave", {**RETRY, "dead_letter": {"topic": "grave"}}, "orders"),
        (dead(), "grave", {**RETRY, "dead_letter": {"topic": "grave"}, "target": {"allow": ["orders"]}}, "orders"),
        (dead(), "grave", {**RETRY, "dead_letter": {"topic": "grave"}, "target": {"allow": ["other"]}}, None),
        (dead(), "grave", {**RETRY, "dead_letter": {"topic": "grave"}, "target": {"topic": "t"}}, "t"),
        (dead("expired"), "orders-retry-dlq", {**DELAY, "target": {"topic": "mail"}}, "mail"),
        (dead("expired"), "orders-retry-dlq", {**DELAY, "target": {"allow": ["mail"]}}, "mail"),
        (dead("expired"), "orders-retry-dlq", {**DELAY, "target": {"allow": ["mail-*"]}}, None),
        (dead("expired"), "orders-retry-dlq", {**DELAY, "target": {"topic": "mail", "allow": ["push"]}}, None),
        (dead(policy="gone@3"), "any", RETRY, "orders"),  # by default names
        (dead(policy="gone@3", source="x/0/1"), "orders-dlq", RETRY, "orders"),
        (dead(policy="gone@3", source="x/0/1"), "x-dlq", RETRY, None),
        (dead(policy="orders@2"), "orders-dlq", RETRY, "orders"),
        (dead("bad_header", source="reminders/3/9"), "tickover.quarantine", RETRY, "reminders"),
        (dead("no_policy", source="nonsense"), "tickover.quarantine", RETRY, None),
        ([], "orders-dlq", RETRY, "orders"),  # another program has written it
        ([("x-attempt", b"3"), ("x-error", b"IOError")], "orders-dlq", RETRY, "orders"),
        ([], "orders-dead", RETRY, None),
        ([], "-dlq", RETRY, None),
        (None, "orders-dlq", RETRY, None),
        (dead(policy="gone@1", source="-retry/0/1"), "any", RETRY, None),
    ],
)
def test_destinations(headers: Any, topic: str, policy: dict[str, Any], expected: str | None) -> None:
    assert destination(letter(headers, topic), versions_of(policy)) == expected


def test_rules_leave_alone_the_headers_of_tickover_and_none_that_only_begin_like_them() -> None:
    own = [(name, b"1") for name in sorted(OWN_WORDS)]
    others = [ID, ERROR_CLASS, ERROR_MESSAGE, f"{CONTROL_PREFIX}token", f"{CONTROL_PREFIX}source-x", CONTROL_PREFIX]
    payload = Masking(("*",)).payload(letter([*own, *((name, b"secret") for name in others)]))
    assert payload["headers"] == [*([name, "1"] for name, _ in own), *([name, MASK] for name in others)]
    assert {ID, ERROR_CLASS, ERROR_MESSAGE} == defined() - OWN_WORDS, "say of a new header whose words it has"


def test_payloads_are_masked_by_names() -> None:
    masking = Masking(("*SECRET*", "card", "key"))
    value = json.dumps({"a": [{"my_Secret": {"x": 1}, "card": 4}], "b": "c", "big": 1}).encode()
    headers = [("x-secret", b"1"), ("plain", b"2"), ("tickover-source", b"t/0/1"), ("bin", b"\xff"), ("null", None)]
    payload = masking.payload(letter(headers, value=value))
    assert payload["value"] == {"a": [{"my_Secret": MASK, "card": MASK}], "b": "c", "big": 1}
    assert payload["key"] == MASK
    assert payload["headers"] == [
        ["x-secret", MASK], ["plain", "2"], ["tickover-source", "t/0/1"], ["bin", {"bytes": 1}], ["null", None],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xff", b"plain", b"1e999", b"[1e999, NaN]", b"[" * 100_000, b"9" * 5_000, b'{"a":"\\ud800"}'],
)
def test_any_payload_can_be_shown(value: bytes | None) -> None:
    payload = Masking(()).payload(letter([], value=value))
    json.dumps(payload, allow_nan=False)


def test_large_and_deep_payloads_stay_closed() -> None:
    assert Masking(()).payload(letter([], value=b"x" * (SHOWN_BYTES_MAX + 1)))["value"] == {"bytes": 65_537}
    deep = b"[" * 200 + b'"in"' + b"]" * 200
    assert "in" not in json.dumps(Masking(()).payload(letter([], value=deep)))
    assert Masking(("*",)).payload(letter([("h", b"1")], value=b"x"))["headers"] == [["h", MASK]]


def test_topics_of_dead_letters() -> None:
    from policies.table import PolicyTable

    policy = Policy.model_validate({**RETRY, "dead_letter": {"topic": "grave"}})
    table = PolicyTable(1, {"orders": Versioned(policy, 1, "a", 0, "api")})
    existing = ["a", "b-dlq", "grave", "q", "__x"]
    assert letter_topics(existing, table, ("*-dlq",), "q") == ["b-dlq", "grave", "q"]


def browser_of(log: MemoryLetterLog, records: int, seconds: float, now_s: Callable[[], float] = lambda: 0.0) -> Browser:
    return Browser(log, Limits(records, seconds), now_s, lambda _: None, Masking(()))


def browse(log: MemoryLetterLog, count: int = 100, records: int = 1_000) -> tuple[list[list[DeadLetter]], list[int]]:
    """All pages one after the other, and what each said was left."""
    browser, pages, remaining, start = browser_of(log, records, 60.0), [], [], None
    while True:
        page = browser.page(["a-dlq", "b-dlq"], Look(Selection()), count, start)
        pages.append(page.letters)
        remaining.append(page.remaining)
        start = page.following
        if start is None:
            return pages, remaining


@pytest.mark.parametrize(("count", "records"), [(1, 1_000), (2, 1_000), (3, 1_000), (100, 1), (100, 4), (100, 1_000)])
def test_pages_show_every_letter_once(count: int, records: int) -> None:
    log = MemoryLetterLog()
    added = [log.add("a-dlq", partition=p) for p in (0, 0, 0, 0, 2)] + [log.add("b-dlq") for _ in range(5)]
    log.partitions["a-dlq", 0].insert(0, None)
    log.partitions["a-dlq", 0] = [
        entry and entry._replace(place=entry.place._replace(offset=n))
        for n, entry in enumerate([*log.partitions["a-dlq", 0], None, None])
    ]
    pages, remaining = browse(log, count, records)
    assert len([one for page in pages for one in page]) == len(added)
    assert len({one.place for page in pages for one in page}) == len(added)
    assert remaining == sorted(remaining, reverse=True)
    assert remaining[-1] == 0


def test_a_page_ends_when_its_time_is_up() -> None:
    log = MemoryLetterLog()
    for _ in range(10):
        log.add("a-dlq")
    times = iter(range(100))
    browser = browser_of(log, 1_000, 1.5, lambda: float(next(times)))
    page = browser.page(["a-dlq"], Look(Selection()), 100, None)
    assert 0 < len(page.letters) < 10
    assert page.following == Place("a-dlq", 0, len(page.letters))


@pytest.mark.parametrize("whole", [False, True])
def test_a_page_ends_where_its_letters_show_too_much_and_its_cursor_goes_on_there(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse_module, "PAGE_BYTES_MAX", 1_000)
    log = MemoryLetterLog()
    words, value = (b"", b"x" * 400) if whole else (b"x" * 400, b"")
    for _ in range(10):
        log.add("a-dlq", [(ERROR_MESSAGE, words)], value=value)
    log.add("b-dlq", [(ERROR_MESSAGE, words * 10)], value=value * 10)
    browser, counts, start = browser_of(log, 1_000, 60.0), list[int](), None
    while start is not None or not counts:
        page = browser.page(["a-dlq", "b-dlq"], Look(Selection(), whole=whole), 100, start)
        counts.append(len(page.letters))
        start = page.following
    assert counts == [3, 3, 3, 2]
    if whole:
        page = browser.page(["a-dlq"], Look(Selection()), 100, None)
        assert len(page.letters) == 10, "what isn't shown doesn't count"


def test_a_page_of_letters_since_a_time_reads_no_older_ones() -> None:
    log = MemoryLetterLog()
    letters = [log.add("a-dlq") for _ in range(9)]
    look = Look(Selection(since=letters[7].timestamp_ms))
    page = browser_of(log, 1_000, 60.0).page(["a-dlq"], look, 100, None)
    assert [one.place.offset for one in page.letters] == [7, 8]
    assert page.scanned == 2
