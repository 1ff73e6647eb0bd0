"""Schedules that a process can't read: said everywhere, and written by a replica that can read them."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.doctor import kafka as doctor_kafka
from sidecar.doctor.facts import Severity
from sidecar.kafka.topic_follower import Apply
from sidecar.operations.jobs.transactional_sender import OutgoingRecord
from sidecar.operations.schedules.claim import KEY, LASTS_MS, Claim
from sidecar.operations.schedules.firing import Firing
from sidecar.operations.schedules.schedule import ScheduleRefused
from sidecar.operations.schedules.schedule_book import SCHEMA, claim_record
from sidecar.operations.schedules.store import ScheduleStore
from sidecar.settings.settings import Settings
from tests.unit.api_world import REMINDERS, World, problem
from tests.unit.api_world import world as api_world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.schedule_world import NOW_MS, TOPIC, MemoryFollower, MemorySchedules

NOWHERE = "America/Nowhere"


@pytest.fixture
def world() -> MemorySchedules:
    return MemorySchedules()


@pytest.fixture
def api() -> Iterator[World]:
    with api_world() as made:
        made.add(REMINDERS)
        made.sender.topics["push"] = 1
        yield made


class Replica:
    """One of several; `is_first`: it has the partition that makes it the first choice."""

    def __init__(self, world: MemorySchedules, is_first: bool, unread: str = "") -> None:
        self.is_first = is_first
        self.store: ScheduleStore = world.replica(unread)
        here = world.surroundings(self.store)
        self.firing = Firing(here._replace(owns=lambda: self.is_first))

    def step(self) -> None:
        self.store.catch_up()
        self.firing.step()


def run(world: MemorySchedules, *replicas: Replica, seconds: int) -> None:
    for _ in range(seconds):
        for replica in replicas:
            replica.step()
        world.now_ms += 1_000


def due(world: MemorySchedules, name: str) -> list[int]:
    """Seconds after the beginning of what is written for a schedule."""
    ids = [(dict(parcel.headers)["tickover-id"] or b"").decode() for parcel in world.topic.sent]
    return [(int(id.rpartition(":")[2]) - NOW_MS) // 1_000 for id in ids if id.startswith(f"schedule:{name}:")]


def late(world: MemorySchedules) -> list[int]:
    """Milliseconds by which records were written after their time, of those that were."""
    times = [int(dict(parcel.headers)["tickover-deliver-at"] or b"") for parcel in world.topic.sent]
    return [at_ms - due_ms for due_ms, at_ms in zip(times, world.topic.sent_ms, strict=True) if at_ms > due_ms]


def test_a_replica_that_can_read_it_takes_over_from_the_first_choice(world: MemorySchedules) -> None:
    world.put(name="odd")
    world.put(name="plain")
    first, other = Replica(world, True, unread="odd"), Replica(world, False)
    run(world, first, other, seconds=60)
    assert due(world, "odd") == list(range(5, 70, 5))
    assert due(world, "plain") == list(range(5, 70, 5))
    assert (first.firing.is_owner, other.firing.is_owner) == (False, True)
    assert late(world) == []


def test_of_several_that_can_read_it_one_goes_on_writing(world: MemorySchedules) -> None:
    world.put(name="odd")
    replicas = [Replica(world, True, unread="odd"), *(Replica(world, False) for _ in range(3))]
    run(world, *replicas, seconds=10)
    [writer] = [replica for replica in replicas if replica.firing.is_owner]
    tenures = world.topic.epochs["firing."]
    run(world, *replicas, seconds=60)
    assert writer.firing.is_owner
    assert world.topic.epochs["firing."] == tenures, "they took the right from each other"
    assert due(world, "odd") == list(range(5, 80, 5))


def test_when_its_writer_dies_the_first_choice_goes_on_with_all_others_in_time(world: MemorySchedules) -> None:
    world.put(name="odd")
    world.put(name="plain")
    first, other = Replica(world, True, unread="odd"), Replica(world, False)
    run(world, first, other, seconds=30)
    run(world, first, seconds=LASTS_MS // 1_000 + 1)
    assert first.firing.is_owner
    run(world, first, seconds=20)
    assert due(world, "plain") == list(range(5, 70, 5))
    assert late(world) == []
    run(world, first, other, seconds=10)
    assert due(world, "odd") == list(range(5, 80, 5))  # what was owed meanwhile comes late, once


def test_the_first_choice_writes_again_when_it_can_read_all(world: MemorySchedules) -> None:
    world.put(name="odd")
    first, other = Replica(world, True, unread="odd"), Replica(world, False)
    run(world, first, other, seconds=20)
    upgraded = Replica(world, True)
    run(world, upgraded, other, seconds=3)
    assert (upgraded.firing.is_owner, other.firing.is_owner) == (True, False)
    claims = len(world.topic.records)
    run(world, upgraded, other, seconds=60)
    assert (upgraded.firing.is_owner, other.firing.is_owner) == (True, False)
    assert due(world, "odd") == list(range(5, 95, 5))
    assert all(record.key != KEY for record in world.topic.records[claims + 3 :]), "it goes on about it"


def test_a_replica_that_can_read_no_more_than_the_first_choice_leaves_it_alone(world: MemorySchedules) -> None:
    world.put(name="odd")
    first, other = Replica(world, True, unread="odd"), Replica(world, False, unread="odd")
    run(world, first, other, seconds=20)
    assert (first.firing.is_owner, other.firing.is_owner) == (True, False)
    able = Replica(world, False)
    able.store.catch_up()
    assert able.store.unwritten() == {"odd"}


def test_without_such_schedules_nobody_claims_anything(world: MemorySchedules) -> None:
    world.put()
    run(world, Replica(world, True), Replica(world, False), seconds=20)
    assert all(record.key != KEY for record in world.topic.records)


def test_a_claim_of_a_clock_that_was_far_ahead_is_not_heeded(world: MemorySchedules) -> None:
    world.put()
    key, value = claim_record(Claim("somebody", (), NOW_MS + 3_600_000))
    world.topic.records += [
        OutgoingRecord(TOPIC, key, value),
        OutgoingRecord(TOPIC, key, b"{}"),
        OutgoingRecord(TOPIC, key, b"\xff"),
    ]
    first = Replica(world, True)
    run(world, first, seconds=5)
    assert first.firing.is_owner


def newer(world: MemorySchedules, name: str = "odd", **changes: Any) -> None:
    """A newer program has changed it."""
    world.put(name=name)
    document = json.loads(world.topic.records[-1].value or b"")
    text = json.dumps({**document, "schema": SCHEMA + 1, "version": 2, **changes})
    world.topic.records.append(OutgoingRecord(TOPIC, f"{name}/schedule".encode(), text.encode()))
    world.store.catch_up()


def foreign_zone(world: MemorySchedules, name: str = "odd") -> None:
    """A process that knows more time zones has written it."""
    world.put(name=name, value="secret")
    value = (world.topic.records[-1].value or b"").replace(b'"time_zone":"UTC"', f'"time_zone":"{NOWHERE}"'.encode())
    world.topic.records[-1] = world.topic.records[-1]._replace(value=value)
    fresh = world.replica()
    fresh.catch_up()
    world.store._book = fresh._book


def test_the_log_names_each_once(world: MemorySchedules, caplog: pytest.LogCaptureFixture) -> None:
    foreign_zone(world)
    firing = world.firing()
    with caplog.at_level(logging.WARNING):
        firing.step()
        firing.step()
    [said] = [record for record in caplog.records if "can't be read here" in record.message]
    assert (said.__dict__["schedule"], NOWHERE in said.__dict__["problem"]) == ("odd", True)


@pytest.mark.parametrize("changes", [{}, {"since": "of another shape"}, {"schedule": ["of another shape"]}])
def test_whatever_a_newer_program_wrote_is_known_to_be_there(world: MemorySchedules, changes: dict[str, Any]) -> None:
    newer(world, **changes)
    [known] = world.store.unread().values()
    assert known.unread is not None
    assert (known.version, "newer version" in known.unread.problem) == (2, True)
    with pytest.raises(ScheduleRefused, match="newer version"):
        world.put(2, name="odd")


def test_what_a_newer_program_has_deleted_is_gone(world: MemorySchedules) -> None:
    newer(world, schedule=None)
    assert world.store.unread() == {}
    assert world.store.get("odd").version == 2


@pytest.mark.parametrize(("write", "words"), [(foreign_zone, NOWHERE), (newer, "newer version")])
def test_rest_and_metrics_show_it_as_failing(api: World, write: object, words: str) -> None:
    assert callable(write)
    write(api.schedules)
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["name"], item["state"], item["next"], item["target"]) == ("odd", "failing", None, "push")
    assert words in item["problem"]
    assert "secret" not in json.dumps(item)
    one = api.call("GET", "/v1/schedules/odd")
    assert (one.status_code, one.json()) == (200, item)
    etag = one.headers["etag"]
    assert etag == f'"{item["version"]}"'
    [warning] = api.call("GET", "/readyz").json()["warnings"]
    assert words in warning

    kind = "schedule-of-newer-version" if write is newer else "schedule-unreadable"
    plain = {"name": "odd", "cron": "0 9 * * *", "target": "push"}
    refused = problem(api.call("PUT", "/v1/schedules/odd", json=plain, headers={"if-match": etag}), 409, kind)
    assert "upgrade" in refused["detail"]
    problem(api.call("DELETE", "/v1/schedules/odd", headers={"if-match": etag}), 409, kind)
    problem(api.call("GET", "/v1/schedules/odd/next"), 409, kind)
    problem(api.call("POST", "/v1/schedules/odd/rewind", json={"to": NOW_MS}, headers={"if-match": etag}), 409, kind)


def test_a_schedule_that_its_writer_cannot_read_is_failing_at_those_that_can(api: World) -> None:
    api.schedules.put(name="odd")
    run(api.schedules, Replica(api.schedules, True, unread="odd"), seconds=2)
    api.schedules.store.catch_up()
    [item] = api.call("GET", "/v1/schedules").json()["items"]
    assert (item["state"], "writes what schedules owe can't read it" in item["problem"]) == ("failing", True)


def test_the_command_line_lists_it(api: World) -> None:
    foreign_zone(api.schedules)
    assert NOWHERE in Terminal(api)("schedules", "list").stdout
    assert NOWHERE in Terminal(api)("schedules", "get", "odd").stdout


def test_doctor_names_it(world: MemorySchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign_zone(world)

    class Follower(MemoryFollower):
        def __init__(self, reader: object, topic: str, apply: Apply) -> None:
            super().__init__(world.topic, apply)

        def catch_up(self, seconds: float = 0.0) -> None:
            super().catch_up()

    monkeypatch.setattr(doctor_kafka, "TopicFollower", Follower)
    [finding] = doctor_kafka._schedules(Settings(), {})
    assert (finding.severity, finding.part, NOWHERE in finding.what) == (Severity.WARNING, "schedule odd", True)
