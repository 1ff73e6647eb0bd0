"""A group under another name begins at the beginning: it doesn't start where another group emits, unless it is said."""

import os
import subprocess
import sys

import pytest

from tests.integration.conftest import NewSite
from tests.services.waiting import wait_until
from tests.source import ROOT

pytestmark = pytest.mark.integration

POLICIES = """
name: reminders
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out"}
"""
SOON_S = 120.0


def test_a_new_name_on_the_sources_of_another_group_is_refused_and_emits_nothing(new_site: NewSite) -> None:
    site = new_site()
    source, target = site.topic("in"), site.target("out")
    site.policies(POLICIES)
    old = site.sidecar().start()
    for _ in range(3):
        site.send(source)
    site.kafka.read(target, 3)
    assert old.stop() == 0

    renamed = site.sidecar("renamed", GROUP=f"{site.group}x")
    renamed.launch()
    assert renamed.wait_until_ended(SOON_S) == 1
    assert f"TICKOVER_GROUP={site.group}" in renamed.last_words()
    doctor = subprocess.run(
        [sys.executable, "-m", "sidecar", "doctor"],
        env={**os.environ, **renamed.settings},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (doctor.returncode, f"TICKOVER_GROUP={site.group}" in doctor.stdout) == (1, True), doctor.stdout
    assert len(site.kafka.read_all(target)) == 3

    said = site.sidecar("said", GROUP=f"{site.group}x", START="earliest").start()
    wait_until(lambda: len(site.kafka.read_all(target)) == 6, SOON_S, said.last_words)
    assert said.stop() == 0
    assert site.sidecar("again", GROUP=f"{site.group}x").start().stop() == 0  # it isn't new any more
