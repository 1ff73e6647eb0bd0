"""Kafka's client side in Kafka's terms, small enough to be read.

It is a reference, and the client of tests that compare the broker with Kafka; tickover itself uses librdkafka.
"""

from broker.clients.assignor import Subscription, TopicPartition
from broker.clients.assignors import ASSIGNORS
from broker.clients.consumer import Consumer
from broker.clients.consumer_records import (
    ConsumerRecord,
    ConsumerSettings,
    IsolationLevel,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetOutOfRange,
    OffsetReset,
    RebalanceListener,
)
from broker.clients.partitioners import RoundRobinPartitioner, StickyPartitioner, UniformPartitioner
from broker.clients.producer import Producer
from broker.clients.producer_records import ProducerRecord, ProducerSettings

__all__ = [
    "ASSIGNORS",
    "Consumer",
    "ConsumerRecord",
    "ConsumerSettings",
    "IsolationLevel",
    "NoOffsetForPartition",
    "OffsetAndMetadata",
    "OffsetOutOfRange",
    "OffsetReset",
    "Producer",
    "ProducerRecord",
    "ProducerSettings",
    "RebalanceListener",
    "RoundRobinPartitioner",
    "StickyPartitioner",
    "Subscription",
    "TopicPartition",
    "UniformPartitioner",
]
