"""Passwords that change while records flow: nothing is lost, nothing is repeated, nobody starts anew."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from sidecar.doctor.acl import redis_rights
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.settings.settings import load_settings
from tests.integration.conftest import NewSite
from tests.integration.overflow.test_redis_access import (
    ACTED_RATE,
    PARTITIONS,
    RATE,
    SOON_S,
    USER,
    judge,
    wait_until_flowing,
)
from tests.services.acted_traffic import ActedTraffic
from tests.services.oracle import Traffic
from tests.services.secure_redis import allow
from tests.services.sidecar_process import Sidecar
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CHANGES = 3


def has_changed(sidecar: Sidecar, times: int) -> bool:
    return sidecar.log.read_text().count("the password of Redis has changed") == times


def test_the_password_of_redis_changes_under_load(
    new_site: NewSite, guarantee: str, own_redis: EmbeddedValkey, tmp_path: Path
) -> None:
    """The server is first, and cuts all connections; the file follows when the sidecar is refused."""
    site, file = new_site(), tmp_path / "password"
    file.write_text("password-0\n")
    login = {"REDIS__URL": own_redis.url, "REDIS__USERNAME": USER, "REDIS__PASSWORD_FILE": str(file)}
    sidecar = site.sidecar("only", GUARANTEE=guarantee, **login)
    rights = redis_rights(load_settings(None, {}, sidecar.settings))
    allow(own_redis.url, USER, "password-0", rights)
    Traffic.prepare(site, PARTITIONS, ActedTraffic.prepare(site, PARTITIONS))
    traffic, acted = Traffic(site, PARTITIONS, RATE), ActedTraffic(site, PARTITIONS, ACTED_RATE)
    with closing(traffic), closing(acted), Redis.from_url(own_redis.url, protocol=2) as operator:
        sidecar.start()
        traffic.start()
        acted.start()
        for number in range(1, CHANGES + 1):
            wait_until_flowing(traffic, sidecar)
            operator.acl_log_reset()
            allow(own_redis.url, USER, f"password-{number}", rights)
            operator.execute_command("CLIENT", "KILL", "USER", USER)
            wait_until(lambda: bool(operator.acl_log()), SOON_S, partial("nobody minds {}".format, number))
            file.write_text("")  # just being written
            file.write_text(f"password-{number}\n")
            wait_until(partial(has_changed, sidecar, number), SOON_S, sidecar.last_words)
        wait_until_flowing(traffic, sidecar)
        judge(traffic, acted, sidecar)
    assert acted.faults(guarantee == "exactly_once") == []
    assert sidecar.messages("critical") == []
