"""Fixtures of the tests of settlement."""

import pytest

from tests.simulation import fake_transactions


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No flush of a moment is answered in time, until this is undone."""
    monkeypatch.setattr(fake_transactions, "AT_ONCE_SHARE", 0.0)
    return monkeypatch
