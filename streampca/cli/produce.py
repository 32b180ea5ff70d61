"""`streampca produce`: sends the rows of a file to a topic, one message per row."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from kafka import KafkaProducer
from kafka.errors import KafkaError

from streampca.cli.console import console, progress
from streampca.errors import InputError, SourceError
from streampca.files.rows import Rows, open_rows
from streampca.files.synthetic import LowRank
from streampca.formats.base import Layout
from streampca.settings.commands import ProduceSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.schema_registry import create_writer

_ACKNOWLEDGED_WITHIN_S = 60.0
_TICK_S = 0.02


def run(
    settings: ProduceSettings,
    file: Path | None,
    rate: float | None,
    column: str | None,
    *,
    repeat: bool,
    synthetic: bool,
) -> None:
    """Send the rows of the file, or generated ones endlessly, and wait until all are acknowledged.

    Raises `InputError` or `SourceError`.
    """
    if (file is not None) == synthetic:
        raise InputError("give either a file to send or --synthetic")
    rows = open_rows(file, column=column) if file else LowRank().rows()
    rows.require(settings.dimensions or rows.dimensions, "dimensions is")
    sender = _Sender(settings)
    started = time.monotonic()
    try:
        with progress(f"to {settings.topic}", None if repeat or synthetic else 1.0) as update:
            for value, share in _paced(_values(rows, settings, repeat), rate):
                sender.send(value)
                if sender.sent % 256 == 0:
                    per_s = sender.sent / max(time.monotonic() - started, 1e-9)
                    update(completed=share, rows=sender.sent, note=f"{per_s:,.0f} per second")
            sender.flush()
            update(completed=1.0, rows=sender.sent)
    finally:
        sender.close()
    seconds = time.monotonic() - started
    console().print(
        f"sent {sender.sent:,} messages of {rows.dimensions} dimensions to {settings.topic} in {seconds:.1f} s"
    )


def _values(rows: Rows, settings: ProduceSettings, repeat: bool) -> Iterator[tuple[bytes, float]]:
    """The encoded rows, and the share of the file that was read."""
    layout = Layout.of_vector(settings.format, settings.field)
    writer = create_writer(settings, settings.format, settings.topic, layout)
    [name] = layout.fields
    for _ in itertools.count() if repeat else range(1):
        for vectors, share, _ in rows.chunks():
            for value in writer.write({name: vectors}):
                yield value, share


def _paced(values: Iterator[tuple[bytes, float]], rate: float | None) -> Iterator[tuple[bytes, float]]:
    """Delay values: the n-th comes no earlier than n/rate seconds after the first."""
    started = time.monotonic()
    for n, value in enumerate(values):
        while rate is not None and (ahead := n / rate - (time.monotonic() - started)) > 0:
            time.sleep(max(ahead, _TICK_S) if ahead < 1 else 1)
        yield value


class _Sender:
    """Sends values to the partitions in turn and raises the first failure."""

    def __init__(self, settings: ProduceSettings) -> None:
        self._connection, self._topic = Connection(settings, settings.topic), settings.topic
        self._failure: BaseException | None = None
        self.sent = 0
        self._producer = self._connection.start(KafkaProducer, acks="all", linger_ms=20)
        self._partitions = itertools.cycle(sorted(self._producer.partitions_for(self._topic)))

    def send(self, value: bytes) -> None:
        """Send one value; blocks while the client's buffer is full."""
        with self._connection.answers():
            sent = self._producer.send(self._topic, value, partition=next(self._partitions))
        sent.add_errback(self._failed)
        self.sent += 1
        self._raise_failure()

    def flush(self) -> None:
        """Wait until every message is acknowledged."""
        try:
            self._producer.flush(_ACKNOWLEDGED_WITHIN_S)
        except KafkaError:
            raise SourceError(
                f"the broker has not acknowledged every message within {_ACKNOWLEDGED_WITHIN_S:.0f} s; "
                "some may be missing from the topic"
            ) from None
        self._raise_failure()

    def close(self) -> None:
        """Close without waiting for acknowledgements."""
        self._producer.close(timeout=1)

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._connection.source_error(self._failure) from None
