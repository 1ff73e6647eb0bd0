"""Settings of Redis: where it is, who we are there, and whom we trust."""

from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import Field, SecretStr, model_validator

from sidecar.settings.redis_url import SENTINEL, read_redis_url
from sidecar.settings.types import Section
from sidecar.settings.watched_file import FileSecret

EMBEDDED: Final = "embedded"


class RedisSettings(Section):
    """The server of the overflow. A user name and password in the URL are taken out of it and kept apart."""

    url: str = Field(
        default=EMBEDDED,
        description=(
            "`embedded` starts the bundled server; else redis[s]://host:6379/0, redis[s]+cluster://host:6379,...,"
            " redis[s]+sentinel://host:26379,.../service/0 or unix:///path?db=0; of several hosts, by commas, any that"
            " answers will do"
        ),
    )
    username: str = Field(default="", description="User name; empty for the default user")
    password: SecretStr = Field(default=SecretStr(""), description="Password; better given by redis.password_file")
    ca_file: str = Field(default="", description="PEM file of who signs the server's certificate; empty: the system's")
    certificate_file: str = Field(default="", description="PEM file of a certificate of our own, where Redis wants one")
    key_file: str = Field(default="", description="PEM file of its key")
    key_password: SecretStr = Field(
        default=SecretStr(""), description="Password of that key; better given by redis.key_password_file"
    )
    tls_name: str = Field(
        default="",
        description=(
            "Name that the certificates of Redis and of Sentinels must have, where those are reached by address or by"
            " another name; empty: the host's"
        ),
    )
    sentinel_username: str = Field(default="", description="User name in Sentinels; empty for their default user")
    sentinel_password: SecretStr = Field(
        default=SecretStr(""), description="Password of Sentinels; better given by redis.sentinel_password_file"
    )
    signing_key_file: str = Field(
        default="",
        description=(
            "File of keys, one in each line: what replicas write to Redis is signed by the first, and what none of them"
            " has signed counts as lost; empty: whoever may write to Redis is trusted"
        ),
    )
    allow_eviction: bool = Field(
        default=False,
        description=(
            "Start although Redis throws held records away when it is full (maxmemory-policy allkeys-*); what it has"
            " thrown away is rebuilt from Kafka, late"
        ),
    )
    rebuild_rate: int = Field(
        default=100_000, ge=0, le=10_000_000,
        description="Records per second that are written back after Redis lost them, 0 to 10,000,000; 0: no limit",
    )  # fmt: skip

    @property
    def embedded(self) -> bool:
        return self.url == EMBEDDED

    def client_options(self) -> dict[str, Any]:
        """Options that `connect` takes beside the URL, with the secrets in the clear. A password of a file that may
        change is a `FileSecret`.
        """
        options = {
            "username": self.username,
            "password": _of_file(self.password),
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.certificate_file,
            "ssl_keyfile": self.key_file,
            "ssl_password": self.key_password.get_secret_value(),
            "tls_name": self.tls_name,
            "sentinel_username": self.sentinel_username,
            "sentinel_password": _of_file(self.sentinel_password),
        }
        return {name: value for name, value in options.items() if value}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        options = self.client_options()
        if any(name.startswith(("ssl_", "tls_")) for name in options) and not self.url.startswith("rediss"):
            raise ValueError(
                "redis.ca_file, certificate_file, key_file and tls_name are for rediss:// only: set redis.url so"
            )
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("redis.certificate_file and redis.key_file belong together: set both")
        if any(name.startswith(SENTINEL) for name in options) and f"+{SENTINEL}" not in self.url:
            raise ValueError(
                "redis.sentinel_username and sentinel_password are for redis[s]+sentinel:// only: set redis.url so"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _take_credentials_out(cls, values: Any) -> Any:
        url = values.get("url", EMBEDDED) if isinstance(values, Mapping) else None
        if not isinstance(url, str) or url == EMBEDDED:
            return values
        there = read_redis_url(url)
        given = {"username": there.username, "password": there.password}
        for name, item in given.items():
            if item and values.get(name):
                raise ValueError(f"redis.{name} is given twice: in redis.url and by itself")
        login = {name: item for name, item in given.items() if item}
        return {**values, **login, "url": there.bare} if login else values


def _of_file(secret: SecretStr) -> SecretStr | str:
    return secret if isinstance(secret, FileSecret) else secret.get_secret_value()
