"""A real Kafka that lets nobody do anything without a right: SCRAM over TLS, client certificates, signed tokens.

Its plain listener is the test's own: whoever comes there is the super user.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from api.serving.server import Server
from sidecar.doctor.acl import Right
from sidecar.embedded.child import free_port
from sidecar.embedded.java_kafka import _LOG4J, MavenKafka
from tests.services.certificates import Authority
from tests.services.class_archive import JAVA_OPTIONS
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.kafka_servers import PROPERTIES
from tests.unit.api.access.oidc_world import AUDIENCE, RSA_KEY, claims, jwk, signed

LOGIN = "org.apache.kafka.common.security"
PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "SCRAM": "SASL_SSL",
    "MTLS": "SSL",
    "OAUTH": "SASL_SSL",
}
# Kafka's own record of what it allowed, and whose logins it refused, beside what a broker of ours logs.
_ACCESS_LOG = """
appender.access.type = File
appender.access.name = ACCESS
appender.access.fileName = {log}
appender.access.layout.type = PatternLayout
appender.access.layout.pattern = %m%n
logger.access.name = kafka.authorizer.logger
logger.access.level = debug
logger.access.additivity = false
logger.access.appenderRef.access.ref = ACCESS
logger.refusals.name = org.apache.kafka.common.network.Selector
logger.refusals.level = info
"""
_ALLOWED = re.compile(
    r"Principal = (.+?) is Allowed operation = (\w+) from host.* on resource = (\w+):LITERAL:(\S+) for"
)
ALLOWED_URLS = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
_RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


class TokenServer:
    """Gives signed tokens to who knows the secret, and shows the keys. The client's id becomes the principal."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.signatures: list[str] = []  # of the tokens that were given
        routes = [Route("/jwks", self._keys), Route("/token", self._token, methods=["POST"])]
        self.server = Server(Starlette(routes=routes), "127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def _keys(self, request: Request) -> JSONResponse:
        return JSONResponse({"keys": [jwk(RSA_KEY, "k1")]})

    async def _token(self, request: Request) -> JSONResponse:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        client, _, secret = base64.b64decode(given).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if secret != self._secret:
            return JSONResponse({"error": "invalid_client"}, 401)
        token = signed(claims(sub=client, iss=self.url))
        self.signatures.append(token.rpartition(".")[2])
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 600})


class SecureServer:
    """`KafkaServer` with four listeners. `scram`, `mtls` and `oauth` are the addresses of three of them."""

    def __init__(self, directory: Path, authority: Authority, tokens: TokenServer) -> None:
        self.access_log = directory / "access.log"
        log4j = directory / "access.properties"
        options = (f"{ALLOWED_URLS}{tokens.url}/jwks", f"-Dlog4j2.configurationFile=file:{log4j}")
        self._kafka = MavenKafka(directory, java_options=(*JAVA_OPTIONS, *options))
        log4j.write_text(_LOG4J.format(log=self._kafka.log) + _ACCESS_LOG.format(log=self.access_log))
        self.scram, self.mtls, self.oauth = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self._kafka._properties = self._settings(authority, tokens)
        self.bootstrap = self._kafka.bootstrap
        self.log = self._kafka.log
        self.start = self._kafka.start
        self.stop = self._kafka.stop
        self.kill = self.remove = self._kafka.kill

    def used(self, principal: str) -> set[tuple[str, str, str]]:
        """Accesses that Kafka has allowed this principal so far, as (resource, name, operation)."""
        found = _ALLOWED.findall(self.access_log.read_text(encoding="utf-8"))
        return {(resource, name, operation) for who, operation, resource, name in found if who == principal}

    def _settings(self, authority: Authority, tokens: TokenServer) -> dict[str, str]:
        places = {"PLAINTEXT": self._kafka.bootstrap, "SCRAM": self.scram, "MTLS": self.mtls, "OAUTH": self.oauth}
        advertised = ",".join(f"{name}://{place}" for name, place in places.items())
        oauth = "listener.name.oauth.oauthbearer.sasl"
        return {
            **PROPERTIES,
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{self._kafka._controller_port}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.identity("broker").both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
            "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{oauth}.jaas.config": f"{LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            f"{oauth}.server.callback.handler.class": f"{LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url": f"{tokens.url}/jwks",
            "listener.name.oauth.sasl.oauthbearer.expected.audience": AUDIENCE,
            "listener.name.oauth.sasl.oauthbearer.expected.issuer": tokens.url,
        }


class SecureKafka(Kafka):
    """A Kafka with its super user's calls besides: users and their rights."""

    def add_user(self, name: str, password: str) -> None:
        """A user of SCRAM-SHA-512."""
        credential = UserScramCredentialUpsertion(
            name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096), password.encode()
        )
        for answer in self.admin.alter_user_scram_credentials([credential]).values():
            answer.result(ANSWER_TIMEOUT_S)

    def allow(self, principal: str, rights: Iterable[Right]) -> None:
        """Give these rights, from wherever the principal comes."""
        self._each(self.admin.create_acls([rule for right in rights for rule in _rules(principal, right)]))

    def forbid(self, principal: str, rights: Iterable[Right]) -> None:
        """Take them away again."""
        rules = [rule for right in rights for rule in _rules(principal, right)]
        filters = [
            AclBindingFilter(
                rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation,
                rule.permission_type,
            )
            for rule in rules
        ]  # fmt: skip
        self._each(self.admin.delete_acls(filters))

    @staticmethod
    def _each(answers: Mapping[Any, Future[Any]]) -> None:
        for answer in answers.values():
            answer.result(ANSWER_TIMEOUT_S)


def _rules(principal: str, right: Right) -> list[AclBinding]:
    kind = ResourcePatternType.PREFIXED if right.pattern.kind == "prefixed" else ResourcePatternType.LITERAL
    return [
        AclBinding(
            _RESOURCES[right.resource], right.pattern.name, kind, principal, "*", _OPERATIONS[operation],
            AclPermissionType.ALLOW,
        )
        for operation in right.operations
    ]  # fmt: skip
