"""Kafka's client side in Kafka's terms, small enough to be read.

It is a reference, and the client of tests that compare the broker with Kafka; tickover itself uses librdkafka.
"""

from broker.clients.assignors.assignor import Subscription
from broker.clients.assignors.assignors import ASSIGNORS
from broker.clients.consumer.consumer import Consumer
from broker.clients.consumer.consumer_records import (
    ConsumerRecord,
    ConsumerSettings,
    IsolationLevel,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetOutOfRange,
    OffsetReset,
    RebalanceListener,
)
from broker.clients.producer.partitioners import RoundRobinPartitioner, StickyPartitioner, UniformPartitioner
from broker.clients.producer.producer import Producer
from broker.clients.producer.producer_records import ProducerRecord, ProducerSettings
from purgatory.log_offsets import TopicPartition

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
