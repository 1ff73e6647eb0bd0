"""Places of a value, and what its model has there: which keys, and how a limit is written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, PlainSerializer
from pydantic.fields import FieldInfo

from policies.faults.words import Written

Place = tuple[int | str, ...]


class _Kind(NamedTuple):
    """One kind of value that may stand at a place, and what its annotation says beside it."""

    type: Any
    notes: tuple[Any, ...] = ()


def keys_at(model: type[BaseModel], value: Any, place: Place) -> tuple[str, ...]:
    """Keys that the mapping at this place may have. Of several kinds those count that fit what the mapping says it is
    (`kind: fixed`).
    """
    kinds = _kinds_at(model, place)
    there = value_at(value, place)
    models = [kind.type for kind in kinds if _is_model(kind.type)]
    fitting = [model for model in models if _says_it_is(model, there)] or models
    return tuple(dict.fromkeys(name for model in fitting for name in _fields(model)))


def paths_of(model: type[BaseModel], stem: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys that a model knows, sections as well; not into lists."""
    for name, field in _fields(model).items():
        yield (*stem, name)
        for kind in _kinds_of(field.annotation):
            if _is_model(kind.type):
                yield from paths_of(kind.type, (*stem, name))


def written_at(model: type[BaseModel], place: Place) -> Written:
    """How a value of this place is written: a duration with its unit."""
    for kind in _kinds_at(model, place):
        for note in kind.notes:
            if isinstance(note, PlainSerializer):
                serialize: Any = note.func
                return lambda limit: serialize(int(limit))
    return str


def value_at(value: Any, place: Sequence[int | str]) -> Any:
    """The part of a value at a place; None where nothing is."""
    for step in place:
        if not has(value, step):
            return None
        value = value[step]
    return value


def has(value: Any, step: int | str) -> bool:
    """Whether something stands one step inside of a value."""
    if isinstance(value, list | tuple):
        return isinstance(step, int) and 0 <= step < len(value)
    return isinstance(value, Mapping) and step in value


def _kinds_at(model: type[BaseModel], place: Place) -> list[_Kind]:
    kinds = [_Kind(model)]
    for step in place:
        kinds = [inner for kind in kinds for inner in _inside(kind.type, step)]
    return kinds


def _kinds_of(annotation: Any, notes: Iterable[Any] = ()) -> Iterator[_Kind]:
    """Kinds of a union, or the only one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        yield from _kinds_of(inner, (*notes, *more))
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from _kinds_of(one, notes)
    else:
        yield _Kind(annotation, tuple(notes))


def _inside(kind: Any, step: int | str) -> Iterator[_Kind]:
    if _is_model(kind):
        if (field := _fields(kind).get(str(step))) is not None:
            yield from _kinds_of(field.annotation, field.metadata)
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict and isinstance(step, str):
        yield from _kinds_of(arguments[1])
    elif origin in (list, tuple) and isinstance(step, int):
        of_each = arguments[:1] if Ellipsis in arguments or origin is list else arguments[step : step + 1]
        for one in of_each:
            yield from _kinds_of(one)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _says_it_is(model: type[BaseModel], value: Any) -> bool:
    """Whether a mapping has the mark of this kind, where the kind has one."""
    if not isinstance(value, dict):
        return False
    marks = {
        name: get_args(field.annotation)
        for name, field in _fields(model).items()
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1 and field.is_required()
    }
    return all(value.get(name) in wanted for name, wanted in marks.items())
