"""A group gets another name while it holds records in memory and in Redis: each fires once, also over kills."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import pytest
from confluent_kafka import Message

from sidecar.cli.group import clients_of
from sidecar.ledger.block import Block, decode
from sidecar.operations.renaming.errors import RenameError
from sidecar.operations.renaming.group_topics import group_topics
from sidecar.operations.renaming.renaming import Rename
from sidecar.operations.renaming.topic_copy import NOTHING, copied_from
from sidecar.overflow.connection import connect
from sidecar.settings.settings import load_settings
from tests.integration.conftest import NewSite
from tests.services.oracle import Traffic
from tests.services.sidecar_process import START_S, Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until
from tests.source import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:list_groups:DeprecationWarning"),  # the other call may abort the process
]

RATE: Final = 200
DELAY_MAX_MS: Final = 20_000
HELD: Final = 1_000
KILLS_MIN: Final = 12  # the steps that the command tells of are more
RENAMED_S: Final = 120.0
MARKED: Final = 4  # kills after which both groups are
REMINDERS: Final = """
---
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 1s, max: 1d}
target: {allow: ["~mail"]}
"""


class Killed(BaseException):
    """Nothing of the command catches it: what was under way stays as it is."""


class Renaming:
    """The command, in this process, where it can be killed at each of its steps."""

    def __init__(self, sidecar: Sidecar, old: str, new: str) -> None:
        environment = {name: text for name, text in sidecar.settings.items() if name != "TICKOVER_GROUP"}
        self.old, self.new = (load_settings(environ={**environment, "TICKOVER_GROUP": group}) for group in (old, new))
        self.steps: list[str] = []
        self._left = 0

    def run(self, steps: int) -> None:
        """Up to so many steps."""
        self.steps, self._left = [], steps
        with self._rename() as rename:
            rename.run()

    def wait_until_possible(self) -> None:
        """Until nobody is a member, and no transaction is open."""
        wait_until(self._is_possible, RENAMED_S)

    def _is_possible(self) -> bool:
        try:
            with self._rename() as rename:
                rename.look()
        except RenameError:
            return False
        return True

    @contextmanager
    def _rename(self) -> Iterator[Rename]:
        redis = connect(self.new.redis.url)
        try:
            yield Rename(
                self.old, self.new, clients_of(self.new, redis, lambda *place: self._step(str(place))), self._step
            )
        finally:
            redis.close()

    def _step(self, words: str) -> None:
        self.steps.append(words)
        self._left -= 1
        if self._left == 0:
            raise Killed

    def run_with_kills(self, between: Callable[[int], None]) -> int:
        """To its end, killed after one more step each time; returns the number of kills."""
        kills = 0
        while True:
            try:
                self.run(kills + 1)
            except Killed:
                kills += 1
                between(kills)
            else:
                return kills


def command(sidecar: Sidecar, old: str, new: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The command as its users run it."""
    line = [sys.executable, "-m", "sidecar", "group", "rename", old, new, *options]
    others = {name: text for name, text in os.environ.items() if not name.startswith("TICKOVER_")}
    settings = {**others, **sidecar.settings}
    return subprocess.run(line, env=settings, cwd=ROOT, capture_output=True, text=True, timeout=RENAMED_S, check=False)


def overflow(sidecar: Sidecar) -> int:
    return sum(counts["held"]["overflow"] for counts in sidecar.stats()["topics"].values())


def send(sidecar: Sidecar, site: Site, id: str) -> dict[str, Any]:
    body = {"source": site.name("reminders"), "target": site.name("mail"), "id": id, "value": id, "delay": "10h"}
    headers = {"Idempotency-Key": f"key of {id}"}
    answer = sidecar.answer("POST", "/v1/messages", json=body, headers=headers)
    assert answer.is_success, answer.text
    document: dict[str, Any] = answer.json()
    return document


def refused(sidecar: Sidecar) -> None:
    """Start the sidecar, which ends by itself and names the command that must be run to its end."""
    sidecar.launch()
    wait_until(lambda: "tickover group rename" in sidecar.last_words(), START_S, sidecar.last_words)
    assert sidecar.wait_until_ended() == 1


def assert_copied(site: Site, renaming: Renaming) -> None:
    """Each topic's copy has each of its records once, in their order; blocks differ in the group alone."""
    for topic in group_topics(renaming.old, renaming.new):
        before, after = ([*site.kafka.read_all(name)] for name in (topic.old, topic.new))
        for partition in {message.partition() for message in before}:
            records, copies = ([one for one in some if one.partition() == partition] for some in (before, after))
            assert [copied_from(one) for one in copies] == [one.offset() for one in records]
            assert [one.key() for one in copies] == [one.key() for one in records]
    ledgers = (site.kafka.read_all(one.ledger_topic) for one in (renaming.old, renaming.new))
    blocks, copied = (sorted(map(block_of, ledger), key=itemgetter(0)) for ledger in ledgers)
    assert len(blocks) > 0
    assert copied == [(place, replace(block, group=renaming.new.group)) for place, block in blocks]


def block_of(message: Message) -> tuple[tuple[int, int], Block]:
    """By where it was in the old ledger."""
    place = copied_from(message)
    return (message.partition() or 0, (message.offset() or 0) if place == NOTHING else place), decode(message.value())


def verdict_of(traffic: Traffic, sidecar: Sidecar) -> None:
    traffic.quieten()
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stats()["rebuild"]["finished"] == 0  # Redis was taken over as it was
    assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"\n{verdict}")
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)


@pytest.fixture
def site(new_site: NewSite) -> Site:
    site = new_site()
    Traffic.prepare(site, 2, REMINDERS)
    site.topic("reminders")
    site.target("mail")
    return site


def test_killed_at_every_step_and_repeated_it_loses_and_repeats_nothing(site: Site) -> None:
    old, new = site.group, f"{site.group}.new"
    before, after = site.sidecar("before"), site.sidecar("after", GROUP=new)
    traffic = Traffic(site, partitions=2, rate=RATE, delay_max_ms=DELAY_MAX_MS)
    before.start()
    cron = {"cron": "0 0 1 1 *", "target": site.name("mail"), "source": site.name("reminders")}
    assert before.answer("PUT", "/v1/schedules/yearly", json=cron, headers={"If-None-Match": "*"}).is_success
    asked = send(before, site, "far")
    schedule = before.answer("GET", "/v1/schedules/yearly").json()
    traffic.start()
    wait_until(lambda: overflow(before) >= HELD, START_S, before.last_words)
    assert command(before, old, new).returncode == 4, "its processes run"
    before.kill()

    renaming = Renaming(before, old, new)
    renaming.wait_until_possible()  # what the killed process left open has ended

    def between(kills: int) -> None:
        if kills == MARKED:
            refused(before)
            refused(after)
            renaming.wait_until_possible()

    kills = renaming.run_with_kills(between)
    assert kills >= KILLS_MIN, renaming.steps
    assert_copied(site, renaming)
    again = command(before, old, new)
    assert (again.returncode, "already" in again.stderr) == (0, True), again.stderr
    refused(before)

    after.start()
    assert after.answer("GET", "/v1/messages/far").json()["state"] == "held"
    assert send(after, site, "far") == asked
    assert after.answer("GET", "/v1/schedules/yearly").json() == schedule
    assert after.answer("POST", "/v1/messages/far/fire").is_success
    site.kafka.read(site.name("mail"), 1)
    verdict_of(traffic, after)
    assert [message.value() for message in site.kafka.read_all(site.name("mail"))] == [b"far"]


def test_the_command_takes_over_all_and_a_recovery_without_redis_finds_it_in_the_new_ledger(site: Site) -> None:
    old, new = site.group, f"{site.group}.new"
    before, after = site.sidecar(), site.sidecar(GROUP=new)
    traffic = Traffic(site, partitions=2, rate=RATE, delay_max_ms=DELAY_MAX_MS)
    before.start()
    traffic.start()
    wait_until(lambda: overflow(before) >= HELD, START_S, before.last_words)
    assert before.stop() == 0, before.last_words()

    plan = command(before, old, new, "--plan")
    assert plan.returncode == 0, plan.stderr
    assert f"tickover.{old}.ledger -> tickover.{new}.ledger" in plan.stdout
    done = command(before, old, new)
    assert done.returncode == 0, done.stderr
    assert f"TICKOVER_GROUP={new}" in done.stderr
    with connect(site.redis_url) as redis:
        redis.unlink(*redis.scan_iter(match=f"{{{new}:*", count=1_000))
    after.start()
    wait_until(lambda: after.stats()["rebuild"]["finished"] > 0, START_S, after.last_words)
    traffic.quieten()
    assert after.stats()["rebuild"]["lost"] == 0
    assert after.stop() == 0, after.last_words()
    verdict = traffic.verdict()
    assert (verdict.lost, verdict.early, verdict.changed, verdict.repeated) == (0, 0, 0, 0), "\n".join(verdict.faults)


def test_what_stands_in_the_way_is_said_and_nothing_is_changed(site: Site) -> None:
    old = site.group
    other = site.sidecar(GROUP=f"{old}.other", START="earliest")
    before = site.sidecar().start()
    other.start()
    for sidecar in (before, other):
        assert sidecar.stop() == 0, sidecar.last_words()
    taken = command(before, old, f"{old}.other")
    assert (taken.returncode, "has commits of its own" in taken.stderr) == (4, True), taken.stderr
    nobody = command(before, f"{old}.nobody", f"{old}.new")
    assert (nobody.returncode, "has no commits" in nobody.stderr) == (3, True), nobody.stderr
    same = command(before, old, old)
    assert same.returncode == 2
    before.start()
    assert before.stop() == 0, before.last_words()
