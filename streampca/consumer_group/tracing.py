"""Spans of batches, with links to the spans that have written their records."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from streampca.consumer_group.listener import BatchLearned, BatchTransformed, Listener, MemberEvent
from streampca.stream.record import Record, headers_of

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer

_MAX_LINKS = 100


class TracingListener(Listener):
    """Records a span for each batch, named and described by OpenTelemetry's conventions for messaging."""

    def __init__(self, tracer: "Tracer", topic: str, group: str) -> None:
        self._tracer, self._topic = tracer, topic
        self._attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": group,
        }

    def notify(self, event: MemberEvent) -> None:
        from opentelemetry.trace import SpanKind

        if not isinstance(event, BatchLearned | BatchTransformed) or not event.records:
            return
        end = time.time_ns()
        attributes = self._attributes | {
            "messaging.destination.partition.id": str(event.partition),
            "messaging.batch.message_count": len(event.records),
            "messaging.kafka.offset": event.records[0].offset,
        }
        span = self._tracer.start_span(
            f"process {self._topic}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=list(islice(_links(event.records), _MAX_LINKS)),
            start_time=end - int(event.seconds * 1e9),
        )
        span.end(end)


def _links(records: Sequence[Record]) -> Iterator["Link"]:
    """A link to each span that a header `traceparent` names."""
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parents = [value for headers in headers_of(records) for name, value in headers if name == "traceparent" and value]
    for parent in dict.fromkeys(parents):
        carrier = {"traceparent": parent.decode("latin-1")}
        context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
        if context.is_valid:
            yield Link(context)
