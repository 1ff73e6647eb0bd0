"""Files that may change while the process runs: secrets, tokens, certificates, policies, settings.

    look ---> as before: place, size, times ----------------------------> nothing
         +--> changed ---> the content as before -----------------------> nothing
                      +--> another content ---> used
                                           +--> can't be used: what it said before goes on, and a log line says why

This is the one place where files are looked at. Who owns a file gives the function that reads and uses it.
"""

import hashlib
import logging
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import SecretStr

SECRET_BYTES_MAX: Final = 1 << 20
COMPARED_BYTES_MAX: Final = 16 << 20  # no file that is used is as long

Signature = tuple[int, int, int, int]
Use = Callable[[], Mapping[str, object] | None]

log = logging.getLogger(__name__)


class Known(NamedTuple):
    """Files as they were at one time: by path their signatures, and hashes of their contents."""

    signatures: tuple[Signature | None, ...]
    contents: tuple[bytes | None, ...]


def known(*paths: Path) -> Known:
    """The files as they are. Asked for before they are read, it makes whatever is written from then on a change."""
    signatures = tuple(map(_signature, paths))
    return Known(signatures, tuple(map(_content, paths, signatures)))


def is_stream(path: Path) -> bool:
    """Whether something is there that is no regular file: a pipe, which is read once and may hold up whoever opens it
    again, or a device.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


class UnusableFile(Exception):
    """A file can't be used; the text says why, without what stands in the file.

    `again`: at the next look it may be, as it is; else only when it has changed.
    """

    def __init__(self, text: str, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class WatchedFile:
    """A file, or some that are used together, under the `title` that logs show.

    `use` reads and uses what it says now. It returns facts for the log, or None where nothing is to be said, and raises
    UnusableFile. A `patient` look waits for the next one to find the same: who writes a file may not be done, and the
    first half of some files can be used. What was `at_start` is no news.
    """

    def __init__(
        self, title: str, use: Use, *paths: Path, patient: bool = False, at_start: Known | None = None
    ) -> None:
        self.title = title
        self._use = use
        self._paths = paths
        self._patient = patient
        # None: nothing that counts
        self._seen: tuple[Signature | None, ...] | None = None if at_start is None else at_start.signatures
        self._contents: tuple[bytes | None, ...] | None = None if at_start is None else at_start.contents
        self._coming: tuple[Signature | None, ...] | None = None
        self._told = ""  # of its last error; empty: it could be used
        self._is_asked = False

    @property
    def is_stream(self) -> bool:
        """Whether one of them is no regular file: then what it says can't be read again."""
        return any(map(is_stream, self._paths))

    def note(self) -> None:
        """Take the file as it is for known: who calls this reads it now."""
        self._seen, self._contents = known(*self._paths)

    def ask(self) -> None:
        """Have the next look compare contents, whatever size and times say, and be patient no longer."""
        self._is_asked = True

    def look(self) -> bool | None:
        """Use what the file says, if that is new. None: it isn't. False: it can't be used, or is gone."""
        if not self._has_changed():
            return None
        extra = {"file": ", ".join(map(str, self._paths))}
        try:
            if self.is_stream:
                raise UnusableFile("it is no regular file")
            facts = self._use()
        except UnusableFile as error:
            if error.again:
                self._seen = self._contents = None
            if str(error) != self._told or not error.again:  # what is tried each second is told once
                log.error(
                    "the %s can't be used: what it said before goes on",
                    self.title,
                    extra={**extra, "error": str(error)},
                )
            self._told = str(error)
            return False
        except Exception:
            self._seen = self._contents = None  # nobody has used it
            raise
        self._told = ""
        if facts is not None:
            log.info("the %s is read again", self.title, extra={**extra, **facts})
        return True

    def _has_changed(self) -> bool:
        """Whether there is another content than the last time. Where nothing has changed it costs some microseconds."""
        is_asked, self._is_asked = self._is_asked, False  # first: a signal may ask once more meanwhile
        signatures = tuple(map(_signature, self._paths))
        if signatures == self._seen and not is_asked:
            return False
        if self._patient and not is_asked and signatures != self._coming:
            self._coming = signatures
            return False
        self._seen = self._coming = signatures
        contents = tuple(map(_content, self._paths, signatures))
        is_same, self._contents = contents == self._contents, contents
        return not is_same


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
    """Signature of the file; None when there is none, when it may not be seen, and for a pipe, which is read once."""
    try:
        found = path.stat()
    except OSError:
        return None
    is_file = stat.S_ISREG(found.st_mode)
    # With the time of the change of the inode: who makes a file readable changes nothing else.
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns) if is_file else None


def _content(path: Path, signature: Signature | None) -> bytes | None:
    """Hash of the content; None where it can't be read."""
    if signature is None:
        return None
    try:
        with path.open("rb") as stream:
            return hashlib.sha256(stream.read(COMPARED_BYTES_MAX)).digest()
    except OSError:
        return None
