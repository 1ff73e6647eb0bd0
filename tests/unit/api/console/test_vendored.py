"""Copies from npm are those that `make console` wrote down, and come with their licences."""

import hashlib

from api.console.static import all_files
from tests.source import ROOT

STATIC = ROOT / "api" / "console" / "static"


def test_copies_have_the_hashes_that_were_written_down() -> None:
    lines = (STATIC / "vendored.sha256").read_text().splitlines()
    told = {name: found for found, _, name in (line.partition("  ") for line in lines)}
    assert {name: hashlib.sha256((STATIC / name).read_bytes()).hexdigest() for name in told} == told
    assert set(told) == {name for name in all_files() if "/" in name}


def test_each_copy_comes_with_its_licence() -> None:
    for folder in {name.partition("/")[0] for name in all_files() if "/" in name}:
        assert "ermission" in (STATIC / folder / "LICENSE.txt").read_text()
