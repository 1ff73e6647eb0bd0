"""Settings of the REST interface: where it listens, who may call it, and how often."""

import re
from ipaddress import ip_address
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sidecar.settings.types import (
    CONTENT_WHILE_RUNNING,
    WHILE_RUNNING,
    Bytes,
    CommaList,
    Milliseconds,
    Section,
)

# Signatures that only the owner of a private key can make. With a shared secret (HS256) our copy of it could make
# tokens, and a public key taken for the secret lets everybody; `none` lets everybody at once.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip

OWN_PATHS: Final = ("/v1", "/ui", "/docs", "/openapi.json", "/metrics", "/livez", "/readyz")


def without_brackets(host: str) -> str:
    """An IPv6 address may be written as in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url_of(scheme: str, host: str, port: int) -> str:
    """The URL of a host, be it a name or an address without brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host` (a name or an address, IPv6 with or without brackets)."""
    try:
        return ip_address(without_brackets(host)).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _algorithms(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or set(names) - set(ALGORITHMS):
        raise ValueError(f"must be some of {', '.join(ALGORITHMS)}")
    return names


def _provider_url(url: str) -> str:
    """Keys decide who is let in, so nobody on the way may change them."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or port == 0 or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be https://host[:port][/path], without user name, password and query")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError("must begin with https:// (http:// on loopback only)")
    return url


def _api_path(path: str) -> str:
    if not re.fullmatch(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", path.removesuffix("/")):
        raise ValueError("must be steps of letters, digits and ._~-, each with a / before it, like /tickover")
    if path.startswith(OWN_PATHS):
        raise ValueError(f"can't begin like the API's own paths: {', '.join(OWN_PATHS)}")
    return path.removesuffix("/")


def _console_mode(value: object) -> object:
    """YAML takes `on` and `off` for true and false."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


Host = Annotated[str, AfterValidator(without_brackets)]
ApiPath = Annotated[str, AfterValidator(_api_path)]
ConsoleMode = Annotated[Literal["on", "off", "parts"], BeforeValidator(_console_mode)]
Algorithms = Annotated[CommaList, AfterValidator(_algorithms)]
ProviderUrl = Annotated[str, AfterValidator(_provider_url)]


class OidcSettings(Section):
    """Callers who show a signed token (JWT) of an OpenID Connect provider."""

    issuer: ProviderUrl = Field(default="", description="`iss` of the tokens, exactly; empty: no such callers")
    audience: CommaList = Field(default=(), description="`aud` of the tokens, one of these; needed with an issuer")
    jwks_url: ProviderUrl = Field(
        default="", description="Where its keys are; empty: as <issuer>/.well-known/openid-configuration says"
    )
    client_id: str = Field(
        default="", max_length=500,
        description="The console at the provider, a public client: then people log in there (code flow with PKCE)",
    )  # fmt: skip
    scopes: CommaList = Field(default=("openid", "profile"), description="What is asked for when people log in there")
    ca_file: str = Field(default="", description="Certificates that the provider is trusted by; empty: the system's")
    algorithms: Algorithms = Field(
        default=("RS256", "ES256"), description="Signatures that count: RS, PS, ES 256 to 512, EdDSA"
    )
    name_claim: str = Field(default="sub", min_length=1, max_length=200, description="Claim that names the caller")
    roles_claim: str = Field(
        default="roles", min_length=1, max_length=200,
        description="Claim with the caller's roles, a list or words; dots lead into objects (`realm_access.roles`)",
    )  # fmt: skip
    read_roles: CommaList = Field(default=("tickover:read",), description="What gives the role read")
    write_roles: CommaList = Field(default=("tickover:write",), description="What gives the role write")
    admin_roles: CommaList = Field(default=("tickover:admin",), description="What gives the role admin")
    access_tokens_only: bool = Field(
        default=False, description="true: only access tokens count (`typ` at+jwt, RFC 9068), no ID tokens and others"
    )
    lifetime_max_ms: Milliseconds = Field(
        default=0, ge=0, le=366 * 86_400_000, alias="lifetime_max",
        description="Longest time from `iat` to `exp`, 0 to 366d; a token without `iat` has none. 0: no limit",
    )  # fmt: skip
    leeway_ms: Milliseconds = Field(
        default=30_000, ge=0, le=300_000, alias="leeway", description="How far clocks may differ, 0 to 5m"
    )
    keys_max_age_ms: Milliseconds = Field(
        default=600_000, ge=60_000, le=86_400_000, alias="keys_max_age",
        description="After this its keys are asked for again, 1m to 1d",
    )  # fmt: skip
    keys_stale_max_ms: Milliseconds = Field(
        default=3_600_000, ge=60_000, le=7 * 86_400_000, alias="keys_stale_max",
        description="How old keys may become while the provider doesn't answer, 1m to 7d",
    )  # fmt: skip

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.issuer and not self.audience:
            raise ValueError("api.oidc.audience must be set, else tokens for other services would be taken")
        if not self.issuer and (self.audience or self.jwks_url or self.client_id):
            raise ValueError("api.oidc.issuer must be set too")
        if self.keys_stale_max_ms < self.keys_max_age_ms:
            raise ValueError("api.oidc.keys_stale_max must not be shorter than api.oidc.keys_max_age")
        return self


class TlsSettings(Section):
    """The API by https."""

    certificate_file: str = Field(
        default="", json_schema_extra=CONTENT_WHILE_RUNNING,
        description="PEM file of the certificate and those that signed it; empty: plain HTTP",
    )  # fmt: skip
    key_file: str = Field(
        default="", json_schema_extra=CONTENT_WHILE_RUNNING, description="PEM file of its key, without a password"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("api.tls.certificate_file and api.tls.key_file must be set both, or neither")
        return self


class ApiSettings(Section):
    """The REST interface."""

    host: Host = Field(
        default="127.0.0.1", min_length=1,
        description="Address; other than loopback needs tokens. `::`: all addresses, IPv6 and IPv4",
    )  # fmt: skip
    port: int = Field(default=8230, ge=0, le=65_535, description="Port, 0 takes a free one")
    path: ApiPath = Field(
        default="",
        description="Path under which a proxy shows the API (/tickover), be it removed on the way or not; empty: none",
    )
    tls: TlsSettings = Field(default=TlsSettings())
    probe_host: Host = Field(
        default="127.0.0.1", min_length=1, description="Address of the probes' own listener; `::`: all, IPv6 and IPv4"
    )
    probe_port: int = Field(
        default=0, ge=0, le=65_535,
        description="Port that answers only /livez and /readyz, by plain HTTP and beside all limits; 0: none, or a "
        "free one where api.probe_file is set",
    )  # fmt: skip
    probe_file: str = Field(
        default="",
        description="File that says at which host and port the probes are answered, for a health check; empty: none",
    )
    connections_per_address: int = Field(
        default=256, ge=1, le=100_000,
        description="Connections of one address, 1 to 100,000; for a new one the idlest is closed",
    )  # fmt: skip
    tokens_file: str = Field(
        default="", json_schema_extra=CONTENT_WHILE_RUNNING,
        description="YAML list of (name, role, hash); empty: no such tokens",
    )  # fmt: skip
    oidc: OidcSettings = Field(default=OidcSettings())
    allow_unauthenticated: bool = Field(
        default=False, description="true: whoever reaches the API may do everything, also beyond loopback"
    )
    console: ConsoleMode = Field(
        default="on",
        description="Pages for people at /ui: on, off, or parts (on, with a page of all parts at /ui/parts)",
    )
    console_url: str = Field(
        default="", pattern=r"^(https?://[^/?#]+)?$",
        description="Scheme and host by which browsers reach the console, for a provider's way back; empty: theirs",
    )  # fmt: skip
    console_idle_ms: Milliseconds = Field(
        default=1_800_000, ge=60_000, le=86_400_000, alias="console_idle",
        description="A log-in to the console ends when nobody was there for so long, 1m to 1d",
    )  # fmt: skip
    console_longest_ms: Milliseconds = Field(
        default=43_200_000, ge=60_000, le=30 * 86_400_000, alias="console_longest",
        description="A log-in to the console lasts no longer than this, 1m to 30d",
    )  # fmt: skip
    metrics_open: bool = Field(default=False, description="true: /metrics needs no token")
    rate_limit: int = Field(
        default=1_000, ge=0, le=1_000_000, json_schema_extra=WHILE_RUNNING,
        description="Requests a second of one caller, 0 to 1,000,000; 0: no limit",
    )  # fmt: skip
    rate_burst: int = Field(
        default=5_000, ge=1, le=1_000_000, json_schema_extra=WHILE_RUNNING,
        description="Requests that may come at once, 1 to 1,000,000",
    )  # fmt: skip
    receipts_bytes_max: Bytes = Field(
        default=32 << 20, ge=1 << 20, le=16 << 30,
        description="Bytes of what the ledger said last that are remembered for look-ups, 1MiB to 16GiB",
    )  # fmt: skip
    receipts_look_back_ms: Milliseconds = Field(
        default=600_000, ge=0, le=7 * 86_400_000, alias="receipts_look_back",
        description="How far back the ledger is read for look-ups when the process starts, 0 to 7d",
    )  # fmt: skip

    @property
    def authenticates(self) -> bool:
        """Whether callers must show who they are."""
        return bool(self.tokens_file or self.oidc.issuer)

    @property
    def scheme(self) -> str:
        """Of its URLs."""
        return "https" if self.tls.certificate_file else "http"

    @model_validator(mode="after")
    def _secure(self) -> Self:
        if self.allow_unauthenticated and self.authenticates:
            raise ValueError("api.allow_unauthenticated contradicts api.tokens_file and api.oidc: keep one of them")
        if not (self.authenticates or self.allow_unauthenticated or is_loopback(self.host)):
            raise ValueError(
                f"api.host {self.host} is reachable from other machines, so api.tokens_file must be set, or "
                "api.oidc.issuer and api.oidc.audience (or listen on 127.0.0.1; or, where something in front lets "
                "in only who may do everything, set api.allow_unauthenticated=true)"
            )
        return self
