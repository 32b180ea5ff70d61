"""Traces by OpenTelemetry, on if its standard variables say where to send them (OTEL_EXPORTER_OTLP_ENDPOINT …)."""

import os
from typing import TYPE_CHECKING

from streampca.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def start_tracing() -> "Tracer | None":
    """Export the spans of this process from now on; None if no endpoint is set, or OTEL_TRACES_EXPORTER=none.

    Raises `SettingsError` if the packages are missing.
    """
    if not any(map(os.environ.get, _ENDPOINTS)) or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    try:  # an optional extra
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        raise SettingsError(f"{' or '.join(_ENDPOINTS)} is set: pip install 'streampca[otel]'") from None
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "streampca")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("streampca")
