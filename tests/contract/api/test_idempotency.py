"""Idempotency keys on a real server: whoever has lost its lease undoes nothing of its successor."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from api import idempotency
from api.idempotency import RedisIdempotency
from api.ports import Answered, Busy, Fresh
from sidecar.embedded.valkey import EmbeddedValkey
from tests.contract.redis_servers import valkey_fixture

__all__ = ["valkey_fixture"]

KEY, BODY = "k", b"body"


@pytest.fixture(name="keys")
def keys_fixture(valkey: EmbeddedValkey) -> Iterator[RedisIdempotency]:
    with Redis.from_url(valkey.url, protocol=2) as client:
        keys = RedisIdempotency(client, "g")
        yield keys
        keys.stop()


def begin(keys: RedisIdempotency) -> Any:
    return asyncio.run(keys.begin(KEY, BODY, 1))


def begun(keys: RedisIdempotency) -> Fresh:
    fresh = begin(keys)
    assert isinstance(fresh, Fresh)
    return fresh


@pytest.fixture(name="late")
def late_fixture(keys: RedisIdempotency, monkeypatch: pytest.MonkeyPatch) -> Fresh:
    """The first try, whose lease is over at once; the next one's isn't."""
    with monkeypatch.context() as short:
        short.setattr(idempotency, "LEASE_MS", 0)
        return begun(keys)


def test_a_late_release_does_not_end_the_lease_of_another(keys: RedisIdempotency, late: Fresh) -> None:
    successor = begun(keys)
    asyncio.run(keys.release(KEY, late.holder))  # "Kafka did not acknowledge"
    assert isinstance(begin(keys), Busy)
    asyncio.run(keys.release(KEY, successor.holder))
    assert isinstance(begin(keys), Fresh)


def test_a_late_refusal_neither_ends_the_lease_nor_deletes_the_answer_of_another(
    keys: RedisIdempotency, late: Fresh
) -> None:
    successor = begun(keys)
    asyncio.run(keys.forget(KEY, late.holder))  # refused by a policy that was changed just then
    assert isinstance(begin(keys), Busy)
    asyncio.run(keys.finish(KEY, successor.holder, b"{}"))
    for holder in (late.holder, successor.holder):
        asyncio.run(keys.forget(KEY, holder))
        asyncio.run(keys.release(KEY, holder))
        assert begin(keys) == Answered(b"{}")


def test_a_late_answer_is_not_given_for_that_of_the_successor(keys: RedisIdempotency, late: Fresh) -> None:
    successor = begun(keys)
    asyncio.run(keys.finish(KEY, late.holder, b"late"))
    assert isinstance(begin(keys), Busy)
    asyncio.run(keys.finish(KEY, successor.holder, b"mine"))
    asyncio.run(keys.finish(KEY, late.holder, b"late"))
    assert begin(keys) == Answered(b"mine")


def test_an_answer_that_comes_late_is_kept_while_nobody_else_tries(keys: RedisIdempotency, late: Fresh) -> None:
    asyncio.run(keys.finish(KEY, late.holder, b"late"))
    assert begin(keys) == Answered(b"late")


def test_a_refusal_frees_the_key(keys: RedisIdempotency) -> None:
    first = begun(keys)
    asyncio.run(keys.forget(KEY, first.holder))
    assert isinstance(asyncio.run(keys.begin(KEY, b"another body", 2)), Fresh)
