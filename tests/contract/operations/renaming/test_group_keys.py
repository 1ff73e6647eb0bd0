"""The keys of a group get another name, on one server and in a Cluster, also over a kill between two of them."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sidecar.operations.renaming.errors import RenameError
from sidecar.operations.renaming.redis_keys import GroupKeys, prefixes
from sidecar.overflow.connection import connect
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

OLD, NEW, STRANGER = "rename-old", "rename-new", "rename-old.other"


def nothing(_keys: int) -> None:
    """Nobody wants to know."""


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    client = connect(redis_server.owner_url or redis_server.url)
    yield client
    for group in (OLD, NEW, STRANGER):
        for prefix in prefixes(group):
            for key in list(client.scan_iter(match=prefix + b"*", count=1_000)):
                client.unlink(key)
    client.close()


def fill(client: Any) -> None:
    for partition in range(3):
        client.set(f"{{{OLD}:delays:{partition}}}:hw", f"+{partition}")
        client.zadd(f"{{{OLD}:delays:{partition}}}:a", {b"\xff\x00": 5})
        client.hset(f"{{{OLD}:delays:{partition}}}:a:17", b"\x00field", b"\x00\xffvalue")
    client.hset(f"tickover:{OLD}:idempotency:abc", "fingerprint", "f")
    client.expire(f"tickover:{OLD}:idempotency:abc", 1_000)
    client.set(f"{{{STRANGER}:delays:0}}:hw", "+9")


def assert_renamed(client: Any) -> None:
    keys = GroupKeys(client)
    assert (keys.count(OLD), keys.count(NEW), keys.count(STRANGER)) == (0, 10, 1)
    for partition in range(3):
        assert client.get(f"{{{NEW}:delays:{partition}}}:hw") == f"+{partition}".encode()
        assert client.zscore(f"{{{NEW}:delays:{partition}}}:a", b"\xff\x00") == 5
        assert client.hget(f"{{{NEW}:delays:{partition}}}:a:17", b"\x00field") == b"\x00\xffvalue"
        assert client.ttl(f"{{{NEW}:delays:{partition}}}:hw") == -1
    assert 900 < client.ttl(f"tickover:{NEW}:idempotency:abc") <= 1_000


def test_all_keys_of_the_group_and_no_others_are_renamed(client: Any) -> None:
    fill(client)
    assert GroupKeys(client).rename(OLD, NEW, nothing) == 10
    assert_renamed(client)
    assert GroupKeys(client).rename(OLD, NEW, nothing) == 0


@pytest.mark.parametrize("command", ["rename", "dump", "restore", "unlink"])
@pytest.mark.parametrize("after", [0, 4])
def test_a_rename_that_is_cut_off_goes_on_where_it_was(
    client: Any, command: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    real, calls = getattr(client, command), list[int]()

    def cut(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise RedisConnectionError("cut")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(client, command, cut)
        try:
            GroupKeys(client).rename(OLD, NEW, nothing)
        except RenameError:
            assert calls
    GroupKeys(client).rename(OLD, NEW, nothing)
    assert_renamed(client)
