"""Files that may change while the process runs: what is news, what is used, and what can't be."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.settings.watched_file import UnusableFile, WatchedFile, known


class Reader:
    """Reader of a file that keeps what it read, and refuses what begins with `bad`."""

    def __init__(self, path: Path, patient: bool = False, again: bool = False) -> None:
        self.read: list[str] = []
        self.path = path
        self.again = again
        self.file = WatchedFile("list", self.use, path, patient=patient)

    def use(self) -> Mapping[str, object] | None:
        try:
            text = self.path.read_text()
        except OSError:
            raise UnusableFile("it is gone", self.again) from None
        if text.startswith("bad"):
            raise UnusableFile("it is bad", self.again)
        self.read.append(text)
        return {"length": len(text)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "list"
    path.write_text("one")
    return path


def test_another_content_is_used_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reader = Reader(path)
    assert [reader.file.look(), reader.file.look()] == [True, None]
    path.write_text("two")
    assert [reader.file.look(), reader.file.look()] == [True, None]
    assert reader.read == ["one", "two"]
    assert [record.message for record in caplog.records] == ["the list is read again"] * 2
    assert caplog.records[0].__dict__["length"] == 3


def test_what_is_noted_is_no_news(path: Path) -> None:
    reader = Reader(path)
    reader.file.note()
    assert reader.file.look() is None
    path.write_text("two")
    assert reader.file.look() is True


@pytest.mark.parametrize("patient", [False, True])
def test_what_was_there_at_the_start_is_no_news_and_what_came_since_is(path: Path, patient: bool) -> None:
    at_start = known(path)
    read: list[str] = []

    def use() -> None:
        read.append(path.read_text())

    file = WatchedFile("list", use, path, patient=patient, at_start=at_start)
    assert [file.look(), file.look()] == [None, None]
    path.write_text("two")
    assert [file.look() for _ in range(3)].count(True) == 1
    assert read == ["two"]


def test_another_file_or_time_with_the_content_of_before_is_no_news(path: Path) -> None:
    reader = Reader(path)
    reader.file.look()
    os.utime(path, (1, 1))
    assert reader.file.look() is None
    other = path.with_name("other")
    other.write_text("one")
    other.rename(path)
    assert reader.file.look() is None
    other.write_text("two")
    other.rename(path)
    assert reader.file.look() is True
    assert reader.read == ["one", "two"]


def test_who_asks_has_contents_compared_whatever_size_and_times_say(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.settings.watched_file._signature", lambda path: (1, 3, 0, 0))
    reader = Reader(path)
    reader.file.look()
    path.write_text("two")
    assert reader.file.look() is None
    reader.file.ask()
    assert [reader.file.look(), reader.file.look()] == [True, None]
    reader.file.ask()
    assert reader.file.look() is None, "nothing is new"
    assert reader.read == ["one", "two"]


def test_a_patient_look_waits_until_nobody_writes_any_more(path: Path) -> None:
    reader = Reader(path, patient=True)
    assert [reader.file.look(), reader.file.look()] == [None, True], "also the first time"
    for text in ("two, ", "two, thr"):
        path.write_text(text)
        assert reader.file.look() is None
    path.write_text("two, three")
    assert [reader.file.look(), reader.file.look(), reader.file.look()] == [None, True, None]
    assert reader.read == ["one", "two, three"]
    path.write_text("four")
    reader.file.ask()
    assert reader.file.look() is True, "who asks is done"


@pytest.mark.parametrize("spoil", ["bad", "gone"])
@pytest.mark.parametrize("again", [False, True])
def test_what_cannot_be_used_is_told_once_and_is_used_when_it_can(
    path: Path, spoil: str, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(path, again=again)
    reader.file.look()
    if spoil == "bad":
        path.write_text("bad")
    else:
        path.unlink()
    assert [reader.file.look() for _ in range(3)] == [False, *[False if again else None] * 2]
    [told] = caplog.records
    assert told.message == "the list can't be used: what it said before goes on"
    assert (told.levelname, told.__dict__["error"]) == ("ERROR", f"it is {spoil}")
    path.write_text("one")
    assert [reader.file.look(), reader.file.look()] == [True, None], "also what was good before"
    assert reader.read == ["one", "one"]


@pytest.mark.parametrize("again", [False, True])
def test_another_fault_is_told_too(path: Path, again: bool, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(path, again=again)
    path.write_text("bad")
    reader.file.look()
    path.unlink()
    reader.file.look()
    assert [record.__dict__["error"] for record in caplog.records] == ["it is bad", "it is gone"]


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = Reader(pipe)
    reader.file.note()
    reader.file.ask()
    assert reader.file.look() is None


def test_a_file_that_becomes_a_pipe_can_not_be_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(path)
    reader.file.note()
    path.unlink()
    os.mkfifo(path)
    assert [reader.file.look(), reader.file.look()] == [False, None]
    assert [record.__dict__["error"] for record in caplog.records] == ["it is no regular file"]
    path.unlink()
    path.write_text("two")
    assert reader.file.look() is True


def test_an_error_that_nobody_foresaw_leaves_it_unread(path: Path) -> None:
    fails = [ZeroDivisionError()]

    def use() -> None:
        if fails:
            raise fails.pop()

    file = WatchedFile("list", use, path)
    with pytest.raises(ZeroDivisionError):
        file.look()
    assert [file.look(), file.look()] == [True, None]


def test_files_that_are_used_together_are_news_together(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text("a")
    used: list[str] = []

    def use() -> None:
        used.append(one.read_text() + two.read_text())

    file = WatchedFile("pair", use, one, two)
    file.look()
    two.write_text("b")
    file.look()
    assert used == ["aa", "ab"]
