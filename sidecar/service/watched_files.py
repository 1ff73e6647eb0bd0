"""The files that a process looks at while it runs: tokens, certificate, passwords, policies, settings.

What somebody writes there counts within a second or two, without a restart; after SIGHUP at the next look, whatever
size and times of the file say. How a file is looked at is in `sidecar.settings.watched_file`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import KafkaException

from api.access.gate import Gate
from api.serving.certificate import Certificate
from policies.errors import PolicyError, PolicyFileError, PolicyStoreUnavailable
from policies.file import read_policies_file
from policies.kafka_clients import PASSWORD, USERNAME, change_password
from policies.model import Policy
from policies.topic.store import PolicyStore
from sidecar.doctor.about import About
from sidecar.model.reserved_topics import reserved_in
from sidecar.operations.dead_letters.reading import Reading
from sidecar.service.logs import set_level
from sidecar.service.operations.dead_letters import rules_of
from sidecar.settings.settings import Settings
from sidecar.settings.settings_file import SettingsFile, settings_file
from sidecar.settings.watched_file import FileSecret, Known, UnusableFile, WatchedFile

LOOK_S: Final = 1.0

log = logging.getLogger(__name__)


class WatchedFiles:
    """All of them, by the names that metrics show; `tell` hears of each that was read whether it can be used."""

    def __init__(self, files: Mapping[str, WatchedFile], tell: Callable[[str, bool], None]) -> None:
        self.names = tuple(files)
        self._files = files
        self._tell = tell
        for name in files:
            tell(name, True)

    def look(self, name: str) -> None:
        """Look at one of them, once."""
        is_good = self._files[name].look()
        if is_good is not None:
            self._tell(name, is_good)

    def ask(self) -> None:
        """Have the next look at each compare contents. A signal handler may call it."""
        for file in self._files.values():
            file.ask()


# --- passwords ----------------------------------------------------------------------------------------------------


def password_file(name: str, secret: FileSecret, use: Callable[[str], int]) -> WatchedFile:
    """The file of the password of `name`; `use` takes a new one and says how many clients were told."""
    known = secret.get_secret_value()

    def read() -> None:
        nonlocal known
        try:
            password = secret.now()
        except (OSError, ValueError) as error:  # the text of which may have some of the secret
            raise UnusableFile(type(error).__name__, again=True) from None
        if password != known:
            told = use(password)
            known = password
            log.info("the password of %s has changed", name, extra={"clients": told})

    return WatchedFile(f"password file of {name}", read, secret.path)


def password_files(settings: Settings) -> dict[str, WatchedFile]:
    """The files of passwords that were given by one."""
    files: dict[str, WatchedFile] = {}
    kafka, user = settings.kafka.client.get(PASSWORD), settings.kafka.client.get(USERNAME)
    if isinstance(kafka, FileSecret) and isinstance(user, str):
        former = kafka.get_secret_value()
        files["kafka"] = password_file("Kafka", kafka, lambda new: change_password(user, former, new))
    of_redis = {"redis": ("Redis", settings.redis.password), "sentinel": ("Sentinel", settings.redis.sentinel_password)}
    for name, (title, secret) in of_redis.items():
        if isinstance(secret, FileSecret):
            # Its clients read the file whenever they connect: here it is only told whether they can.
            files[name] = password_file(title, secret, lambda _: 0)
    return files


# --- policies -----------------------------------------------------------------------------------------------------


def read_policies(settings: Settings) -> tuple[Policy, ...]:
    """The policies of the file that the settings name. Raises PolicyFileError."""
    path = settings.policies.file
    policies = read_policies_file(path)
    for policy in policies:
        if what := reserved_in(policy, settings.reserved_topics):
            raise PolicyFileError(path, 0, 0, f"policy {policy.name} can't name such a topic: {what}")
    return policies


class PublishedFile(NamedTuple):
    """Where the policies file was published at the start, and the file as it was before."""

    store: PolicyStore
    at_start: Known


def policies_file(settings: Settings, published: PublishedFile) -> WatchedFile:
    """The policies file, whose policies are published when it changes. Half of one that is being written would delete
    the others, so that it is looked at patiently.
    """
    store = published.store

    def publish() -> Mapping[str, object] | None:
        try:
            policies, before = read_policies(settings), store.table
            is_new = store.publish_file(policies) is not before
        except (PolicyStoreUnavailable, KafkaException, TimeoutError) as error:
            raise UnusableFile(f"it can't be published yet: {error}", again=True) from None
        except PolicyError as error:
            raise UnusableFile(str(error)) from None
        return {"count": len(policies)} if is_new else None

    path = Path(settings.policies.file)
    return WatchedFile("policies file", publish, path, patient=True, at_start=published.at_start)


# --- all of them ------------------------------------------------------------------------------------------------------


class Live(NamedTuple):
    """Parts that take settings which change while the process runs."""

    letters: Reading
    about: About


def files_of(
    settings: Settings,
    source: SettingsFile | None,
    published: PublishedFile,
    gate: Gate,
    certificate: Certificate | None,
    live: Live,
) -> dict[str, WatchedFile]:
    """Every file that a process looks at, by name. What came by a pipe isn't among them."""
    files = password_files(settings)
    if gate.tokens is not None:
        files["tokens"] = gate.tokens.file
    if certificate is not None:
        files["certificate"] = certificate.file
    if settings.policies.file:
        files["policies"] = policies_file(settings, published)
    if source is not None:

        def use(running: Settings) -> None:
            set_level(running.log.level)
            gate.rate.resize(running.api.rate_limit, running.api.rate_burst)
            live.letters.rules = rules_of(running)
            live.about.settings = running

        files["settings"] = settings_file(settings, source, use)
    for name in [name for name, file in files.items() if file.is_stream]:
        log.info("the %s is no regular file: it isn't read again", files.pop(name).title)
    return files


def has_terminal() -> bool:
    """Whether the terminal from which the process came is there: SIGHUP says that it is gone, or that somebody asks."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
