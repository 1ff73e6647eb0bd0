"""Secrets in files, looked at while the process runs: tokens, and the passwords of Kafka and Redis.

What somebody writes there counts within about a second, without a restart. What can't be used changes nothing: a file
that is just being written, or is gone, leaves the secret as it was, and says so in the log and in a metric.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from policies.kafka_clients import PASSWORD, USERNAME, change_password
from sidecar.settings.settings import Settings
from sidecar.settings.watched_file import FileSecret, WatchedFile

LOOK_S: Final = 1.0

log = logging.getLogger(__name__)

Look = Callable[[], bool | None]  # None: nothing has changed; False: it has, and can't be used


class PasswordFile:
    """One password's file; `use` takes a new one and says how many clients were told."""

    def __init__(self, name: str, secret: FileSecret, use: Callable[[str], int]) -> None:
        self._name = name
        self._secret = secret
        self._file = WatchedFile(secret.path)
        self._use = use
        self._password = secret.get_secret_value()

    def look(self) -> bool | None:
        """Use what the file says, if that is new."""
        if not self._file.changed():
            return None
        try:
            password = self._secret.now()
        except (OSError, ValueError) as error:
            if self._file.unusable():
                extra = {"file": str(self._secret.path), "error": type(error).__name__}
                log.error("the password file of %s can't be used: the password stays", self._name, extra=extra)
            return False
        if password != self._password:
            told = self._use(password)
            self._password = password
            log.info("the password of %s has changed", self._name, extra={"clients": told})
        self._file.usable()
        return True


class SecretFiles:
    """Every file with secrets that the process looks at. `step` looks at each once; `tell` hears of each that was read,
    by name, whether it can be used.
    """

    def __init__(self, looks: Mapping[str, Look], tell: Callable[[str, bool], None]) -> None:
        self._looks = looks
        self._tell = tell
        for name in looks:
            tell(name, True)

    def step(self) -> None:
        for name, look in self._looks.items():
            is_good = look()
            if is_good is not None:
                self._tell(name, is_good)


def password_looks(settings: Settings) -> dict[str, Look]:
    """Looks at the passwords that were given by a file."""
    looks: dict[str, Look] = {}
    kafka, user = settings.kafka.client.get(PASSWORD), settings.kafka.client.get(USERNAME)
    if isinstance(kafka, FileSecret) and isinstance(user, str):
        former = kafka.get_secret_value()
        looks["kafka"] = PasswordFile("Kafka", kafka, lambda new: change_password(user, former, new)).look
    of_redis = {"redis": ("Redis", settings.redis.password), "sentinel": ("Sentinel", settings.redis.sentinel_password)}
    for name, (title, secret) in of_redis.items():
        if isinstance(secret, FileSecret):
            # Its clients read the file whenever they connect: here it is only told whether they can.
            looks[name] = PasswordFile(title, secret, lambda _: 0).look
    return looks
