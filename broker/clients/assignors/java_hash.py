"""The order in which Java's hash tables are walked, which decides some of the assignments of Java's clients.

A table has 2^n buckets, 16 at first, doubled when it is filled by more than three quarters, never halved. A key's
bucket is `(hash ^ hash >>> 16) mod 2^n`; buckets are walked in order, and keys of one bucket in the order in which they
came. (Java turns a bucket of eight keys into a tree, in a table of 64 and more; its order may then differ. That takes
hundreds of members with an evil choice of names.)
"""

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

BUCKETS_MIN: Final = 16
WORD: Final = 0xFFFFFFFF

Key = TypeVar("Key", bound=Hashable)


def string_hash(text: str) -> int:
    """`String.hashCode`, unsigned."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for place in range(0, len(units), 2):
        value = value * 31 + (units[place] << 8 | units[place + 1]) & WORD
    return value


def hash_order(texts: Iterable[str]) -> list[str]:
    """Order texts as a `HashMap` is walked that got them in this order."""
    keys = list(dict.fromkeys(texts))
    return sorted(keys, key=partial(_bucket, string_hash, _buckets(len(keys))))


class HashSet(Generic[Key]):
    """A set that tells what Java's would give first."""

    def __init__(self, hash_code: Callable[[Key], int]) -> None:
        self._hash_code = hash_code
        self._keys: dict[Key, None] = {}
        self._buckets = BUCKETS_MIN

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Key) -> None:
        """Put it in."""
        self._keys[key] = None
        self._buckets = max(self._buckets, _buckets(len(self._keys)))

    def remove(self, key: Key) -> None:
        """Take it out. KeyError: it isn't there."""
        del self._keys[key]

    def first(self) -> Key:
        """The key that `iterator().next()` gives. ValueError: the set is empty."""
        return min(self._keys, key=partial(_bucket, self._hash_code, self._buckets))


def _buckets(count: int) -> int:
    buckets = BUCKETS_MIN
    while count > buckets * 3 // 4:
        buckets *= 2
    return buckets


def _bucket(hash_code: Callable[[Key], int], buckets: int, key: Key) -> int:
    value = hash_code(key)
    return (value ^ value >> 16) & (buckets - 1)
