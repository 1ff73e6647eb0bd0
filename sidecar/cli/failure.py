"""How a command ends when it does not succeed: one line on stderr and a status, never a traceback."""

from enum import IntEnum


class Status(IntEnum):
    """Exit statuses, as the contract has them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4


class Failure(Exception):
    """An expected end. The text says what is wrong and, where one can, what to do."""

    def __init__(self, text: str, status: Status = Status.FAILED) -> None:
        super().__init__(text)
        self.status = status
