"""Callers, their roles, and the tokens that are kept in a file.

The tokens file is a YAML (or JSON) list:

    - {name: deploy, role: admin, hash: "sha256:9f86d0...", expires: 2027-01-31T00:00:00Z}

`expires` may be left out. The file is read again when it changes; one that can't be used changes nothing. What changes
it is in `tokens_file`.

Tokens are 256 random bits (`new_token`), so a plain SHA-256 is enough to keep: nobody can guess its input,
and a slow hash would let anybody keep the process busy. The API is no place for passwords.
"""

import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Final

import yaml

from policies.file import NOT_PLAIN
from sidecar.settings.watched_file import UnusableFile, WatchedFile

TOKENS_MAX: Final = 1_000
ANONYMOUS: Final = "anonymous"
OIDC_PREFIX: Final = "oidc:"  # of names that a provider gives, so that none is taken for one of the file
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Role(IntEnum):
    """A role may do whatever the ones below it may."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request; `name` is the author of what it changes. Without a role nothing may be done."""

    name: str
    role: Role | None


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the tokens file."""

    caller: Caller
    digest: bytes
    expires_s: float = math.inf  # epoch seconds: from then on it is nobody's


class TokenRefused(Exception):
    """The token doesn't count; the text says why, without anything of it."""


class KeysUnavailable(Exception):
    """Whether a token is good can't be said now; `retry_s`: when to ask again."""

    def __init__(self, retry_s: float) -> None:
        super().__init__("the provider's keys can't be had")
        self.retry_s = retry_s


class AccessConfigError(ValueError):
    """The API can't start with these settings; the text says what to change."""


class Tokens:
    """The tokens of one file. It may be looked at from any thread: tokens are swapped all at once."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self.file = WatchedFile("tokens file", self._read_again, path)
        self._path = path
        self._now_s = now_s
        self.file.note()  # before it is read: what is written from now on is a change
        self._tokens = _read_tokens(path)

    def _read_again(self) -> dict[str, object]:
        try:
            self._tokens = _read_tokens(self._path)
        except AccessConfigError as error:
            raise UnusableFile(str(error)) from None
        return {"count": len(self._tokens)}

    def caller(self, token: str) -> Caller | None:
        """Find the owner of a token; None: it has none. Compares with all tokens in constant time, so its time tells
        nothing.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known in self._tokens:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return None if found is None or self._now_s() >= found.expires_s else found.caller


def load_tokens(path: Path) -> Tokens:
    """Read a tokens file. Raises `AccessConfigError`, never with a hash in its text."""
    return Tokens(path)


def _read_tokens(path: Path) -> tuple[Token, ...]:
    where = f"tokens file {path}"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AccessConfigError(f"{where} can't be read: {type(error).__name__}") from None
    return parse_tokens(text, where)


def parse_tokens(text: str, where: str) -> tuple[Token, ...]:
    """Tokens of a file's text, in order. Raises `AccessConfigError`, never with a hash in its text."""
    try:
        entries = yaml.safe_load(text)
    except (yaml.YAMLError, *NOT_PLAIN, RecursionError):
        raise AccessConfigError(f"{where} is not YAML") from None
    if not isinstance(entries, list) or not entries or len(entries) > TOKENS_MAX:
        raise AccessConfigError(f"{where} must be a list of 1 to {TOKENS_MAX} tokens")
    tokens = tuple(_token(entry, f"{where}, entry {i}") for i, entry in enumerate(entries, 1))
    for what, values in (
        ("name", [token.caller.name for token in tokens]),
        ("hash", [token.digest for token in tokens]),
    ):
        if len(set(values)) != len(values):
            raise AccessConfigError(f"{where} has the same {what} twice")
    return tokens


def _token(entry: object, where: str) -> Token:
    if not isinstance(entry, dict) or set(entry) - {"expires"} != {"name", "role", "hash"}:
        raise AccessConfigError(f"{where}: exactly name, role and hash are wanted, and expires where it ends")
    name, role, digest = entry["name"], entry["role"], entry["hash"]
    if not isinstance(name, str) or not name or len(name) > 100 or not name.isprintable():
        raise AccessConfigError(f"{where}: name must be 1 to 100 printable characters")
    if name.startswith(OIDC_PREFIX):
        raise AccessConfigError(f"{where}: names that begin with {OIDC_PREFIX} are those of a provider")
    if not isinstance(role, str) or role not in {known.name.lower() for known in Role}:
        raise AccessConfigError(f"{where}: role must be read, write or admin")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise AccessConfigError(f"{where}: hash must be sha256: and 64 lower-case hexadecimal digits")
    expires_s = _expires_s(entry["expires"], where) if "expires" in entry else math.inf
    return Token(Caller(name, Role[role.upper()]), bytes.fromhex(digest.removeprefix("sha256:")), expires_s)


def _expires_s(value: object, where: str) -> float:
    """Epoch seconds of a time of ISO 8601, which YAML may have read already."""
    try:
        time_then = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        time_then = None
    if not isinstance(time_then, datetime) or time_then.tzinfo is None:
        raise AccessConfigError(f"{where}: expires must be a time of ISO 8601 with its zone: 2027-01-31T00:00:00Z")
    return time_then.timestamp()


def new_token() -> tuple[str, str]:
    """A fresh token, and its hash for the tokens file."""
    token = "tko_" + secrets.token_urlsafe(32)
    return token, "sha256:" + hashlib.sha256(token.encode()).hexdigest()
