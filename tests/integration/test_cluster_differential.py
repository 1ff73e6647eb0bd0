"""The same requests to three reference brokers and to three of Kafka: the same answers, also while one is gone."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import SOAK
from tests.services.cluster_experiments import EXPERIMENTS, LONG, Scene
from tests.services.fixtures import own_broker
from tests.services.kafka_cluster import ClusterServer
from tests.services.kafka_servers import KafkaCluster
from tests.services.reference_cluster import ReferenceClusterServer

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with own_broker(ReferenceClusterServer(tmp_path_factory.mktemp("reference"))) as server:
        yield server


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with own_broker(ClusterServer(tmp_path_factory.mktemp("real"))) as server:
        yield server


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if SOAK or name not in LONG])
def test_a_client_sees_the_same(name: str, reference: KafkaCluster, real: KafkaCluster) -> None:
    assert EXPERIMENTS[name](Scene(reference)) == EXPERIMENTS[name](Scene(real))
