"""Spans of requests and their stages for OpenTelemetry.

    POST /v1/chat/completions    |----------------------------|
      queue                       |--|
      prefill                         |------|
      decode_text                             |----------------|

A span is made once its request has ended, out of the durations that are known then: the stages
of a sequence are laid end to end, the last one at the sequence's end. Where stages overlapped,
the first of them begin earlier than they did.
"""

from __future__ import annotations

import time
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from mmserve.server.visit import Sequence, Visit

__all__ = ["Tracing", "to_collector"]

_ORDER = ("fetch", "decode", "preprocess", "queue", "encode", "prefill", "decode_text")
_FAILED_FROM = 500


def to_collector(endpoint: str) -> SpanProcessor:
    """Sends spans in batches over HTTP, by a thread of its own. Changes: that thread runs."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))


class Tracing:
    """Makes spans of visits and hands them to `processor`. Mutable: closed once."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "mmserve"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("mmserve.server")

    def tell(self, visit: Visit, headers: Headers, ended_s: float) -> None:
        """Hand in the spans of a visit that ended at `ended_s` of `time.monotonic`.

        They are a part of the trace that the request's `headers` name, if they do.
        """
        offset_s = time.time_ns() / 1e9 - time.monotonic()
        span = self._tracer.start_span(
            f"{visit.method} {visit.route}",
            context=TraceContextTextMapPropagator().extract(dict(headers)),
            kind=SpanKind.SERVER,
            start_time=_ns(visit.started_s + offset_s),
            attributes=_attributes(visit),
        )
        inside = set_span_in_context(span)
        for number, sequence in enumerate(one for c in visit.calls for one in c.sequences):
            end_s = sequence.last_s or ended_s
            for stage, start_s, stop_s in _stages(sequence, end_s, visit.started_s):
                child = self._tracer.start_span(
                    stage,
                    context=inside,
                    start_time=_ns(start_s + offset_s),
                    attributes={"mmserve.sequence": number},
                )
                child.end(_ns(stop_s + offset_s))
        if (visit.status or _FAILED_FROM) >= _FAILED_FROM:
            span.set_status(Status(StatusCode.ERROR, visit.reason()))
        span.end(_ns(ended_s + offset_s))

    def close(self) -> None:
        """Changes: what waits is sent, and nothing more is taken."""
        self._provider.shutdown()


def _stages(sequence: Sequence, end_s: float, first_s: float) -> list[tuple[str, float, float]]:
    """Name, start and end of each stage that took time, from the last to the first."""
    found = []
    for stage in reversed(_ORDER):
        spent_s = getattr(sequence.timing, stage, 0.0) / 1e3
        if spent_s:
            start_s = max(first_s, end_s - spent_s)
            found.append((stage, start_s, max(start_s, end_s)))
            end_s = start_s
    return found


def _attributes(visit: Visit) -> dict[str, Any]:
    """OpenTelemetry's names where it has some; nothing of the content."""
    found: dict[str, Any] = {
        "http.request.method": visit.method,
        "http.route": visit.route,
        "http.response.status_code": visit.status or 0,
        "mmserve.request_id": visit.shown_id,
        "mmserve.reason": visit.reason(),
    }
    if visit.calls:
        tokens = visit.tokens()
        found["gen_ai.usage.input_tokens"] = tokens["prompt"]
        found["gen_ai.usage.output_tokens"] = tokens["completion"]
        found["mmserve.cached_tokens"] = tokens["cached"]
    return found


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
