"""The file of settings, read at the start and looked at while the process runs."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sidecar.settings.live import differences, with_live
from sidecar.settings.loading import ConfigError
from sidecar.settings.settings import Settings
from sidecar.settings.watched_file import Known, UnusableFile, WatchedFile, known

log = logging.getLogger(__name__)

Load = Callable[[], Settings]


class SettingsFile(NamedTuple):
    """Where settings came from. `load` reads them all again, flags and environment over the file as at the start, and
    raises ConfigError. `at_start`: the file as it was before it was read.
    """

    path: Path
    load: Load
    at_start: Known


def load_from(path: Path | None, load: Load) -> tuple[Settings, SettingsFile | None]:
    """The settings, and the file that some of them came from. Raises ConfigError."""
    if path is None:
        return load(), None
    at_start = known(path)
    return load(), SettingsFile(path, load, at_start)


def settings_file(settings: Settings, source: SettingsFile, use: Callable[[Settings], None]) -> WatchedFile:
    """The file of settings. Those that may change while the process runs are given to `use`, among all others as they
    were; of the others a warning says that they need a restart.
    """
    running = settings

    def read() -> Mapping[str, object] | None:
        nonlocal running
        try:
            wanted = source.load()
        except ConfigError as error:
            raise UnusableFile(str(error), again=error.is_unread) from None
        before, running = running, with_live(running, wanted)
        if restart := differences(running, wanted):
            log.warning("settings have changed that need a restart", extra={"settings": restart})
        changed = differences(before, running)
        if not changed:
            return None
        use(running)
        return {"settings": changed}

    return WatchedFile("file of settings", read, source.path, patient=True, at_start=source.at_start)
