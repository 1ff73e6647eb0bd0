"""Settings: strength of the sources, forms of values, refusals that say where and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter, ValidationError

from sidecar.settings.settings import ConfigError, Settings, load_settings
from sidecar.settings.types import Bytes, Milliseconds

SECRET = "hunter2"


def from_file(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> Settings:
    file = tmp_path / "tickover.yaml"
    file.write_text(text)
    return load_settings(file, flags, environ or {})


def problems(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, environ)
    assert len(caught.value.problems) == 1
    return str(caught.value)


def at(settings: object, path: str) -> Any:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    text = "group: of-file\ntick_ms: 2\napi: {port: 1}\n"
    environ = {"TICKOVER_GROUP": "of-environment", "TICKOVER_API__PORT": "2"}
    settings = from_file(tmp_path, text, environ, group="of-flag", tick_ms=None)
    assert (settings.group, settings.api.port, settings.tick_ms) == ("of-flag", 2, 2)
    assert settings.settle_interval_ms == 50


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("group: found")
    assert load_settings(None, {}, {"TICKOVER_CONFIG": str(tmp_path / "t.yaml")}).group == "found"


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("TICKOVER_SOURCES", "orders-retry, delay-*,", "sources", ("orders-retry", "delay-*")),
        ("TICKOVER_HORIZON", "20s", "horizon_ms", 20_000),
        ("TICKOVER_HORIZON", "2500", "horizon_ms", 2_500),
        ("TICKOVER_SHUTDOWN_TIMEOUT", "1m", "shutdown_timeout_ms", 60_000),
        ("TICKOVER_WHEEL__BYTES_MAX", "64MiB", "wheel.bytes_max", 64 << 20),
        ("TICKOVER_WHEEL__BYTES_MAX", "64MB", "wheel.bytes_max", 64_000_000),
        ("TICKOVER_WHEEL__RECORDS_MAX", "1000", "wheel.records_max", 1_000),
        ("TICKOVER_INTAKE__HEADER_BYTES_MAX", "8 KiB", "intake.header_bytes_max", 8_192),
        ("TICKOVER_LEDGER__RETENTION", "400d", "ledger.retention_ms", 400 * 86_400_000),
        ("TICKOVER_LEDGER__RETENTION", "", "ledger.retention_ms", None),
        ("TICKOVER_LEDGER__TOPIC", "mine", "ledger_topic", "mine"),
        ("TICKOVER_GROUP", "g", "ledger_topic", "tickover.g.ledger"),
        ("TICKOVER_REDIS__URL", "rediss://cache:6380/1", "redis.url", "rediss://cache:6380/1"),
        ("TICKOVER_REDIS__URL", "redis+cluster://a:1", "redis.embedded", False),
        (
            "TICKOVER_REDIS__URL",
            "rediss+cluster://u:p@a:1,b,[::1]:3/0",
            "redis.url",
            "rediss+cluster://a:1,b,[::1]:3/0",
        ),
        ("TICKOVER_REDIS__URL", "rediss+sentinel://u:p@a,[::1]:3/s/2", "redis.url", "rediss+sentinel://a,[::1]:3/s/2"),
        ("TICKOVER_REDIS__URL", "unix://u:p@/run/r.sock?db=2", "redis.url", "unix:///run/r.sock?db=2"),
        ("TICKOVER_REDIS__URL", 'redis://u:p%2F%3f%41@%%zz"[@a', "redis.password", SecretStr('p/?A@%%zz"[')),
        ("TICKOVER_DATA_DIR", "/data", "data_dir", Path("/data")),
        ("TICKOVER_LOG__LEVEL", "debug", "log.level", "debug"),
        ("TICKOVER_LOG__LEVEL", "WARNING", "log.level", "warning"),
        ("TICKOVER_API__PATH", "/shop/tickover/", "api.path", "/shop/tickover"),
        ("TICKOVER_API__PATH", "/", "api.path", ""),
        ("TICKOVER_API__HOST", "[::1]", "api.host", "::1"),
        ("TICKOVER_LOG__FORMAT", "Text", "log.format", "text"),
    ],
)
def test_forms_of_values(name: str, text: str, path: str, value: object) -> None:
    assert at(load_settings(None, {}, {name: text}), path) == value


def test_client_settings_pass_through() -> None:
    environ = {
        "TICKOVER_KAFKA__CLIENT__SASL_MECHANISM": "PLAIN",
        "TICKOVER_KAFKA__CLIENT__SASL_PASSWORD": SECRET,
        "TICKOVER_KAFKA__CLIENT__SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_FILE": "/not/read",
    }
    settings = load_settings(None, {"kafka.client.linger.ms": 7}, environ)
    assert settings.kafka.client_properties() == {
        "sasl.mechanism": "PLAIN",
        "sasl.password": SECRET,
        "sasl.oauthbearer.assertion.private.key.file": "/not/read",
        "linger.ms": "7",
    }


def test_client_settings_of_a_file(tmp_path: Path) -> None:
    text = "kafka: {client: {linger.ms: 4, enable.idempotence: true}}"
    properties = from_file(tmp_path, text).kafka.client_properties()
    assert properties == {"linger.ms": "4", "enable.idempotence": "true"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("TICKOVER_REDIS__PASSWORD_FILE", "redis.password"),
        ("TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE", "kafka.client"),
        ("TICKOVER_KAFKA__CLIENT__SSL_KEY_PASSWORD_FILE", "kafka.client"),
    ],
)
def test_secrets_from_files_are_masked_everywhere(tmp_path: Path, name: str, path: str) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    settings = load_settings(None, {}, {name: str(tmp_path / "secret")})
    taken = at(settings, path)
    secrets = list(taken.values()) if isinstance(taken, dict) else [taken]
    assert [secret.get_secret_value() for secret in secrets] == [SECRET]
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


def test_credentials_leave_the_url() -> None:
    settings = load_settings(None, {}, {"TICKOVER_REDIS__URL": f"redis://me:{SECRET}%40@cache:6379/2"})
    assert (settings.redis.url, settings.redis.username) == ("redis://cache:6379/2", "me")
    assert settings.redis.password.get_secret_value() == SECRET + "@"
    assert SECRET not in repr(settings)


def test_a_url_with_credentials_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"redis://me:{SECRET}@cache:6379/2\n")
    settings = load_settings(None, {}, {"TICKOVER_REDIS__URL_FILE": str(tmp_path / "url")})
    assert (settings.redis.url, settings.redis.username) == ("redis://cache:6379/2", "me")
    assert settings.redis.password.get_secret_value() == SECRET
    (tmp_path / "url").write_text(f"rdis://me:{SECRET}@cache")
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {"TICKOVER_REDIS__URL_FILE": str(tmp_path / "url")})
    assert SECRET not in str(caught.value)


def test_what_tls_to_redis_needs() -> None:
    files = {"ca_file": "ca", "certificate_file": "c", "key_file": "k", "key_password": SECRET}
    settings = Settings.model_validate({"redis": {"url": "rediss+cluster://cache", "password": "p", **files}})
    assert settings.redis.client_options() == {
        "password": "p", "ssl_ca_certs": "ca", "ssl_certfile": "c", "ssl_keyfile": "k", "ssl_password": SECRET,
    }  # fmt: skip
    assert SECRET not in f"{settings!r} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("redis", "says"),
    [
        ({"url": "redis://cache", "ca_file": "ca"}, "rediss:// only"),
        ({"ca_file": "ca"}, "rediss:// only"),
        ({"url": "rediss://cache", "certificate_file": "c"}, "belong together"),
        ({"url": "rediss://cache", "key_file": "k"}, "belong together"),
        ({"url": "rediss://cache?ssl_cert_reqs=none"}, "no options"),
        ({"url": f"redis://cache?password={SECRET}"}, "no options"),
        ({"url": "redis://cache", "tls_name": "cache"}, "rediss:// only"),
        ({"url": "rediss+cluster://cache", "sentinel_username": "me"}, "redis[s]+sentinel:// only"),
        ({"url": "rediss+cluster://cache", "sentinel_password": SECRET}, "redis[s]+sentinel:// only"),
        ({"url": "redis+sentinel://cache"}, "must end with the name by which the Sentinels know the servers"),
        ({"url": "redis+sentinel://cache/s/x"}, "must end with the name by which the Sentinels know the servers"),
        ({"url": "redis+cluster://cache/1"}, "names a database, which a Cluster doesn't have"),
        ({"url": f"redis://me:{SECRET}@cache/x"}, "something else than the number of a database"),
        ({"url": "unix://run/redis.sock"}, "must be unix:///path"),
        ({"url": "unix:///run/redis.sock?password=x"}, "must be unix:///path"),
        *(({"url": f"redis://me:1{end}{SECRET}@cache"}, "percent-encode / ? # in a password") for end in "/?#"),
        ({"url": f"redis://me:{SECRET}\n@cache"}, "control character"),
        ({"url": f"redis://me:{SECRET}%E4@cache"}, "no UTF-8"),
        ({"url": f"redis://me:{SECRET}@cache:99999"}, "no valid host"),
        ({"url": f"redis://me:{SECRET}@"}, "no valid host"),
    ],
)
def test_settings_of_redis_that_cannot_be_meant(redis: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {f"redis.{name}": value for name, value in redis.items()})
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("TICKOVER_GRUOP", "x", "did you mean TICKOVER_GROUP?"),
        ("TICKOVER_REDIS_URL", "redis://x", "did you mean TICKOVER_REDIS__URL?"),
        ("TICKOVER_KAFKA__BOOTSTRAP_SERVER", "x", "did you mean TICKOVER_KAFKA__BOOTSTRAP_SERVERS?"),
        ("TICKOVER_XYZZY", "x", "config schema"),
        ("TICKOVER_KAFKA", "x:1", "is a section"),
        ("TICKOVER_TICK_MS", "0", "at least 1"),
        ("TICKOVER_TICK_MS", "11", "at most 10"),
        ("TICKOVER_SETTLE_INTERVAL_MS", "19", "20 to 100"),
        ("TICKOVER_SETTLE_INTERVAL_MS", "101", "20 to 100"),
        ("TICKOVER_HORIZON", "1 week", "write 250ms"),
        ("TICKOVER_HORIZON", "-5s", "cannot be negative"),
        ("TICKOVER_HORIZON", "11m", "at most 10m"),
        ("TICKOVER_GUARANTEE", "at_most_once", "at_least_once or exactly_once"),
        ("TICKOVER_START", "now", "must be auto, earliest or latest"),
        ("TICKOVER_GROUP", "{a}", "must be 1 to 200 of A-Za-z0-9._-"),
        ("TICKOVER_SOURCES", "a b", "neither a topic name nor a glob"),
        ("TICKOVER_WHEEL__BYTES_MAX", "lots", "not a size (write 2kB for 2,000 bytes"),
        ("TICKOVER_LEDGER__PARTITIONS", "0", "1 to 1,000"),
        ("TICKOVER_LEDGER__REPLICATION_FACTOR", "0", "-1 for the broker's default"),
        ("TICKOVER_LEDGER__RETENTION", "5s", "At least 1h"),
        ("TICKOVER_POLICIES__TOPIC", "a/b", "a topic name"),
        ("TICKOVER_QUARANTINE__TOPIC", "tickover.policies", "eight different topics"),
        ("TICKOVER_AUDIT__TOPIC", "tickover.policies", "eight different topics"),
        ("TICKOVER_API__PORT", "70000", "65535"),
        ("TICKOVER_API__HOST", "0.0.0.0", "api.tokens_file must be set"),
        ("TICKOVER_API__HOST", "[::]", "api.tokens_file must be set"),
        ("TICKOVER_API__PATH", "tickover", "like /tickover"),
        ("TICKOVER_API__PATH", "/a/../b", "like /tickover"),
        ("TICKOVER_API__PATH", "//elsewhere.example", "like /tickover"),
        ("TICKOVER_API__PATH", "/v1", "the API's own paths"),
        ("TICKOVER_REDIS__URL", "http://x", "redis[s]+sentinel://host[:port],.../service"),
        ("TICKOVER_REDIS__URL", "redis+cluster://a:1,,b", "no valid host"),
        ("TICKOVER_REDIS__URL", "redis+cluster://a:1,b:x", "no valid host"),
        ("TICKOVER_REDIS__URL", "redis://a:1,b:2", "several hosts"),
        ("TICKOVER_REDIS__PASSWORD_FILE", "/does/not/exist", "No such file"),
        ("TICKOVER_KAFKA__CLIENT__BOOTSTRAP_SERVERS", "x", "kafka.bootstrap_servers"),
        ("TICKOVER_KAFKA__CLIENT__GROUP_PROTOCOL", "Consumer", "only the classic group protocol"),
        ("TICKOVER_KAFKA__CLIENT__MESSAGE_MAX_BYTES", "999999", "must be 1000000 or more, for the ledger"),
        ("TICKOVER_LOG__FORMAT", "xml", "json or text"),
    ],
)
def test_refusals_name_the_source_and_say_what_to_do(name: str, text: str, says: str) -> None:
    message = problems({name: text})
    assert says in message
    assert name in message or "eight different" in message


def test_every_problem_of_a_load_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {"TICKOVER_GRUOP": "x", "TICKOVER_STRAT": "earliest"})
    assert len(caught.value.problems) == 2


def test_unknown_names_and_bad_values_are_told_together_unknown_names_first() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {"TICKOVER_TICK_MS": "x", "TICKOVER_STRAT": "earliest", "TICKOVER_HORIZON": "11m"})
    assert [problem.partition("  (")[0] for problem in caught.value.problems] == [
        "environment variable TICKOVER_STRAT: unknown setting; did you mean TICKOVER_START?",
        "environment variable TICKOVER_HORIZON: must be at most 10m, got '11m'",
        "environment variable TICKOVER_TICK_MS: must be a whole number, got 'x'",
    ]


def test_a_secret_that_cannot_be_read_is_told_once() -> None:
    assert "cannot read the secret" in problems({"TICKOVER_REDIS__PASSWORD_FILE": "/none"})
    assert "cannot read the secret" in problems({"TICKOVER_REDIS__URL_FILE": "/none"})


def test_a_refused_password_is_not_repeated() -> None:
    for url in (f"redis://:{SECRET}/x@cache:6379", f"rdis://me:{SECRET}@cache"):
        assert SECRET not in problems({"TICKOVER_REDIS__URL": url})
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"redis.password": [SECRET]}, {})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gruop: x", "did you mean group?"),
        ("api: {prot: 1}", "did you mean api.port?"),
        ("api: {port: x}", "api.port: "),
        ("api: 5", "must be a mapping"),
        ("- a", "must be a mapping"),
        ("a: [", "not valid YAML"),
        ("group: a\ngroup: b", "is given twice"),
        ("horizon: 1:30", "no decimal number"),
        ("horizon: 010", "no decimal number"),
        ("horizon: 1.5", "a fraction needs its unit"),
        ("api:\n  port: 2:17", "no decimal number"),
        ("kafka: {client: {linger.ms: [1]}}", "linger.ms must be text"),
        ("horizon_ms: 5000", "did you mean horizon?"),
    ],
)
def test_refusals_of_a_file_name_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"tickover\.yaml") as caught:
        from_file(tmp_path, text)
    assert says in str(caught.value)


def test_an_empty_file_and_empty_sections_are_allowed(tmp_path: Path) -> None:
    assert from_file(tmp_path, "") == from_file(tmp_path, "api:\nlog: {}") == Settings()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TICKOVER_SERVICE_HOST", "10.0.0.1"),
        ("TICKOVER_PORT", "tcp://10.0.0.1:8230"),
        ("TICKOVER_PORT_8230_TCP_ADDR", "10.0.0.1"),
        ("TICKOVER_REDIS_SERVICE_PORT_REDIS", "6379"),
        ("TICKOVER_URL", "http://x"),
        ("TICKOVER_TOKEN", "x"),
        ("TICKOVER_CA_FILE", "x"),
        ("TICKOVER_TEST_IMAGE", "x"),
        ("PATH", "/bin"),
    ],
)
def test_other_variables_are_left_alone(name: str, text: str) -> None:
    assert load_settings(None, {}, {name: text}) == Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().group = "other"  # type: ignore[misc]


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    settings = Settings.model_validate({"horizon": "20s", "ledger": {"retention": "2h"}, "sources": ["a", "b*"]})
    shown = settings.model_dump_json(by_alias=True, exclude={"redis": {"password"}})
    assert json.loads(shown)["horizon"] == "20s"
    assert from_file(tmp_path, shown) == settings


def test_every_setting_is_described() -> None:
    schema = Settings.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        for name, field in model["properties"].items():
            assert "$ref" in field or field.get("description") or "allOf" in field, name


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (Milliseconds, ["0", "250ms", "90s", "15m", "2h", "3d", "1w", "1.5s", "1h30m", "1m0.5s"]),
        (Milliseconds, ["PT90S", "P1DT2H3M4.5S", "PT1,5H", "P2W"]),
        (Bytes, ["0", "256KiB", "512mib", "1 GiB", " 5B ", "123456789012345", "512MB", "1.5GiB", "2kB", "1TiB"]),
    ],
)
def test_the_schema_takes_what_the_program_takes(form: Any, texts: list[str]) -> None:
    adapter = TypeAdapter[int](form)
    [pattern] = [kind["pattern"] for kind in adapter.json_schema()["anyOf"] if kind["type"] == "string"]
    for text in texts:
        adapter.validate_python(text)
        assert re.search(pattern, text), text


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (Milliseconds, ["", "soon", "-1s", "30 s", "5 minutes", "10M", "s", "1e3", "1:30", " 90s"]),
        (Bytes, ["", "512M", "512Mi", "1,5GiB", "-1", "much", "KiB", "5iB"]),
    ],
)
def test_the_schema_refuses_what_the_program_refuses(form: Any, texts: list[str]) -> None:
    adapter = TypeAdapter[int](form)
    [pattern] = [kind["pattern"] for kind in adapter.json_schema()["anyOf"] if kind["type"] == "string"]
    for text in texts:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)
        assert not re.search(pattern, text), text
