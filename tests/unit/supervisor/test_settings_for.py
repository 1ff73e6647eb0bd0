"""Settings of each process of a supervisor."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

from pydantic import SecretStr

from sidecar.service.embedded_services import Services
from sidecar.settings.settings import Settings
from sidecar.settings.watched_file import FileSecret
from sidecar.supervisor.supervisor import settings_for

EMBEDDED: Any = Mock()
SERVICES = Services("127.0.0.1:9092", "unix:///run/valkey.sock", EMBEDDED, EMBEDDED)


def test_each_process_is_a_member_with_a_name_of_its_own() -> None:
    settings = Settings(instance_id="pod-0", processes=2)
    assert [settings_for(settings, number, SERVICES).instance_id for number in (1, 2)] == ["pod-0-1", "pod-0-2"]
    assert settings_for(Settings(processes=2), 1, SERVICES).instance_id == ""  # still a dynamic member


def test_all_find_the_services_that_the_supervisor_has_started() -> None:
    settings = Settings.model_validate({"kafka": {"client": {"linger.ms": "5"}}})
    assert settings.kafka.embedded
    assert settings.redis.embedded
    told = settings_for(settings, 2, SERVICES)
    assert (told.kafka.bootstrap_servers, told.redis.url) == (SERVICES.bootstrap, SERVICES.redis_url)
    assert not told.kafka.embedded  # else each would start its own
    assert not told.redis.embedded
    assert told.kafka.client == settings.kafka.client


def test_what_is_outside_is_found_where_the_settings_say_now() -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap_servers": "kafka:9092"}, "redis": {"url": "redis://r"}})
    told = settings_for(settings, 1, Services("kafka:9092", "redis://r", None, None))
    moved = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap_servers": "new:9092"})})
    assert told.kafka.bootstrap_servers == "kafka:9092"
    assert settings_for(moved, 1, Services("kafka:9092", "redis://r", None, None)).kafka.bootstrap_servers == "new:9092"


def test_a_process_that_starts_late_logs_in_with_what_the_file_says_now(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("former")
    secret: dict[str, SecretStr] = {"sasl.password": FileSecret("former", file)}
    settings = Settings()
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"client": secret})})
    file.write_text("present\n")
    assert settings_for(settings, 1, SERVICES).kafka.client_properties() == {"sasl.password": "present"}
    file.write_text("")
    assert settings_for(settings, 1, SERVICES).kafka.client_properties() == {"sasl.password": "former"}
