"""Settings that may change while the process runs: a mark on the field tells them from those that need a restart."""

from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sidecar.settings.watched_file import FileSecret

Model = TypeVar("Model", bound=BaseModel)
Liveness = Literal["", "yes", "content"]

_MARK: Final = "while_running"


def liveness(field: FieldInfo) -> Liveness:
    """Whether the setting may change while the process runs; `content`: not itself, but what the file that it names
    holds.
    """
    extra = field.json_schema_extra
    mark = extra.get(_MARK, "") if isinstance(extra, dict) else ""
    return mark if mark in ("yes", "content") else ""  # type: ignore[return-value]


def with_live(running: Model, wanted: Model) -> Model:
    """`running` with the values of `wanted` where a setting may change. No rule ties one of these to another setting:
    what comes is valid.
    """
    changed: dict[str, Any] = {}
    for name, field in type(running).model_fields.items():
        before, after = getattr(running, name), getattr(wanted, name)
        if isinstance(before, BaseModel):
            changed[name] = with_live(before, after)
        elif liveness(field) == "yes":
            changed[name] = after
    return running.model_copy(update=changed)


def differences(running: BaseModel, wanted: BaseModel, prefix: str = "") -> list[str]:
    """Names of the settings whose values differ, as users write them; never a value. Secrets that were read from files
    are left out: their files are looked at by themselves.
    """
    names: list[str] = []
    for name, field in type(running).model_fields.items():
        before, after = getattr(running, name), getattr(wanted, name)
        written = prefix + (field.alias or name)
        if isinstance(before, BaseModel):
            names += differences(before, after, f"{written}.")
        elif isinstance(before, dict):
            keys = sorted(before.keys() | after.keys())
            names += [f"{written}.{key}" for key in keys if _differ(before.get(key), after.get(key))]
        elif _differ(before, after):
            names.append(written)
    return names


def _differ(before: object, after: object) -> bool:
    are_of_files = isinstance(before, FileSecret) and isinstance(after, FileSecret) and before.path == after.path
    return before != after and not are_of_files
