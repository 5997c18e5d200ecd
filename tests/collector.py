"""An OpenTelemetry collector in this process: it takes spans over HTTP and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """One span, as it came over the wire."""

    name: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    seconds: tuple[float, float]
    attributes: dict[str, Any]
    error: str


@dataclass
class Collector:
    """What it was sent."""

    url: str
    spans: list[Seen] = field(default_factory=list)

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(of_process.resource)
            for scope in of_process.scope_spans:
                self.spans += [_seen(span, resource["service.name"]) for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """On a free port, until the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _seen(span: Any, process: str) -> Seen:
    seconds = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
    trace, own, parent = (one.hex() for one in (span.trace_id, span.span_id, span.parent_span_id))
    of_span = _attributes(span)
    return Seen(span.name, process, trace, own, parent, seconds, of_span, span.status.message)


def _attributes(holder: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in holder.attributes}


def _value(sent: Any) -> Any:
    value = getattr(sent, sent.WhichOneof("value"))
    return [_value(item) for item in value.values] if hasattr(value, "values") else value
