"""Spans of emissions, in a thread of its own (the extra `otel`).

    engine --facts--> queue (bounded) --> this thread: spans --> OTLP over HTTP

The producer's context travels on the record untouched, so the span of an emission is a trace of its own, which links
to it: never a child that makes its parent's trace as long as the delay. By OpenTelemetry's conventions for messaging,
sending what somebody else created is `send` of kind CLIENT, because its own context is not the message's.

Trace and span ids are a hash of who the message is and which attempt this is. So the span of one attempt can link to
that of the last, which another process may have made, without anything more on the record; and an emission repeated
by `at_least_once` has the same ids again.
"""

import logging
import threading
from collections.abc import Callable
from hashlib import blake2b
from queue import Empty
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from sidecar.engine.commit.settlement import TRACEPARENT, TRACESTATE, Emission, Traces
from sidecar.model.record import Held
from sidecar.model.version import VERSION
from sidecar.service.assembly import replica_name
from sidecar.service.metrics import Recorder
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

EXPORT_MAX: Final = 512  # spans in one request
INTERVAL_S: Final = 0.5  # between requests, so that few messages a second are not a request each
STOP_S: Final = 2.0  # for the last spans: a collector that is away must not hold up the end
NS_PER_MS: Final = 1_000_000
SCOPE: Final = InstrumentationScope("tickover", VERSION, "https://opentelemetry.io/schemas/1.36.0")
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
OK: Final = Status()
FIRST_EMITTED: Final = 2  # attempt 1 was the producer's own delivery

_propagator: Final = TraceContextTextMapPropagator()

Count = Callable[[str, int], None]


class Tracing:
    """Takes emissions out of the queue, makes spans and exports them; `count` is told of spans by outcome."""

    def __init__(self, traces: Traces, exporter: SpanExporter, group: str, resource: Resource, count: Count) -> None:
        self._traces = traces
        self._exporter = exporter
        self._group = group
        self._resource = resource
        self._count = count
        self._counted = 0  # of those that were dropped
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)

    def start(self) -> None:
        """Begin; `stop` sends what is left, for at most two seconds. Twice is harmless."""
        self._thread.start()

    def stop(self) -> None:
        """See `start`."""
        self._stopping.set()
        self._thread.join(STOP_S)
        self._exporter.shutdown()

    def step(self) -> int:
        """Export what waits, at most one request; returns how many emissions were taken."""
        emissions = self._take()
        spans = [span for emission in emissions if (span := span_of(emission, self._group, self._resource))]
        if spans:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
            self._count("exported" if done else "failed", len(spans))
        dropped, self._counted = self._traces.dropped - self._counted, self._traces.dropped
        if dropped:
            self._count("dropped", dropped)
        return len(emissions)

    def _take(self) -> list[Emission]:
        taken: list[Emission] = []
        try:
            while len(taken) < EXPORT_MAX:
                taken.append(self._traces.queue.get_nowait())
        except Empty:
            pass  # that is all there is
        return taken

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(INTERVAL_S)
            try:
                while self.step():
                    pass
            except Exception as error:
                log.error("no spans of some emissions", exc_info=error)


def tracing_of(settings: Settings, traces: Traces, recorder: Recorder) -> Tracing:
    """Made from settings; what these leave open, OpenTelemetry's own OTEL_ variables say."""
    exporter = OTLPSpanExporter(endpoint=settings.otel.endpoint or None)
    ours = Resource.create(
        {"service.name": "tickover", "service.version": VERSION, "service.instance.id": replica_name(settings)}
    )
    return Tracing(traces, exporter, settings.group, ours.merge(OTELResourceDetector().detect()), recorder.spans)


def span_of(emission: Emission, group: str, resource: Resource) -> ReadableSpan | None:
    """The span from hand-over to settlement; None when the record's context is none that one could link to."""
    held = emission.held
    producer = producer_context(held)
    if not producer.is_valid:
        return None
    links = [Link(producer, {"tickover.link": "producer"})]
    if held.attempt > FIRST_EMITTED:
        last = context_of(emission, group, held.attempt - 1)
        links.append(Link(last, {"tickover.link": "previous_attempt"}))
    return ReadableSpan(
        name=f"send {held.target}",
        context=context_of(emission, group, held.attempt),
        resource=resource,
        attributes=attributes_of(emission),
        links=links,
        kind=SpanKind.CLIENT,
        status=OK,
        start_time=emission.handed_over_ms * NS_PER_MS,
        end_time=max(emission.settled_ms, emission.handed_over_ms) * NS_PER_MS,
        instrumentation_scope=SCOPE,
    )


def producer_context(held: Held) -> SpanContext:
    """The context that the record carries, not valid if it has none."""
    carrier: dict[str, list[str]] = {}
    for name, value in held.headers:
        if value is None:
            continue
        if name == TRACEPARENT:
            carrier[name] = [value.decode(errors="replace")]
        elif name == TRACESTATE:
            carrier.setdefault(name, []).append(value.decode(errors="replace"))
    return get_current_span(_propagator.extract(carrier, Context())).get_span_context()


def context_of(emission: Emission, group: str, attempt: int) -> SpanContext:
    """The context of the span of this message's emission as this attempt; 0: it has only one."""
    held = emission.held
    since_ms = held.first_failure_ms if attempt else held.due_ms
    who = b"%s\0%s\0%d\0%d" % (group.encode(), emission.origin, since_ms, attempt)
    digest = blake2b(who, digest_size=24).digest()
    trace_id, span_id = int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
    return SpanContext(trace_id, span_id, is_remote=attempt != held.attempt, trace_flags=SAMPLED)


def attributes_of(emission: Emission) -> dict[str, AttributeValue]:
    """Attributes of a span: names of the semantic conventions, and our own. Neither key nor value is among them."""
    held = emission.held
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": held.target,
        "tickover.due_ms": held.due_ms,
        "tickover.lateness_ms": emission.handed_over_ms - held.due_ms,
        "tickover.policy": held.policy,
        "tickover.origin": emission.origin.decode(errors="replace"),
    }
    if held.target_partition >= 0:
        attributes["messaging.destination.partition.id"] = str(held.target_partition)
    if emission.tombstone:
        attributes["messaging.kafka.message.tombstone"] = True
    if held.attempt:
        attributes["tickover.attempt"] = held.attempt
    return attributes
