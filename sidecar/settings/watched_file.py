"""A file with a secret that somebody may change while the process runs: noticed by its place, size and time."""

from pathlib import Path
from typing import Final

from pydantic import SecretStr

SECRET_BYTES_MAX: Final = 1 << 20

Signature = tuple[int, int, int]


class WatchedFile:
    """A file, or some that are used together. Says once of each change that there was one, and at the first look. That
    a file is gone is one, too.

    Whoever reads it says how that went: what can't be used is looked at again the next time.
    """

    def __init__(self, path: Path, *more: Path) -> None:
        self.path = path
        self._all = (path, *more)
        self._seen: tuple[Signature | None, ...] | None = None  # None: nothing that counts
        self._is_usable = True

    def changed(self) -> bool:
        """Whether it is another file, or has other content, than the last time. One look costs some microseconds."""
        signatures = tuple(map(_signature, self._all))
        if signatures == self._seen:
            return False
        self._seen = signatures
        return True

    def usable(self) -> None:
        """Note that the file's content is in use now."""
        self._is_usable = True

    def unusable(self) -> bool:
        """Note that the file's content can't be used: the next look takes it for changed, too. True: that is news."""
        is_news, self._is_usable, self._seen = self._is_usable, False, None
        return is_news


class FileSecret(SecretStr):
    """A secret that was read from a file, and may be read again."""

    def __init__(self, secret_value: str, path: Path) -> None:
        super().__init__(secret_value)
        self.path = path

    def now(self) -> str:
        """Text of the file as it is now, less one line end. Raises OSError, and ValueError for what is no secret."""
        with self.path.open(encoding="utf-8", newline="") as stream:
            return secret_in(stream.read(SECRET_BYTES_MAX))


def secret_in(text: str) -> str:
    """The secret in a file's text. Raises ValueError where there is none: somebody is just writing it."""
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise ValueError("it is empty")
    if "\0" in secret:  # a page that isn't written yet, or UTF-16; no client takes it
        raise ValueError("it has a NUL in it")
    return secret


def _signature(path: Path) -> Signature | None:
    """Signature of the file; None when there is none, or when it may not be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
