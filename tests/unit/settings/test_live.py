"""Settings that may change while the process runs, and those that need a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sidecar.settings.live import differences, liveness, with_live
from sidecar.settings.settings import Settings, load_settings
from sidecar.settings.settings_file import load_from, settings_file
from sidecar.settings.types import WHILE_RUNNING

LIVE = {
    "log.level", "api.rate_limit", "api.rate_burst", "dead_letters.scan_records", "dead_letters.scan_time",
    "dead_letters.mask",
}  # fmt: skip
WATCHED = {"api.tokens_file", "api.tls.certificate_file", "api.tls.key_file", "policies.file"} | {
    "redis.password",
    "redis.sentinel_password",
}


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(attributes, name as users write it, liveness) of every setting."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            for attributes, written, live in leaves(inner, (*path, name)):
                yield attributes, f"{name}.{written}", live
        else:
            yield (*path, name), field.alias or name, liveness(field)


def at(settings: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        settings = getattr(settings, name)
    return settings


def changed(settings: Any, path: tuple[str, ...], value: object) -> Any:
    """The settings with another value at the path, unchecked."""
    name, *rest = path
    return settings.model_copy(update={name: changed(getattr(settings, name), tuple(rest), value) if rest else value})


def test_which_settings_may_change() -> None:
    marks = {written: live for _, written, live in leaves(Settings)}
    assert {name for name, live in marks.items() if live == "yes"} == LIVE
    assert {name for name, live in marks.items() if live == "content"} == WATCHED


@pytest.mark.parametrize(("path", "written", "live"), list(leaves(Settings)), ids=str)
def test_every_setting_counts_at_once_or_is_said_to_need_a_restart(
    path: tuple[str, ...], written: str, live: str
) -> None:
    before = Settings()
    wanted = changed(before, path, {"a.b": "c"} if written == "kafka.client" else object())
    running = with_live(before, wanted)
    assert (at(running, path) is at(wanted, path)) == (live == "yes")
    name = "kafka.client.a.b" if written == "kafka.client" else written
    assert differences(running, wanted) == ([] if live == "yes" else [name])
    assert differences(before, running) == ([name] if live == "yes" else [])


def test_a_secret_of_a_file_is_no_difference_and_any_other_is_named_without_its_value(tmp_path: Path) -> None:
    file = tmp_path / "password"

    def loaded(password: str) -> Settings:
        file.write_text(password)
        environ = {"TICKOVER_REDIS__PASSWORD_FILE": str(file), "TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE": str(file)}
        return load_settings(environ={"TICKOVER_REDIS__URL": "redis://localhost", **environ})

    assert differences(loaded("one"), loaded("two")) == []
    without = loaded("one").model_copy(update={"kafka": Settings().kafka})
    assert differences(loaded("one"), without) == ["kafka.client.sasl.password"]
    assert differences(Settings(), Settings()) == []
    redis = Settings().redis.model_copy(update={"password": SecretStr("x")})
    assert differences(Settings(), Settings().model_copy(update={"redis": redis})) == ["redis.password"]


def test_the_schema_shows_the_mark() -> None:
    definitions = Settings.model_json_schema()["$defs"]
    assert WHILE_RUNNING.items() <= definitions["LogSettings"]["properties"]["level"].items()


def test_what_changed_while_it_runs_has_the_origin_of_the_change(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"

    def load() -> Settings:
        return load_settings(path, {}, {"TICKOVER_API__RATE_BURST": "7"})

    path.write_text("{group: first, log: {level: debug}}")
    settings, source = load_from(path, load)
    assert source is not None
    told: list[Settings] = []
    file = settings_file(settings, source, told.append)
    file.look()
    path.write_text("{horizon: 20s, api: {rate_limit: 5}}")
    file.look()
    assert file.look()
    [running] = told
    assert (running.log.level, running.api.rate_limit, running.group) == ("info", 5, "first")
    assert running.origins == {
        "group": f"{path}: group",  # which needs a restart, as does the horizon
        "api.rate_limit": f"{path}: api.rate_limit",
        "api.rate_burst": "environment variable TICKOVER_API__RATE_BURST",
    }
    assert settings.origins["log.level"] == f"{path}: log.level", "what was handed out stays as it was"
