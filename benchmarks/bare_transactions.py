"""Transactions alone: what is due is produced at once and committed once an interval; nothing is read, decided or kept.

    python -m benchmarks.bare_transactions BOOTSTRAP TOPIC RATE SECONDS INTERVAL_MS

The least that a `read_committed` consumer waits with Kafka's client in Python: two producers take turns as the
sidecar's do, with its settings, its headers, and a second thread for the commits.
"""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.harness import PARTITIONS
from benchmarks.traffic import request_headers, values
from policies.headers import DUE, ORIGIN, POLICY
from sidecar.engine.commit.transaction import LINGER_S
from sidecar.kafka.client_settings import transactional_settings

USER_HEADERS: Final = 2
ANSWER_S: Final = 10.0
TURN_S: Final = 0.001
LINGER_MS: Final = f"{LINGER_S * 1_000:.0f}"


def main() -> None:
    bootstrap, topic, *numbers = sys.argv[1:]
    rate, seconds, interval_ms = map(int, numbers)
    client = {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS}
    outputs = [Producer(transactional_settings(client, f"{topic}.{name}")) for name in ("a", "b")]
    for output in outputs:
        output.init_transactions(ANSWER_S)
        output.begin_transaction()
    with ThreadPoolExecutor(1) as committer:
        send(outputs, committer, topic, (rate, seconds, interval_ms))


def send(outputs: list[Any], committer: ThreadPoolExecutor, topic: str, load: tuple[int, int, int]) -> None:
    """Two producers, in their transactions, take turns until all is committed."""
    rate, seconds, interval_ms = load
    (current, other), commit = outputs, Future[None]()
    commit.set_result(None)
    own, value, origin = request_headers(0, topic)[:USER_HEADERS], values(), topic.encode() + b"/%d/%d"
    sent, started_s = 0, time.time()
    changed_s = started_s
    while sent < rate * seconds:
        now_s = time.time()
        wanted = min(int((now_s - started_s) * rate) + 1, rate * seconds)
        for number in range(sent, wanted):
            due_ms, partition = int((started_s + number / rate) * 1_000), number % PARTITIONS
            made = [(ORIGIN, origin % (partition, number)), (DUE, b"%d" % due_ms), (POLICY, b"bench@1")]
            current.produce(topic, next(value), b"C%09d" % number, partition, headers=own + made)
        sent = wanted
        current.poll(0)
        if (now_s - changed_s) * 1_000 >= interval_ms and commit.done():
            commit.result()
            commit, changed_s = committer.submit(end, current), now_s
            current, other = other, current
        time.sleep(TURN_S)
    commit.result()
    end(current)


def end(output: Any) -> None:
    """Commit what it has, and begin its next transaction."""
    output.flush(ANSWER_S)
    output.commit_transaction(ANSWER_S)
    output.begin_transaction()


if __name__ == "__main__":
    main()
