"""The API's certificate: read at start, and again when its files have changed, without closing a connection."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from api.access.auth import AccessConfigError
from sidecar.settings.watched_file import WatchedFile

LOOK_EVERY_S: Final = 10.0

log = logging.getLogger("tickover.api")


class Certificate:
    """A PEM file with the certificate and those that signed it, one with its key. Raises `AccessConfigError`."""

    def __init__(self, certificate_file: str, key_file: str, look_every_s: float = LOOK_EVERY_S) -> None:
        self._files = (certificate_file, key_file)
        self._watched = WatchedFile(Path(certificate_file), Path(key_file))
        self._look_every_s = look_every_s
        self._watched.changed()  # before they are read: what is written from now on is a change
        self._current = self._read()
        # Connections are made from this one, which takes the newest in the handshake: a context that is half changed,
        # with one file new and the other old, serves nobody.
        self.context = self._read()
        self.context.sni_callback = self._choose

    async def watch(self) -> None:
        """Looks at the files for ever."""
        while True:
            await asyncio.sleep(self._look_every_s)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Reads the files if they have changed. With files that can't be used the last certificate goes on."""
        if not self._watched.changed():
            return
        try:
            self._current = self._read()
        except AccessConfigError as error:
            self._watched.unusable()
            log.warning("the API goes on with its last certificate", extra={"error": str(error)})
        else:
            log.info("the API has a new certificate")

    def _choose(self, handshake: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        handshake.context = self._current

    def _read(self) -> ssl.SSLContext:
        try:  # ssl itself doesn't say which of the two is missing
            for file in self._files:
                Path(file).stat()
        except OSError as error:
            raise AccessConfigError(f"api.tls: {error.filename}: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without the password function a key with one would be asked for at the terminal.
            context.load_cert_chain(*self._files, password=lambda: b"")
        except OSError as error:  # also what ssl says of files that hold no certificate, or another one's key
            reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
            raise AccessConfigError(
                f"api.tls.certificate_file {self._files[0]} and api.tls.key_file {self._files[1]}: {reason}"
            ) from None
        return context
