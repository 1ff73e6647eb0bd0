"""A name kept over restarts and shared with nobody."""

import subprocess
import sys
from pathlib import Path

from sidecar.kafka.transactions import take_slot


def test_a_name_is_kept_over_restarts(tmp_path: Path) -> None:
    first = take_slot(tmp_path / "slots")
    first.close()
    first.close()
    again = take_slot(tmp_path / "slots")
    assert again.name == first.name
    assert len(again.name) == 16
    again.close()


def test_two_at_once_have_different_names(tmp_path: Path) -> None:
    first, second = take_slot(tmp_path), take_slot(tmp_path)
    assert first.name != second.name
    first.close()
    third = take_slot(tmp_path)
    assert third.name == first.name
    second.close()
    third.close()


def test_a_killed_process_leaves_its_name_to_the_next(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path; from sidecar.kafka.transactions import take_slot
import os; print(take_slot(Path({str(tmp_path)!r})).name, flush=True); os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -9
    successor = take_slot(tmp_path)
    assert successor.name == ended.stdout.strip()
    successor.close()


def test_a_damaged_file_gets_a_new_name(tmp_path: Path) -> None:
    (tmp_path / "slot-0").write_bytes(b"\xff\x00 no name")
    slot = take_slot(tmp_path)
    assert slot.name.isalnum()
    assert (tmp_path / "slot-0").read_bytes()[:16] == slot.name.encode()
    slot.close()


def test_where_nothing_can_be_written_a_name_serves_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory", encoding="utf-8")
    slot = take_slot(blocked / "slots")
    assert len(slot.name) == 16
    assert slot.name != take_slot(blocked / "slots").name


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    slot = take_slot(tmp_path)
    assert (tmp_path / "slot-0").stat().st_mode & 0o077 == 0
    slot.close()
