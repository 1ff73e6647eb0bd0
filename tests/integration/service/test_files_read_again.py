"""The files of a process change while it runs: policies, tokens, settings."""

from pathlib import Path

import pytest

from api.access.auth import new_token
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOON_S = 30.0
DELAY = (
    'name: {0}\nmatch: {{topics: ["~{0}"]}}\ndelay: {{default: 100ms}}\ntarget: {{topic: "~mail", allow: ["~mail"]}}\n'
)


def policies(site: Site, *names: str) -> None:
    site.policies("---\n".join(DELAY.format(name) for name in names))


def arrives(site: Site, role: str) -> None:
    """A record on the topic of this role comes out on the target."""
    before = len(site.kafka.read_all(site.name("mail")))
    site.send(site.name(role), value=role.encode())
    wait_until(lambda: len(site.kafka.read_all(site.name("mail"))) > before, SOON_S)


def status(sidecar: Sidecar, token: str) -> int:
    return sidecar.call("GET", "/v1/stats", headers={"authorization": f"Bearer {token}"}).status_code


def test_policies_tokens_and_settings_change_while_records_flow(new_site: NewSite, tmp_path: Path) -> None:
    site, tokens, settings = new_site(), tmp_path / "tokens.yaml", tmp_path / "tickover.yaml"
    for role in ("first", "second"):
        site.topic(role)
    site.target("mail")
    policies(site, "first")
    one, two = new_token(), new_token()
    tokens.write_text(f'- {{name: one, role: read, hash: "{one[1]}"}}\n')
    settings.write_text("log: {level: info}\n")
    sidecar = site.sidecar(API__TOKENS_FILE=str(tokens), API__METRICS_OPEN="true", CONFIG=str(settings)).start()
    arrives(site, "first")

    policies(site, "first", "second")
    wait_until(lambda: "policies file is read again" in sidecar.log.read_text(), SOON_S, sidecar.last_words)
    arrives(site, "second")
    site.policies("name: second\n")
    wait_until(lambda: 'config_file_bad{file="policies"} 1.0' in sidecar.call("GET", "/metrics").text, SOON_S)
    arrives(site, "second")

    assert (status(sidecar, one[0]), status(sidecar, two[0])) == (200, 401)
    tokens.write_text(f'- {{name: two, role: read, hash: "{two[1]}"}}\n')
    wait_until(lambda: (status(sidecar, one[0]), status(sidecar, two[0])) == (401, 200), SOON_S)

    settings.write_text("{log: {level: debug}, tick_ms: 2}\n")
    sidecar.hang_up()
    wait_until(lambda: "that need a restart" in sidecar.log.read_text(), SOON_S, sidecar.last_words)
    wait_until(lambda: "file of settings is read again" in sidecar.log.read_text(), SOON_S, sidecar.last_words)
    [told] = [line for line in sidecar.messages("info") if "file of settings" in line["message"]]
    assert told["settings"] == ["log.level"]
    assert "apscheduler" not in sidecar.log.read_text()
    assert sidecar.messages("critical") == []
    assert sidecar.stop() == 0
