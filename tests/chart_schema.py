"""Writes the part of the chart's values.schema.json that mirrors the settings: `python -m tests.chart_schema`."""

import json
from pathlib import Path
from typing import Any, Final

from sidecar.settings.loading import CREDENTIALS
from sidecar.settings.settings import Settings
from sidecar.settings.types import SECRET_CLIENT_KEY, WHILE_RUNNING
from tests.source import ROOT

CHART: Final = ROOT / "charts" / "tickover"
SCHEMA: Final = CHART / "values.schema.json"

NOTES: Final = ("title", "default", *WHILE_RUNNING)  # of the model, which say nothing to Helm
# Settings that the chart has from elsewhere than `settings`, as (section of the model, name).
CHART_OWN: Final = (
    ("Settings", "instance_id"), ("Settings", "data_dir"), ("PoliciesSettings", "file"),
    ("ApiSettings", "tokens_file"), ("RedisSettings", "password"), ("RedisSettings", "key_password"),
    ("RedisSettings", "sentinel_password"),
)  # fmt: skip


def mirrored() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of `settings`, and the definitions it refers to."""
    root = Settings.model_json_schema()
    definitions = _without(root.pop("$defs"), *NOTES)
    settings = _without(root, *NOTES)
    sections = {**definitions, "Settings": settings}
    for section, name in CHART_OWN:
        del sections[section]["properties"][name]
    # What is a secret would stand in a ConfigMap.
    redis, kafka = (sections[name]["properties"] for name in ("RedisSettings", "KafkaSettings"))
    redis["url"]["not"] = {"pattern": CREDENTIALS.pattern}
    for name in ("password_file", "key_password_file", "sentinel_password_file"):
        redis[name] = {"type": "string", "description": "File with the password, of an extra volume"}
    secret = {"pattern": f"^{SECRET_CLIENT_KEY.pattern}$", "not": {"pattern": "_file$"}}
    kafka["client"]["propertyNames"] = {"not": secret}
    # The kubelet asks from outside the pod.
    sections["ApiSettings"]["properties"]["probe_host"]["not"] = {"pattern": r"^(localhost|127\.|\[?::1\]?$)"}
    for name in ("port", "probe_port"):
        sections["ApiSettings"]["properties"][name]["minimum"] = 1  # probes and Service must know it
    return settings, definitions


def _without(item: Any, *keys: str) -> Any:
    """`item` without these annotations, at any depth; a property may have such a name."""
    if isinstance(item, list):
        return [_without(part, *keys) for part in item]
    if not isinstance(item, dict):
        return item
    kept = {key: value for key, value in item.items() if key not in keys or isinstance(value, dict)}
    return {key: _without(value, *keys) for key, value in kept.items() if not (key == "default" and "$ref" in kept)}


def rendered(schema: Path = SCHEMA) -> str:
    """The file with its generated part as it should be; the rest is written by hand."""
    whole = json.loads(schema.read_text(encoding="utf-8"))
    whole["properties"]["settings"], whole["$defs"] = mirrored()
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(rendered(), encoding="utf-8")
