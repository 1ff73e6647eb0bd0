"""The chart's values and the program's settings: the same names, the same limits, nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.settings.settings import Settings, load_settings
from tests.chart_schema import SCHEMA, rendered
from tests.helm import CHART, NotRendered, one, render

WHOLE = json.loads(SCHEMA.read_text(encoding="utf-8"))
# What the chart says itself, and how users say it instead.
CHART_OWN = {"instance_id", "data_dir", "policies.file", "api.tokens_file"}
# Secrets, which values name by their file.
IN_FILES = {"redis.password", "redis.key_password", "redis.sentinel_password"}


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas of objects with named properties."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from objects(part)


def forms(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Alternatives of a setting, with those of what a list or a mapping of it holds."""
    for form in schema.get("anyOf", [schema]):
        yield form
        for inner in ("items", "additionalProperties"):
            if isinstance(form.get(inner), dict):
                yield from forms(form[inner])


def settings_in(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Dotted names of the settings that a schema takes, and what it says of each."""
    for name, part in schema["properties"].items():
        inner = WHOLE["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if "properties" in inner:
            yield from settings_in(inner, f"{path}{name}.")
        else:
            yield path + name, inner


def defaults(model: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in model.items():
        is_section = isinstance(value, dict) and path + name != "kafka.client"
        yield from defaults(value, f"{path}{name}.") if is_section else [path + name]


def test_the_schema_is_made_from_the_settings_as_they_are() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == rendered(), "run .venv/bin/python -m tests.chart_schema"


def test_values_mirror_the_settings_one_to_one() -> None:
    known = set(defaults(Settings().model_dump(mode="json", by_alias=True)))
    taken = {name for name, _ in settings_in(WHOLE["properties"]["settings"])}
    assert known >= CHART_OWN | IN_FILES
    assert taken == known - CHART_OWN - IN_FILES | {f"{name}_file" for name in IN_FILES}


def test_every_setting_is_checked_by_its_type() -> None:
    settings = dict(settings_in(WHOLE["properties"]["settings"]))
    untyped = [name for name, schema in settings.items() if not all({"type", "enum"} & set(f) for f in forms(schema))]
    assert untyped == []
    # A text that the program takes apart has a form: durations and sizes, which may be numbers as well, and topics.
    formless = [
        name
        for name, schema in settings.items()
        if name != "kafka.client"  # librdkafka's own, of any form
        and ("integer" in [form.get("type") for form in forms(schema)] or re.search("(topics?|sources)$", name))
        and any(form.get("type") == "string" and "pattern" not in form for form in forms(schema))
    ]
    assert formless == []


def test_no_object_takes_what_it_does_not_know() -> None:
    found = list(objects(WHOLE))
    assert len(found) > 20
    assert [sorted(schema["properties"]) for schema in found if schema.get("additionalProperties") is not False] == []


def test_every_value_has_its_place_in_values_yaml() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(WHOLE["properties"]) - {"global"}
    for name in set(values) - {"settings", "resources", "affinity"}:
        schema = WHOLE["properties"][name]
        if "properties" in schema:
            assert set(values[name]) == set(schema["properties"]), name


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"image": {"tagg": "1"}},
        {"image": "tickover:1"},
        {"settings": {"grupe": "g"}},
        {"settings": {"wheel": {"records": 5}}},
        {"settings": {"tick_ms": 11}},
        {"settings": {"tick_ms": "2"}},
        {"settings": {"horizon": "soon"}},
        {"settings": {"horizon": "30 s"}},
        {"settings": {"horizon": 1.5}},
        {"settings": {"horizon": True}},
        {"settings": {"wheel": {"bytes_max": "512Mi"}}},
        {"settings": {"sources": ["orders retry"]}},
        {"settings": {"sources": {"orders": 1}}},
        {"settings": {"ledger": {"topic": "a/b"}}},
        {"settings": {"ledger": {"replication_factor": 0}}},
        {"settings": {"ledger": {"retention": "1 week"}}},
        {"settings": {"policies": {"topic": ""}}},
        {"settings": {"api": {"oidc": {"audience": ["tickover", 5]}}}},
        {"settings": {"guarantee": "sometimes"}},
        {"settings": {"instance_id": "me"}},
        {"settings": {"api": {"port": 0}}},
        {"settings": {"redis": {"password": "x"}}},
        {"settings": {"redis": {"url": "redis://me:secret@valkey:6379/0"}}},
        {"settings": {"kafka": {"client": {"sasl.password": "x"}}}},
        {"settings": {"kafka": {"client": {"ssl.key.pem": "x"}}}},
        {"existingSecret": "Not A Name"},
        {"mode": "daemon"},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_before_it_reaches_a_cluster(values: dict[str, Any]) -> None:
    with pytest.raises(NotRendered, match="values don't meet the specifications of the schema"):
        render(values)


def test_secrets_may_be_named_by_their_files() -> None:
    client = {"sasl.password_file": "/run/secrets/kafka", "sasl.mechanism": "PLAIN", "socket.keepalive.enable": True}
    render({"settings": {"kafka": {"client": client}, "redis": {"password_file": "/run/secrets/redis"}}})


def test_the_program_reads_every_setting_as_the_values_say(tmp_path: Path) -> None:
    """All defaults, written out, through helm and back: large numbers, lists and durations keep their values."""
    settings = Settings(
        group="every",
        tick_ms=3,
        intake={"header_bytes_max": 12_345_678},
        sources=("a", "b-*"),
        api={"probe_port": 9, "probe_host": "::"},
    )
    values = settings.model_dump(mode="json", by_alias=True)
    for dotted in CHART_OWN | IN_FILES | {"ledger.retention"}:  # the last: none, so empty
        section, _, name = dotted.rpartition(".")
        del (values[section] if section else values)[name]
    file = tmp_path / "tickover.yaml"
    file.write_text(one(render({"settings": values}), "ConfigMap")["data"]["tickover.yaml"])
    assert load_settings(file, {"data_dir": str(settings.data_dir)}) == settings


def test_the_chart_s_own_settings_are_ones_that_the_program_takes(tmp_path: Path) -> None:
    file = tmp_path / "tickover.yaml"
    policy = {"name": "p", "match": {"topics": ["t"]}, "delay": {"default": "15m"}, "target": {"allow": ["*"]}}
    documents = render({"tokensSecret": "callers", "policies": [policy]})
    file.write_text(one(documents, "ConfigMap")["data"]["tickover.yaml"])
    settings = load_settings(file)
    assert (settings.api.host, settings.api.tokens_file) == ("::", "/etc/tickover-tokens/tokens.yaml")
    assert settings.policies.file == "/etc/tickover/policies.yaml"
    (container,) = one(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/etc/tickover", "/etc/tickover-tokens", "/var/lib/tickover"} <= places
