"""The simulation has teeth: mistakes put into the engine on purpose are found. All of them: `make mutants`."""

from pathlib import Path

import pytest
import yaml

from tests.mutants import MUTANTS, Bench
from tests.mutations import FAST
from tests.source import ROOT

MUTANTS_MIN = 60
SEEDS = 6


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    directory: Path = tmp_path_factory.mktemp("mutants")
    return Bench(directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_mistake_is_found(bench: Bench, name: str) -> None:
    result = bench.try_out(name, SEEDS)
    assert result.found, result


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mistake_can_still_be_made(name: str) -> None:
    mutant = MUTANTS[name]
    assert (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old) == 1


def test_each_mend_that_the_documents_name_has_its_mutant() -> None:
    holes = yaml.safe_load((ROOT / "docs" / "reliability" / "holes.yaml").read_text(encoding="utf-8"))
    assert all(one["mutants"] for one in holes)
    assert {name for one in holes for name in one["mutants"]} <= set(MUTANTS)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert set(FAST) <= set(MUTANTS)
