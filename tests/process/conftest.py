"""Fixtures that several modules of tests with processes share."""

from collections.abc import Iterator

import pytest

from tests.services.reference_broker import ReferenceBroker
from tests.unit.conftest import logging_as_before

__all__ = ["logging_as_before"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    """A running reference broker, the module's own."""
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()
