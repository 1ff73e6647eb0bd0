"""Dependencies in pyproject.toml are used, and imports of the product are asked for there."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from xml.etree import ElementTree

import pytest

from sidecar.embedded.java_kafka import kafka_version
from tests.services.java_tools import POM
from tests.source import PACKAGES, ROOT, python_files

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


REQUIRED = {plain(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in PROJECT["dependencies"]}
OPTIONAL = {
    plain(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    for extra in ("otel", "pipeline")
    for line in PROJECT["optional-dependencies"][extra]
}
MODULES = {module: {plain(name) for name in names} for module, names in packages_distributions().items()}


@cache
def imported() -> set[str]:
    return {name.partition(".")[0] for source in python_files() if source.is_product for name in source.imports}


def distributions(module: str) -> set[str]:
    """Distributions that have the module; where none is installed, the one of the same name."""
    return MODULES.get(module, {plain(module)})


def test_every_dependency_is_imported() -> None:
    used = set().union(*(distributions(module) for module in imported()))
    assert REQUIRED - used == set()


def test_every_import_is_declared() -> None:
    foreign = imported() - set(PACKAGES) - set(sys.stdlib_module_names)
    declared = REQUIRED | OPTIONAL
    assert {module for module in foreign if not distributions(module) & declared} == set()


def test_kafkas_tools_are_of_the_brokers_version() -> None:
    namespace = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = ElementTree.parse(POM).findall("m:dependencies/m:dependency/m:version", namespace)
    assert [version.text for version in found] == [kafka_version()]
