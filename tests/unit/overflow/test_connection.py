"""Meaning of Redis' refusals."""

import pytest
from redis.exceptions import ResponseError

from sidecar.overflow.connection import failures


def test_what_nobody_foresaw_is_raised() -> None:
    with pytest.raises(ResponseError), failures():
        raise ResponseError("ERR wrong number of arguments")
