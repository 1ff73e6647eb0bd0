"""How data and progress are written: on a terminal, into a pipe, as JSON, line by line, as YAML."""

import io
import json
import sys
from typing import Any

import pytest
import yaml

from sidecar.cli.output import CELL_MAX, PROGRESS_S, Form, ProgressLine, show, show_items, show_pages
from sidecar.model.times import with_times

NOW_MS = 1_800_000_000_000
TEXT = "2027-01-15T08:00:00.000Z"
LONG = "x" * 3 * CELL_MAX
COLUMNS = ("name", "due")


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def documents(count: int) -> list[dict[str, Any]]:
    return [with_times({"name": f"n{n}\u2028\t", "due": NOW_MS}, "due") for n in range(count)]


def shown(capsys: pytest.CaptureFixture[str], data: Any, form: Form) -> str:
    show(data, form)
    return capsys.readouterr().out


def on_screen(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int = 80) -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, stream, screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    return screen


def test_json_has_both_times_and_people_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    [document] = documents(1)
    assert json.loads(shown(capsys, document, Form.JSON)) == document
    assert json.loads(shown(capsys, document, Form.JSONL)) == document
    assert yaml.safe_load(shown(capsys, {"a": [{"due": NOW_MS, "due_utc": TEXT}]}, Form.YAML)) == {"a": [{"due": TEXT}]}
    assert shown(capsys, with_times({"due": NOW_MS}, "due"), Form.TABLE) == f"due\t{TEXT}\n"


def test_a_line_of_json_for_each_item(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, documents(3), Form.JSONL).splitlines()
    assert [json.loads(line) for line in lines] == documents(3)


def test_in_a_pipe_cells_are_whole_and_stand_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "a\tb\nc", "due": None}, {"name": LONG, "due": [1, 2]}], Form.TABLE)
    heading, first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert (heading, first, second) == (["NAME", "DUE"], ["a\\tb\\nc", "-"], [LONG, "1, 2"])
    show({"a": {"b": LONG}, "c": True}, Form.TABLE)
    assert capsys.readouterr().out == f"a.b\t{LONG}\nc\ttrue\n"


def test_on_a_terminal_columns_are_aligned_and_long_cells_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch, "stdout", 3 * CELL_MAX)
    show([{"name": "a", "n": 1}, {"name": "bcd", "n": 22}], Form.TABLE)
    show({"long": LONG}, Form.TABLE)
    text = screen.getvalue()
    assert "\t" not in text
    assert text.count("x") == CELL_MAX - len("...")
    lines = text.splitlines()
    assert lines[1].index("1") == lines[2].index("22")


def pages(capsys: pytest.CaptureFixture[str], sizes: list[int], form: Form) -> str:
    items = documents(sum(sizes))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    show_pages((items[start : start + size] for start, size in zip(starts, sizes, strict=True)), dict, form, COLUMNS)
    return capsys.readouterr().out


@pytest.mark.parametrize("form", [Form.JSON, Form.JSONL, Form.YAML, Form.TABLE])
@pytest.mark.parametrize("sizes", [[], [0], [0, 2], [2, 0, 1, 0], [3]])
def test_pages_look_like_one_list(capsys: pytest.CaptureFixture[str], sizes: list[int], form: Form) -> None:
    told = pages(capsys, sizes, form)
    show_items(documents(sum(sizes)), dict, form, COLUMNS)
    assert told == capsys.readouterr().out


def test_a_page_is_written_before_the_next_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def given() -> Any:
        for item in documents(2):
            yield [item]
            assert str(item["name"][:2]) in capsys.readouterr().out

    for form in Form:
        show_pages(given(), dict, form, COLUMNS)


def test_progress_is_written_over_on_a_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch, "stderr")
    with ProgressLine() as progress:
        for done in range(3):
            progress.tell(f"{done} of 3 \x1b[2J{LONG}")
            assert f"{done} of 3" in screen.getvalue()
    written = screen.getvalue()
    assert "\x1b[2J" not in written
    assert "\x1b[2K" in written, "the line before is erased"
    assert all(len(line) < 200 for line in written.splitlines())
    assert written.rstrip("\r\n").endswith("\x1b[2K"), "and the last one, too"


def test_progress_elsewhere_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    time_s = 0.0
    with ProgressLine(lambda: time_s) as progress:
        for _ in range(40):
            time_s += PROGRESS_S / 10
            progress.tell(f"after {time_s} s")
    assert capsys.readouterr().err.splitlines() == [f"after {PROGRESS_S * n} s" for n in range(1, 5)]
