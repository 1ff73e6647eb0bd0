"""Options that the jobs' commands have in common, without Spark."""

from itertools import islice
from pathlib import Path

import pytest
import typer

from pipeline.errors import PipelineError
from pipeline.options import kafka_options, rounds


def test_without_a_time_between_there_is_one_round() -> None:
    assert len(list(rounds(0.0))) == 1


def test_with_a_time_between_there_is_always_another() -> None:
    assert len(list(islice(rounds(0.001), 3))) == 3


def test_a_password_comes_from_a_file_and_not_as_an_argument(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p=w\n")
    options = kafka_options([f"sasl.password_file={secret}", "sasl.mechanism=PLAIN"])
    assert options == {"sasl.password": "p=w", "sasl.mechanism": "PLAIN"}
    assert kafka_options(None) == {}


@pytest.mark.parametrize("given", ["sasl.password_file=secret", "sasl.password:secret", "=secret"])
def test_a_wrong_option_is_not_repeated_as_it_may_be_a_password(given: str) -> None:
    with pytest.raises((typer.BadParameter, PipelineError)) as raised:
        kafka_options([given])
    assert "secret" not in str(raised.value)
