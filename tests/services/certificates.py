"""A private authority in a directory: certificates of servers and clients as PEM files."""

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

VALID = datetime.timedelta(days=1)


class Identity(NamedTuple):
    """Files of a certificate and its key, and both in one."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs what it is asked for. `certificate` is the file that makes it trusted."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = rsa.generate_private_key(65_537, 2_048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = directory / "ca.pem"
        self.certificate.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def identity(self, name: str, password: str = "") -> Identity:
        """For CN=`name`, good for this machine's loopback; with a password its key is encrypted."""
        key = rsa.generate_private_key(65_537, 2_048)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tickover tests"),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = self._builder(subject, key.public_key()).add_extension(x509.SubjectAlternativeName(places), False)
        certificate = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        locked: KeySerializationEncryption = NoEncryption()
        if password:
            locked = BestAvailableEncryption(password.encode())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
        identity = Identity(*(self._directory / f"{name}{end}" for end in (".crt", ".key", ".pem")))
        for path, content in zip(identity, (certificate, private, private + certificate), strict=True):
            path.write_bytes(content)
        return identity

    def _builder(self, subject: x509.Name, public_key: rsa.RSAPublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, public_key, x509.random_serial_number())
        return builder.not_valid_before(now - VALID).not_valid_after(now + VALID)
