"""The files that a process looks at: what each of them changes, and what one that can't be used leaves as it was."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from api.access.gate import Gate
from api.access.rate import RateLimit
from policies.errors import PolicyStoreUnavailable, PolicyTooLarge
from policies.file import read_policies_file
from policies.model import Policy
from policies.table import EMPTY_TABLE, PolicyTable
from sidecar.doctor.about import About
from sidecar.service import process as process_module
from sidecar.service import watched_files
from sidecar.service.metrics import Recorder
from sidecar.service.operations.dead_letters import rules_of
from sidecar.service.process import Process
from sidecar.service.watched_files import Live, PublishedFile, WatchedFiles, files_of, password_files, policies_file
from sidecar.settings.settings import Settings, load_settings
from sidecar.settings.settings_file import load_from
from sidecar.settings.watched_file import WatchedFile, known
from tests.unit.api_world import REMINDERS, RETRY

pytestmark = pytest.mark.usefixtures("logging_as_before")


def step(files: WatchedFiles) -> None:
    """One look at each."""
    for name in files.names:
        files.look(name)


def looks(file: WatchedFile, count: int = 3) -> list[bool | None]:
    return [file.look() for _ in range(count)]


# --- passwords ----------------------------------------------------------------------------------------------------


def test_a_file_that_changes_is_told_once_and_one_that_cannot_be_used_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, redis = tmp_path / "kafka", tmp_path / "redis"
    kafka.write_text("first\n")
    redis.write_text("one\n")
    settings = load_settings(
        environ={
            "TICKOVER_KAFKA__CLIENT__SASL_USERNAME": "file",
            "TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE": str(kafka),
            "TICKOVER_REDIS__URL": "redis://localhost",
            "TICKOVER_REDIS__PASSWORD_FILE": str(redis),
        }
    )
    told: list[tuple[str, str, str]] = []
    monkeypatch.setattr(watched_files, "change_password", lambda *login: told.append(login) or 1)
    heard: list[tuple[str, bool]] = []
    files = WatchedFiles(password_files(settings), lambda name, is_good: heard.append((name, is_good)))
    step(files)
    assert heard == [("kafka", True), ("redis", True)] * 2
    assert told == []
    heard.clear()
    step(files)
    assert heard == [], "nothing has changed"
    for broken in ("", "sec\0nd"):
        kafka.write_text(broken)
        step(files)
    kafka.unlink()
    step(files)
    assert heard == [("kafka", False)] * 3
    kafka.write_text("second\n")
    step(files)
    assert heard[3:] == [("kafka", True)]
    assert told == [("file", "first", "second")]
    redis.write_bytes(b"\xff")
    step(files)
    assert heard[4:] == [("redis", False)]


def test_the_file_of_the_sentinels_password_is_looked_at_too(tmp_path: Path) -> None:
    file = tmp_path / "sentinel"
    file.write_text("one\n")
    url = "redis+sentinel://localhost/held"
    settings = load_settings(environ={"TICKOVER_REDIS__URL": url, "TICKOVER_REDIS__SENTINEL_PASSWORD_FILE": str(file)})
    assert list(password_files(settings)) == ["sentinel"]


# --- policies -----------------------------------------------------------------------------------------------------


class Store:
    """A policy store that keeps what is published, and fails as it is told."""

    def __init__(self) -> None:
        self.table: PolicyTable = EMPTY_TABLE
        self.published: list[list[str]] = []
        self.failures: list[Exception] = []
        self.policies: tuple[Policy, ...] = ()

    def publish_file(self, policies: Iterable[Policy]) -> PolicyTable:
        if self.failures:
            raise self.failures.pop(0)
        wanted = tuple(policies)
        if wanted != self.policies:
            self.policies, self.table = wanted, PolicyTable(self.table.version + 1, {})
            self.published.append([policy.name for policy in wanted])
        return self.table


@pytest.fixture
def store() -> Store:
    return Store()


def written(path: Path, *documents: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump_all(documents))


def of_policies(path: Path, store: Any) -> WatchedFile:
    """The file of a process that has just read and published it."""
    settings = load_settings(environ={"TICKOVER_POLICIES__FILE": str(path)})
    store.publish_file(read_policies_file(path))
    return policies_file(settings, PublishedFile(store, known(path)))


def test_policies_are_published_when_their_file_changes(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "policies.yaml"
    written(path, REMINDERS)
    file = of_policies(path, store)
    assert looks(file) == [None, None, None], "what the start has read is no news"
    written(path, REMINDERS, RETRY)
    assert looks(file) == [None, True, None]
    assert store.published == [["reminders"], ["reminders", "orders-retry"]]


@pytest.mark.parametrize("broken", ["", "name: x", "{", "name: [", "---\n---"])
def test_a_faulty_policies_file_leaves_the_policies_and_says_its_line(
    broken: str, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policies.yaml"
    written(path, REMINDERS)
    file = of_policies(path, store)
    path.write_text(broken)
    assert looks(file) == [None, False, None]
    path.unlink()
    assert looks(file) == [None, False, None]
    assert store.published == [["reminders"]]
    assert [str(path) in record.__dict__["error"] for record in caplog.records] == [True, True]
    written(path, RETRY)
    assert looks(file) == [None, True, None]
    assert store.published[1:] == [["orders-retry"]]


def test_policies_that_cannot_be_published_yet_are_tried_again_and_those_that_never_will_be_are_not(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policies.yaml"
    written(path, REMINDERS)
    file = of_policies(path, store)
    store.failures = [PolicyStoreUnavailable("away"), PolicyStoreUnavailable("away")]
    written(path, REMINDERS, RETRY)
    assert looks(file, 5) == [None, False, False, True, None]
    assert len(caplog.records) == 1, "it is told once"
    store.failures = [PolicyTooLarge("too large"), PolicyTooLarge("too large")]
    written(path, RETRY)
    assert looks(file, 4) == [None, False, None, None]
    assert store.published == [["reminders"], ["reminders", "orders-retry"]]


def test_what_is_written_while_the_process_starts_is_waited_for(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "policies.yaml"
    written(path, REMINDERS, RETRY)
    file = of_policies(path, store)
    written(path, REMINDERS)
    assert file.look() is None, "half of a file that is being written"
    written(path, REMINDERS, RETRY, REMINDERS | {"name": "others"})
    assert looks(file) == [None, True, None]
    assert store.published == [["reminders", "orders-retry"], ["reminders", "orders-retry", "others"]]


# --- settings -----------------------------------------------------------------------------------------------------


class Running:
    """Parts of a process that change with its settings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loads = 0
        self.settings, source = load_from(path, self.load)
        self.gate = Gate(rate=RateLimit(self.settings.api.rate_limit, self.settings.api.rate_burst))
        self.letters: Any = SimpleNamespace(rules=rules_of(self.settings))
        self.recorder = Recorder()
        store: Any = Store()
        published = PublishedFile(store, known())
        letters: Any = self.letters
        self.about = About(self.settings)
        live = Live(letters, self.about)
        made = files_of(self.settings, source, published, self.gate, None, live)
        self.files = WatchedFiles(made, self.recorder.watched_file)

    def load(self) -> Settings:
        self.loads += 1
        return load_settings(self.path, {"group": "g"}, {"TICKOVER_API__RATE_BURST": "7"})

    def bad(self, name: str) -> float | None:
        return self.recorder.registry.get_sample_value("tickover_config_file_bad", {"file": name})


@pytest.fixture
def running(tmp_path: Path) -> Running:
    path = tmp_path / "tickover.yaml"
    path.write_text("{log: {level: info}, dead_letters: {mask: ['*card*']}}")
    return Running(path)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Texts of the errors in the log."""
    return [record.__dict__["error"] for record in caplog.records if record.levelname == "ERROR"]


def masks(running: Running, name: str) -> bool:
    return bool(running.letters.rules.masking.part(name, b"4711") == "***")


def test_settings_that_may_change_count_at_once(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().setLevel(logging.INFO)
    step(running.files)
    assert running.bad("settings") == 0
    assert caplog.records == []
    running.path.write_text(
        "{log: {level: debug}, api: {rate_limit: 1, rate_burst: 1}, dead_letters: {mask: [pin], scan_records: 123}}"
    )
    step(running.files)
    assert logging.getLogger().level == logging.INFO, "who writes it may not be done"
    step(running.files)
    assert logging.getLogger().level == logging.DEBUG
    assert (masks(running, "pin"), masks(running, "card"), running.letters.rules.limits.records) == (True, False, 123)
    waits = [running.gate.rate.wait_s("a", 0.0) for _ in range(8)]
    assert waits == [*[0.0] * 7, 1.0], "the burst of the environment is stronger, as at the start"
    [told] = caplog.records
    changed = ["api.rate_limit", "dead_letters.scan_records", "dead_letters.mask", "log.level"]
    assert (told.message, told.__dict__["settings"]) == ("the file of settings is read again", changed)


def test_settings_that_need_a_restart_are_named_and_stay(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    step(running.files)
    running.path.write_text(
        "{group: other, horizon: 5s, log: {level: error}, redis: {url: 'redis://localhost', password: geheim}}"
    )
    step(running.files)
    step(running.files)
    assert logging.getLogger().level == logging.ERROR
    [told] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert told.message == "settings have changed that need a restart"
    assert told.__dict__["settings"] == ["horizon", "redis.url", "redis.password"], "the group is a flag's"
    assert "geheim" not in caplog.text + str([record.__dict__ for record in caplog.records])


def test_a_faulty_file_of_settings_changes_nothing(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    step(running.files)
    running.path.write_text("{log: {level: debug}, api: {rate_limit: -1}, redis: {password: geheim}}")
    for _ in range(3):
        step(running.files)
    assert (running.bad("settings"), masks(running, "card")) == (1, True)
    assert logging.getLogger().level != logging.DEBUG
    [told] = caplog.records
    assert "api.rate_limit" in told.__dict__["error"]
    assert "geheim" not in str(told.__dict__)
    running.path.write_text("{log: {level: debug}}")
    step(running.files)
    step(running.files)
    assert (running.bad("settings"), logging.getLogger().level) == (0, logging.DEBUG)


def test_each_fault_of_a_file_of_settings_is_told_and_none_twice(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("{api: {rate_limit: -1}}", "{api: {rate_limit: 5}, log: {level: loud}}"):
        running.path.write_text(text)
        for _ in range(4):
            step(running.files)
    assert [("api.rate_limit" in text, "log.level" in text) for text in told(caplog)] == [(True, False), (False, True)]
    assert running.loads == 3, "at the start, and when it has changed"


def test_settings_whose_secret_cannot_be_read_count_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    path = tmp_path / "tickover.yaml"
    secret.write_text("geheim")
    text = f"{{redis: {{url: 'redis://localhost', password_file: {secret}}}, log: {{level: %s}}}}"
    path.write_text(text % "info")
    running = Running(path)
    secret.unlink()
    path.write_text(text % "error")
    for _ in range(4):
        running.files.look("settings")
    assert [str(secret) in text for text in told(caplog)] == [True]
    secret.write_text("geheim")
    running.files.look("settings")
    assert (running.bad("settings"), logging.getLogger().level) == (0, logging.ERROR)


@pytest.mark.parametrize("empty", ["", "# log: {level: debug}\n", "{}", "log:\napi: {}\n"])
def test_a_file_of_settings_that_was_emptied_takes_nothing_away(
    empty: str, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.path.write_text(empty)
    for _ in range(3):
        step(running.files)
    assert (running.bad("settings"), masks(running, "card")) == (1, True)
    assert told(caplog) == ["no setting in it any more; start again to run without"]
    running.path.write_text("{dead_letters: {mask: [pin]}}")
    for _ in range(2):
        step(running.files)
    assert (running.bad("settings"), masks(running, "pin")) == (0, True)


def test_a_file_of_settings_that_was_empty_may_stay_so_until_it_has_some(tmp_path: Path) -> None:
    path = tmp_path / "tickover.yaml"
    path.write_text("")
    running = Running(path)
    for text, bad in (("# nothing yet", 0), ("{dead_letters: {mask: [pin]}}", 0), ("", 1)):
        path.write_text(text)
        for _ in range(2):
            step(running.files)
        assert running.bad("settings") == bad
    assert masks(running, "pin")


def test_settings_that_came_by_a_pipe_are_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("{dead_letters: {mask: [card]}}",))
    writer.start()
    running = Running(pipe)
    writer.join()
    assert masks(running, "card")
    assert running.files.names == ()
    running.files.ask()
    step(running.files)
    assert running.loads == 1


# --- SIGHUP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "by_nohup", "stops"),
    [(True, True, False, False), (False, False, False, False), (True, False, False, True), (True, False, True, False)],
    ids=["in a terminal", "without one", "the terminal is gone", "the terminal of nohup is gone"],
)
def test_a_hangup_has_files_read_again_or_says_that_the_terminal_is_gone(
    before: bool, now: bool, by_nohup: bool, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[int, Callable[..., None]] = {}
    there, ended = [before], threading.Event()
    process: Any = Process(Settings().model_copy(update={"start_timeout_ms": 0}))
    process.start = ended.wait
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN if by_nohup else signal.SIG_DFL)
    monkeypatch.setattr(process_module, "abandon", lambda status: status)
    monkeypatch.setattr(process_module, "WATCH_S", 0.01)
    monkeypatch.setattr(process_module, "has_terminal", lambda: there[0])
    process.run()
    ended.set()
    asked: list[str] = []
    process._files = SimpleNamespace(names=(), ask=lambda: asked.append("again"))
    there[0] = now
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    assert (process._asked.is_set(), asked) == (stops, [] if stops else ["again"])


def test_who_asks_has_every_file_compared(running: Running) -> None:
    step(running.files)
    running.path.write_text("{log: {level: error}}")
    running.files.ask()
    step(running.files)
    assert logging.getLogger().level == logging.ERROR, "who asks is done with writing"
