"""Kafka's client side in Kafka's terms, small enough to be read.

It is a reference, and the client of tests that compare the broker with Kafka; tickover itself uses librdkafka.
"""

from broker.clients.assignor import Subscription, TopicPartition
from broker.clients.assignors import ASSIGNORS
from broker.clients.partitioners import RoundRobinPartitioner, StickyPartitioner, UniformPartitioner
from broker.clients.producer import Producer
from broker.clients.producer_records import ProducerRecord, ProducerSettings

__all__ = [
    "ASSIGNORS",
    "Producer",
    "ProducerRecord",
    "ProducerSettings",
    "RoundRobinPartitioner",
    "StickyPartitioner",
    "Subscription",
    "TopicPartition",
    "UniformPartitioner",
]
