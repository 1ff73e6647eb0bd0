import pytest

from sidecar.engine.partition import progress

REBUILD_SPAN_MS = 500  # so that a run of minutes has many places where a rebuild may begin


@pytest.fixture(autouse=True)
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REBUILD_SPAN_MS", REBUILD_SPAN_MS)
