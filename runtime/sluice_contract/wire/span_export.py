"""Sends spans to an OpenTelemetry collector, from its own thread and in batches.

OpenTelemetry is imported only if tracing is configured. Spans that the collector does not accept in
time are dropped, so that no request waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.tracing import Tracing
from sluice_contract.version import VERSION
from sluice_contract.wire.spans import Record, Span, ids_of

SERVICE_PREFIX: Final = "sluice-"
EXPORT_SECONDS: Final = 2.0
"""Time that a collector may take for a batch, and that the process waits for the collector when it
ends."""


@contextmanager
def span_recorder(
    tracing: Tracing | None, process: str, **resource: str
) -> Iterator[Record | None]:
    """Recorder of this process's spans, which sends the last ones when the context ends; None if
    tracing is not configured. `process`: router, api or engine; `resource`: further attributes of
    the process.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if tracing is None:
        yield None
        return
    exporter = _Exporter(tracing.endpoint, {"service.name": SERVICE_PREFIX + process} | resource)
    try:
        yield exporter.record
    finally:
        exporter.close()


class _Exporter:
    def __init__(self, endpoint: str, resource: dict[str, str]) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import IdGenerator
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            allowed = f"with the extra `tracing` installed ({error})"
            raise ConfigError("tracing.endpoint", endpoint, allowed) from None

        class GivenIds(IdGenerator):
            """Generator that returns the ids of the span being recorded."""

            trace_id = span_id = 0

            def generate_trace_id(self) -> int:
                return self.trace_id

            def generate_span_id(self) -> int:
                return self.span_id

        self._ids = GivenIds()
        self._provider = TracerProvider(
            ALWAYS_ON, Resource.create(dict(resource)), id_generator=self._ids
        )
        url = f"{endpoint.rstrip('/')}/v1/traces"
        sender = OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(sender))
        self._tracer = self._provider.get_tracer("sluice", VERSION)
        self._unix_offset_seconds = time.time() - time.monotonic()
        self._lock = threading.Lock()

    def record(self, span: Span) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

        trace_id, span_id = ids_of(span.traceparent)
        context = Context()
        if span.parent is not None:
            _, parent_id = ids_of(span.parent)
            flags = TraceFlags(TraceFlags.SAMPLED)
            parent = SpanContext(trace_id, parent_id, is_remote=True, trace_flags=flags)
            context = trace.set_span_in_context(NonRecordingSpan(parent), context)
        with self._lock:
            self._ids.trace_id, self._ids.span_id = trace_id, span_id
            begun = self._tracer.start_span(
                span.name,
                context,
                SpanKind[span.kind.upper()],
                span.attributes,
                start_time=self._nanoseconds(span.start_seconds),
            )
        if span.error is not None:
            begun.set_status(trace.StatusCode.ERROR, span.error)
        begun.end(self._nanoseconds(span.end_seconds))

    def close(self) -> None:
        """Sends the remaining spans, for at most `EXPORT_SECONDS`."""
        ending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        ending.start()
        ending.join(EXPORT_SECONDS)

    def _nanoseconds(self, seconds: float) -> int:
        return int((seconds + self._unix_offset_seconds) * 1e9)
