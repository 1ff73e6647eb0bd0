"""Errors of policies; the type says what to do."""

from collections.abc import Sequence
from typing import Final

SHOWN_MAX: Final = 80  # characters of what was given
FAULTS_TOLD_MAX: Final = 20  # of one file or body; of more it is said how many there are


class PolicyError(Exception):
    """Anything this package refuses."""


class FormatError(PolicyError, ValueError):
    """A text is not what it should be. `problem` leaves the text itself out, so it may be logged."""

    def __init__(self, problem: str, given: object) -> None:
        shown = repr(given[:SHOWN_MAX] if isinstance(given, str | bytes) else given)
        super().__init__(f"{problem}: {shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 3] + '...'}")
        self.problem = problem


class PolicyFileError(PolicyError):
    """The policies file cannot be used. The message has a line for each fault, with file, line and column; `line`,
    `column` and `problem` are those of the first. `others` are the further ones.
    """

    def __init__(
        self, path: str, line: int, column: int, problem: str, others: Sequence["PolicyFileError"] = ()
    ) -> None:
        lines = [f"{path}:{line}:{column}: {problem}" if line else f"{path}: {problem}", *map(str, others)]
        untold = len(lines) - FAULTS_TOLD_MAX
        told = lines if untold <= 0 else [*lines[:FAULTS_TOLD_MAX], f"{path}: and {untold} more"]
        super().__init__("\n".join(told))
        self.path = path
        self.line = line
        self.column = column
        self.problem = problem
        self.others = tuple(others)

    def each(self) -> tuple["PolicyFileError", ...]:
        """One error for each fault."""
        return PolicyFileError(self.path, self.line, self.column, self.problem), *self.others


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
