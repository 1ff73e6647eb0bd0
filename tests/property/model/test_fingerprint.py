"""Fingerprints: what differs from one occurrence to the next doesn't count, everything else does."""

import re
import string
import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model.fingerprint import MESSAGE_LENGTH_MAX, SHOWN_LENGTH_MAX, fingerprint, normalised

WORDS = st.lists(st.text(string.ascii_letters, min_size=1, max_size=7), min_size=1, max_size=6)
NUMBERS = st.integers(0, 10**12).map(str) | st.floats(0, 1e6, allow_nan=False).map(lambda number: f"{number:.3f}")
HEX = st.integers(0, 2**32).map(hex)
HASHES = st.text("0123456789abcdef", min_size=8, max_size=40).filter(lambda text: not text.isalpha())
UUIDS = st.uuids().map(str)
QUOTED = st.text(string.ascii_letters + string.digits + " /", max_size=20).map(lambda text: f'"{text}"')
PATHS = st.lists(st.text(string.ascii_letters + "_", min_size=1, max_size=8), min_size=1, max_size=4).map(
    lambda steps: "/" + "/".join(steps)
)
KINDS = {"n": NUMBERS | HEX | HASHES, "uuid": UUIDS, "text": QUOTED, "path": PATHS}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), words=WORDS)
def test_two_occurrences_of_one_failure_are_the_same(kind: str, data: st.DataObject, words: list[str]) -> None:
    one, other = (" ".join([*words, data.draw(KINDS[kind]), *words]) for _ in range(2))
    assert normalised(one) == normalised(other)
    assert f"<{kind}>" in normalised(one)
    assert fingerprint("E", one) == fingerprint("E", other)


@given(words=WORDS, other=WORDS)
def test_other_words_are_another_failure(words: list[str], other: list[str]) -> None:
    one, two = " ".join(words), " ".join(other)
    assert (fingerprint("E", one) == fingerprint("E", two)) == (normalised(one) == normalised(two))
    assert (normalised(one) == normalised(two)) == (one == two or bool(re.search(r"\b[a-f0-9]{8,}\b", one + two)))


@given(message=WORDS.map(" ".join), one=st.text(max_size=5), other=st.text(max_size=5))
def test_another_class_is_another_failure(message: str, one: str, other: str) -> None:
    assert (fingerprint(one, message) == fingerprint(other, message)) == (one == other)


@given(st.text())
def test_any_text_has_a_fingerprint_without_figures(text: str) -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(text, text))
    shown = normalised(text)
    assert not re.search(r"\d", shown)
    assert len(shown) <= SHOWN_LENGTH_MAX
    assert shown == " ".join(shown.split())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("user 4711 at 10.0.0.3:5432", "user <n> at <n>"),
        ("can't read it, won't try", "can't read it, won't try"),
        ("key 'it is' unknown", "key <text> unknown"),
        ("at 2026-01-02T03:04:05.678Z", "at <n>-<n>-<n>T<n>Z"),
        (f"order {UUID(int=7)} failed", "order <uuid> failed"),
        ("hash deadbeef00 at 0xFF", "hash <n> at <n>"),
        ("effaced decade", "effaced decade"),
        (r"open C:\data\x.txt and /var/lib/y", "open <path> and <path>"),
        ("GET https://example.com/a?b=1 failed", "GET <path> failed"),
        ("read/write  error\n\tat once", "read/write error at once"),
        ("node17", "node<n>"),
    ],
)
def test_examples(message: str, expected: str) -> None:
    assert normalised(message) == expected


@pytest.mark.parametrize("hostile", ['"', "'a ", "a.", "a-a", "/", "/a", "0x", "f", "1.", "`\n", "a://", "\\"])
def test_hostile_messages_cost_no_more_than_others(hostile: str) -> None:
    text = hostile * MESSAGE_LENGTH_MAX
    began = time.process_time()
    normalised(text)
    assert time.process_time() - began < 1.0
