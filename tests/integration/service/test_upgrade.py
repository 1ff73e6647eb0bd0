"""A group that is upgraded and downgraded while it holds records, in memory and in Redis, by way of formats of both."""

from typing import Final

import pytest

from tests.integration.conftest import NewSite
from tests.services import older_sidecar
from tests.services.sidecar_process import START_S, Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OLDER: Final = older_sidecar.__name__
NEWER: Final = "sidecar"
POLICIES: Final = """
name: reminders
match: {topics: ["~delays"]}
delay: {max: 1d}
target: {topic: "~mail"}
"""
# Spreading came with schema 2.
SPREADING: Final = POLICIES.replace("max: 1d", "max: 1d, spread: 1ms")


@pytest.fixture
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("delays")
    site.target("mail")
    site.policies(POLICIES)
    return site


@pytest.fixture
def sidecar(site: Site) -> Sidecar:
    return site.sidecar("one", HORIZON="2m")


def hold(site: Site, sidecar: Sidecar, *ids: str) -> None:
    """Two for each: one for memory, one for Redis."""
    for id in ids:
        for place, delay in (("near", b"100s"), ("far", b"1h")):
            headers = [("tickover-id", f"{id}-{place}".encode()), ("tickover-delay", delay)]
            site.send(site.name("delays"), headers, value=f"{id}-{place}".encode())
            wait_until(lambda name=f"{id}-{place}": is_held(sidecar, name), otherwise=sidecar.last_words)  # type: ignore[misc]


def is_held(sidecar: Sidecar, id: str) -> bool:
    answer = sidecar.call("GET", f"/v1/messages/{id}")
    return answer.is_success and answer.json()["state"] == "held"


def restart(sidecar: Sidecar, program: str) -> None:
    """The next life, by that version."""
    assert sidecar.stop() == 0, sidecar.last_words()
    sidecar.module = program
    sidecar.start()


def fire(sidecar: Sidecar, *ids: str) -> None:
    for id in ids:
        wait_until(lambda id=id: sidecar.call("POST", f"/v1/messages/{id}/fire").status_code in (200, 409))  # type: ignore[misc]


def emitted(site: Site, count: int) -> list[str]:
    """All there are, once there are so many."""
    site.kafka.read(site.name("mail"), count)
    return sorted((message.value() or b"").decode() for message in site.kafka.read_all(site.name("mail")))


def test_what_is_held_passes_an_upgrade_and_a_downgrade(site: Site, sidecar: Sidecar) -> None:
    sidecar.module = OLDER
    sidecar.start()
    hold(site, sidecar, "old")
    restart(sidecar, NEWER)
    wait_until(lambda: is_held(sidecar, "old-far"), otherwise=sidecar.last_words)
    hold(site, sidecar, "new")
    restart(sidecar, OLDER)
    wait_until(lambda: is_held(sidecar, "new-far"), otherwise=sidecar.last_words)
    fire(sidecar, "old-near", "old-far", "new-near", "new-far")
    assert emitted(site, 4) == ["new-far", "new-near", "old-far", "old-near"]
    assert sidecar.stop() == 0


def test_a_version_that_is_too_old_says_so_and_settles_nothing_until_the_newer_one_is_back(
    site: Site, sidecar: Sidecar
) -> None:
    site.policies(SPREADING)
    sidecar.start()
    hold(site, sidecar, "new")
    assert sidecar.stop() == 0
    site.policies(POLICIES)  # its file is as old as the program; the topic is not
    sidecar.module = OLDER
    sidecar.launch()
    wait_until(lambda: "newer tickover: run the newer one" in sidecar.last_words(), START_S, sidecar.last_words)
    assert not sidecar.is_ready()
    sidecar.kill()
    assert site.kafka.read_all(site.name("mail")) == []
    site.policies(SPREADING)
    sidecar.module = NEWER
    sidecar.start()
    fire(sidecar, "new-near", "new-far")
    assert emitted(site, 2) == ["new-far", "new-near"]
    assert sidecar.stop() == 0
