"""The contract's header rules, one by one; any headers at all: tests/property/model/test_header_codec.py."""

import pytest

from policies.decision import REPEATED
from sidecar.model.header_codec import emission_headers, header_bytes, split
from sidecar.model.record import Headers, Held


def test_nothing_given_nothing_found() -> None:
    nothing: list[Headers | None] = [None, []]
    for headers in nothing:
        parts = split(headers)
        assert (parts.user, dict(parts.controls), parts.trailer, parts.origin, parts.size) == ([], {}, [], None, 0)


def test_users_headers_keep_their_places_around_ours() -> None:
    parts = split(
        [("b", b"1"), ("tickover-delay", b"5s"), ("a", None), ("tickover-mine", b"x"), ("b", b"\xff"), ("", b"")]
    )
    assert parts.user == [("b", b"1"), ("a", None), ("tickover-mine", b"x"), ("b", b"\xff"), ("", b"")]
    assert dict(parts.controls) == {"tickover-delay": b"5s"}
    assert parts.size == 35  # names and values


def test_a_control_given_twice_or_as_null_is_told_apart() -> None:
    parts = split([("tickover-delay", b"1s"), ("tickover-delay", b"1s"), ("tickover-target", None)])
    assert dict(parts.controls) == {"tickover-delay": REPEATED, "tickover-target": None}


def test_of_error_headers_that_a_client_appended_the_last_counts() -> None:
    parts = split([
        ("tickover-error-class", b"First"), ("tickover-error-message", b"1"), ("tickover-id", b"id"),
        ("tickover-error-class", b"Second"), ("mine", b"x"), ("tickover-error-message", b"2 \xe2\x82"),
    ])  # fmt: skip
    assert parts.controls["tickover-error-class"] == b"Second"
    assert parts.trailer == [
        ("tickover-error-class", b"Second"), ("tickover-error-message", b"2 \xe2\x82"), ("tickover-id", b"id"),
    ]  # fmt: skip


def test_marks_of_an_earlier_journey_are_replaced() -> None:
    """A retried record that comes back from a quarantine or a dead-letter topic."""
    came: Headers = [
        ("tickover-id", b"id"), ("mine", b"1"), ("tickover-due", b"1"), ("tickover-policy", b"old@1"),
        ("tickover-reason", b"x"), ("tickover-source", b"t/0/1"), ("tickover-detail", b"d"),
        ("tickover-origin", b"first/0/9"), ("tickover-attempt", b"2"), ("tickover-first-failure", b"3"),
        ("tickover-error-class", b"E"),
    ]  # fmt: skip
    parts = split(came)
    held = Held(
        7, 4, "t", -1, None, None, parts.user, "new@2", parts.origin, 3, 3, parts.trailer, -1, "dlq", 0
    )  # fmt: skip
    assert emission_headers(held, b"retry/0/") == [
        ("mine", b"1"), ("tickover-origin", b"first/0/9"), ("tickover-due", b"7"), ("tickover-policy", b"new@2"),
        ("tickover-attempt", b"3"), ("tickover-first-failure", b"3"), ("tickover-error-class", b"E"),
        ("tickover-id", b"id"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"x" * 1_024, 1_024),
        (b"x" * 1_025, 1_024),
        (b"x" * 1_023 + "é".encode(), 1_023),
        (b"x" * 1_022 + "é".encode() + b"x", 1_024),
        (b"x" * 1_021 + "😀".encode(), 1_021),
        (b"\xff" * 2_000, 1_024),
    ],
    ids=["fits", "plain", "cut before é", "é fits", "cut before emoji", "no text"],
)
def test_an_error_class_is_cut_to_1024_bytes_and_never_within_a_character(value: bytes, kept: int) -> None:
    [(_, cut)] = split([("tickover-error-class", value)]).trailer
    assert cut is not None
    assert len(cut) == kept


def test_header_bytes_count_names_too() -> None:
    assert header_bytes([("abc", b"de"), ("f", None)]) == 6
    assert header_bytes(None) == 0
