"""Commands of Kafka's own tools, as they are printed: with the brokers' address, and a file for the login where there
is one. The tools are Java's, so the file has Java's names. No secret is printed.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

LOGIN_FILE: Final = "admin.properties"
LOGIN_OPTION: Final = f"--command-config {LOGIN_FILE}"
NOTE: Final = f"{LOGIN_FILE} has the login of somebody who may do this"

_MODULES: Final = "org.apache.kafka.common.security"
_PASSWORD: Final = 'username="ADMIN" password="PASSWORD"'
_JAAS: Final = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule required {_PASSWORD};",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule required {_PASSWORD};",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule required {_PASSWORD};",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
    "OAUTHBEARER": f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required clientId="ADMIN" clientSecret="SECRET";',
}


class KafkaTools(NamedTuple):
    """How Kafka's tools reach the brokers. `login`: lines of the file that they read the login from, with capitals
    (ADMIN, PASSWORD) to be replaced; none where there is no login.
    """

    bootstrap: str
    login: tuple[str, ...] = ()

    def command(self, tool: str, arguments: str) -> str:
        """A line for a shell. `arguments`: those that come after the address and the login."""
        return f"{tool} {self.options} {arguments}"

    @property
    def options(self) -> str:
        """Options that each tool needs, for a shell."""
        options = f"--bootstrap-server {shlex.quote(self.bootstrap)}"
        return f"{options} {LOGIN_OPTION}" if self.login else options

    @property
    def note(self) -> str:
        """Words behind a command, from a new line on; empty where there is no login."""
        return "\n".join(["", f"{NOTE}:", *self.login]) if self.login else ""


def tools_of(client: Mapping[str, object]) -> KafkaTools:
    """Tools for the brokers of a client. `client`: librdkafka's settings, `bootstrap.servers` with them."""
    return KafkaTools(str(client.get("bootstrap.servers", "")), tuple(_login(client, _protocol(client))))


def _protocol(client: Mapping[str, object]) -> str:
    return str(client.get("security.protocol", "PLAINTEXT")).upper()


def _login(client: Mapping[str, object], protocol: str) -> Iterator[str]:
    if protocol == "PLAINTEXT":
        return
    yield f"security.protocol={protocol}"
    if protocol.startswith("SASL"):
        mechanism = str(client.get("sasl.mechanism") or client.get("sasl.mechanisms") or "GSSAPI").upper()
        yield f"sasl.mechanism={mechanism}"
        if mechanism in _JAAS:
            yield f"sasl.jaas.config={_JAAS[mechanism]}"
        if mechanism == "GSSAPI":
            yield f"sasl.kerberos.service.name={client.get('sasl.kerberos.service.name', 'kafka')}"
        if mechanism == "OAUTHBEARER":
            yield f"sasl.login.callback.handler.class={_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
            yield f"sasl.oauthbearer.token.endpoint.url={client.get('sasl.oauthbearer.token.endpoint.url', 'URL')}"
    if protocol.endswith("SSL"):
        if authorities := client.get("ssl.ca.location"):
            yield "ssl.truststore.type=PEM"
            yield f"ssl.truststore.location={authorities}"
        if client.get("ssl.certificate.location") or client.get("ssl.certificate.pem"):
            yield "ssl.keystore.type=PEM"
            yield "ssl.keystore.location=FILE_WITH_KEY_AND_CERTIFICATE"
        if client.get("ssl.endpoint.identification.algorithm") == "none":
            yield "ssl.endpoint.identification.algorithm="
