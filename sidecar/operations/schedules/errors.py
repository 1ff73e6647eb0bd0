"""Errors of schedules; the type says what to do."""


class ScheduleConflict(Exception):
    """Somebody else was first: look at the schedule again and decide anew. `version` 0: there is none."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"schedule {name} is at version {version}")
        self.version = version


class ScheduleRefused(Exception):
    """There is no room for it. `type` is the last step of a problem's URI."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(detail)
        self.type = type


class SchedulesUnavailable(Exception):
    """The topic can't be read or written now."""
