"""The topic of pauses: what every replica makes of it."""

import json

import pytest

from sidecar.model.condition import Pausable, Pause, PauseKind, Pauses, Switch, Switches
from sidecar.operations.pauses import store
from sidecar.operations.pauses.store import PausesUnavailable
from tests.unit.pause_world import MemoryPauses

MAIL = Pausable(PauseKind.TARGET, "mail")
TICK = Pausable(PauseKind.SCHEDULE, "tick/tock")
PAUSE = Pause("moving ✈", "me", 5, 70)
WRITTEN = '{"schema": 1, "reason": "moving ✈", "by": "me", "since": 5, "until": 70}'


def test_every_replica_knows_what_is_paused() -> None:
    world = MemoryPauses()
    other, told = world.another(), list[Pauses]()
    other.on_change(told.append)
    world.store.put(MAIL, PAUSE)
    world.store.put(TICK, PAUSE)
    assert dict(other.all()) == dict(told[-1]) == {MAIL: PAUSE, TICK: PAUSE}
    assert other.remove(MAIL)
    assert dict(world.store.all()) == {TICK: PAUSE} == dict(world.another().all())
    assert not world.store.remove(MAIL)
    assert told[0] == {}, "what it is told of doesn't change any more"


def test_the_record_is_as_it_was_published() -> None:
    world = MemoryPauses()
    world.store.put(MAIL, PAUSE)
    world.store.remove(MAIL)
    assert world.records == [(b"target/mail", WRITTEN.encode()), (b"target/mail", None)]


def test_a_pause_whose_time_is_over_is_none_and_goes_with_the_next_write() -> None:
    world = MemoryPauses()
    world.store.put(MAIL, PAUSE)
    assert world.store.is_paused(*MAIL)
    world.now_ms = 70
    assert not world.store.is_paused(*MAIL)
    assert world.store.alive() == {}
    assert world.store.ages_s() == {}
    assert not world.store.remove(MAIL)
    world.store.put(MAIL, PAUSE)
    world.store.put(TICK, PAUSE._replace(until_ms=-1))
    assert dict(world.another().all()) == {TICK: PAUSE._replace(until_ms=-1)}


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        (json.dumps({"schema": 2, "reason": "r", "why": {}}), Pause("r", "?", 0)),
        (json.dumps({"schema": 2, "reason": {"text": "r"}}), None),
        ("[]", None),
        ("\x00", None),
    ],
)
def test_what_this_version_can_not_read_pauses_all_the_same(value: str, pause: Pause | None) -> None:
    world = MemoryPauses()
    world.write(b"target/mail", value.encode())
    assert world.store.is_paused(*MAIL)
    if pause is not None:
        assert world.store.all()[MAIL] == pause


@pytest.mark.parametrize("key", [b"", b"target", b"target/", b"cluster/x", b"\xff"])
def test_what_is_no_pause_is_passed_over(key: bytes) -> None:
    world = MemoryPauses()
    world.write(key, WRITTEN.encode())
    assert not world.store.all()


def test_each_says_how_long_it_has_lasted() -> None:
    world = MemoryPauses(now_ms=4)
    world.store.put(MAIL, PAUSE)
    assert world.store.ages_s() == {MAIL: 0}, "by a clock that is behind the writer's"
    world.now_ms = 65
    assert world.store.ages_s() == {MAIL: 0.06}


def test_every_replica_hears_of_a_breaker_that_was_switched() -> None:
    world = MemoryPauses()
    other, told = world.another(), list[Switches]()
    other.on_switch(told.append)
    switches = [Switch(True, 5), Switch(False, 7)]
    for switch in switches:
        world.store.switch_breaker("mail", switch, "me")
    assert [dict(one) for one in told] == [{}, *({"mail": switch} for switch in switches)]
    assert world.records == [
        (b"breaker/mail", b'{"schema": 1, "by": "me", "at": 5, "to": "open"}'),
        (b"breaker/mail", b'{"schema": 1, "by": "me", "at": 7, "to": "closed"}'),
    ]
    assert not world.another().all(), "none of it is a pause"


def test_breakers_that_were_switched_long_ago_or_before_many_others_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, told = MemoryPauses(), list[Switches]()
    world.store.on_switch(told.append)
    world.store.switch_breaker("a", Switch(True, 0), "me")
    world.store.switch_breaker("b", Switch(False, store.SWITCH_KEPT_MS), "me")
    assert told[-1].keys() == {"a", "b"}
    world.store.switch_breaker("c", Switch(True, store.SWITCH_KEPT_MS + 1), "me")
    assert told[-1].keys() == {"b", "c"}
    monkeypatch.setattr(store, "SWITCHES_MAX", 2)
    world.store.switch_breaker("d", Switch(True, store.SWITCH_KEPT_MS + 2), "me")
    assert told[-1].keys() == {"c", "d"}


@pytest.mark.parametrize(
    "value", ["[]", "\x00", '{"schema": 2, "at": "noon", "to": "open"}', '{"at": 5, "to": "ajar"}']
)
def test_a_switch_that_can_not_be_read_closes(value: str) -> None:
    world, told = MemoryPauses(), list[Switches]()
    world.store.on_switch(told.append)
    world.write(b"breaker/mail", value.encode())
    assert told[-1] == {"mail": Switch(False, 0)}, "when it was written"


def test_without_kafka_a_write_says_so() -> None:
    world = MemoryPauses(is_away=True)
    for write in (
        lambda: world.store.put(MAIL, PAUSE), lambda: world.store.remove(MAIL), world.store.catch_up,
        lambda: world.store.switch_breaker("mail", Switch(True, 5), "me"),
    ):  # fmt: skip
        with pytest.raises(PausesUnavailable):
            write()
