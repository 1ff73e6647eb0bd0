"""Sessions: whose cookie counts, for how long, and what a form must carry."""

import pytest

from api.console.session import Session

BEGUN_S = 1_800_000_000


def test_a_cookie_gives_the_session_back() -> None:
    session = Session.begin("tickover_secret", BEGUN_S)
    assert Session.of_cookie(session.cookie) == session


def test_a_session_needs_no_token_where_the_api_asks_for_none() -> None:
    session = Session.begin("", BEGUN_S)
    assert Session.of_cookie(session.cookie) == session
    assert session.csrf != Session.begin("", BEGUN_S).csrf


@pytest.mark.parametrize("place", range(5))
def test_a_cookie_that_somebody_changed_is_none(place: int) -> None:
    parts = Session.begin("tickover_secret", BEGUN_S).cookie.split(".", 5)
    parts[place] = parts[place][:-1] + ("0" if parts[place][-1] != "0" else "1")
    assert Session.of_cookie(".".join(parts)) is None


def test_another_token_under_the_same_seal_is_none() -> None:
    cookie = Session.begin("tickover_secret", BEGUN_S).cookie
    assert Session.of_cookie(cookie.replace("tickover_secret", "tickover_admin")) is None


@pytest.mark.parametrize("text", ["", "1", "1.2.3.4.5", "2." + "0" * 32 + ".1.1." + "0" * 32, "a" * 10_000])
def test_what_is_no_cookie_is_none(text: str) -> None:
    assert Session.of_cookie(text) is None


@pytest.mark.parametrize("token", ["a;b", 'a"b', "a b", "a\\b", "ä", "a" * 3_601, "a\r\nSet-Cookie: b"])
def test_a_token_that_no_cookie_holds_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        Session.begin(token, BEGUN_S)


def test_it_ends_when_nobody_is_there_and_at_its_longest() -> None:
    session = Session.begin("t", BEGUN_S)
    assert not session.is_over(BEGUN_S + 1_800, 1_800, 43_200)
    assert session.is_over(BEGUN_S + 1_801, 1_800, 43_200)
    there = session.seen(BEGUN_S + 1_800)
    assert not there.is_over(BEGUN_S + 1_801, 1_800, 43_200)
    assert there.is_over(BEGUN_S + 43_201, 1_800_000, 43_200)


def test_a_form_of_another_session_is_told_apart() -> None:
    first, second = Session.begin("t", BEGUN_S), Session.begin("t", BEGUN_S)
    assert first.csrf != second.csrf
    assert first.seen(BEGUN_S + 600).csrf == first.csrf  # a page that was open for a while is still its own
