"""Three reference brokers and three of Kafka answer the same requests alike, also while one is gone."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import SOAK
from tests.services import cluster_experiments, replica_experiments
from tests.services.cluster_experiments import Scene
from tests.services.fixtures import own_broker
from tests.services.kafka_cluster import ClusterServer
from tests.services.kafka_servers import KafkaCluster
from tests.services.reference_cluster import ReferenceClusterServer
from tests.services.replica_experiments import LAG_MS, SESSION_MS

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

EXPERIMENTS = {**cluster_experiments.EXPERIMENTS, **replica_experiments.EXPERIMENTS}
LONG = (*cluster_experiments.LONG, *replica_experiments.LONG)
ATTEMPTS = 3  # a busy machine may give up a follower too early, or miss a moment: not each time
PROPERTIES = {"replica.lag.time.max.ms": str(LAG_MS), "broker.session.timeout.ms": str(SESSION_MS)}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with own_broker(ReferenceClusterServer(tmp_path_factory.mktemp("reference"), LAG_MS)) as server:
        yield server


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with own_broker(ClusterServer(tmp_path_factory.mktemp("real"), PROPERTIES)) as server:
        yield server


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if SOAK or name not in LONG])
def test_a_client_sees_the_same(name: str, reference: KafkaCluster, real: KafkaCluster) -> None:
    for _ in range(ATTEMPTS):
        ours, theirs = EXPERIMENTS[name](Scene(reference)), EXPERIMENTS[name](Scene(real))
        if ours == theirs:
            break
    assert ours == theirs
