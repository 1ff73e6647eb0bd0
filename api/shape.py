"""Limits on what a body may cost before its model has seen it: how many values it has, how many errors are made of it.

JSON of a megabyte may hold half a million values, and pydantic makes an error of every value that does not fit:
hundreds of megabytes, and seconds in which no other thread runs. So three things are bounded here:

    values     counted in the bytes, outside of texts, before anything is made of them
    errors     a list or mapping is read to its first bad item, and told about by that one
    keys       those that a model does not know are told without asking the model, when there are many
"""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import SchemaValidator

from api.problems import unprocessable
from policies.errors import FAULTS_TOLD_MAX

VALUES_MAX: Final = 20_000  # a policy with all that it may list and a record with all its headers have fewer
KEYS_MAX: Final = 1_000  # of one object: as many as a record may have headers
STRINGS_MAX: Final = 2 * VALUES_MAX  # each value may have a name
_COLLECTIONS: Final = frozenset(("list", "tuple", "set", "frozenset", "dict"))

Models = tuple[type[BaseModel], ...]
Place = tuple[str, ...]


def refuse_many_values(data: bytes) -> None:
    """Raises `Problem` (422) for JSON of more than `VALUES_MAX` values. Works on bytes, and makes no value."""
    # Without escaped quotes every second piece between quotes is outside of texts. A pair of backslashes goes first:
    # the quote behind it ends its text.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = plain.split(b'"', 2 * STRINGS_MAX)
    outside = b"".join(pieces[::2])
    if len(pieces) > 2 * STRINGS_MAX or sum(map(outside.count, (b",", b"[", b"{"))) > VALUES_MAX:
        raise unprocessable("too-many-values", f"A body may have {VALUES_MAX} values.")


def refuse_many_keys(count: int) -> None:
    """Raises `Problem` (422) for an object of more than `KEYS_MAX` keys."""
    if count > KEYS_MAX:
        raise unprocessable("too-many-values", f"An object may have {KEYS_MAX} keys.")


@cache
def validator_of(model: type[BaseModel]) -> SchemaValidator:
    """Accepts what the model accepts, and of a collection with bad items names the first."""
    return SchemaValidator(_failing_fast(model.__pydantic_core_schema__))


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, dict):
        copy = {name: _failing_fast(part) for name, part in schema.items()}
        return {**copy, "fail_fast": True} if schema.get("type") in _COLLECTIONS else copy
    if isinstance(schema, list | tuple):
        return type(schema)(map(_failing_fast, schema))
    return schema


def many_unknown_keys(model: type[BaseModel], value: Any) -> list[Place]:
    """Places of the first keys that the model does not know, if there are more than are told of; else nothing."""
    found: list[Place] = []
    for place in _unknown_keys((model,), value, ()):
        found.append(place)
        if len(found) > FAULTS_TOLD_MAX:
            return found
    return []


def _unknown_keys(models: Models, value: Any, place: Place) -> Iterator[Place]:
    if not models or not isinstance(value, dict):
        return
    for name, part in value.items():
        annotations = tuple(model.model_fields[name].annotation for model in models if name in model.model_fields)
        if annotations:
            yield from _unknown_keys(_models_in(annotations), part, (*place, name))
        else:
            yield (*place, name)


def _models_in(annotations: tuple[Any, ...]) -> Models:
    """The models that one of them names by itself or as a kind of a union, not as the item of a collection."""
    found: list[type[BaseModel]] = []
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        elif (origin := get_origin(annotation)) is Annotated:
            found.extend(_models_in(get_args(annotation)[:1]))
        elif origin not in (list, tuple, set, frozenset, dict):
            found.extend(_models_in(get_args(annotation)))
    return tuple(found)
