"""Faults of anything at all: never none, never pydantic's own words, each at a place of the value."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from api.message import NewMessage
from api.routes.actions import Reschedule
from api.routes.changes import NewChange, RunRequest
from api.routes.explain import ExplainRequest
from api.routes.policies import RollbackRequest
from api.routes.redrives import CanaryRequest, NewRedrive
from api.routes.schedules import Rewind
from policies.faults.faults import faults_of
from policies.faults.places import has, keys_at, paths_of, value_at
from policies.faults.words import FALLBACK
from policies.model import Policy
from sidecar.operations.schedules.schedule import Schedule
from sidecar.settings.settings import Settings

BODIES: list[type[BaseModel]] = [
    Policy, Schedule, NewMessage, NewRedrive, NewChange, Reschedule, ExplainRequest, RollbackRequest, Rewind,
    RunRequest, CanaryRequest, Settings,
]  # fmt: skip
PYDANTIC = ("Input should", "Extra inputs", "Field required", "Value error", "validation", "type=")
KEYS = sorted(
    {name for model in BODIES for path in paths_of(model) for name in path} | {"kind", "nmae", "Policy", "str"}
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.sampled_from(["", "1s", "a", "key", "fixed", "list", "exponential", "5", "x" * 2_000, "2030-01-01T00:00:00Z"])
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
)


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[type[BaseModel], Any]:
    """A model and a mapping with some of its keys, and of their sections', so that faults lie deep."""
    model = draw(st.sampled_from(BODIES))

    def filled(place: tuple[int | str, ...], depth: int) -> Any:
        keys = keys_at(model, {}, place)
        if not keys or depth > 3 or draw(st.integers(0, 4)) == 0:
            return draw(VALUES)
        names = draw(st.lists(st.sampled_from([*keys, "unknwon"]), unique=True, max_size=5))
        return {name: filled((*place, name), depth + 1) for name in names}

    return model, filled((), 0)


@given(_bodies())
def test_faults_of_anything_are_told_in_plain_words_at_their_places(given_: tuple[type[BaseModel], Any]) -> None:
    model, value = given_
    try:
        model.model_validate(value)
    except ValidationError as error:
        faults = faults_of(error, model, value)
        assert faults
        for fault in faults:
            assert FALLBACK not in fault.problem
            assert not any(word in fault.problem for word in PYDANTIC), fault
            assert fault.place == () or value_at(value, fault.place[:-1]) is not None, fault
        unknown = [fault.problem.startswith("unknown key") for fault in faults]
        assert unknown == sorted(unknown, reverse=True)
        for fault in faults:
            if fault.problem.startswith("unknown key"):
                assert has(value_at(value, fault.place[:-1]), fault.place[-1])
