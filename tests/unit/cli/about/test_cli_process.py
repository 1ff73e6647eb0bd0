"""`tickover whoami`, `config running` and `doctor --url` against the real REST interface."""

from sidecar.doctor.facts import Finding, Severity
from sidecar.settings.settings import load_settings
from tests.unit.cli.test_cli_rest import Terminal, tickover

__all__ = ["tickover"]


def test_whoami(tickover: Terminal) -> None:
    told = tickover.data("whoami")
    assert (told["name"], told["role"], told["group"]) == ("anonymous", "admin", "g")
    assert "GET /v1/audit" in told["may"] or "GET /v1/settings" in told["may"]
    assert "role: admin" in tickover("whoami").stdout


def test_settings_of_the_one_that_runs(tickover: Terminal) -> None:
    tickover.there.about.settings = load_settings(None, {"horizon": "20s"}, {})
    [given] = tickover.data("config", "running", "--given")
    assert (given["setting"], given["value"], given["from"]) == ("horizon", "20s", "option horizon")
    assert len(tickover.data("config", "running")) > 50
    assert "horizon\t20s\toption horizon" in tickover("config", "running", "--given").stdout


def test_the_doctor_of_the_one_that_runs(tickover: Terminal) -> None:
    tickover.there.findings = [Finding(Severity.ERROR, "redis", "no answer", "start it")]
    result = tickover("doctor", "--url", "http://127.0.0.1:8230")
    assert result.exit_code == 1
    assert "error   redis: no answer\n        fix: start it" in result.stdout
    assert "1 error, 0 warnings" in result.stderr
    tickover.there.findings = [Finding(Severity.WARNING, "redis", "slow")]
    tickover.there.monotonic_s += 31
    assert tickover.data("doctor", "--url", "http://127.0.0.1:8230") == [
        {"severity": "warning", "part": "redis", "what": "slow", "fix": ""}
    ]
    assert tickover("doctor", "--url", "http://127.0.0.1:8230", "--version-from", "0.1.0").exit_code == 2
