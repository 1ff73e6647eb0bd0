"""A password that changes reaches every client that lives, and every one that is made of settings from before."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policies import kafka_clients
from policies.kafka_clients import AdminClient, Consumer, Producer, change_password
from sidecar.overflow.connection import connect
from sidecar.settings.watched_file import FileSecret
from tests.services.waiting import wait_until


@pytest.fixture(name="told")
def told_fixture(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Logins told to clients, as (kind of client, user, password)."""
    told: list[tuple[str, str, str]] = []

    def note(client: object, user: str, password: str) -> None:
        told.append((type(client).__name__, user, password))

    for kind in (Producer, Consumer, AdminClient):
        monkeypatch.setattr(kind, "set_sasl_credentials", note, raising=False)
    monkeypatch.setattr(kafka_clients, "_replaced", {})
    return told


def settings_of(user: str, password: str = "first") -> dict[str, str]:
    return {
        "bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": user, "sasl.password": password, "log_level": "0",
    }  # fmt: skip


def test_all_that_live_are_told_and_none_of_another_user(told: list[tuple[str, str, str]]) -> None:
    mine = settings_of("all")
    clients = [Producer(mine), Consumer({**mine, "group.id": "g"}), AdminClient(mine)]
    others = [AdminClient(settings_of("else")), AdminClient({"bootstrap.servers": "127.0.0.1:1"})]
    assert change_password("all", "first", "second") == len(clients)
    assert sorted(told) == [(kind, "all", "second") for kind in ("AdminClient", "Consumer", "Producer")]
    assert len(others) == 2
    del clients
    gc.collect()
    assert change_password("all", "first", "third") == 0, "nobody keeps clients alive"


def test_a_client_that_is_closed_keeps_no_other_from_the_new_password(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Producer] = []

    def take(client: Producer, user: str, password: str) -> None:
        if client is clients[1]:
            raise RuntimeError("Handle has been closed")
        told.append(client)

    monkeypatch.setattr(Producer, "set_sasl_credentials", take, raising=False)
    clients = [Producer(settings_of("closed")) for _ in range(4)]
    assert change_password("closed", "first", "second") == len(clients)
    assert set(map(id, told)) == {id(client) for client in clients if client is not clients[1]}


def test_a_consumer_that_is_polled_all_the_time_takes_it_with_its_next_poll() -> None:
    """The client library makes one call of a consumer at a time: a call of another thread may never have its turn."""
    consumer = Consumer({**settings_of("busy"), "group.id": "g"})
    polling, stop = threading.Event(), threading.Event()

    def poll() -> None:
        while not stop.is_set():
            polling.set()
            consumer.poll(0.2)

    with ThreadPoolExecutor(1) as owner:
        owner.submit(poll)
        assert polling.wait(60.0)
        assert change_password("busy", "first", "second") == 1
        assert "password" not in {thread.name for thread in threading.enumerate()}, "it waits for its turn"
        wait_until(lambda: not consumer._fresh)
        stop.set()
    consumer.close()


def test_a_consumer_that_nobody_calls_takes_it_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_clients, "IDLE_S", 0.0)
    consumer = Consumer({**settings_of("idle"), "group.id": "g"})
    assert change_password("idle", "first", "second") == 1
    wait_until(lambda: not consumer._fresh)
    consumer.close()


def test_who_is_made_of_settings_from_before_has_the_present_password(
    told: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_password("late", "first", "second")
    change_password("late", "first", "third")
    assert kafka_clients._present(settings_of("late"))["sasl.password"] == "third"
    client = AdminClient(settings_of("late"))
    assert change_password("late", "first", "fourth") == 1
    assert client.login == ("late", "first")


def test_redis_is_logged_into_with_what_the_file_says_at_that_moment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("one\n")
    options = {"username": "me", "password": FileSecret("one", file)}
    with connect("redis://127.0.0.1:1", options) as client:
        provider = client.connection_pool.connection_kwargs["credential_provider"]
        assert provider.get_credentials() == ("me", "one")
        file.write_text("two\n")
        assert provider.get_credentials() == ("me", "two")
        file.unlink()
        assert provider.get_credentials() == ("me", "two")
