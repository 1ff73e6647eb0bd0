"""Headers in and out, for any headers: the user's survive in order, byte for byte; tickover's own come once."""

from hypothesis import example, given
from hypothesis import strategies as st

from policies.decision import REPEATED
from sidecar.model.header_codec import (
    ERROR_LIMITS_BYTES,
    asked_headers,
    dead_letter_headers,
    emission_headers,
    quarantine_headers,
    split,
)
from sidecar.model.record import Headers, Held

CONTROLS = ("deliver-at", "delay", "target", "target-partition", "action", "expires-at")
ERRORS = ("error-class", "error-message")  # the last one counts
RETURNING = (*ERRORS, "id")
COUNTED = ("attempt", "first-failure")
OWN = ("due", "policy", "reason", "source", "detail", "origin", "job")
RESERVED = [f"tickover-{name}" for name in (*CONTROLS, *RETURNING, *COUNTED, *OWN)]

NAMES = st.sampled_from(
    [*RESERVED, "a", "", "tickover-", "tickover-unknown", "Tickover-delay", "tickover-dela"]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
VALUES = st.none() | st.binary(max_size=12) | st.sampled_from([b"", b"\xff\xfe", b"x" * 9_000, "é".encode() * 5_000])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def held(headers: Headers | None, attempt: int) -> Held:
    parts = split(headers)
    trailer = parts.trailer if attempt else parts.counted + parts.trailer
    return Held(
        77, 5, "mail", 3, b"k", b"v", parts.user, "p@2", parts.origin, attempt, 44 if attempt else -1, trailer, 99,
        "dlq", 0,
    )  # fmt: skip


@given(HEADERS)
def test_headers_are_sorted_by_whose_they_are(headers: Headers) -> None:
    parts = split(headers)
    assert parts.user == [header for header in headers if header[0] not in RESERVED]
    for name in RESERVED:
        given_values = [value for found, value in headers if found == name]
        bare = name.removeprefix("tickover-")
        if bare in (*CONTROLS, *COUNTED, *RETURNING):
            if not given_values:
                assert name not in parts.controls
            elif bare in ERRORS:
                assert parts.controls[name] == given_values[-1]
            else:
                assert parts.controls[name] == (given_values[0] if len(given_values) == 1 else REPEATED)
    assert parts.size == sum(len(name) + len(value or b"") for name, value in headers)
    returning = [name for name, _ in headers if name.removeprefix("tickover-") in RETURNING]
    last = {name: index for index, name in enumerate(returning)}
    kept = [name for index, name in enumerate(returning) if name == "tickover-id" or last[name] == index]
    assert [name for name, _ in parts.trailer] == sorted(kept, key="tickover-id".__eq__)  # the id last
    assert parts.counted == [header for header in headers if header[0].removeprefix("tickover-") in COUNTED]


@given(HEADERS, st.integers(0, 3))
def test_an_emitted_record_has_the_users_headers_then_our_own_once(headers: Headers, attempt: int) -> None:
    emitted = emission_headers(held(headers, attempt), b"topic/1/")
    mine = [header for header in headers if header[0] not in RESERVED]
    assert emitted[: len(mine)] == mine
    own = emitted[len(mine) :]
    origin = next((value for name, value in reversed(headers) if name == "tickover-origin" and value), b"topic/1/5")
    assert dict(own)["tickover-origin"] == origin
    expected = [("tickover-due", b"77"), ("tickover-policy", b"p@2")]
    if attempt:
        expected += [("tickover-attempt", b"%d" % attempt), ("tickover-first-failure", b"44")]
    assert own[1 : 1 + len(expected)] == expected
    names = [name for name, _ in own]
    written = [
        "tickover-origin",
        "tickover-due",
        "tickover-policy",
        *(f"tickover-{name}" for name in COUNTED if attempt),
    ]
    assert all(names.count(name) == 1 for name in written)
    assert not {f"tickover-{name}" for name in CONTROLS} & set(names)
    assert not {"tickover-reason", "tickover-source", "tickover-detail", "tickover-job"} & set(names)


@given(st.binary(max_size=9_000) | st.text(max_size=3_000).map(str.encode))
@example("é".encode() * 600)
@example(b"x" * 1_023 + "é".encode())
@example("😀".encode() * 3_000)
def test_error_headers_are_cut_where_a_character_ends(value: bytes) -> None:
    trailer = split(
        [("tickover-error-class", value), ("tickover-error-message", value), ("tickover-id", value)]
    ).trailer
    for name, cut in trailer:
        assert cut is not None
        limit = ERROR_LIMITS_BYTES.get(name, len(value))
        assert value.startswith(cut)
        assert min(limit - 3, len(value)) <= len(cut) <= limit
        if is_text(value):
            cut.decode()
        else:
            assert len(value) > limit or cut == value


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(HEADERS, st.integers(0, 3))
def test_a_dead_letter_says_why_and_whence(headers: Headers, attempt: int) -> None:
    record = held(headers, attempt)
    dead = dead_letter_headers(record, b"topic/1/", "expired")
    assert dead[:-2] == emission_headers(record, b"topic/1/")
    assert dead[-2:] == [("tickover-reason", b"expired"), ("tickover-source", b"topic/1/5")]


@given(HEADERS | st.none())
def test_a_quarantined_record_keeps_all_its_headers(headers: Headers | None) -> None:
    kept = quarantine_headers(headers, b"topic/1/5", "bad_header", "was\ud800 bad")
    marks = ("tickover-source", "tickover-reason", "tickover-detail")
    assert kept[:-3] == [header for header in headers or [] if header[0] not in marks]
    assert [name for name, _ in kept[-3:]] == list(marks)
    assert kept[-3:-1] == [("tickover-source", b"topic/1/5"), ("tickover-reason", b"bad_header")]


@given(HEADERS, st.integers(0, 3))
def test_what_is_asked_again_is_understood_the_same(headers: Headers, attempt: int) -> None:
    """A quarantined record that is sent to its source once more asks for the same time and target."""
    record = held(headers, attempt)
    again = split(asked_headers(record, b"topic/1/"))
    assert again.user == record.headers
    assert again.controls["tickover-deliver-at"] == b"77"
    assert again.controls["tickover-target"] == b"mail"
    assert again.controls["tickover-target-partition"] == b"3"
    assert again.controls["tickover-expires-at"] == b"99"
    assert again.controls["tickover-spread"] == b"0"
    assert again.origin == (record.origin or b"topic/1/5")
    if attempt:
        assert again.controls["tickover-attempt"] == b"%d" % (attempt - 1)
