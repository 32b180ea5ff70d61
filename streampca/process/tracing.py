"""Traces by OpenTelemetry, on if its standard variables say where to send them (OTEL_EXPORTER_OTLP_ENDPOINT …)."""

import os
from typing import TYPE_CHECKING

from streampca.errors import naming_the_extra

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def start_tracing() -> "Tracer | None":
    """Export the spans of this process from now on; None if no endpoint is set, or OTEL_TRACES_EXPORTER=none.

    Raises `SettingsError` if the packages are missing.
    """
    if not any(map(os.environ.get, _ENDPOINTS)) or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    with naming_the_extra(f"an environment with {' or '.join(_ENDPOINTS)}", "otel"):
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "streampca")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("streampca")
