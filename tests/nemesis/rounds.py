"""Faults of the rounds, and the times that are taken of it.

fault .... Kafka serves a plain client again .... every source partition is emitted from again
  |------- failover ------------|------------------- resumed ----------|
  |------- lasts (a cut, a freeze) -------| undone
                                          |-------- after ----|
"""

import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.nemesis.deployment import (
    BROKERS,
    GROUP_TOPIC,
    SIDECARS,
    SMALL_DISK,
    TRANSACTION_TOPIC,
    Deployment,
)
from tests.services.kafka_cluster import NODES
from tests.services.sidecar_process import now_ms
from tests.services.waiting import wait_until

CUT_S: Final = (6.0, 10.0)
MOMENT_S: Final = (2.0, 4.0)  # within a broker's session, which is 6 s here
FROZEN_S: Final = (9.0, 12.0)  # beyond it
FULL_S: Final = 60.0
ERROR_CHARACTERS_MAX: Final = 1_500


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and how it is undone: after `lasts_s`, or when there are emissions again. `harmed` are the brokers
    that the probe need not ask.
    """

    what: str
    undo: Callable[[], None]
    lasts_s: float = 0.0
    harmed: tuple[int, ...] = ()
    moves: bool = True  # Kafka has to find other leaders
    silence_ms: int = -1  # the longest in which Kafka served no plain client, where it was asked all the time


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to do harm, and what it needs."""

    do: Callable[[Deployment, random.Random], Fault]
    cuts: bool = False
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One round, in epoch ms; -1: there was no such moment."""

    kind: str
    what: str
    fault_ms: int
    served_ms: int = -1
    resumed_ms: int = -1
    undone_ms: int = -1
    after_ms: int = -1
    end_ms: int = -1
    silence_ms: int = -1  # as of `Fault`
    lasting: bool = False  # undone after a time of its own, not when there were emissions again
    sidecars_ended: int = 0
    error: str = ""


def wait_for(seconds: float) -> None:
    """Let a fault last. Nothing signals that it has lasted long enough."""
    threading.Event().wait(seconds)


# --- brokers ------------------------------------------------------------------------------------------------------


def _killed(place: Deployment, number: int, role: str) -> Fault:
    node = place.node(number)
    node.kill()
    return Fault(f"broker {number}, {role}, killed", node.start, harmed=(number,))


def leader_killed(place: Deployment, chance: random.Random) -> Fault:
    return _killed(place, place.busiest(), "leader of most partitions")


def group_coordinator_killed(place: Deployment, chance: random.Random) -> Fault:
    return _killed(place, place.coordinator(GROUP_TOPIC), "the group's coordinator")


def transaction_coordinator_killed(place: Deployment, chance: random.Random) -> Fault:
    return _killed(place, place.coordinator(TRANSACTION_TOPIC), "the transactions' coordinator")


def controller_killed(place: Deployment, chance: random.Random) -> Fault:
    return _killed(place, place.controller(), "the controller")


def _frozen(place: Deployment, number: int, role: str, seconds: float) -> Fault:
    place.cluster.pause(number)
    what = f"broker {number}, {role}, frozen for {seconds:.1f} s"
    return Fault(what, lambda: place.cluster.resume(number), seconds, (number,))


def leader_frozen_for_a_moment(place: Deployment, chance: random.Random) -> Fault:
    return _frozen(place, place.busiest(), "leader of most partitions", chance.uniform(*MOMENT_S))


def leader_frozen(place: Deployment, chance: random.Random) -> Fault:
    return _frozen(place, place.busiest(), "leader of most partitions", chance.uniform(*FROZEN_S))


def coordinator_frozen(place: Deployment, chance: random.Random) -> Fault:
    number = place.coordinator(TRANSACTION_TOPIC)
    return _frozen(place, number, "the transactions' coordinator", chance.uniform(*FROZEN_S))


def brokers_restarted(place: Deployment, chance: random.Random) -> Fault:
    """In order, each when the one before is in sync again: as operators do it."""
    order, since_ms = chance.sample(range(1, NODES + 1), NODES), now_ms()
    with place.probe.looking(place.others(), on=True) as probe:
        for number in order:
            place.node(number).stop()
            place.node(number).start()
            place.wait("whole")
        silence_ms = probe.longest_silence_ms(since_ms)
    what = f"brokers {', '.join(map(str, order))} restarted in order"
    return Fault(what, lambda: None, moves=False, silence_ms=silence_ms)


def disk_full(place: Deployment, chance: random.Random) -> Fault:
    """A broker whose only log directory fails ends itself."""
    place.fill_disk()
    wait_until(lambda: place.has_ended(SMALL_DISK), FULL_S, lambda: "the broker lives on a full disk")

    def undo() -> None:
        place.empty_disk()
        place.node(SMALL_DISK).kill()
        place.node(SMALL_DISK).start()

    return Fault(f"broker {SMALL_DISK}, its disk full, ended itself", undo, harmed=(SMALL_DISK,))


# --- links --------------------------------------------------------------------------------------------------------


def _cut(place: Deployment, links: list[tuple[str, str]], what: str, seconds: float, moves: bool) -> Fault:
    for source, sink in links:
        place.network.cut(source, sink)
    return Fault(f"{what}, cut for {seconds:.1f} s", place.network.mend, seconds, moves=moves)


def brokers_cut_both_ways(place: Deployment, chance: random.Random) -> Fault:
    one, other = chance.sample(BROKERS, 2)
    links = [(one, other), (other, one)]
    return _cut(place, links, f"{one} and {other}", chance.uniform(*CUT_S), moves=True)


def brokers_cut_one_way(place: Deployment, chance: random.Random) -> Fault:
    source, sink = chance.sample(BROKERS, 2)
    return _cut(place, [(source, sink)], f"{source} to {sink}", chance.uniform(*CUT_S), moves=True)


def leader_isolated(place: Deployment, chance: random.Random) -> Fault:
    """From the other brokers, both ways: clients still reach it."""
    number = place.busiest()
    name = BROKERS[number - 1]
    links = [link for other in BROKERS if other != name for link in ((name, other), (other, name))]
    fault = _cut(place, links, f"{name}, leader of most partitions, and both others", chance.uniform(*FROZEN_S), True)
    return Fault(fault.what, fault.undo, fault.lasts_s, (number,))


def sidecar_cut_both_ways(place: Deployment, chance: random.Random) -> Fault:
    sidecar, broker = chance.choice(SIDECARS), chance.choice(BROKERS)
    links = [(sidecar, broker), (broker, sidecar)]
    return _cut(place, links, f"{sidecar} and {broker}", chance.uniform(*CUT_S), moves=False)


def sidecar_cut_one_way(place: Deployment, chance: random.Random) -> Fault:
    source, sink = chance.sample((chance.choice(SIDECARS), chance.choice(BROKERS)), 2)
    return _cut(place, [(source, sink)], f"{source} to {sink}", chance.uniform(*CUT_S), moves=False)


RESTARTED: Final = "brokers restarted in order"
LEADER_KILLED: Final = "leader killed"
KINDS: Final[dict[str, Kind]] = {
    RESTARTED: Kind(brokers_restarted),
    LEADER_KILLED: Kind(leader_killed),
    "group coordinator killed": Kind(group_coordinator_killed),
    "transaction coordinator killed": Kind(transaction_coordinator_killed),
    "controller killed": Kind(controller_killed),
    "leader frozen for a moment": Kind(leader_frozen_for_a_moment),
    "leader frozen": Kind(leader_frozen),
    "transaction coordinator frozen": Kind(coordinator_frozen),
    "disk full": Kind(disk_full, fills=True),
    "broker and broker cut both ways": Kind(brokers_cut_both_ways, cuts=True),
    "broker to broker cut one way": Kind(brokers_cut_one_way, cuts=True),
    "leader isolated from brokers": Kind(leader_isolated, cuts=True),
    "sidecar and broker cut both ways": Kind(sidecar_cut_both_ways, cuts=True),
    "sidecar and broker cut one way": Kind(sidecar_cut_one_way, cuts=True),
}


def possible(place: Deployment) -> list[str]:
    """The kinds that can be done here."""
    return [
        name
        for name, kind in KINDS.items()
        if (place.network.can_cut or not kind.cuts) and (place.can_fill or not kind.fills)
    ]


# --- a round ------------------------------------------------------------------------------------------------------


def play(place: Deployment, kind: str, chance: random.Random) -> Round:
    """Do it, wait until all is as before, and tell the times."""
    place.wait("whole")
    place.wait("flowing")
    ended = len(place.ended)
    fault_ms = now_ms()
    try:
        fault = KINDS[kind].do(place, chance)
        served_ms, undone_ms = _undo(place, fault)
        resumed_ms = place.wait_until_emitting(served_ms) if served_ms >= 0 else -1
        if undone_ms < 0:
            fault.undo()
            undone_ms = now_ms()
        after_ms = place.wait_until_emitting(undone_ms)
        place.wait("whole")
        place.wait("flowing")
        what = "; ".join([fault.what, *place.ended[ended:]])
        return Round(
            kind, what, fault_ms, served_ms, resumed_ms, undone_ms, after_ms, now_ms(), fault.silence_ms,
            bool(fault.lasts_s) or not fault.moves, len(place.ended) - ended,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - whatever it was, the table shows it and the run goes on
        traceback.print_exc()
        place.heal()
        words = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        return Round(kind, "", fault_ms, end_ms=now_ms(), sidecars_ended=len(place.ended) - ended, error=words)


def _undo(place: Deployment, fault: Fault) -> tuple[int, int]:
    """When Kafka served again, and when the fault was undone; -1: it wasn't asked, or isn't undone yet."""
    if not fault.moves:
        wait_for(fault.lasts_s)
        fault.undo()
        return -1, now_ms()
    with place.probe.looking(place.others(*fault.harmed)) as probe:
        undone_ms = -1
        if fault.lasts_s:
            wait_for(fault.lasts_s)
            fault.undo()
            undone_ms = now_ms()
        return probe.wait_until_served(), undone_ms
