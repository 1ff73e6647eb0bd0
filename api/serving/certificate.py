"""The API's certificate: read at start, and again when its files have changed, without closing a connection."""

import ssl
from pathlib import Path

from api.access.auth import AccessConfigError
from sidecar.settings.watched_file import UnusableFile, WatchedFile


class Certificate:
    """A PEM file with the certificate and those that signed it, one with its key. Raises `AccessConfigError`."""

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self._files = (certificate_file, key_file)
        self.file = WatchedFile("certificate of the API", self._read_again, Path(certificate_file), Path(key_file))
        self.file.note()  # before they are read: what is written from now on is a change
        self._current = self._read()
        # Connections are made from this one, which takes the newest in the handshake: a context that is half changed,
        # with one file new and the other old, serves nobody.
        self.context = self._read()
        self.context.sni_callback = self._choose

    def _read_again(self) -> dict[str, object]:
        try:
            self._current = self._read()
        except AccessConfigError as error:
            raise UnusableFile(str(error)) from None
        return {}

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
