"""Searches of dead letters: exactly those whose words are shown to who asks are found, on whatever pages."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from policies.headers import DETAIL, ERROR_CLASS, ERROR_MESSAGE
from sidecar.model.record import Headers, Place
from sidecar.operations.dead_letters.browse import Browser, Limits, Look
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection
from sidecar.operations.dead_letters.masking import Masking, Search
from tests.unit.letter_world import NOW_MS, MemoryLetterLog

PIECES = [
    "a", "ad", "dress", "<", ">", " ", ": ", "ß", "SS", "İ", "void", "Card 7", "<address>", "***", "'", "\n",
    "a@b.corp", "10.0.0.3:5432", "https://me:word@db/x", "db.prod.internal", "\udc80", '"', "\\",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
documents = st.fixed_dictionaries({"password": texts, "code": texts}).map(json.dumps)
messages = st.one_of(texts, documents).map(lambda text: text.encode(errors="replace"))
headers = st.fixed_dictionaries(
    {}, optional={ERROR_MESSAGE: st.one_of(messages, st.binary(max_size=8)), ERROR_CLASS: messages, DETAIL: messages}
).map(lambda given: list(given.items()))
rules = st.lists(st.sampled_from([ERROR_MESSAGE, ERROR_CLASS, "password", "*"]), max_size=2, unique=True)


def shown(masking: Masking, letter: DeadLetter, with_addresses: bool) -> list[str]:
    """All words about the end of a letter that an answer has."""
    cause = masking.cause(letter, with_addresses)
    return [letter.error_class, cause["error_message"] or "", cause["detail"] or ""]


@given(headers, rules, texts.filter(bool), st.booleans())
@example([(ERROR_MESSAGE, b"a@b.corp void")], [], "s> void", False)
@example([(ERROR_MESSAGE, b"a@b.corp void")], [], "b.corp", False)
def test_what_is_found_is_what_is_shown(headers: Headers, rules: list[str], wanted: str, with_addresses: bool) -> None:
    masking, letter = Masking(rules), DeadLetter(Place("a-dlq", 0, 0), NOW_MS, None, None, headers)
    is_shown = any(wanted.casefold() in text.casefold() for text in shown(masking, letter, with_addresses))
    assert masking.finds(letter, Search(error=wanted), with_addresses) == is_shown


@given(st.lists(headers, max_size=12), texts.filter(bool), st.integers(1, 4), st.integers(1, 6))
def test_pages_of_a_search_have_every_letter_that_fits_once(
    letters: list[Headers], wanted: str, count: int, records: int
) -> None:
    log, masking = MemoryLetterLog(), Masking(())
    added = [log.add("a-dlq", headers, partition=n % 2) for n, headers in enumerate(letters)]
    browser = Browser(log, Limits(records, 60.0), lambda: 0.0, lambda _: None, masking)
    look, found, start, pages = Look(Selection(), search=Search(error=wanted)), list[Place](), None, 0
    while start is not None or not pages:
        page = browser.page(["a-dlq"], look, count, start)
        found += [letter.place for letter in page.letters]
        assert page.scanned <= records + log.batch, "a page that finds nothing ends, too"
        start, pages = page.following, pages + 1
    fits = [
        one.place for one in added if any(wanted.casefold() in text.casefold() for text in shown(masking, one, False))
    ]
    assert found == sorted(fits)
