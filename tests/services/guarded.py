"""A sidecar that comes to a Kafka with access control as somebody who has just the printed rights."""

from pathlib import Path
from typing import Any

from policies.file import read_policies_file
from policies.kafka_clients import AdminClient
from sidecar.doctor.acl import Right, kafka_rights, redis_rights
from sidecar.doctor.rights import lacking
from sidecar.settings.settings import Settings, load_settings
from tests.services.certificates import Authority
from tests.services.secure_kafka import SecureKafka, SecureServer
from tests.services.secure_redis import allow, refused
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import WAIT_S

USER, PASSWORD = "tickover", "password-7d1"
REDIS_PASSWORD = "redis-password-1f0"
POLICIES = """
name: reminders
match: {topics: ["~in"]}
delay: {max: 1d}
target: {allow: ["~out-*"]}
---
name: orders
match: {topics: ["~orders-retry"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 10ms}}
"""


class Guarded:
    """A site whose sidecars come as somebody who has just the rights that are printed for it, in Kafka and in Redis."""

    def __init__(self, site: Site, kafka: SecureKafka, principal: str, login: dict[str, str]) -> None:
        self.site = site
        self.kafka = kafka
        self.principal = principal
        self.login = login
        site.topic("in")
        site.topic("orders-retry")
        for role in ("out-a", "in-dlq", "orders", "orders-dlq"):
            site.target(role)
        site.policies(POLICIES)
        self.redis_user = f"user-{site.group}"
        allow(site.redis_url, self.redis_user, REDIS_PASSWORD, redis_rights(self.settings()))
        self.login |= {"REDIS__USERNAME": self.redis_user, "REDIS__PASSWORD": REDIS_PASSWORD}
        found = kafka_rights(self.settings(), read_policies_file(site.policies_file))
        assert found.unresolved == []
        self.rights = found.rights
        kafka.allow(principal, self.rights)

    def refused_by_redis(self) -> set[str]:
        return refused(self.site.redis_url, self.redis_user)

    def sidecar(self, name: str, **settings: str) -> Sidecar:
        return self.site.sidecar(name, **{**self.login, **settings})

    def settings(self) -> Settings:
        return load_settings(None, {}, self.sidecar("settings").settings)

    def lacking(self) -> list[Right]:
        """Rights that the principal itself finds missing."""
        settings = self.settings()
        client: Any = {**settings.kafka.client_properties(), "bootstrap.servers": settings.kafka.bootstrap_servers}
        return lacking(AdminClient(client), self.rights, list(self.kafka.admin.list_topics(timeout=WAIT_S).topics))[0]

    def send(self, delay: bytes, id: bytes) -> None:
        target = self.site.name("out-a").encode()
        headers = [("tickover-target", target), ("tickover-delay", delay), ("tickover-id", id)]
        self.site.send(self.site.name("in"), headers, value=id)

    def emitted(self, count: int) -> list[bytes]:
        return sorted(message.value() or b"" for message in self.site.kafka.read(self.site.name("out-a"), count))


def scram(server: SecureServer, authority: Authority, directory: Path) -> dict[str, str]:
    """Settings as a user has them: the password in a file."""
    return {
        "KAFKA__BOOTSTRAP_SERVERS": server.scram,
        "KAFKA__CLIENT__SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA__CLIENT__SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA__CLIENT__SASL_USERNAME": USER,
        "KAFKA__CLIENT__SASL_PASSWORD_FILE": secret(directory, "password", PASSWORD),
        "KAFKA__CLIENT__SSL_CA_LOCATION": str(authority.certificate),
    }


def secret(directory: Path, name: str, value: str) -> str:
    """A file that holds it."""
    (directory / name).write_text(f"{value}\n")
    return str(directory / name)
