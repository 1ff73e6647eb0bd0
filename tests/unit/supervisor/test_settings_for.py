"""Settings of each process of a supervisor."""

from sidecar.service.embedded_services import Services
from sidecar.settings.settings import Settings
from sidecar.supervisor.supervisor import settings_for

SERVICES = Services("127.0.0.1:9092", "unix:///run/valkey.sock", None, None)


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
