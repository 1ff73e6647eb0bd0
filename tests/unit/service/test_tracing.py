"""Spans of emissions: the engine between fakes, OpenTelemetry's own exporter in memory."""

import gc
import logging
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id
from typer.testing import CliRunner

from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.cli.app import app
from sidecar.engine.commit.settlement import Traces, is_sampled
from sidecar.model.record import Headers, Outcome
from sidecar.service.metrics import Recorder
from sidecar.service.tracing import EXPORT_MAX, Tracing, tracing_of
from sidecar.settings.settings import Settings
from tests.unit.engine_bench import SOURCE, Bench

PRODUCER: Headers = [
    ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", b"rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"),
]
UNSAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
DELAY_MS = 700
RETRY = {
    "name": "again",
    "match": {"topics": [SOURCE]},
    "retry": {"attempts": 9, "backoff": {"kind": "fixed", "delay": f"{DELAY_MS}ms"}},
    "target": {"topic": "mail", "allow": ["*"]},
}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the last spans, however busy the machine is."""
    monkeypatch.setattr("sidecar.service.tracing.STOP_S", 60.0)


class Traced:
    """A bench whose emissions become spans, which `step` exports."""

    def __init__(self, guarantee: str = "exactly_once", spans_max: int = 1_000, **options: Any) -> None:
        self.bench = Bench(trouble=options.pop("trouble", str) if guarantee == "exactly_once" else None)
        self.traces = self.bench.replica.settlement.traces = Traces(spans_max)
        self.exporter = options.pop("exporter", None) or InMemorySpanExporter()
        self.counts: list[tuple[str, int]] = []
        self.tracing = Tracing(
            self.traces,
            self.exporter,
            "group",
            Resource({}),
            lambda outcome, count: self.counts.append((outcome, count)),
        )

    def retry(self) -> None:
        """From now on the source is a retry topic."""
        policy = Policy.model_validate(RETRY)
        self.bench.tables[2] = PolicyTable(2, {"again": Versioned(policy, 2, "me", 0, "api")})
        self.bench.replica.engine.table = self.bench.tables[2]

    def emitted(self, count: int) -> Headers:
        """The headers of the last of so many emissions, which are facts when this returns."""
        bench = self.bench
        bench.wait_until(lambda: bench.replica.tally.outcomes[SOURCE, Outcome.EMITTED] == count)
        headers: Headers = bench.records("mail")[-1].headers() or []
        return headers

    def spans(self) -> list[ReadableSpan]:
        while self.tracing.step():
            pass
        assert isinstance(self.exporter, InMemorySpanExporter)
        return list(self.exporter.get_finished_spans())


def links_of(span: ReadableSpan) -> dict[str, tuple[str, str]]:
    """(trace id, span id) by what the link is to."""
    return {
        str((link.attributes or {})["tickover.link"]): (
            format_trace_id(link.context.trace_id),
            format_span_id(link.context.span_id),
        )
        for link in span.links
    }


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_five_attempts_are_five_linked_traces(guarantee: str) -> None:
    traced = Traced(guarantee)
    traced.retry()
    headers = [*PRODUCER, ("mine", b"1")]
    for count in range(1, 6):
        traced.bench.send(b"job", headers=headers)
        headers = traced.emitted(count)
        assert headers[:3] == [*PRODUCER, ("mine", b"1")], "byte for byte"
    spans = traced.spans()
    assert [(span.attributes or {})["tickover.attempt"] for span in spans] == [2, 3, 4, 5, 6]
    assert len({ids_of(span)[0] for span in spans}) == 5
    producer = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert links_of(spans[0]) == {"producer": producer}
    for before, span in pairwise(spans):
        assert links_of(span) == {"producer": producer, "previous_attempt": ids_of(before)}
    assert all(span.parent is None for span in spans)
    assert spans[0].links[0].context.trace_state.to_header() == "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"


def test_a_span_is_of_the_emission_and_not_of_the_delay() -> None:
    traced = Traced()
    sent_ms = traced.bench.clock.now_ms
    traced.bench.send(None, 5_000, PRODUCER)
    traced.emitted(1)
    [span] = traced.spans()
    assert (span.name, span.kind) == ("send mail", SpanKind.CLIENT)
    lateness_ms = (span.attributes or {})["tickover.lateness_ms"]
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.kafka.message.tombstone": True,
        "tickover.due_ms": sent_ms + 5_000,
        "tickover.lateness_ms": lateness_ms,
        "tickover.policy": "reminders@1",
        "tickover.origin": f"{SOURCE}/0/0",
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time == (sent_ms + 5_000 + int(str(lateness_ms))) * 1_000_000
    assert 0 < span.end_time - span.start_time < 500_000_000


def test_names_are_those_of_the_conventions() -> None:
    traced = Traced()
    traced.bench.send(None, 100, [*PRODUCER, ("tickover-target-partition", b"0")])
    traced.emitted(1)
    [span] = traced.spans()
    names = {name for name in span.attributes or {} if name.startswith("messaging.")}
    assert "messaging.destination.partition.id" in names
    assert names <= {value for value in vars(conventions).values() if isinstance(value, str)}
    assert (span.attributes or {})["messaging.operation.type"] == conventions.MessagingOperationTypeValues.SEND.value


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("other", b"1")],
        [("traceparent", None)],
        [("traceparent", UNSAMPLED)],
        [PRODUCER[0], ("traceparent", UNSAMPLED)],
        [("traceparent", b"01")],
        [("traceparent", b"\xff" * 55)],
        [("traceparent", b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01")],
    ],
)
def test_what_the_producer_does_not_sample_has_no_span(headers: Headers) -> None:
    traced = Traced()
    traced.bench.send(b"quiet", 100, headers)
    traced.emitted(1)
    assert traced.spans() == []


def test_of_several_contexts_the_last_counts() -> None:
    assert is_sampled([("traceparent", UNSAMPLED), PRODUCER[0]])
    assert not is_sampled([PRODUCER[0], ("traceparent", UNSAMPLED)])


def test_what_is_not_committed_has_no_span_and_what_is_aborted_has_one() -> None:
    troubles: list[str] = []
    traced = Traced(trouble=lambda: troubles.pop() if troubles else "")
    bench = traced.bench
    bench.send(b"value", 100, PRODUCER)
    bench.wait_until(lambda: bench.values("mail"))
    troubles.append("abort")
    assert traced.traces.queue.empty(), "it is not yet a fact"
    bench.wait_until(lambda: bench.lane.offsets.low == 1)
    assert bench.coordinator is not None
    assert bench.coordinator.aborted >= 1
    assert len(traced.spans()) == 1


def test_more_than_fits_is_dropped_and_counted() -> None:
    traced = Traced(spans_max=3)
    for _ in range(10):
        traced.bench.send(b"value", 100, PRODUCER)
    traced.emitted(10)
    assert len(traced.spans()) == 3
    assert sorted(traced.counts) == [("dropped", 7), ("exported", 3)]


def test_a_request_has_an_end() -> None:
    traced = Traced(spans_max=EXPORT_MAX + 1)
    for _ in range(EXPORT_MAX + 1):
        traced.bench.send(b"value", 100, PRODUCER)
    traced.emitted(EXPORT_MAX + 1)
    assert [traced.tracing.step(), traced.tracing.step(), traced.tracing.step()] == [EXPORT_MAX, 1, 0]


def test_the_queue_holds_no_payloads() -> None:
    traced = Traced()
    traced.bench.send(b"x" * 1_000, 100, PRODUCER)
    traced.emitted(1)
    emission = traced.traces.queue.get_nowait()
    assert (emission.held.key, emission.held.value) == (None, None)


class Refusing(SpanExporter):
    """Takes nothing; at first it even raises."""

    def __init__(self) -> None:
        self.calls = 0
        self.asked = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("broken")
        self.asked.set()
        return SpanExportResult.FAILURE


def test_a_collector_that_takes_nothing_is_counted_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Refusing()
    traced = Traced(exporter=exporter)
    with caplog.at_level(logging.ERROR):
        traced.tracing.start()
        while not exporter.asked.is_set():
            traced.bench.send(b"value", 100, PRODUCER)
            traced.bench.run(500)
        traced.tracing.stop()
    traced.tracing.stop()
    assert {outcome for outcome, _ in traced.counts} == {"failed"}
    assert "no spans of some emissions" in caplog.text


def test_what_waits_is_sent_at_the_end() -> None:
    traced = Traced()
    traced.tracing.start()
    traced.bench.send(b"value", 100, PRODUCER)
    traced.emitted(1)
    traced.tracing.stop()
    assert len(traced.exporter.get_finished_spans()) == 1


def test_spans_leave_no_cycles_behind() -> None:
    """While much is held nobody collects garbage."""
    traced = Traced()
    for _ in range(50):
        traced.bench.send(b"value", 100, PRODUCER)
    traced.emitted(50)
    gc.collect()
    gc.disable()
    try:
        assert len(traced.spans()) == 50
        traced.exporter.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [one for one in gc.garbage if type(one).__module__.startswith(("opentelemetry", "sidecar"))]
        assert ours == [], "others' threads may leave some, too"
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_settings_and_otels_own_variables_say_where_and_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-sidecar")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    settings = Settings.model_validate({"otel": {"enabled": True}, "instance_id": "one"})
    tracing = tracing_of(settings, Traces(1), Recorder())
    assert tracing._exporter._endpoint == "http://collector:4318/v1/traces"  # type: ignore[attr-defined]
    attributes = tracing._resource.attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("orders-sidecar", "one")
    named = Settings.model_validate({"otel": {"enabled": True, "endpoint": "http://there:1/v1/traces"}})
    assert tracing_of(named, Traces(1), Recorder())._exporter._endpoint == "http://there:1/v1/traces"  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["run", "demo"])
def test_without_the_extra_the_command_says_what_to_install(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sidecar.service.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    result = CliRunner().invoke(app, [command, "--set", "otel.enabled=true"])
    assert result.exit_code == 2
    assert "pip install 'WHEEL[otel]'" in result.stderr
