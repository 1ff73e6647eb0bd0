"""Clients that have lost their brokers for good are found."""

from typing import Any
from unittest.mock import Mock

import pytest

from policies.kafka_clients import AdminClient, ClientLost, batch
from sidecar.kafka.lost_clients import CALM_LOOKS, LOOK_S, LOST_S, LostClients

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


class Client:
    """Says what it is told to say."""

    def __init__(self, reached: bool | None = True) -> None:
        self.reached = reached
        self.asked = 0
        self.is_lost = False

    def reaches(self, _topic: str, _seconds: float) -> bool | None:
        self.asked += 1
        return self.reached

    def lose(self) -> None:
        self.is_lost = True


class World:
    """Looks at clients every `LOOK_S`; `fresh` says whether one that was just made reaches brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *clients: Any) -> None:
        self.now_s = 1_000.0
        self.fresh = True
        self.clients = list(clients)
        monkeypatch.setattr(AdminClient, "reaches", lambda *_: self.fresh)
        self.lost = LostClients(NOBODY, "ledger", lambda: self.now_s, lambda: self.clients)

    def look(self, seconds: float = LOOK_S) -> None:
        """Once at least."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.lost.look()
            self.now_s += LOOK_S


def test_nobody_is_asked_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client())
    world.look(10 * LOST_S)
    assert client.asked == 0


def test_who_reaches_brokers_is_asked_a_few_times_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client())
    world.lost.suspect()
    world.look(10 * LOST_S)
    assert client.asked == CALM_LOOKS
    assert not client.is_lost


def test_who_reaches_none_for_long_while_others_do_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, lost := Client(False), well := Client())
    world.lost.suspect()
    world.look(LOST_S)
    assert not lost.is_lost
    world.look()
    assert (lost.is_lost, well.is_lost) == (True, False)


def test_while_brokers_are_away_no_client_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client(False))
    world.lost.suspect()
    world.look(LOST_S - LOOK_S)
    world.fresh = False
    world.look(10 * LOST_S)
    world.fresh = True
    world.look(LOST_S)
    assert not client.is_lost, "its time counts from when they are back"
    world.look()
    assert client.is_lost


def test_who_comes_back_in_time_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client(False))
    world.lost.suspect()
    world.look(LOST_S)
    client.reached = True
    world.look()
    client.reached = False
    world.look(LOST_S)
    assert not client.is_lost


def test_a_consumer_whose_owner_makes_no_call_is_not_lost_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client(False))
    world.lost.suspect()
    world.look()
    client.reached = None  # it was found once, and nobody has used it since
    world.look(10 * LOST_S)
    assert not client.is_lost
    client.reached = False
    world.look()
    assert client.is_lost


def test_an_admin_client_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = AdminClient(NOBODY)
    former = admin._client
    world = World(monkeypatch, admin)
    fresh = iter([True, False] * 100)  # who is just made reaches brokers, and the one that is watched doesn't
    monkeypatch.setattr(AdminClient, "reaches", lambda *_: next(fresh))
    world.lost.suspect()
    world.look(LOST_S + LOOK_S)
    assert admin._client is not former


def test_who_is_closed_meanwhile_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, client := Client(False))
    world.lost.suspect()
    world.look(LOST_S)
    world.clients.clear()
    world.look(LOST_S)
    assert not client.is_lost
    assert not world.lost._since_s


def test_what_came_just_before_a_client_was_lost_is_not_lost() -> None:
    """The client in its place reads on behind that."""
    came = Mock()
    consumer = Mock(poll=Mock(side_effect=[came, ClientLost]), consume=Mock(side_effect=ClientLost))
    assert batch(consumer, 10, 1.0) == [came]
    with pytest.raises(ClientLost):
        batch(consumer, 10, 1.0)
