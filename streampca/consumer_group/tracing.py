"""Spans of batches, with links to the spans that have written their records."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from streampca.consumer_group.events import BatchLearned, BatchTransformed
from streampca.consumer_group.member import Change, Observer
from streampca.formats.record import Record, headers_of
from streampca.sources.events import Records, Undecoded, Vectors

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer

_MAX_LINKS = 100


class BatchSpans(Observer):
    """Records a span for each batch, named and described by OpenTelemetry's conventions for messaging."""

    def __init__(self, tracer: "Tracer", topic: str, group: str) -> None:
        self._tracer = tracer
        self._topic = topic
        self._attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": topic,
            "messaging.consumer.group.name": group,
        }
        self._open_spans: dict[tuple[int, int], Span] = {}  # by partition, and the next offset after the batch

    def trace(self, decode: Callable[[Records], Vectors | Undecoded]) -> Callable[[Records], Vectors | Undecoded]:
        """Return a function that decodes a batch like `decode`, and begins the span of the batch; `observe` ends it.

        A span needs the headers of the records. Transform keeps no records after it has projected them, so the span
        must begin when they are decoded.
        """

        def decode_and_begin_span(batch: Records) -> Vectors | Undecoded:
            """Decode a batch, and begin a span for the records that were decoded."""
            began_ns = time.time_ns()
            decoded = decode(batch)
            # `decoded.records` are the records that were decoded: all of the batch, or only the first ones.
            if isinstance(decoded, Vectors) and decoded.records:
                span = self._begin_span(batch.partition, decoded.records, began_ns)
                self._open_spans[batch.partition, decoded.next] = span  # `observe` finds the span by this key
            return decoded

        return decode_and_begin_span

    def observe(self, change: Change) -> None:
        """End the span of a batch that was learned or projected; drop the spans of its partition's earlier batches.

        An earlier batch whose span is still open was dropped and read again. A span that never ends is not recorded.
        """
        event = change.event
        if not isinstance(event, BatchLearned | BatchTransformed):
            return
        for partition, next_offset in list(self._open_spans):  # other threads add spans
            if partition != event.partition or next_offset > event.next:
                continue
            span = self._open_spans.pop((partition, next_offset))
            is_span_of_this_batch = next_offset == event.next
            if is_span_of_this_batch:
                span.end()

    def _begin_span(self, partition: int, records: Sequence[Record], began_ns: int) -> "Span":
        """Begin a span for these records of a partition, with links to at most 100 spans that have written them."""
        from opentelemetry.trace import SpanKind

        attributes = self._attributes | {
            "messaging.destination.partition.id": str(partition),
            "messaging.batch.message_count": len(records),
            "messaging.kafka.offset": records[0].offset,
        }
        links = list(islice(_read_links(records), _MAX_LINKS))
        return self._tracer.start_span(
            f"process {self._topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links, start_time=began_ns
        )


def _read_links(records: Sequence[Record]) -> Iterator["Link"]:
    """Yield a link to each span that is named in a header `traceparent` of these records."""
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parents: dict[bytes, None] = {}  # used as an ordered set
    for headers in headers_of(records):
        for name, value in headers:
            if name == "traceparent" and value:
                parents[value] = None
    for parent in parents:
        extracted = TraceContextTextMapPropagator().extract({"traceparent": parent.decode("latin-1")})
        context = get_current_span(extracted).get_span_context()
        if context.is_valid:
            yield Link(context)
