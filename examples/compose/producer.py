"""The delayed producer of docker-compose.yml: an order every two seconds, to be handled three seconds later."""

import itertools
import os
import time

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKERS = {"bootstrap.servers": os.environ["TICKOVER_KAFKA__BOOTSTRAP_SERVERS"]}
TOPICS = [NewTopic(name, num_partitions=2) for name in ("orders", "orders-later", "orders-retry", "orders-dlq")]

admin = AdminClient(BROKERS)
for made in admin.create_topics(TOPICS).values():
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise

producer = Producer(BROKERS)
for number in itertools.count(1):
    producer.produce(
        "orders-later", f"order {number}", key=f"customer-{number % 7}", headers=[("tickover-delay", "3s")]
    )
    producer.flush()
    print(f"order {number} placed, to be handled in 3 s", flush=True)
    time.sleep(2)
