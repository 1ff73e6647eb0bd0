"""Sessions: a cookie with the viewer's token, sealed by that token.

    version.id.begun.seen.seal[.token]        times in epoch seconds

The seal is an HMAC under the token and the id. So every replica can check it, after a restart too, and no secret is
kept for it: who could forge a session has its token already. Where the API asks for no token there is none in it, and
the id alone makes the form token (`csrf`), which no other page can know.

The cookie is HttpOnly and SameSite=Strict: no script reads it, and no other site's request carries it.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from typing import Final, Self

VERSION: Final = "1"
ID_BYTES: Final = 16
SEAL_LENGTH: Final = 32
TOKEN: Final = re.compile(r"[!#-+\--:<-\[\]-~]{1,3600}")  # what a cookie can hold, of 4,096 bytes in all
SEEN_EVERY_S: Final = 60  # so often the cookie is written again
_FORM: Final = re.compile(r"1\.([0-9a-f]{32})\.(\d{1,12})\.(\d{1,12})\.([0-9a-f]{32})(?:\.(.+))?")


@dataclass(frozen=True, slots=True)
class Session:
    """A log-in; `seen_s` is when its owner was last there."""

    token: str
    id: str
    begun_s: int
    seen_s: int

    @classmethod
    def begin(cls, token: str, now_s: int) -> Self:
        """A new one. Raises ValueError for a token that no cookie can hold."""
        if token and not TOKEN.fullmatch(token):
            raise ValueError("the token is too long, or has characters that none has")
        return cls(token, secrets.token_hex(ID_BYTES), now_s, now_s)

    @classmethod
    def of_cookie(cls, text: str) -> Self | None:
        """The session of a cookie; None: it is none, or somebody has changed it."""
        had = _FORM.fullmatch(text)
        if had is None:
            return None
        session = cls(had[5] or "", had[1], int(had[2]), int(had[3]))
        return session if hmac.compare_digest(session._seal(), had[4]) else None

    @property
    def cookie(self) -> str:
        """Text of the cookie."""
        text = f"{VERSION}.{self.id}.{self.begun_s}.{self.seen_s}.{self._seal()}"
        return f"{text}.{self.token}" if self.token else text

    @property
    def csrf(self) -> str:
        """The token that each form of this session carries."""
        return self._mac("form")

    def is_over(self, now_s: int, idle_s: int, longest_s: int) -> bool:
        """Whether nobody was there for `idle_s`, or it has lasted for `longest_s`."""
        return now_s - self.seen_s > idle_s or now_s - self.begun_s > longest_s

    def seen(self, now_s: int) -> Self:
        """Note that its owner is there."""
        return replace(self, seen_s=now_s) if now_s - self.seen_s >= SEEN_EVERY_S else self

    def _seal(self) -> str:
        return self._mac(f"{self.begun_s}.{self.seen_s}")

    def _mac(self, text: str) -> str:
        key = f"{self.id}.{self.token}".encode()
        return hmac.new(key, f"tickover console {text}".encode(), hashlib.sha256).hexdigest()[:SEAL_LENGTH]
