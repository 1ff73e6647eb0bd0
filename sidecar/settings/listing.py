"""Settings in force as a list for people: each with its section, its origin, its default and its meaning, and with
secrets masked, as pydantic shows them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from sidecar.settings.live import liveness
from sidecar.settings.settings import Settings

DEFAULT: Final = "default"


def listed(settings: Settings) -> list[dict[str, Any]]:
    """Each setting in the order of the model: `setting`, `section` (empty at the top), `value`, `default`, `from` (in
    words; None: not known), `while_running`, `meaning`. Of mappings, as `kafka.client`, each key that is given.
    """
    return list(_rows(settings, "", settings.origins))


def _rows(section: BaseModel, prefix: str, origins: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    shown = section.model_dump(mode="json", by_alias=True)
    defaults = type(section)().model_dump(mode="json", by_alias=True)
    for name, field in type(section).model_fields.items():
        written = field.alias or name
        inner = getattr(section, name)
        if isinstance(inner, BaseModel):
            yield from _rows(inner, f"{prefix}{written}.", origins)
            continue
        whole, given, default = prefix + written, shown[written], defaults[written]
        keys = {f"{whole}.{key}": value for key, value in given.items()} if isinstance(given, dict) else {}
        for setting, value in (keys or {whole: given}).items():
            yield {
                "setting": setting,
                "section": prefix.rstrip("."),
                "value": value,
                "default": None if keys else default,
                "from": origins.get(setting) or (DEFAULT if value == default else None),
                "while_running": liveness(field) or None,
                "meaning": field.description,
            }
