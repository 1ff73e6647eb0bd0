"""Fixtures shared by all tests, the order of their files, and a part of the ports for each worker."""

import os

# testcontainers' own cleaner is another image to pull; the fixtures remove what they start.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

import pytest
from hypothesis import HealthCheck, settings

from sidecar.embedded import child
from tests.costs import UNMEASURED_S, read_costs
from tests.services.fixtures import each_kafka, kafka, kafka_choice, kafka_place, mock_kafka

__all__ = ["each_kafka", "kafka", "kafka_choice", "kafka_place", "mock_kafka"]

# Workers don't know which ports the others were given, to listen on later: each has a part of them, and so has each of
# two runs side by side.
_run, _runs = (int(number) for number in os.environ.get("TICKOVER_TEST_RUN", "0/1").split("/"))
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
child._PORTS = child._PORTS[_run::_runs][_worker::_workers]  # type: ignore[misc]

# How long one example takes says something about the machine and its other guests, not about the code; and that some
# draws of a law about large blocks are too large to be kept says nothing at all.
unsaid = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("any machine", deadline=None, suppress_health_check=unsaid)
settings.load_profile("any machine")
# `make test-fast`; what wants more or fewer examples than usual says by how much, see tests/examples.py.
settings.register_profile("fast", settings.get_profile("any machine"), max_examples=10)
settings.register_profile("half", settings.get_profile("any machine"), max_examples=30)  # `make test`

SERVERS = frozenset({"kafka", "each_kafka"})
CAUSE_CHARACTERS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for a real broker says so: else it starts one where none is meant to be. Where several workers
    share the tests, the dearest files come first: one that begins last would be waited for.
    """
    for item in items:
        if SERVERS.intersection(getattr(item, "fixturenames", ())) and item.get_closest_marker("integration") is None:
            raise pytest.UsageError(f"{item.nodeid} needs Kafka: mark it `integration`")
    if "PYTEST_XDIST_WORKER" in os.environ:
        costs = read_costs()
        items.sort(key=lambda item: -costs.get(item.location[0], UNMEASURED_S))


class _FailuresAtOnce:
    """Says of each failure what and why when it happens: of a run that is ended before its summary, nothing else is."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = str(crash.message if crash is not None else report.longrepr)
            terminal.ensure_newline()
            terminal.write_line(f"failed: {report.nodeid} ({report.when}): {cause[:CAUSE_CHARACTERS_MAX]}")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI") and not hasattr(config, "workerinput"):  # a worker's reports come to the one that asked
        config.pluginmanager.register(_FailuresAtOnce(config))
