"""Edits of letters: what a patch changes, what it never shows, and what can't be changed exactly."""

import json
from typing import Any

import pytest

from sidecar.model.record import Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.edit import Edit, NewContent, NotEditable, difference, merged
from sidecar.operations.dead_letters.masking import MASK
from tests.unit.letter_world import NOW_MS, dead

# RFC 7396, appendix A: those whose original is an object, which alone is patched here.
RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


def letter(value: bytes | None = b'{"a": 1}', **headers: str) -> DeadLetter:
    return DeadLetter(Place("orders-dlq", 0, 5), NOW_MS, b"k", value, [*dead(), ("mine", b"1"), ("mine", b"2")])


@pytest.mark.parametrize(("original", "patch", "expected"), RFC)
def test_a_patch_is_merged_as_the_rfc_says(original: Any, patch: dict[str, Any], expected: Any) -> None:
    assert json.loads(merged(json.dumps(original).encode(), patch)) == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[1]",
        b'"a"',
        b"{",
        b'{"a": 0.12345678901234567890}',
        b'{"a": 1e999}',
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"a": 1e99999999999999999999}',
        b'{"a": "\\ud800"}',
        b'{"a":' * 100_000,
    ],
)
def test_what_cannot_be_said_again_exactly_is_not_merged(value: bytes | None) -> None:
    with pytest.raises(NotEditable):
        merged(value, {"b": 1})


def test_what_a_patch_does_not_name_stays_exactly() -> None:
    kept = '"n":123456789012345678901234567890,"f":1.5,"secret":"s","text":"ü","none":null'
    assert merged(f'{{{kept},"b":1}}'.encode(), {"b": 2}).decode() == f'{{{kept},"b":2}}'


def test_an_edited_copy_says_who_changed_it_and_the_letter_stays() -> None:
    before = letter()
    edit = Edit(merge={"b": 2}, key=NewContent(data=None), headers={"mine": b"3", "reason": None, "new": b"n"})
    after = edit.applied(before, "ann")
    assert (after.key, after.value, after.place) == (None, b'{"a":1,"b":2}', before.place)
    assert after.headers == [*dead(), ("mine", b"3"), ("new", b"n"), ("tickover-edited-by", b"ann")]
    assert before == letter()
    again = Edit(value=NewContent(data=b"x")).applied(after, "bob")
    assert [value for name, value in again.headers or () if name == "tickover-edited-by"] == [b"bob"]
    assert (again.key, again.value) == (None, b"x")


def test_an_edit_survives_the_topic_of_redrives() -> None:
    edit = Edit(value=NewContent(data=b"\xff\x00"), headers={"a": b"\xfe", "b": None})
    assert Edit.model_validate_json(edit.model_dump_json()) == edit


@pytest.mark.parametrize(
    "edit",
    [
        Edit(merge={"a": MASK}),
        Edit(merge={"a": [{"b": MASK}]}),
        Edit(value=NewContent(data=MASK.encode())),
        Edit(value=NewContent(data=b'{"a": ["***"]}')),
        Edit(key=NewContent(data=b"***")),
        Edit(headers={"a": b"***"}),
    ],
)
def test_the_mask_is_never_written(edit: Edit) -> None:
    assert edit.has_mask
    assert not Edit(merge={"a": "**", "b": None}, headers={"a": None}).has_mask


def test_what_is_shown_of_an_edit_is_how_much_it_changes() -> None:
    edit = Edit(merge={"b": "secret", "a": 1}, key=NewContent(data=b"secret"), headers={"h": b"secret"})
    assert edit.document() == {"merge": 2, "value": False, "key": True, "headers": 1}


def test_a_difference_leaves_out_what_is_masked() -> None:
    """A form shows a letter masked; what comes back of it is the patch, and masked fields are not in it."""
    shown = {"card": MASK, "amount": 1, "gone": 1, "inner": {"secret": MASK, "x": 1}, "flag": 1}
    back = {"card": MASK, "amount": 2, "inner": {"secret": MASK, "x": 3}, "new": "n", "flag": True}
    patch = difference(shown, back)
    assert patch == {"amount": 2, "gone": None, "inner": {"x": 3}, "new": "n", "flag": True}
    assert patch["flag"] is True
    original = {"card": "4711", "amount": 1, "gone": 1, "inner": {"secret": "s", "x": 1}, "flag": 1}
    expected = {"card": "4711", "amount": 2, "inner": {"secret": "s", "x": 3}, "new": "n", "flag": True}
    assert json.loads(merged(json.dumps(original).encode(), patch)) == expected


def test_a_field_cannot_be_set_to_null_by_a_patch() -> None:
    with pytest.raises(NotEditable, match="null removes"):
        difference({"a": 1}, {"a": None})
    assert difference({"a": None}, {"a": None}) == {}
