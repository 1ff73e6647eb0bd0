"""Why a group can't be renamed. The text says what to do."""


class RenameError(Exception):
    """The rename has failed for a reason that may pass. Repeated, it goes on where it was."""


class RenameRefusedError(RenameError):
    """Something stands in the way that an operator must take away first. Nothing was changed by this try."""


class NoSuchGroupError(RenameError):
    """There is nothing under the old name."""
