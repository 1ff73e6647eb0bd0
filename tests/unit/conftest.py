"""Fixtures that several modules of unit tests share."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.services.reference_broker import ReferenceBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    """A running reference broker, the module's own."""
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Undo what the test configures about logging when it ends."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
