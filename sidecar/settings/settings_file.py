"""The file of settings, read at the start and looked at while the process runs."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from sidecar.settings.live import differences, with_live
from sidecar.settings.loading import ConfigError, gather
from sidecar.settings.settings import Settings
from sidecar.settings.watched_file import Known, UnusableFile, WatchedFile, is_stream, known

log = logging.getLogger(__name__)

Load = Callable[[], Settings]


class SettingsFile(NamedTuple):
    """Where settings came from. `load` reads them all again, flags and environment over the file as at the start, and
    raises ConfigError. `at_start`: the file as it was before it was read; `had_some`: there was a setting in it.
    """

    path: Path
    load: Load
    at_start: Known
    had_some: bool


def load_from(path: Path | None, load: Load) -> tuple[Settings, SettingsFile | None]:
    """The settings, and the file that some of them came from. Raises ConfigError."""
    if path is None:
        return load(), None
    at_start = known(path)
    settings = load()
    had_some = not is_stream(path) and _has_some(path)  # a pipe has been read
    return settings, SettingsFile(path, load, at_start, had_some)


def _has_some(path: Path) -> bool:
    """Whether the file has a setting. Raises ConfigError."""
    return bool(gather(Settings, path, {}, {}).leaves)


def _with_origins(running: Settings, before: Settings, wanted: Settings) -> Settings:
    """The settings that run now; of those that have changed the origin is that of what was wanted."""
    origins = dict(running.origins)
    for name in differences(before, running):
        origins.pop(name, None)
        if name in wanted.origins:
            origins[name] = wanted.origins[name]
    return running.with_origins(origins)


def settings_file(settings: Settings, source: SettingsFile, use: Callable[[Settings], None]) -> WatchedFile:
    """The file of settings. Those that may change while the process runs are given to `use`, among all others as they
    were; of the others a warning says that they need a restart. A file that was emptied is refused: it would take masks
    and limits away.
    """
    running, had_some = settings, source.had_some

    def read() -> Mapping[str, object] | None:
        nonlocal running, had_some
        try:
            wanted, has_some = source.load(), _has_some(source.path)
        except ConfigError as error:
            raise UnusableFile(str(error), again=error.is_unread) from None
        if had_some and not has_some:
            raise UnusableFile("no setting in it any more; start again to run without")
        had_some = has_some
        before = running
        running = _with_origins(with_live(before, wanted), before, wanted)
        if restart := differences(running, wanted):
            log.warning("settings have changed that need a restart", extra={"settings": restart})
        changed = differences(before, running)
        if not changed:
            return None
        use(running)
        return {"settings": changed}

    return WatchedFile("file of settings", read, source.path, patient=True, at_start=source.at_start)
