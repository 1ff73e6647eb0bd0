"""Templates: which ones are there before anybody asks."""

import pytest

from api.console import page
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import World


def test_what_every_page_needs_is_compiled_when_the_console_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TEMPLATES", page._environment())
    World()
    assert page.TEMPLATES.cache is not None
    assert list(page.TEMPLATES.cache) == []
    World(console=OPTIONS)
    assert {name for _, name in page.TEMPLATES.cache} == set(page.FIRST)
    assert "layout.html" in page.FIRST
