"""An OpenTelemetry collector for tests: takes spans by OTLP over HTTP and keeps them as they came."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """Listens on loopback from `start` to `stop`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector", daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def start(self) -> "Collector":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def resources(self) -> list[ResourceSpans]:
        return [resource for request in list(self.requests) for resource in request.resource_spans]

    @property
    def spans(self) -> list[Span]:
        """In the order in which they came."""
        return [span for resource in self.resources for scope in resource.scope_spans for span in scope.spans]
