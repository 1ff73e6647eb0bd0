"""The points at which a process can be killed are places in the code."""

import importlib
from functools import reduce

import pytest

from tests.faults.failpoints import POINTS


@pytest.mark.parametrize("name", POINTS)
def test_each_point_is_there(name: str) -> None:
    module, _, path = POINTS[name].seam.partition(":")
    assert callable(reduce(getattr, path.split("."), importlib.import_module(module)))
