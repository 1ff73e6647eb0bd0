"""The version of this program: of the code that runs, whatever else is installed beside it."""

from typing import Final

VERSION: Final = "0.2.0"  # as pyproject.toml has it: `make version` writes both
