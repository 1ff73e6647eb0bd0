"""The version of this program."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _version() -> str:
    try:
        return version("tickover")
    except PackageNotFoundError:  # run from a checkout that isn't installed
        return "0"


VERSION: Final = _version()
