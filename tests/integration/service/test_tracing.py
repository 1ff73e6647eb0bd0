"""Spans end to end: a sidecar on the reference broker, a consumer that fails five times, a collector."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.services.collector import Collector
from tests.services.fixtures import own_broker
from tests.services.kafka import Headers, Kafka
from tests.services.kafka_servers import ReferenceServer
from tests.services.site import Site, headers_of
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: again
match: {topics: ["~jobs-retry"]}
retry: {attempts: 9, backoff: {kind: fixed, delay: 200ms}}
"""
# Not a list that anybody would write: what is not understood must come out as it went in.
TRACE: Headers = [
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", b"a=1 ,, b=2"),
    ("tracestate", b"c=3"),
]
UNSAMPLED: Headers = [("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector().start()
    yield collector
    collector.stop()


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    with own_broker(ReferenceServer(tmp_path)) as server:
        site = Site(Kafka(server), redis_url, tmp_path)
        yield site
        site.close()


def test_five_attempts_are_five_linked_traces(site: Site, collector: Collector) -> None:
    source, target = site.topic("jobs-retry"), site.target("jobs")
    site.policies(POLICIES)
    sidecar = site.sidecar(OTEL__ENABLED="true", OTEL__ENDPOINT=collector.endpoint).start()
    headers: Headers = TRACE
    for count in range(1, 6):
        site.send(source, headers)
        record: Message = site.kafka.read(target, count)[-1]
        headers = headers_of(record)
        assert headers[: len(TRACE)] == list(TRACE), "byte for byte"
    site.send(source, UNSAMPLED)
    site.kafka.read(target, 6)
    wait_until(lambda: len(collector.spans) >= 5)  # the end doesn't wait long for them
    assert sidecar.stop() == 0, sidecar.last_words()
    spans = sorted(collector.spans, key=lambda span: span.start_time_unix_nano)
    assert len(spans) == 5, "the sixth was not sampled"
    assert len({span.trace_id for span in spans}) == 5
    assert all(span.links[0].span_id == bytes.fromhex("00f067aa0ba902b7") for span in spans)
    assert [span.links[1].span_id for span in spans[1:]] == [span.span_id for span in spans[:-1]]
    assert [span.links[1].trace_id for span in spans[1:]] == [span.trace_id for span in spans[:-1]]
    [name] = {span.name for span in spans}
    assert name == f"send {target}"
