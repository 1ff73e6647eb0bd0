"""All faults of one value, unknown keys first: a key that is misspelt makes others look missing."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from policies.faults.places import Place, has, keys_at, paths_of, value_at, written_at
from policies.faults.words import KINDS, MISSING, NO_TAG, UNKNOWN_KEY, WRONG_TAG, Written, hint_of, words_of

NEAR: Final = 0.7  # how alike a key and the one that was meant are, 0 to 1
NEAR_LENGTH_MAX: Final = 64  # a longer key is none that was misspelt, and to compare it takes long
KEYS_SHOWN_MAX: Final = 12
CONSIDERED_MAX: Final = 200  # faults that are looked at: each is compared with each


class Fault(NamedTuple):
    """One thing that is wrong, and where: keys and indices from the outside in."""

    place: Place
    problem: str

    def __str__(self) -> str:
        where = ".".join(map(str, self.place))
        return f"{where}: {self.problem}" if where else self.problem


def faults_of(error: ValidationError, model: type[BaseModel], value: Any) -> tuple[Fault, ...]:
    """All that is wrong with `value`, unknown keys first, else in the model's order. Where a key is missing because it
    is misspelt, that is told once.
    """
    unknown: list[Fault] = []
    others: dict[Place, list[Any]] = {}
    meant: set[Place] = set()
    found = sorted(error.errors(include_url=False, include_input=False), key=lambda one: one["type"] != UNKNOWN_KEY)
    for one in _of_the_likeliest_kind(found[:CONSIDERED_MAX], value):
        place = _place(one, value)
        if one["type"] == UNKNOWN_KEY:
            near = _near_key(model, value, place)
            meant.update([(*place[:-1], near)] if near else [])
            unknown.append(unknown_key(model, value, place))
        else:
            others.setdefault(place, []).append(one)
    told = [
        Fault(place, _together(errors, value_at(value, place), written_at(model, place)))
        for place, errors in others.items()
        if place not in meant
    ]
    return tuple(dict.fromkeys((*unknown, *told)))


def unknown_key(model: type[BaseModel], value: Any, place: Place) -> Fault:
    """The fault of a key that the model doesn't know, with the one that was meant, or those that there are."""
    key = str(place[-1])
    if near := _near_key(model, value, place):
        return Fault(place, f"unknown key; did you mean {near}?")
    elsewhere = {".".join(path) for path in paths_of(model) if path[-1] == key and path != place}
    if elsewhere:
        return Fault(place, f"unknown key; did you mean {' or '.join(sorted(elsewhere))}?")
    known = keys_at(model, value, place[:-1])
    if not known or len(known) > KEYS_SHOWN_MAX:
        return Fault(place, "unknown key")
    return Fault(place, f"unknown key; known here: {', '.join(known)}")


def _near_key(model: type[BaseModel], value: Any, place: Place) -> str:
    """The key that was meant; empty where none is near. One that is there already isn't meant a second time."""
    if len(str(place[-1])) > NEAR_LENGTH_MAX:
        return ""
    there = value_at(value, place[:-1])
    given = there if isinstance(there, Mapping) else {}
    free = [key for key in keys_at(model, value, place[:-1]) if key not in given]
    near = get_close_matches(str(place[-1]).lower().replace("-", "_"), free, n=1, cutoff=NEAR)
    return near[0] if near else ""


def _place(error: Mapping[str, Any], value: Any) -> Place:
    """Steps that the value has. Pydantic also names those that it tried in between, as kinds of a union."""
    steps: Sequence[int | str] = error["loc"]
    place: list[int | str] = []
    for number, step in enumerate(steps, 1):
        if has(value, step):
            value = value_at(value, (step,))
        elif error["type"] != MISSING or number < len(steps):
            continue
        place.append(step)
    if error["type"] in (NO_TAG, WRONG_TAG):
        place.append(str(error["ctx"]["discriminator"]).strip("'"))
    return tuple(place)


def _of_the_likeliest_kind(errors: Sequence[Any], value: Any) -> Iterator[Any]:
    """Errors without those of kinds that nobody meant: where one kind of a union says more than that all of it is of
    another kind, the kinds that say only this are left out.
    """
    places = [_place(error, value) for error in errors]
    for error, place in zip(errors, places, strict=True):
        of_another_kind = error["type"] in KINDS and len(error["loc"]) > len(place)
        says_more = any(
            other[: len(place)] == place and (len(other) > len(place) or one["type"] not in KINDS)
            for one, other in zip(errors, places, strict=True)
        )
        if not (of_another_kind and says_more):
            yield error


def _together(errors: Sequence[Any], given: object, written: Written) -> str:
    """Words of one place: kinds that it may be of are joined."""
    first, *others = dict.fromkeys(words_of(error, written) for error in errors)
    if not others:
        return first + hint_of(errors[0], given)
    if all(error["type"] in KINDS for error in errors):
        return " or ".join((first, *(other.removeprefix("must be ") for other in others)))
    return "; ".join((first, *others))
