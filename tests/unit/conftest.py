"""Fixtures that several modules of unit tests share."""

import logging
from collections.abc import Iterator

import pytest
import structlog


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
