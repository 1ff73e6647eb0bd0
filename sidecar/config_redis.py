"""Settings of Redis: where it is, who we are there, and whom we trust."""

from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, model_validator

from sidecar.config_values import Section
from sidecar.watched_file import FileSecret

EMBEDDED: Final = "embedded"
SERVER_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")


class RedisSettings(Section):
    """The server of the overflow. A user name and password in the URL are taken out of it and kept apart."""

    url: str = Field(
        default=EMBEDDED,
        description=(
            "`embedded` starts the bundled server; else redis://, rediss://, redis+cluster:// or rediss+cluster://; a"
            " Cluster may have several hosts, by commas: any that answers will do"
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
        """redis-py's own words for all but the URL, with the secrets in the clear. A password of a file that may change
        is a `FileSecret`, which `connect` knows.
        """
        is_of_file = isinstance(self.password, FileSecret)
        options = {
            "username": self.username,
            "password": self.password if is_of_file else self.password.get_secret_value(),
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.certificate_file,
            "ssl_keyfile": self.key_file,
            "ssl_password": self.key_password.get_secret_value(),
        }
        return {name: value for name, value in options.items() if value}

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if any(name.startswith("ssl_") for name in self.client_options()) and not self.url.startswith("rediss"):
            raise ValueError("redis.ca_file, certificate_file and key_file are for rediss:// only: set redis.url so")
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("redis.certificate_file and redis.key_file belong together: set both")
        return self

    @model_validator(mode="before")
    @classmethod
    def _take_credentials_out(cls, values: Any) -> Any:
        url = values.get("url", EMBEDDED) if isinstance(values, Mapping) else None
        if not isinstance(url, str) or url == EMBEDDED:
            return values
        try:
            parts = urlsplit(url)
            hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
            are_hosts = all(host.hostname and host.port != 0 for host in hosts)
        except ValueError:  # its text may hold a piece of the password
            raise ValueError("redis.url has no valid host; percent-encode / # ? @ in a password") from None
        if parts.scheme not in SERVER_SCHEMES or not are_hosts:
            raise ValueError("redis.url must be `embedded` or redis[s][+cluster]://host[:port][/database]")
        if parts.query or parts.fragment:  # a password, or what undoes our time-outs
            raise ValueError(
                "redis.url takes no options behind ? or #; redis.password, ca_file and others are settings"
            )
        if len(hosts) > 1 and "+cluster" not in parts.scheme:
            raise ValueError("redis.url names several hosts, which only redis[s]+cluster:// has")
        if "@" not in parts.netloc:
            return values
        given = {"username": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        for name, item in given.items():
            if item and values.get(name):
                raise ValueError(f"redis.{name} is given twice: in redis.url and by itself")
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return {**values, **{name: item for name, item in given.items() if item}, "url": bare}
