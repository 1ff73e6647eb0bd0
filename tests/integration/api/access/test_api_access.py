"""A whole process that is reachable from other machines: who is let in, and what it says where nobody could be."""

import json
from pathlib import Path

import pytest

from api.access.auth import Role
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import START_S
from tests.services.site import Site
from tests.services.waiting import wait_until
from tests.unit.api.access.oidc_world import AUDIENCE, ROLE_NAMES, claims, jwks_server, signed
from tests.unit.api.access.test_api_auth import bearer, tokens_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: access
match: {topics: [~in]}
delay: {default: 1h}
target: {allow: [~out]}
"""


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("in")
    site.target("out")
    site.policies(POLICIES)
    return site


def test_tokens_of_a_file_and_of_a_provider_let_in(site: Site, tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with jwks_server() as provider:
        sidecar = site.sidecar(
            "access",
            API__HOST="0.0.0.0",
            API__TOKENS_FILE=str(path),
            API__OIDC__ISSUER=provider.url,
            API__OIDC__AUDIENCE=AUDIENCE,
        ).start()
        admin = signed(claims(iss=provider.url, roles=[ROLE_NAMES["ADMIN"]]))
        expired = signed(claims(iss=provider.url, roles=[ROLE_NAMES["ADMIN"]], exp=1))
        # 503 until the provider has given its keys.
        wait_until(lambda: sidecar.call("GET", "/v1/stats", headers=bearer(admin)).is_success)
        assert sidecar.call("GET", "/metrics").status_code == 401
        assert sidecar.call("GET", "/v1/stats", headers=bearer(expired)).status_code == 401
        assert sidecar.call("GET", "/metrics", headers=bearer(given[Role.READ])).status_code == 200
        assert sidecar.call("DELETE", "/v1/policies/x", headers=bearer(given[Role.READ])).status_code == 403
        removal = {**bearer(admin), "If-Match": "*"}
        assert sidecar.call("DELETE", "/v1/policies/x", headers=removal).status_code == 404
        assert sidecar.stop() == 0
    records = [json.loads(message.value() or b"{}") for message in site.kafka.read(f"tickover.{site.group}.audit", 4)]
    assert [(record["actor"], record["status"]) for record in records] == [
        (None, 401), (None, 401), ("READ", 403), ("oidc:maria", 404),
    ]  # fmt: skip
    said = sidecar.log.read_text() + json.dumps(records)
    for token in (admin, expired, *given.values()):
        assert token not in said
        assert token.rpartition(".")[2] not in said


def test_nobody_listens_beyond_loopback_without_a_word(site: Site) -> None:
    sidecar = site.sidecar("open", API__HOST="0.0.0.0")
    sidecar.launch()
    assert sidecar.wait_until_ended(START_S) == 2
    assert "api.allow_unauthenticated=true" in sidecar.log.read_text()
