"""One Spark session for all tests of the jobs: starting it takes longer than most of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import new_site, redis_url
from tests.services.fatal_files import FatalFiles
from tests.services.fixtures import missing
from tests.services.spark import spark_settings

__all__ = ["new_site", "redis_url"]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session."""
    from pipeline.errors import PipelineUnavailable
    from pipeline.session import spark_session

    try:
        session = spark_session(spark_settings())
    except (LookupError, PipelineUnavailable) as error:
        missing("Spark", error)
        raise
    yield session
    session.stop()


@pytest.fixture(scope="session")
def fatal(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> FatalFiles:
    """Runs jobs that are killed while they write; after `spark`, whose absence says more."""
    try:
        return FatalFiles(tmp_path_factory.mktemp("classes"))
    except LookupError as error:
        missing("a Java compiler", error)
        raise


@pytest.fixture
def new_warehouse(spark, tmp_path: Path) -> Callable[..., Any]:
    """Makes empty warehouses."""
    from pipeline.warehouse.tables import Warehouse

    return lambda name="tables": Warehouse(spark, str(tmp_path / name))


@pytest.fixture
def warehouse(new_warehouse: Callable[..., Any]):
    """An empty warehouse."""
    return new_warehouse()
