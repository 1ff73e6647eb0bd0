"""Signatures over what lies in Redis, for where others may write there: HMAC-SHA256 with keys that only replicas have.

    signature = HMAC-SHA256(key, kind, length of the place u32, place, data)

The kind says what is signed, the place where it lies: so nothing that is signed counts anywhere else. The first key
signs, and all of them are good for reading: so keys change one after the other.
"""

import hmac
import struct
from pathlib import Path
from typing import Final

SIGNATURE_BYTES: Final = 32
KEYS_MAX: Final = 16
KEY_CHARACTERS_MIN: Final = 32
FILE_BYTES_MAX: Final = 64 * 1024
CHUNK: Final = b"chunk"
QUESTION: Final = b"question"
ANSWER: Final = b"answer"
CONDITION: Final = b"condition"

_LENGTH: Final = struct.Struct(">I")


class SigningKeyError(ValueError):
    """The file of keys can't be used; the text says why, without anything of it."""


class Signing:
    """Signs and checks, from any thread. Without keys nothing is signed, and nothing checked."""

    __slots__ = ("_keys",)

    def __init__(self, keys: tuple[bytes, ...] = ()) -> None:
        self._keys = keys

    @property
    def is_on(self) -> bool:
        return bool(self._keys)

    def signature(self, kind: bytes, place: bytes, data: bytes) -> bytes:
        """By the first key; nothing where there is none."""
        return _signature(self._keys[0], kind, place, data) if self._keys else b""

    def holds(self, kind: bytes, place: bytes, data: bytes, signature: bytes) -> bool:
        """Whether one of the keys has signed this, for this place."""
        return any(hmac.compare_digest(_signature(key, kind, place, data), signature) for key in self._keys)


UNSIGNED: Final = Signing()


def _signature(key: bytes, kind: bytes, place: bytes, data: bytes) -> bytes:
    return hmac.digest(key, b"".join((kind, b"\0", _LENGTH.pack(len(place)), place, data)), "sha256")


def read_signing_keys(file: str) -> Signing:
    """The keys of a file, one in each line, the one that signs first; no file: none. Raises SigningKeyError."""
    if not file:
        return UNSIGNED
    try:
        with Path(file).open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SigningKeyError(f"redis.signing_key_file {file} can't be read: {error.strerror}") from None
    keys = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not 0 < len(keys) <= KEYS_MAX or min(map(len, keys)) < KEY_CHARACTERS_MIN or len(text) > FILE_BYTES_MAX:
        raise SigningKeyError(
            f"redis.signing_key_file {file} must have 1 to {KEYS_MAX} keys, one in each line, each of at least "
            f"{KEY_CHARACTERS_MIN} characters (openssl rand -hex 32 makes one)"
        )
    return Signing(keys)
