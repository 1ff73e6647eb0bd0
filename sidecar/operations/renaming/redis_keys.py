"""The keys of a group in Redis under another name. Nobody may use them meanwhile.

On one server a key is renamed. In a Cluster its new name belongs to another slot, so it is copied and then deleted: who
finds both, of a run that was killed between, copies it again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import ResponseError

from sidecar.operations.renaming.errors import RenameError
from sidecar.overflow.connection import Client, failures
from sidecar.overflow.interface import OverflowFailure
from sidecar.overflow.keys import quoted
from sidecar.overflow.redis_client import LateCluster

KEYS_PER_SCAN: Final = 1_000
NEVER_EXPIRES: Final = -1
_GONE: Final = "no such key"


class GroupKeys:
    """Over one server or a Cluster. Raises RenameError where Redis doesn't answer, or takes nothing more."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_cluster = isinstance(client, LateCluster)

    def count(self, group: str) -> int:
        """How many keys the group has."""
        with _redis_failures():
            return sum(1 for prefix in prefixes(group) for _ in self._keys(prefix))

    def rename(self, old: str, new: str, progress: Callable[[int], None]) -> int:
        """Take over all keys; returns how many. `progress` is told how many so far."""
        moved = 0
        with _redis_failures():
            for before, after in zip(prefixes(old), prefixes(new), strict=True):
                left = True
                while left:  # a scan names all that was there when it began
                    left = False
                    for key in self._keys(before):
                        self._move(key, after + key[len(before) :])
                        left = True
                        moved += 1
                        if moved % KEYS_PER_SCAN == 0:
                            progress(moved)
        return moved

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        # A group's name has none of the characters that mean something in a pattern.
        yield from self._client.scan_iter(match=prefix + b"*", count=KEYS_PER_SCAN)

    def _move(self, key: bytes, to: bytes) -> None:
        if self._is_cluster:
            self._copy(key, to)
            return
        try:
            self._client.rename(key, to)
        except ResponseError as error:
            if _GONE not in str(error):  # a scan may name a key twice, and one may have expired
                raise

    def _copy(self, key: bytes, to: bytes) -> None:
        content, left_ms = self._client.dump(key), self._client.pttl(key)
        if content is not None and left_ms >= NEVER_EXPIRES:
            self._client.restore(to, max(left_ms, 0), content, replace=True)
        self._client.unlink(key)


def prefixes(group: str) -> tuple[bytes, bytes]:
    """Prefixes of the group's keys: of what is held, and of answers by Idempotency-Key.

    Recorded conditions stay, and expire: where they are signed, the signature is of the key's name.
    """
    return f"{{{quoted(group)}:".encode(), f"tickover:{group}:idempotency:".encode()


@contextmanager
def _redis_failures() -> Iterator[None]:
    try:
        with failures():
            yield
    except (OverflowFailure, ResponseError) as error:
        raise RenameError(str(error)) from error
