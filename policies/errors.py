"""Errors of policies; the type says what to do."""

from collections.abc import Mapping
from typing import Any, Final

SHOWN_MAX: Final = 80  # characters of what was given


class PolicyError(Exception):
    """Anything this package refuses."""


class FormatError(PolicyError, ValueError):
    """A text is not what it should be. `problem` leaves the text itself out, so it may be logged."""

    def __init__(self, problem: str, given: object) -> None:
        shown = repr(given[:SHOWN_MAX] if isinstance(given, str | bytes) else given)
        super().__init__(f"{problem}: {shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 3] + '...'}")
        self.problem = problem


def words_of(error: Mapping[str, Any]) -> str:
    """Words of one of pydantic's errors without the input, which may be a payload or a secret: many see the words."""
    context = error.get("ctx") or {}
    if isinstance(cause := context.get("error"), FormatError):
        return cause.problem
    if "expected_tags" in context:  # pydantic's own words quote the one that was given
        return f"must be one of {context['expected_tags']}"
    return str(error["msg"]).removeprefix("Value error, ")


class PolicyFileError(PolicyError):
    """The policies file cannot be used; the message names the file, line and column."""

    def __init__(self, path: str, line: int, column: int, problem: str) -> None:
        super().__init__(f"{path}:{line}:{column}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.column = column
        self.problem = problem


class PolicyConflict(PolicyError):
    """Somebody else was first: read the policy again and decide anew."""

    def __init__(self, name: str, expected_version: int, current_version: int) -> None:
        super().__init__(f"policy {name} is at version {current_version}, not at {expected_version}")
        self.name = name
        self.expected_version = expected_version
        self.current_version = current_version


class FileManaged(PolicyError):
    """The policy comes from the policies file and changes only there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"policy {name} is managed by the policies file: change it there")
        self.name = name


class PolicyTooLarge(PolicyError):
    """The policy does not fit into one record of the policy topic."""


class TooManyPolicies(PolicyError):
    """There is no room for another policy: remove one first."""


class VersionUnknown(PolicyError):
    """The policy topic was not read that far in the time given."""


class NewerSchema(PolicyError):
    """The policy topic holds a record of a newer program: reading on would mean guessing."""

    def __init__(self, schema: int, offset: int) -> None:
        super().__init__(f"the record at offset {offset} has schema {schema} of a newer tickover: run the newer one")
        self.schema = schema
        self.offset = offset


class PolicyStoreUnavailable(PolicyError):
    """The policy topic cannot be read or written now; try again, or do what the message says."""
