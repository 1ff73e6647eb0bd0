"""librdkafka's mock cluster in the shape of a broker: enough to see tickover move, not to rely on."""

from typing import Any

from confluent_kafka import Producer

BROKERS = 1
START_TIMEOUT_S = 60.0


class MockKafka:
    """A cluster inside this process, gone with it.

    It creates topics when they are asked for, drops old records (about 5 MB a partition),
    does not deduplicate and does not hide aborted records.
    """

    def __init__(self) -> None:
        # The cluster lives exactly as long as the client that carries it.
        self._carrier: Any = None
        self._bootstrap = ""

    @property
    def description(self) -> str:
        """Kind of Kafka, in words for the user."""
        return "librdkafka's mock cluster, in memory: not a real broker"

    @property
    def bootstrap(self) -> str:
        """host:port for clients, once started."""
        return self._bootstrap

    def start(self) -> None:
        """Return when clients can be served."""
        if self._carrier is not None:
            return
        self._carrier = Producer(
            {
                "bootstrap.servers": "mock",
                "test.mock.num.brokers": str(BROKERS),
                "log_level": "4",
            }
        )
        brokers = self._carrier.list_topics(timeout=START_TIMEOUT_S).brokers.values()
        self._bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def stop(self) -> None:
        """The cluster and everything in it is gone; twice is harmless."""
        self._carrier = None
        self._bootstrap = ""
