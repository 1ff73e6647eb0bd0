"""What Redis' refusals mean."""

import pytest
from redis.exceptions import ResponseError

from sidecar.overflow import OverflowUnavailable
from sidecar.overflow_link import failures


def test_a_right_that_is_missing_within_a_script_is_waited_for() -> None:
    words = "The user executing the script can't run this command or subcommand script: 58dad4d5, on @user_script:10."
    with pytest.raises(OverflowUnavailable), failures():
        raise ResponseError(words)


def test_what_nobody_foresaw_is_raised() -> None:
    with pytest.raises(ResponseError), failures():
        raise ResponseError("ERR wrong number of arguments")
