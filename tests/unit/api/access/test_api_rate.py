"""How often one caller may call."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from api.access.auth import Role, load_tokens
from api.access.gate import REFUSED_BURST, Gate, open_gate
from api.access.rate import RateLimit
from api.audit import CHEAP_PER_S_MAX
from api.problems import Problem
from sidecar.settings.api import ApiSettings
from tests.unit.api.access.oidc_world import claims, oidc_of, signed
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api_world import problem, world

GAPS = st.lists(st.floats(0, 5), max_size=60)


@given(GAPS, st.integers(1, 100), st.integers(1, 10))
def test_no_span_of_time_has_more_than_rate_and_burst(gaps: list[float], per_s: int, burst: int) -> None:
    limit, now_s, passed = RateLimit(per_s, burst), 0.0, []
    for gap in gaps:
        now_s += gap
        wait_s = limit.wait_s("a", now_s)
        if wait_s:
            assert limit.wait_s("a", now_s + wait_s + 1e-6) == 0.0  # as soon as was said
            now_s += wait_s + 1e-6
        passed.append(now_s)
    for i, first in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= burst + per_s * (passed[j] - first) + 1e-3


def test_another_rate_counts_from_then_on_and_who_is_ahead_stays_ahead() -> None:
    limit = RateLimit(10, 5)
    assert [limit.wait_s("a", 0.0) for _ in range(5)] == [0.0] * 5
    limit.resize(1, 1)
    assert limit.wait_s("a", 0.0) == pytest.approx(0.5)
    assert [limit.wait_s("b", 0.0), limit.wait_s("b", 0.0)] == [0.0, 1.0]
    limit.resize(0, 1)
    assert limit.wait_s("b", 0.0) == 0.0


@given(st.integers(1, 100), st.integers(1, 10), st.integers(1, 200))
def test_who_keeps_to_the_rate_never_waits(per_s: int, burst: int, count: int) -> None:
    limit = RateLimit(per_s, burst)
    assert all(limit.wait_s("a", i * (1 / per_s + 1e-6)) == 0.0 for i in range(count))


def test_a_burst_then_the_rate() -> None:
    limit = RateLimit(10, 5)
    assert [limit.wait_s("a", 0.0) for _ in range(5)] == [0.0] * 5
    assert round(limit.wait_s("a", 0.0), 6) == 0.1
    assert limit.wait_s("b", 0.0) == 0.0
    assert limit.wait_s("a", 0.11) == 0.0
    assert limit.wait_s("a", 0.11) > 0


def test_only_so_many_callers_are_remembered() -> None:
    limit = RateLimit(1, 1, callers_max=2)
    assert [limit.wait_s(caller, 0.0) for caller in "abc"] == [0.0] * 3
    assert limit.wait_s("c", 0.0) > 0
    assert limit.wait_s("b", 0.0) > 0
    assert limit.wait_s("a", 0.0) == 0.0  # forgotten


def test_who_called_last_is_remembered_longest() -> None:
    limit = RateLimit(1, 2, callers_max=2)
    assert [limit.wait_s(caller, 0.0) for caller in "abac"] == [0.0] * 4
    assert limit.wait_s("a", 0.0) > 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "testclient", False),
    ],
)
def test_one_machine_has_one_address(one: str, other: str, same: bool) -> None:
    gate = replace(Gate(anybody=True), rate=RateLimit(1, 1))

    def call(host: str) -> None:
        gate.visitor(
            Request({"type": "http", "client": (host, 1), "method": "GET", "path": "/docs", "headers": []}), 0.0
        )

    call(one)
    with pytest.raises(Problem) if same else nullcontext():
        call(other)


def test_zero_is_no_limit() -> None:
    limit = RateLimit(0, 1)
    assert not any(limit.wait_s("a", 0.0) for _ in range(1_000))


def limited(tokens: Gate) -> Gate:
    return replace(tokens, rate=RateLimit(1, 3))


def test_callers_are_limited_by_name(tmp_path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(gate=limited(Gate(load_tokens(path), oidc_of()))) as api:
        for token in (given[Role.READ], given[Role.ADMIN], signed(claims(roles=["tickover:read"]))):
            for _ in range(3):
                assert api.call("GET", "/v1/stats", headers=bearer(token)).status_code == 200
            response = api.call("GET", "/v1/stats", headers=bearer(token))
            problem(response, 429, "rate-limited")
            assert response.headers["retry-after"] == "1"
        other = signed(claims(sub="another", roles=["tickover:read"]))
        assert api.call("GET", "/v1/stats", headers=bearer(other)).status_code == 200
        api.monotonic_s += 1
        assert api.call("GET", "/v1/stats", headers=bearer(given[Role.READ])).status_code == 200


def test_callers_without_a_name_are_limited_by_address() -> None:
    with world(gate=limited(Gate())) as api:
        assert [api.call("GET", "/v1/stats").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert api.call("GET", "/openapi.json").status_code == 429
        for _ in range(20):
            assert api.call("GET", "/livez").status_code == api.call("GET", "/readyz").status_code == 200


def test_refused_tokens_are_limited_by_address_and_good_ones_are_not(tmp_path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        statuses = [
            api.call("GET", "/v1/stats", headers=bearer(f"wrong{i}")).status_code for i in range(REFUSED_BURST + 1)
        ]
        assert statuses == [401] * REFUSED_BURST + [429]
        assert api.call("GET", "/v1/stats", headers=bearer(given[Role.READ])).status_code == 200


def test_a_limited_caller_does_not_fill_the_audit_topic(tmp_path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(gate=limited(Gate(load_tokens(path)))) as api:
        for _ in range(3 + 5 * CHEAP_PER_S_MAX):
            api.call("DELETE", "/v1/policies/x", headers=bearer(given[Role.ADMIN]))
        statuses = [record["status"] for record in api.audited]
        assert statuses == [404] * 3 + [429] * CHEAP_PER_S_MAX
        assert {record["actor"] for record in api.audited} == {"ADMIN"}


def test_the_settings_say_how_often() -> None:
    gate = open_gate(ApiSettings(rate_limit=2, rate_burst=7), lambda: 0.0)
    assert sum(gate.rate.wait_s("a", 0.0) == 0.0 for _ in range(20)) == 7
    assert not open_gate(ApiSettings(rate_limit=0), lambda: 0.0).rate.wait_s("a", 0.0)
