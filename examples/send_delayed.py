"""Send a message with any Kafka client, and see it arrive two seconds later.

Needs a sidecar with the policies of examples/policies.yaml, and the topics `reminders` and `push`.
"""

import os
import time
import uuid

from confluent_kafka import Consumer, Producer

BROKERS = os.environ.get("TICKOVER_KAFKA__BOOTSTRAP_SERVERS", "localhost:9092")

consumer = Consumer(
    {"bootstrap.servers": BROKERS, "group.id": f"example-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
)
consumer.subscribe(["push"])

text = f"your table is ready ({uuid.uuid4()})".encode()
sent_s = time.time()
producer = Producer({"bootstrap.servers": BROKERS})
producer.produce(
    "reminders",  # a delay topic: the policy `reminders` matches it
    key="guest-7",
    value=text,
    headers=[("tickover-delay", "2s"), ("tickover-target", "push"), ("language", "en")],
)
producer.flush()
print("sent to reminders, for push in 2 s")

for message in iter(consumer.poll, None):
    if message.value() == text:
        headers = dict(message.headers() or [])
        print(f"arrived on {message.topic()} after {time.time() - sent_s:.0f} s, with language={headers['language']!r}")
        break
consumer.close()
