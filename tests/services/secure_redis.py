"""Debian's Redis behind TLS, for who has a certificate of the authority's. (The bundled Valkey has no TLS.)"""

from pathlib import Path
from typing import Any

from redis import Redis

from sidecar.doctor.acl import RedisRights
from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from tests.contract.redis_servers import debian_redis
from tests.services.certificates import Authority


class SecureRedis:
    """`url` is for guests; the test itself comes by a socket that only it may open."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        port, own = free_port(), authority.identity("redis")
        settings = {
            "tls-port": str(port),
            "tls-cert-file": str(own.certificate),
            "tls-key-file": str(own.key),
            "tls-ca-cert-file": str(authority.certificate),
            "tls-auth-clients": "yes",
        }
        self.url = f"rediss://127.0.0.1:{port}"
        self.server = EmbeddedValkey(directory, settings=settings, server=debian_redis())


def allow(own_url: str, user: str, password: str, rights: RedisRights) -> None:
    """A user who may do just this."""
    with Redis.from_url(own_url, protocol=2) as client:
        client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{password}", *rights.rules)


def refused(own_url: str, user: str) -> set[str]:
    """Commands, keys and channels that a user asked for in vain; but for what nobody minds."""
    with Redis.from_url(own_url, protocol=2) as client:
        entries: Any = client.acl_log(100)
    return {entry["object"] for entry in entries if entry["username"] == user} - {"client|setinfo", "config|get"}
