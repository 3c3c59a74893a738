"""The door to OpenTelemetry, which is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmserve.core import MissingExtra

if TYPE_CHECKING:
    from mmserve.server.watch.tracing import Tracing

__all__ = ["open_tracing"]


def open_tracing(endpoint: str) -> Tracing:
    """Spans sent to a collector over HTTP, by a thread of its own.

    Raises MissingExtra if the packages are not installed.
    """
    try:
        from mmserve.server.watch.tracing import Tracing, to_collector  # noqa: PLC0415
    except ImportError:
        message = "otlp_endpoint is set, and the packages of OpenTelemetry are not installed"
        raise MissingExtra(message, hint="pip install 'mmserve[otel]'") from None
    return Tracing(to_collector(endpoint))
