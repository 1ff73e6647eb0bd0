"""Report of the nemesis: rows, goals, violations, and what is missing where links can't be cut."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from tests.nemesis import network
from tests.nemesis.judge import Times, share_of
from tests.nemesis.report import Run, goals, goals_table, read, rounds_table, row
from tests.nemesis.rounds import KINDS, LEADER_KILLED, RESTARTED, Round
from tests.services.oracle import Verdict

GOOD = Verdict(sent=10, arrived=10, lost=0, early=0, changed=0, repeated=0, late_ms_median=1, late_ms_most=9, faults=())
TIMES = Times(due=10, lost=0, repeated=0, early=0, late_ms_p99=800, late_ms_most=9_000, written_late_ms_most=8_000)
KILLED = Round(LEADER_KILLED, "broker 1 killed", 1_000, 8_000, 9_500, 9_600, 9_700, 20_000)
CUT_KIND = next(name for name, kind in KINDS.items() if kind.cuts)
CUT = Round(CUT_KIND, "cut for 8 s", 1_000, 9_100, 9_200, 9_000, 12_000, 20_000, lasting=True)


def run_of(*rounds: Round, verdict: Verdict = GOOD) -> Run:
    return Run(1, 10.0, 100, "", tuple(row(one, TIMES) for one in rounds), verdict)


def test_times_are_told_from_the_fault_and_from_its_end() -> None:
    killed, cut = run_of(KILLED, CUT).rows
    assert (killed.failover_s, killed.resumed_s, killed.lasted_s, killed.after_s) == (7.0, 1.5, None, None)
    assert (cut.failover_s, cut.lasted_s, cut.after_s) == (8.1, 8.0, 3.0)
    restarted = row(Round(RESTARTED, "", 1_000, undone_ms=31_000, after_ms=31_100, silence_ms=700, lasting=True), TIMES)
    assert (restarted.failover_s, restarted.lasted_s, restarted.late_s_p99) == (0.7, 30.0, 0.8)


def test_a_goal_is_met_by_the_worst_of_its_rounds_or_by_none() -> None:
    slow = replace(KILLED, resumed_ms=12_000)
    restarted, emissions, latest, whole = goals(run_of(KILLED, slow, CUT).rows)
    assert (restarted.met, restarted.worst_s) == (None, None)
    assert (emissions.met, emissions.worst_s) == (False, 4.0)
    assert (latest.met, latest.worst_s) == (True, 9.0)
    assert (whole.met, whole.worst_s) == (True, 3.0)
    assert "| 4.0 s | no |" in goals_table([emissions])
    assert "|  | not tried |" in goals_table([restarted])


def test_a_violation_shows() -> None:
    assert not run_of(KILLED).violated
    assert run_of().violated, "nothing was tried"
    assert run_of(replace(KILLED, error="AssertionError: no emissions")).violated
    wrong = (replace(GOOD, lost=1), replace(GOOD, early=1), replace(GOOD, changed=1), replace(GOOD, repeated=1))
    assert all(run_of(KILLED, verdict=verdict).violated for verdict in wrong)


def test_a_run_is_read_as_it_was_written() -> None:
    result = run_of(KILLED, CUT)
    assert read(json.loads(json.dumps(result.document()))) == result


def test_what_went_wrong_stands_in_its_row() -> None:
    text = rounds_table(run_of(replace(KILLED, error="AssertionError: no emissions\nmore", sidecars_ended=1)).rows)
    assert "broke off: AssertionError: no emissions |" in text
    assert "broker 1 killed; started again; broke off" in text


def test_the_share_of_the_latest_is_left_out() -> None:
    assert share_of(list(range(100)), 0.99) == 99
    assert share_of([*range(1_000)], 0.99) == 990
    assert share_of([], 0.99) == 0


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert "need root" in network.missing()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "ip" else f"/sbin/{program}")
    assert "install iproute2" in network.missing()
    monkeypatch.setattr(shutil, "which", lambda program: f"/sbin/{program}")

    def refuse(*command: str) -> str:
        raise network.NetworkUnavailableError(f"{' '.join(command)}: Operation not permitted")

    monkeypatch.setattr(network, "run", refuse)
    assert "refuses network namespaces: ip netns add" in network.missing()
    with pytest.raises(network.NetworkUnavailableError, match="refuses"):
        network.Namespaces(("one",))


def test_without_a_network_no_link_can_be_cut() -> None:
    loopback = network.Loopback()
    assert (loopback.address("broker-1"), loopback.prefix("broker-1")) == ("127.0.0.1", ())
    with pytest.raises(network.NetworkUnavailableError):
        loopback.cut("broker-1", "broker-2")
