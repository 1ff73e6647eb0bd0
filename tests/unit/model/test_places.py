"""Places of records as text: read, and put beside what documents have of them."""

import pytest

from policies.fields import is_topic
from policies.headers import OFFSET_MAX
from sidecar.model.record import Place, with_places

AT = {"topic": "orders", "partition": 3, "offset": 7}


@pytest.mark.parametrize("place", [Place("orders", 3, 7), Place("a.b_c-d", (1 << 31) - 1, OFFSET_MAX)])
def test_a_text_names_the_place_that_wrote_it(place: Place) -> None:
    assert Place.of_text(str(place)) == place


@pytest.mark.parametrize(
    "text", ["", "orders", "orders/3", "orders/3/", "/3/7", "orders/3/7/1", "orders/-3/7", "or ders/3/7", "orders/٣/7",
             f"orders/{1 << 31}/7", f"orders/3/{OFFSET_MAX + 1}", "orders/3/7\n", "orders/3/" + "7" * 5_000],
)  # fmt: skip
def test_what_is_no_place_names_none(text: str) -> None:
    assert Place.of_text(text) is None


@pytest.mark.parametrize("topic", ["a", ".", "..", "...", ".a", "a" * 249, "a" * 250, "a b", "é", "a/b", "a*", "A_0-."])
def test_a_place_is_of_what_may_be_a_topic(topic: str) -> None:
    assert (Place.of_text(f"{topic}/0/1") is not None) == is_topic(topic)


def test_each_place_has_its_text_behind_it() -> None:
    told = with_places({"id": "a", "position": AT, "control": AT | {"offset": 9}, "by": "me"}, "position", "control")
    assert told == {
        "id": "a", "position": AT, "place": "orders/3/7", "control": AT | {"offset": 9}, "control_place": "orders/3/9",
        "by": "me",
    }  # fmt: skip
    assert list(told) == ["id", "position", "place", "control", "control_place", "by"]


def test_no_place_has_no_text_and_a_field_that_is_not_there_gets_none() -> None:
    assert with_places({"position": None}, "position", "control") == {"position": None, "place": None}


def test_a_place_that_is_a_text_already_is_the_same_one() -> None:
    told = with_places({"position": "orders/3/7", "example": "dlq/0/1"}, "position", "example")
    assert (told["place"], told["example_place"]) == ("orders/3/7", "dlq/0/1")
